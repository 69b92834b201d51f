// Columns for graphs that have none of their own. Steps 1 and 2 live on wide edges that stay in their column, as a
// residual connection gives them. Where there is none, the nodes of every level can be named anew so that wide edges
// do: a flow does not depend on what its nodes are called.
#pragma once

#include <vector>

#include "graph.hpp"

namespace attnflow {

struct Straightened {
    Graph graph;
    std::vector<std::vector<int>> name;  // name[level][node]: what the node is called in `graph`; at level 0 as before
};

// Whether the edges that stay in their column are narrow beside the widest ones. Graphs where a quarter of the
// capacities are zero are left as they are: causal ones become slower (docs/speed.md).
bool has_narrow_columns(const Graph& graph);

Straightened straighten(const Graph& graph);

}  // namespace attnflow
