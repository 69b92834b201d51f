// The reference solver: Dinic's algorithm on the layered graph, one pair at a time, keeping the flow on every edge. It
// is slower than solver.hpp and has no tolerances: an edge is saturated if its flow equals its capacity to the last
// bit.
#pragma once

#include <functional>
#include <vector>

#include "graph.hpp"

namespace attnflow {

struct Certificate {
    double value = 0;                          // the flow
    double cut = 0;                            // capacity of the cut below
    std::vector<std::vector<char>> sink_side;  // [level][node]: 1 on the sink's side
    bool stopped = false;                      // `stop` returned true: nothing above is valid
};

// Maximum flow from (layer, query) to (0, token); `flow` has the shape of graph.cap and receives the flow on the edges.
// `stop` is polled. A finite flow that no double can hold throws std::overflow_error.
Certificate exact_flow(const Graph& graph, int layer, int query, int token, Matrices& flow,
                       const std::function<bool()>& stop);

}  // namespace attnflow
