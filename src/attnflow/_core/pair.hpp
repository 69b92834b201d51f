// The view of one pair: the part of the graph that a pair can use, with the source at the top level and the sink at
// level 0. The view hides three things from the steps that solve the pair:
//   flipped   If the token's side limits the flow, the pair is turned upside down, so that the source is always on the
//             limiting side. Layers, rows and columns then come from the transposed graph.
//   bounded   No edge can carry more than the best known bound, so wider ones count as that wide. Otherwise small flows
//             would be lost in the rounding of large capacities.
//   narrowed  If capacities are zero (causal attention), nodes on no path from source to sink are left out.
#pragma once

#include <cstddef>
#include <vector>

#include "graph.hpp"
#include "reach.hpp"

namespace attnflow {

class Pair {
public:
    Pair(const Graph& graph, const Reach& reach) : graph_(graph), reach_(reach), layers_(graph.depth + 1) {}

    // Makes this the view of another pair. In a graph with zeros, `reach` must have been called for it.
    void look(int layer, int query, int token, bool upside_down, double upper_bound);

    int depth = 0, source = 0, sink = 0;
    bool flipped = false;
    double bound = 0;
    double negligible = 0;  // an edge with no more than this left is full

    bool square() const { return graph_.square; }
    bool narrowed() const { return graph_.square && !graph_.full; }
    bool has_wider_edges() const { return graph_.widest > bound; }  // wider than the bound

    int layer_of_graph(int k) const { return flipped ? depth + 1 - k : k; }
    int width(int level) const { return graph_.width[flipped ? depth - level : level]; }
    int words(int level) const { return words_for(width(level)); }

    // The edges of layer k that leave (k, i), those that enter (k-1, j), and those that stay in their column.
    const double* row(int k, int i) const {
        return layers_[k].rows + static_cast<std::ptrdiff_t>(i) * layers_[k].stride;
    }
    const double* col(int k, int j) const {
        return layers_[k].cols + static_cast<std::ptrdiff_t>(j) * layers_[k].stride_t;
    }
    const double* diagonal(int k) const { return graph_.diagonal[layer_of_graph(k)].data(); }
    double capacity(int k, int i, int j) const { return within_bound(row(k, i)[j]); }
    double within_bound(double capacity) const { return capacity < bound ? capacity : bound; }
    // The least capacity of column j between the first layer and the last.
    const double* column() const { return graph_.column[depth].data(); }
    // The nodes that (k, i) has an edge to.
    const Word* open(int k, int i) const { return layers_[k].open + static_cast<std::ptrdiff_t>(i) * words(k - 1); }

    bool on_path(int level, int i) const { return !narrowed() || has(nodes_on_paths(level), i); }
    const Word* nodes_on_paths(int level) const { return reach_.on_paths(flipped ? depth - level : level); }

private:
    struct Layer {
        const double *rows, *cols;
        const Word* open;
        int stride, stride_t;
    };

    const Graph& graph_;
    const Reach& reach_;
    std::vector<Layer> layers_;
};

}  // namespace attnflow
