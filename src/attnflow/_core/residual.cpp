#include "residual.hpp"

#include <algorithm>

namespace attnflow {

namespace {

// All usable edges of the first layer enter the sink, and those of the last leave the source: step 3 keeps them in two
// separate vectors.
Matrices inner_layers(const Matrices& of, int depth) {
    std::vector<int> rows(depth, 0), cols(depth);
    for (int k = 1; k <= depth; ++k) {
        if (1 < k && k < depth) rows[k - 1] = of.rows(k);
        cols[k - 1] = of.cols(k);
    }
    Matrices inner(rows, cols);
    for (int k = 2; k < depth; ++k) std::copy_n(of.at(k), inner.size(k), inner.at(k));
    return inner;
}

}  // namespace

Residual::Residual(const Graph& graph, const Pair& pair) : graph_(graph), pair_(pair) {
    if (graph.depth < 3) return;
    upright_ = inner_layers(graph.cap, graph.depth);
    flipped_ = inner_layers(graph.cap_t, graph.depth);
}

void Residual::restore() {
    for (auto change = changes_.rbegin(); change != changes_.rend(); ++change) *change->left = change->before;
    changes_.clear();
}

bool Residual::is_restored() const {
    const auto equal = [&](const Matrices& residual, const Matrices& capacity) {
        for (int k = 2; k < graph_.depth; ++k)
            if (!std::equal(residual.at(k), residual.at(k) + residual.size(k), capacity.at(k))) return false;
        return true;
    };
    return changes_.empty() && equal(upright_, graph_.cap) && equal(flipped_, graph_.cap_t);
}

}  // namespace attnflow
