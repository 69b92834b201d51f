#include "kernels.hpp"

namespace attnflow {

namespace portable { extern const Kernels table; }
#ifdef ATTNFLOW_X86_KERNELS
namespace avx2 { extern const Kernels table; }
namespace avx512 { extern const Kernels table; }
#endif

static const Kernels& choose() {
#ifdef ATTNFLOW_X86_KERNELS
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return avx512::table;
    if (__builtin_cpu_supports("avx2")) return avx2::table;
#endif
    return portable::table;
}

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

}  // namespace attnflow
