// Upper bounds of a flow: the narrowest cuts around the query's column and around the token's.
#pragma once

#include <vector>

#include "graph.hpp"
#include "reach.hpp"

namespace attnflow {

class Bounds {
public:
    // In a graph with zeros, `reach` must have been called for the pair first.
    Bounds(const Graph& graph, const Reach& reach);
    // The least cut with (layer, query) ... (m, query) on one side and the rest on the other, over all m.
    double around_query(int layer, int query, int token);
    // The same for the token's column.
    double around_token(int layer, int query, int token);

private:
    // What a node sends (or receives) outside its own column, and within it, through nodes on a path.
    struct Share {
        double beside, own;
    };
    // `level` is where the node's edges lead; `beside` is what it sends outside its column if no capacity is zero.
    Share share(const double* edges, int level, int node, double beside);

    const Graph& graph_;
    const Reach& reach_;
    const Kernels& kernels_;
    std::vector<Word> ends_;
};

}  // namespace attnflow
