#include "kernels.hpp"

namespace attnflow::avx2 {
#include "kernels.inl"
extern const Kernels table;
const Kernels table{"avx2", take, take_via, largest, find, sum_min, sum_labelled};
}  // namespace attnflow::avx2
