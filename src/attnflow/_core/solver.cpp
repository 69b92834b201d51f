#include "solver.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "exact.hpp"

namespace attnflow {

Solver::Solver(const Graph& graph)
    : graph_(graph),
      reach_(graph),
      bounds_(graph, reach_),
      pair_(graph, reach_),
      residual_(graph, pair_),
      columns_(graph, pair_),
      hops_(graph, pair_, columns_, residual_),
      network_(graph, pair_, columns_, residual_),
      search_(graph, pair_, network_) {}

double Solver::solve(int layer, int query, int token, const std::atomic<bool>& cancelled) {
    ++counters.pairs;
    if (layer == 1) return graph_.cap.row(1, query)[token];
    if (layer == 2) {
        const double sum =
            kernels().sum_min(graph_.cap.row(2, query), graph_.cap_t.row(1, token), padded(graph_.width[1]));
        if (std::isfinite(sum)) return sum;
    } else if (graph_.finite) {
        if (!graph_.full && !reach_.find(layer, query, token)) return 0;
        const Flow flow = narrow(layer, query, token, cancelled);
        if (cancelled || flow.proven()) return flow.cut;
    }
    ++counters.by_reference;
    if (reference_flow_.empty()) reference_flow_ = graph_.cap;
    return exact_flow(graph_, layer, query, token, reference_flow_, [&] { return cancelled.load(); }).cut;
}

bool Solver::Flow::proven() const { return std::isfinite(cut) && std::abs(cut - value) <= 1e-12 * cut; }

// Any cut bounds the flow. If the cut found is far below the bound in use, residuals were too coarse: solve again with
// that cut as the bound.
Solver::Flow Solver::narrow(int layer, int query, int token, const std::atomic<bool>& cancelled) {
    const double above = bounds_.around_query(layer, query, token), below = bounds_.around_token(layer, query, token);
    Flow flow{0, std::min(above, below)};
    if (flow.cut == 0) return flow;
    for (double bound = flow.cut; std::isfinite(bound) && !cancelled; bound = flow.cut) {
        pair_.look(layer, query, token, below < above, bound);
        flow = attempt(cancelled);
        assert(residual_.is_restored() && network_.is_restored());
        if (flow.cut * 16 >= bound || flow.cut <= 0) break;
    }
    return flow;
}

Solver::Flow Solver::attempt(const std::atomic<bool>& cancelled) {
    if (pair_.square() && columns_.run()) {
        ++counters.by_columns;
        return {columns_.value(), pair_.bound};
    }
    if (pair_.square() && hops_.run()) {
        ++counters.by_hops;
        residual_.restore();
        return {columns_.value(), pair_.bound};
    }
    ++counters.by_search;
    const Search::Result search = search_.run(cancelled);
    counters.phases += search.phases;
    return {(pair_.square() ? columns_.value() : 0) + search.sent, search.cut};
}

}  // namespace attnflow
