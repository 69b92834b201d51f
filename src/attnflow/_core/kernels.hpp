// The inner loops, over rows padded with zeros to a multiple of 8. Compiled once per instruction set (kernels_*.cpp)
// and chosen at run time; sums run in eight fixed lanes, so every instruction set gives the same bits.
#pragma once

namespace attnflow {

constexpr int kLanes = 8;
inline int padded(int n) { return (n + kLanes - 1) / kLanes * kLanes; }

struct Kernels {
    const char* name;
    // Moves min(s, d) from both, element by element from the left, until `limit` is reached; returns what was moved.
    double (*take)(double* s, double* d, int n, double limit);
    // The same through a third vector of budgets.
    double (*take_via)(double* s, double* d, double* b, int n, double limit);
    // The largest element (0 for none: all our vectors are non-negative).
    double (*largest)(const double* a, int n);
    // The first j >= from with r[j] > eps and label[j] == want, or n.
    int (*find)(const double* r, const double* label, double want, double eps, int from, int n);
    // sum_j min(a[j], b[j])
    double (*sum_min)(const double* a, const double* b, int n);
    // sum of a[j] over the j with label[j] >= 0
    double (*sum_labelled)(const double* a, const double* label, int n);
};

const Kernels& kernels();

}  // namespace attnflow
