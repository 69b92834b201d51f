// The core for browsers: `make wasm` compiles it to WebAssembly for docs/try.md. It is not part of the wheel.
#include <vector>

#include "many.hpp"

using namespace attnflow;

// Write the flow from one query after layer `depth` to each input token. `capacities` has shape [depth, width, width],
// and none of them is negative.
extern "C" __attribute__((used)) void flow_row(const double* capacities, int depth, int width, int query, double* out) {
    std::vector<const double*> matrices;
    for (int k = 0; k < depth; ++k) matrices.push_back(capacities + static_cast<std::size_t>(k) * width * width);
    std::vector<int> tokens;
    for (int i = 0; i < width; ++i) tokens.push_back(i);
    const Graph graph(matrices, std::vector<int>(depth + 1, width));
    Counters counters;
    many_flows(graph, {depth}, {query}, tokens, 1, out, counters, [] { return false; });
}
