#include "kernels.hpp"

namespace attnflow::avx512 {
#include "kernels.inl"
extern const Kernels table;
const Kernels table{"avx512", take, take_via, largest, find, sum_min, sum_labelled};
}  // namespace attnflow::avx512
