// Which nodes are on a path from a query to a token, in graphs with zero capacities. What a query reaches and what
// reaches a token are cached between pairs.
#pragma once

#include <vector>

#include "graph.hpp"

namespace attnflow {

class Reach {
public:
    explicit Reach(const Graph& graph);
    // Finds the nodes between (layer, query) and (0, token); returns false if no path joins the two.
    bool find(int layer, int query, int token);
    // The nodes of a level, counted as in the graph, on some path of the last pair.
    const Word* on_paths(int level) const { return on_paths_[level]; }

private:
    void find_reached(int layer, int query);
    void find_reaching(int token);
    // reaching_ has one set for each level of each token, or only of the last token.
    int place(int token, int level) const { return (known_token_.size() > 1 ? token : 0) * (graph_.depth + 1) + level; }

    const Graph& graph_;
    int reached_layer_ = 0, reached_query_ = -1;  // the query of reached_
    std::vector<int> known_token_;                // the token of each place of reaching_
    Sets reached_;                                // [level] what the query reaches
    Sets reaching_;                               // [token][level] what reaches the token
    Sets on_paths_;                               // [level] both
};

}  // namespace attnflow
