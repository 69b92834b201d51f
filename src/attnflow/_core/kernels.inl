// Included by kernels_*.cpp, each in its own namespace. Do not use standard-library templates here: the linker may keep
// any one copy of an inline function, and a copy compiled for AVX-512 must not end up in the portable code.
namespace {

double lanes_sum(const double* l) { return ((l[0] + l[4]) + (l[2] + l[6])) + ((l[1] + l[5]) + (l[3] + l[7])); }

inline double smaller(double a, double b) { return a < b ? a : b; }

// Both `take` loops. What fits under the limit is moved 32 elements at a time.
template <bool kBudgets>
inline double move_up_to(double* __restrict s, double* __restrict d, double* __restrict budget, int n, double limit) {
    const auto amount = [&](int j) {
        const double y = smaller(s[j], d[j]);
        return kBudgets ? smaller(y, budget[j]) : y;
    };
    const auto move = [&](int j, double y) {
        s[j] -= y;
        d[j] -= y;
        if (kBudgets) budget[j] -= y;
    };
    double moved = 0;
    for (int b = 0; b < n; b += 32) {
        const int end = b + 32 < n ? b + 32 : n;
        double lane[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int j = b; j < end; j += 8)
            for (int u = 0; u < 8; ++u) lane[u] += amount(j + u);
        const double sum = lanes_sum(lane);
        if (sum == 0) continue;
        if (moved + sum <= limit) {
            for (int j = b; j < end; ++j) move(j, amount(j));
            moved += sum;
            continue;
        }
        for (int j = b; j < end; ++j) {
            const double y = smaller(amount(j), limit - moved);
            move(j, y);
            moved += y;
            if (moved >= limit) return limit;
        }
    }
    return moved;
}

double take(double* s, double* d, int n, double limit) { return move_up_to<false>(s, d, nullptr, n, limit); }

double take_via(double* s, double* d, double* budget, int n, double limit) {
    return move_up_to<true>(s, d, budget, n, limit);
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

// Eight comparisons as eight bits; compilers do not generate these instructions on their own.
inline std::uint64_t eight_above(const double* a, double least) {
#if defined(__AVX512F__)
    return _mm512_cmp_pd_mask(_mm512_loadu_pd(a), _mm512_set1_pd(least), _CMP_GT_OQ);
#elif defined(__AVX2__)
    const __m256d bound = _mm256_set1_pd(least);
    const int low = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(a), bound, _CMP_GT_OQ));
    const int high = _mm256_movemask_pd(_mm256_cmp_pd(_mm256_loadu_pd(a + 4), bound, _CMP_GT_OQ));
    return static_cast<std::uint64_t>(low | high << 4);
#else
    std::uint64_t bits = 0;
    for (int u = 0; u < 8; ++u) bits |= static_cast<std::uint64_t>(a[u] > least) << u;
    return bits;
#endif
}

void above(const double* a, double least, int n, std::uint64_t* set) {
    for (int w = 0; 64 * w < n; ++w) {
        std::uint64_t bits = 0;
        for (int j = 64 * w; j < n && j < 64 * w + 64; j += 8) bits |= eight_above(a + j, least) << (j & 63);
        set[w] = bits;
    }
}

}  // namespace
