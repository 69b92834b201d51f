// Included by kernels_*.cpp, inside a namespace of its own. No standard-library templates in here: the linker may keep
// any one copy of an inline function, and a copy compiled for AVX-512 must not end up in the portable code.
namespace {

double lanes_sum(const double* l) {
    return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7]));
}

inline double smaller(double a, double b) { return a < b ? a : b; }

double take(double* __restrict s, double* __restrict d, int n, double limit) {
    constexpr int kBlock = 32;
    double moved = 0;
    for (int b = 0; b < n; b += kBlock) {
        const int e = b + kBlock < n ? b + kBlock : n;
        double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int j = b; j < e; j += 8)
            for (int u = 0; u < 8; ++u) lane[u] += smaller(s[j + u], d[j + u]);
        const double sum = lanes_sum(lane);
        if (sum == 0) continue;
        if (moved + sum <= limit) {
            for (int j = b; j < e; ++j) {
                const double y = smaller(s[j], d[j]);
                s[j] -= y;
                d[j] -= y;
            }
            moved += sum;
        } else {
            for (int j = b; j < e; ++j) {
                const double y = smaller(smaller(s[j], d[j]), limit - moved);
                s[j] -= y;
                d[j] -= y;
                moved += y;
                if (moved >= limit) return limit;
            }
        }
    }
    return moved;
}

double take_via(double* __restrict s, double* __restrict d, double* __restrict via, int n, double limit) {
    constexpr int kBlock = 32;
    double moved = 0;
    for (int b = 0; b < n; b += kBlock) {
        const int e = b + kBlock < n ? b + kBlock : n;
        double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int j = b; j < e; j += 8)
            for (int u = 0; u < 8; ++u) lane[u] += smaller(smaller(s[j + u], d[j + u]), via[j + u]);
        const double sum = lanes_sum(lane);
        if (sum == 0) continue;
        if (moved + sum <= limit) {
            for (int j = b; j < e; ++j) {
                const double y = smaller(smaller(s[j], d[j]), via[j]);
                s[j] -= y;
                d[j] -= y;
                via[j] -= y;
            }
            moved += sum;
        } else {
            for (int j = b; j < e; ++j) {
                const double y = smaller(smaller(smaller(s[j], d[j]), via[j]), limit - moved);
                s[j] -= y;
                d[j] -= y;
                via[j] -= y;
                moved += y;
                if (moved >= limit) return limit;
            }
        }
    }
    return moved;
}

double largest(const double* a, int n) {
    double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int j = 0; j < n; j += 8)
        for (int u = 0; u < 8; ++u) lane[u] = lane[u] > a[j + u] ? lane[u] : a[j + u];
    double m = lane[0];
    for (int u = 1; u < 8; ++u) m = m > lane[u] ? m : lane[u];
    return m;
}

double sum_min(const double* a, const double* b, int n) {
    double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int j = 0; j < n; j += 8)
        for (int u = 0; u < 8; ++u) lane[u] += smaller(a[j + u], b[j + u]);
    return lanes_sum(lane);
}

void cap(double* a, double most, int n) {
    for (int j = 0; j < n; ++j) a[j] = smaller(a[j], most);
}

void copy_where(double* __restrict to, const double* __restrict from, const std::uint64_t* set, int n) {
    for (int j = 0; j < n; j += 8) {
        const std::uint64_t bits = set[j >> 6] >> (j & 63);
        for (int u = 0; u < 8; ++u) to[j + u] = bits >> u & 1 ? from[j + u] : 0.0;
    }
}

double sum_where(const double* a, const std::uint64_t* set, int n) {
    double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int j = 0; j < n; j += 8) {
        const std::uint64_t bits = set[j >> 6] >> (j & 63);
        for (int u = 0; u < 8; ++u) lane[u] += bits >> u & 1 ? a[j + u] : 0.0;
    }
    return lanes_sum(lane);
}

}  // namespace
