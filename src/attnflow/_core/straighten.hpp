// Columns for graphs without a residual connection. Steps 1 and 2 rely on wide edges that stay in their column, which a
// residual connection provides. Without one, the nodes of every level can be renamed so that wide edges stay in their
// column: a flow does not depend on the names of its nodes.
#pragma once

#include <vector>

#include "graph.hpp"

namespace attnflow {

struct Straightened {
    Graph graph;
    std::vector<std::vector<int>> name;  // name[level][node]: the name of the node in `graph`; unchanged at level 0
};

// Whether the edges that stay in their column are narrow compared with the widest ones. Graphs with a quarter of zero
// capacities are left as they are: causal ones would become slower (docs/speed.md).
bool has_narrow_columns(const Graph& graph);

Straightened straighten(const Graph& graph);

}  // namespace attnflow
