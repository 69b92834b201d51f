// Many pairs on several threads.
#pragma once

#include <functional>
#include <vector>

#include "solver.hpp"

namespace attnflow {

// out[a][b][c] = maximum flow from (layers[a], queries[b]) to (0, tokens[c]). Every pair is solved on its own, so the
// result does not depend on the number of threads. `interrupted` is polled on the calling thread; if it returns true,
// everything stops and false is returned.
bool many_flows(const Graph& graph, const std::vector<int>& layers, const std::vector<int>& queries,
                const std::vector<int>& tokens, int threads, double* out, Counters& counters,
                const std::function<bool()>& interrupted);

}  // namespace attnflow
