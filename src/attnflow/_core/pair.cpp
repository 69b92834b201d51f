#include "pair.hpp"

namespace attnflow {

void Pair::look(int layer, int query, int token, bool upside_down, double upper_bound) {
    depth = layer;
    flipped = upside_down;
    source = flipped ? token : query;
    sink = flipped ? query : token;
    bound = upper_bound;
    negligible = bound * 1e-15;
    const Matrices& rows = flipped ? graph_.cap_t : graph_.cap;
    const Matrices& cols = flipped ? graph_.cap : graph_.cap_t;
    const BitMatrices& open = flipped ? graph_.open_t : graph_.open;
    for (int k = 1; k <= depth; ++k) {
        const int of = layer_of_graph(k);
        layers_[k] = Layer{rows.at(of), cols.at(of), open.at(of), rows.stride(of), cols.stride(of)};
    }
}

}  // namespace attnflow
