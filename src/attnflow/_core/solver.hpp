// Maximum flow for many pairs of one graph.
//
// A pair (query, token) needs a maximum flow in a layered graph with up to a million edges; looking at each edge once
// would already be too slow. Most pairs are limited next to the query (by what leaves its column of positions) or next
// to the token (by what enters its column), so the narrower of the two cuts there is the first bound (bounds.hpp). A
// flow that fills it is proven, and the pair is done. There are three steps, each only for the pairs that the one
// before could not finish:
//   1. columns.hpp  vector operations along the columns, query -> j -> token through every pair of layers at once;
//   2. hops.hpp     one more hop, from columns with supply left to columns with demand left;
//   3. search.hpp   Dinic's algorithm in the residual network (network.hpp), which ends with a cut.
// All of them see the pair through one view (pair.hpp). Graphs whose levels have different widths have no columns: they
// begin with step 3. Graphs whose columns are narrow, because no residual connection widens them, are renamed first
// (straighten.hpp).
//
// In any case the flow is compared with the capacity of the cut. If they differ by more than 1e-12, relative, the plain
// reference solver (exact.hpp) solves the pair again. Between pairs every array is back in its initial state, so no
// pair depends on another; builds with assertions check this after every pair.
#pragma once

#include <atomic>
#include <cstdint>

#include "bounds.hpp"
#include "hops.hpp"
#include "search.hpp"

namespace attnflow {

// Which step each attempt at a pair ended with; pairs of the first two layers have a closed form and need none. A pair
// is tried again if its bound was too coarse, and goes to the reference solver if its proof is not tight.
struct Counters {
    std::uint64_t pairs = 0, by_columns = 0, by_hops = 0, by_search = 0, by_reference = 0, phases = 0;
    Counters& operator+=(const Counters& o) {
        pairs += o.pairs;
        by_columns += o.by_columns;
        by_hops += o.by_hops;
        by_search += o.by_search;
        by_reference += o.by_reference;
        phases += o.phases;
        return *this;
    }
};

class Solver {
public:
    explicit Solver(const Graph& graph);
    // The maximum flow from (layer, query) to (0, token): the capacity of a cut that the flow fills to within 1e-12,
    // relative. layer >= 1.
    double solve(int layer, int query, int token, const std::atomic<bool>& cancelled);
    Counters counters;

private:
    struct Flow {
        double value;  // the flow
        double cut;    // the capacity of a cut
        bool proven() const;
    };
    Flow attempt(const std::atomic<bool>& cancelled);
    Flow narrow(int layer, int query, int token, const std::atomic<bool>& cancelled);

    const Graph& graph_;
    Reach reach_;
    Bounds bounds_;
    Pair pair_;
    Residual residual_;
    Columns columns_;
    Hops hops_;
    Network network_;
    Search search_;
    Matrices reference_flow_;  // only for graphs or pairs that need the reference solver
};

}  // namespace attnflow
