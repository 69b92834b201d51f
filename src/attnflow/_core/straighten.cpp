#include "straighten.hpp"

#include <algorithm>
#include <numeric>

namespace attnflow {

namespace {

double widest_edge(const Graph& graph, int k, int i) {
    return kernels().largest(graph.cap.row(k, i), padded(graph.width[k - 1]));
}

// Gives every node of level k the name of the node below that its widest edge leads to. The nodes with the widest edges
// choose first; later ones choose among the names left.
std::vector<int> choose_names(const Graph& graph, int k, const std::vector<int>& names_below) {
    const int n = graph.width[k];
    std::vector<double> widest(n);
    for (int i = 0; i < n; ++i) widest[i] = widest_edge(graph, k, i);
    std::vector<int> order(n), names(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return widest[a] > widest[b]; });
    std::vector<int> left = order;  // the nodes below whose names are left, in any order
    for (const int i : order) {
        const double* row = graph.cap.row(k, i);
        const auto choice = std::max_element(left.begin(), left.end(), [&](int a, int b) { return row[a] < row[b]; });
        names[i] = names_below[*choice];
        *choice = left.back();
        left.pop_back();
    }
    return names;
}

}  // namespace

bool has_narrow_columns(const Graph& graph) {
    if (!graph.square || !graph.finite || graph.widest == 0 || graph.depth < 3) return false;
    const int n = graph.width[0];
    double staying = 0, widest = 0;
    std::ptrdiff_t zeros = 0, edges = 0;
    for (int k = 2; k < graph.depth; ++k)
        for (int i = 0; i < n; ++i) {
            const double* row = graph.cap.row(k, i);
            if (!graph.full) zeros += std::count(row, row + n, 0.0);
            edges += n;
            staying += graph.diagonal[k][i] / graph.widest;  // in units of the widest, so that no sum overflows
            widest += widest_edge(graph, k, i) / graph.widest;
        }
    return zeros < edges / 4 && staying < widest / 2;
}

Straightened straighten(const Graph& graph) {
    const int n = graph.width[0];
    std::vector<std::vector<int>> name(1, std::vector<int>(n));
    std::iota(name[0].begin(), name[0].end(), 0);
    std::vector<std::vector<double>> layers;
    std::vector<const double*> matrices;
    for (int k = 1; k <= graph.depth; ++k) {
        name.push_back(choose_names(graph, k, name[k - 1]));
        layers.emplace_back(static_cast<std::size_t>(n) * n);
        for (int i = 0; i < n; ++i)
            for (int j = 0; j < n; ++j)
                layers.back()[static_cast<std::size_t>(name[k][i]) * n + name[k - 1][j]] = graph.cap.row(k, i)[j];
        matrices.push_back(layers.back().data());
    }
    return {Graph(matrices, graph.width), std::move(name)};
}

}  // namespace attnflow
