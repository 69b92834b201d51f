#include "kernels.hpp"

namespace attnflow::portable {
#include "kernels.inl"
extern const Kernels table;
const Kernels table{"portable", take, take_via, largest, find, sum_min, sum_labelled};
}  // namespace attnflow::portable
