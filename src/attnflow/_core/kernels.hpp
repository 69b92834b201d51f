// The inner loops, over rows padded with zeros to a multiple of 8. Compiled once per instruction set (kernels_*.cpp)
// and chosen at run time; sums run in eight fixed lanes, so every instruction set gives the same bits.
#pragma once

#include <cstdint>

namespace attnflow {

constexpr int kLanes = 8;
inline int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct Kernels {
    const char* name;
    // Moves min(s, d) from both, element by element from the left, until `limit` is reached; returns the amount moved.
    double (*take)(double* s, double* d, int n, double limit);
    // The same through a third vector of budgets.
    double (*take_via)(double* s, double* d, double* b, int n, double limit);
    // The largest element (0 if there is none: all our vectors are non-negative).
    double (*largest)(const double* a, int n);
    // sum_j min(a[j], b[j])
    double (*sum_min)(const double* a, const double* b, int n);
    // a[j] = min(a[j], most)
    void (*cap)(double* a, double most, int n);
    // to[j] = from[j] for the j in the set, 0 for the others
    void (*copy_where)(double* to, const double* from, const std::uint64_t* set, int n);
    // sum of a[j] over the j in the set
    double (*sum_where)(const double* a, const std::uint64_t* set, int n);
    // The set of the j with a[j] > least; writes all words of the set.
    void (*above)(const double* a, double least, int n, std::uint64_t* set);
};

const Kernels& kernels();

}  // namespace attnflow
