#include <immintrin.h>

#include "kernels.hpp"

namespace attnflow::avx2 {
#include "kernels.inl"
extern const Kernels table;
const Kernels table{"avx2", take, take_via, largest, sum_min, cap, copy_where, sum_where, above};
}  // namespace attnflow::avx2
