#include <cstdlib>
#include <cstring>

#include "kernels.hpp"

namespace attnflow {

namespace portable {
extern const Kernels table;
}
#ifdef ATTNFLOW_X86_KERNELS
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

// The best instruction set of this machine, or a lesser one named by ATTNFLOW_KERNELS (the tests compare the results).
static const Kernels& choose() {
    const char* named = std::getenv("ATTNFLOW_KERNELS");
    const auto allowed = [&](const Kernels& table) { return !named || std::strcmp(named, table.name) == 0; };
#ifdef ATTNFLOW_X86_KERNELS
    __builtin_cpu_init();
    if (allowed(avx512::table) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return avx512::table;
    if (allowed(avx2::table) && __builtin_cpu_supports("avx2")) return avx2::table;
#endif
    (void)allowed;
    return portable::table;
}

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

}  // namespace attnflow
