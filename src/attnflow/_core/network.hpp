// The residual network of step 3: what every edge can still carry after steps 1 and 2, and which edges those are.
//
// The edges that leave the source's column are in `from_source`, those of the first layer that enter the sink are in
// `into_sink`, and all others are in the rows of `Residual`. A row there is prepared when the search first looks at it:
// only then are the edges that step 1 keeps in separate vectors written into it.
#pragma once

#include <vector>

#include "columns.hpp"
#include "residual.hpp"

namespace attnflow {

class Network {
public:
    Network(const Graph& graph, const Pair& pair, const Columns& columns, Residual& residual);

    void begin();  // from what the earlier steps left
    void end();    // restores everything
    // Whether no node has feeders, as in the beginning. For assertions.
    bool is_restored() const { return !feeders_known_ && upright_.feeders.all_empty() && flipped_.feeders.all_empty(); }

    // What the edges that leave (k, i) can carry, 1 < k; at the top level i must be the source.
    double* row(int k, int i) {
        if (!in_residual(k, i)) return from_source_[k];
        if (!has(ready_[k], i)) make_ready(k, i);
        return residual_.row(k, i);
    }
    // What the edges from level 1 to the sink can carry.
    double* into_sink() { return into_sink_.data(); }
    // The nodes that (k, i) can still send to, and those of the first level that can still send to the sink.
    Word* open(int k, int i) const { return layers_[k].open + static_cast<std::ptrdiff_t>(i) * layers_[k].words_below; }
    Word* open_to_sink() { return open_to_sink_.data(); }
    // The nodes of level k that send to (k-1, j). Valid after `find_feeders`, which phases that may take flow back
    // need; 1 < k < depth.
    Word* feeders(int k, int j) const {
        return layers_[k].feeders + static_cast<std::ptrdiff_t>(j) * layers_[k].words_above;
    }
    void find_feeders();

    // Puts `amount` on the edge stored at `left`, or takes it back.
    void send(double& left, int k, int i, int j, double amount) {
        if (in_residual(k, i)) residual_.send(left, k, i, j, amount);
        else left -= amount;
        if (left <= pair_.negligible) drop(open(k, i), j);
        if (feeders_known_) add(feeders(k, j), i);
    }
    void take_back(double& left, int k, int i, int j, double amount);
    void send_to_sink(int i, double amount) {
        into_sink_[i] -= amount;
        if (into_sink_[i] <= pair_.negligible) drop(open_to_sink_.data(), i);
    }

    // Whether the source's column, or the sink's, is cut off (square graphs).
    bool saturated() const;

private:
    struct EdgeSets {
        BitMatrices open, feeders;
    };

    struct Layer {  // the sets of a layer, as the pair sees it
        Word *open, *feeders;
        int words_below, words_above;
    };

    void make_ready(int k, int i);
    bool in_residual(int k, int i) const { return i != pair_.source || (!pair_.square() && k < pair_.depth); }
    void begin_ends();
    void enter_hops();
    void find_straight_flows();
    void close_full_edges(int k);
    void find_feeders_at_columns(int k);
    bool source_cut_off() const;
    bool sink_cut_off() const;

    const Pair& pair_;
    const Columns& columns_;
    Residual& residual_;
    const Kernels& kernels_;
    EdgeSets upright_, flipped_;
    std::vector<Layer> layers_;
    Rows<double> from_source_;  // [layer][end]
    std::vector<double> into_sink_;
    std::vector<Word> open_to_sink_;
    Rows<double> straight_;  // [layer][column] what can still stay in its column
    Sets ready_;             // [level] the nodes whose rows are ready
    bool feeders_known_ = false;

    Rows<double> inflow_;                // scratch: [level][column] what steps 1 and 2 send into a node
    std::vector<double> before_;         // scratch: a row before anything was sent
    std::vector<Word> set_, other_set_;  // scratch
};

}  // namespace attnflow
