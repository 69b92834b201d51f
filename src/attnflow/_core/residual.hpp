// What the edges between the first layer and the last can still carry, for steps 2 and 3. Every change is recorded, so
// that `restore` can undo it: between pairs every edge can carry its capacity.
#pragma once

#include <vector>

#include "pair.hpp"

namespace attnflow {

class Residual {
public:
    Residual(const Graph& graph, const Pair& pair);

    struct Change {
        // A constructor, so that a change is written in place: a copy would wait for the writes before it.
        Change(double& edge, int k, int i, int j, double amount)
            : left(&edge), before(edge), sent(amount), layer(k), from(i), to(j) {}
        double* left;  // the place of the edge
        double before, sent;
        int layer, from, to;  // the edge (layer, from) -> (layer - 1, to), as the pair sees it
    };

    // What the edges from (k, i) can carry, 1 < k < depth of the pair. Change it only through the functions below.
    double* row(int k, int i) { return (pair_.flipped ? flipped_ : upright_).row(pair_.layer_of_graph(k), i); }
    // Puts `amount` on the edge stored at `left`; an edge wider than the bound counts as that wide.
    void send(double& left, int k, int i, int j, double amount) {
        changes_.emplace_back(left, k, i, j, amount);
        left = pair_.within_bound(left) - amount;
    }
    // Replaces what an edge can carry.
    void set(double& left, int k, int i, int j, double value) {
        changes_.emplace_back(left, k, i, j, 0);
        left = value;
    }
    const std::vector<Change>& changes() const { return changes_; }

    void restore();
    // Whether every edge is in its initial state. For assertions: it checks all of them.
    bool is_restored() const;

private:
    const Graph& graph_;
    const Pair& pair_;
    Matrices upright_, flipped_;   // the capacities of the inner layers, and the same transposed
    std::vector<Change> changes_;  // oldest first
};

}  // namespace attnflow
