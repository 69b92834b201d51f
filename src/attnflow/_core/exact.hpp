// The reference: Dinic's algorithm on the layered graph, one pair at a time, with the flow itself kept on every edge.
// Slower than solver.hpp and free of tolerances: an edge is saturated when its flow equals its capacity to the last
// bit.
#pragma once

#include <functional>
#include <vector>

#include "graph.hpp"

namespace attnflow {

struct Certificate {
    double value = 0;                          // what the flow carries
    double cut = 0;                            // capacity of the cut below
    std::vector<std::vector<char>> sink_side;  // [level][node]: 1 on the sink's side
    bool stopped = false;                      // `stop` said so: nothing above is valid
};

// Maximum flow from (layer, query) to (0, token); `flow` has the shape of graph.cap and receives the flow on the edges.
// `stop` is asked now and then. A finite flow that no double can hold is a std::overflow_error.
Certificate exact_flow(const Graph& graph, int layer, int query, int token, Matrices& flow,
                       const std::function<bool()>& stop);

}  // namespace attnflow
