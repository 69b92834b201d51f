#include <immintrin.h>

#include "kernels.hpp"

namespace attnflow::avx512 {
#include "kernels.inl"
extern const Kernels table;
const Kernels table{"avx512", take, take_via, largest, sum_min, cap, copy_where, sum_where, above};
}  // namespace attnflow::avx512
