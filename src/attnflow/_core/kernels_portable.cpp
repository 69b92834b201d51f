#include "kernels.hpp"

namespace attnflow::portable {
#include "kernels.inl"
extern const Kernels table;
const Kernels table{"portable", take, take_via, largest, sum_min, cap, copy_where, sum_where, above};
}  // namespace attnflow::portable
