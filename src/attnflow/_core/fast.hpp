// Maximum flow for many pairs of one graph. A pair is solved in three steps, and stops as soon as its flow is proven:
//   1. `columns`: vector operations along the columns, query -> j -> token through every pair of layers at once;
//   2. `hops`: one hop more for what is left over;
//   3. `search` (search.cpp): Dinic's algorithm from there on, in the residual graph.
// The pair is turned upside down first if the token's side is the narrower one, so that the source is always on the side
// that limits the flow. Between pairs every array is back in its first state: no pair depends on another.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "exact.hpp"
#include "graph.hpp"

namespace attnflow {

// Which step each attempt at a pair ended with; pairs of the first two layers have a closed form and need none. A pair is
// tried again where its bound was too coarse, and goes to the reference where its proof is not tight.
struct Counters {
    std::uint64_t pairs = 0, by_columns = 0, by_hops = 0, by_search = 0, by_reference = 0, phases = 0;
    Counters& operator+=(const Counters& o) {
        pairs += o.pairs;
        by_columns += o.by_columns;
        by_hops += o.by_hops;
        by_search += o.by_search;
        by_reference += o.by_reference;
        phases += o.phases;
        return *this;
    }
};

class FastSolver {
public:
    explicit FastSolver(const Graph& graph);
    // The maximum flow from (layer, query) to (0, token): the capacity of a cut that the flow found fills to within
    // 1e-12 of it. layer >= 1.
    double solve(int layer, int query, int token, const std::atomic<bool>& cancelled);
    Counters counters;

private:
    struct Edge { int layer, from, to; };
    struct Hop { Edge edge; double amount; };
    // A node on the path that the search is on: asked to pass on `want`, of which `left` is not passed on yet. `via` is
    // the residual of the edge that led here, `here` the nodes of this level at this distance.
    struct Frame { double want, left; double* via; Word* here; int level, node, slot; };

    // The pair as the solver sees it: source at level depth, sink at level 0.
    struct View {
        int depth, source, sink;
        bool flipped;
        std::vector<const double*> cap, cap_t;     // [layer], row-major and transposed
        std::vector<double*> res;                  // [layer] residual capacities, equal to cap between pairs
        std::vector<Word*> open;                   // [layer] where the residual is positive
        std::vector<const Word*> open_at_first;
        std::vector<Word*> fed;                    // [layer] who feeds a node, empty between pairs
        std::vector<int> width, stride, stride_t;  // width by level; strides by layer
    };

    Matrices inner_layers(const Matrices& of) const;
    double attempt(int layer, int query, int token, bool flipped, double bound, const std::atomic<bool>& cancelled);
    void look(int layer, int query, int token, bool flipped);
    bool find_active(int layer, int query, int token);
    struct Split { double beside, own; };
    Split split(const double* edges, int level, int node, double beside);
    double source_cut(int layer, int query, int token);
    double sink_cut(int layer, int query, int token);

    bool columns();
    bool hops();
    double hop(int m, int h, int to, double amount);
    bool saturated() const;
    double source_room(int k) const;
    double sink_room(int m) const;
    void leave_source(int k, double amount);
    void enter_sink(int m, double amount);
    void find_sink_rooms();

    double search(double column_cut, const std::atomic<bool>& cancelled);
    void prepare();
    void prepare_back();
    void restore_edge(const Edge& edge);
    void restore_hops();
    void restore(bool back);
    // kNarrow: no level has more than 64 nodes, so that every set is one word.
    template <bool kNarrow> double dinic(double column_cut, bool& back, const std::atomic<bool>& cancelled);
    template <bool kNarrow> bool label(bool back);
    template <bool kNarrow> bool label_level(int level, int slot, bool back);
    template <bool kNarrow> void blocking_flow(bool back, const std::atomic<bool>& cancelled);
    void more_slots();
    void add_flow(double& residual, int k, int i, int j, double amount, bool back);
    void take_back(double& residual, int k, int i, int j, double amount);
    double labelled_cut();

    const double* row(int k, int i) const { return v_.cap[k] + static_cast<std::ptrdiff_t>(i) * v_.stride[k]; }
    const double* col(int k, int j) const { return v_.cap_t[k] + static_cast<std::ptrdiff_t>(j) * v_.stride_t[k]; }
    double capacity(int k, int i, int j) const { return row(k, i)[j] < bound_ ? row(k, i)[j] : bound_; }
    Word* open(int k, int i) { return v_.open[k] + static_cast<std::ptrdiff_t>(i) * words(k - 1); }
    Word* fed(int k, int j) { return v_.fed[k] + static_cast<std::ptrdiff_t>(j) * words(k); }
    int words(int level) const { return words_for(v_.width[level]); }
    Word* reached(int level) { return reached_.data() + static_cast<std::ptrdiff_t>(level) * span_words_; }
    Word* reaching(int token, int level) {
        const std::ptrdiff_t at = reaching_of_.size() > 1 ? token : 0;
        return reaching_.data() + (at * (g_.depth + 1) + level) * span_words_;
    }
    // The nodes of a level, counted as in the view, that lie on some path from source to sink.
    const Word* active(int level) const {
        return active_.data() + static_cast<std::ptrdiff_t>(v_.flipped ? v_.depth - level : level) * span_words_;
    }
    bool on_path(int level, int i) const { return g_.full || !g_.square || has(active(level), i); }
    double* supply(int k) { return supply_.data() + static_cast<std::ptrdiff_t>(k) * span_; }
    double* demand(int m) { return demand_.data() + static_cast<std::ptrdiff_t>(m) * span_; }
    const double* supply(int k) const { return supply_.data() + static_cast<std::ptrdiff_t>(k) * span_; }
    const double* demand(int m) const { return demand_.data() + static_cast<std::ptrdiff_t>(m) * span_; }
    Word* wanting(int m) { return waiting_.data() + static_cast<std::ptrdiff_t>(m) * span_words_; }  // free until step 3
    double* own(int k) { return own_.data() + static_cast<std::ptrdiff_t>(k) * span_; }
    Word* wave(int level, int slot) {
        return waves_.data() + (static_cast<std::ptrdiff_t>(level) * slots_ + slot) * span_words_;
    }
    bool special(int i, int j) const { return g_.square && (i == v_.source || j == v_.sink || i == j); }
    double& left(int k, int i, int j);

    const Graph& g_;
    const Kernels& fast_;
    int span_, span_words_;           // room for one level, in nodes and in words
    Matrices res_, res_t_;            // residual capacities of the inner layers, in both orientations
    BitMatrices open_, open_t_;
    View v_;
    double value_ = 0, bound_ = 0, eps_ = 0;

    // The residuals of the edges that step 1 works on live in vectors of their own, by layer.
    std::vector<double> supply_;         // source's column -> column j
    std::vector<double> demand_;         // column j -> sink's column
    std::vector<double> own_;            // column j -> column j
    std::vector<double> source_column_;  // source's column -> itself
    std::vector<double> sink_column_;    // sink's column -> itself
    std::vector<double> direct_;         // source's column -> sink's column
    std::vector<double> sink_room_;      // [m] the least of sink_column_ below m
    std::vector<double> straight_;       // what may still run straight down column j, over all layers

    // For graphs with zeros: which nodes the last query reaches, which reach each token, and both for this pair.
    int reached_layer_ = 0, reached_query_ = -1;
    std::vector<Word> reached_, reaching_, active_;
    std::vector<int> reaching_of_;       // whose set is in each place of reaching_: one a token, or only the last one's

    std::vector<Hop> hops_;              // what step 2 sent over the other edges
    std::vector<Edge> changed_;          // the other edges whose residual step 3 changed
    BitMatrices fed_, fed_t_;            // fed(k, j): the nodes i of level k with flow on (k, i) -> (k-1, j)
    // A step changes level and distance by one, so a node of level k is at distance k + 2 * slot.
    int slots_ = 8;
    std::vector<Word> waves_;            // [level][slot]: the nodes at that distance
    std::vector<Word> waiting_;          // [level]: the nodes without a distance
    std::vector<Frame> path_;
    std::vector<double> inflow_;
    std::vector<Word> labelled_;
    Matrices reference_flow_;            // only for graphs or pairs that need the reference solver
};

inline double& FastSolver::left(int k, int i, int j) {
    if (g_.square) {
        if (i == v_.source) return j == v_.source ? source_column_[k] : j == v_.sink ? direct_[k] : supply(k)[j];
        if (j == v_.sink) return i == v_.sink ? sink_column_[k] : demand(k)[i];
        if (i == j) return own(k)[j];
    }
    return v_.res[k][static_cast<std::ptrdiff_t>(i) * v_.stride[k] + j];
}

}  // namespace attnflow
