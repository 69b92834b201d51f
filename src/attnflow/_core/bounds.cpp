#include "bounds.hpp"

#include <algorithm>
#include <limits>

namespace attnflow {

namespace {
constexpr double kUnlimited = std::numeric_limits<double>::max();
}

Bounds::Bounds(const Graph& graph, const Reach& reach)
    : graph_(graph),
      reach_(reach),
      kernels_(kernels()),
      ends_(words_for(*std::max_element(graph.width.begin(), graph.width.end()))) {}

Bounds::Share Bounds::share(const double* edges, int level, int node, double beside) {
    if (graph_.full) return {beside, edges[node]};
    const int n = graph_.width[level];
    std::copy_n(reach_.on_paths(level), words_for(n), ends_.data());
    const bool own = node < n && has(ends_.data(), node);
    if (own) drop(ends_.data(), node);
    return {kernels_.sum_where(edges, ends_.data(), padded(n)), own ? edges[node] : 0};
}

double Bounds::around_query(int layer, int query, int token) {
    if (graph_.full && !graph_.square) return graph_.out[layer][query];
    double least = kUnlimited, aside = 0;
    for (int m = layer; m >= 2; --m) {
        const Share at = share(graph_.cap.row(m, query), m - 1, query, graph_.aside_out[m][query]);
        least = std::min(least, aside + (at.beside + at.own));
        aside += at.beside;
        if (at.own == 0) return std::min(least, aside);
        if (!graph_.square) return least;
    }
    return std::min(least, aside + graph_.cap.row(1, query)[token]);
}

double Bounds::around_token(int layer, int query, int token) {
    if (graph_.full && !graph_.square) return graph_.in[0][token];
    double least = kUnlimited, aside = 0;
    for (int m = 1; m < layer; ++m) {
        const Share at = share(graph_.cap_t.row(m, token), m, token, graph_.aside_in[m - 1][token]);
        least = std::min(least, aside + (at.beside + at.own));
        aside += at.beside;
        if (at.own == 0) return std::min(least, aside);
        if (!graph_.square) return least;
    }
    return std::min(least, aside + graph_.cap.row(layer, query)[token]);
}

}  // namespace attnflow
