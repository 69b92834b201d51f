#include "network.hpp"

#include <algorithm>
#include <cassert>

namespace attnflow {

Network::Network(const Graph& graph, const Pair& pair, const Columns& columns, Residual& residual)
    : pair_(pair), columns_(columns), residual_(residual), kernels_(kernels()) {
    if (graph.depth < 3) return;
    const int widest = *std::max_element(graph.width.begin(), graph.width.end()), words = words_for(widest);
    const std::size_t levels = graph.width.size();
    layers_.resize(levels);
    upright_ = EdgeSets{graph.open.like(), graph.open_t.like()};
    flipped_ = EdgeSets{graph.open_t.like(), graph.open.like()};
    from_source_ = Rows<double>(levels, padded(widest));
    into_sink_ = before_ = std::vector<double>(padded(widest));
    open_to_sink_ = set_ = other_set_ = std::vector<Word>(words);
    ready_ = Sets(levels, words);
    if (graph.square) straight_ = inflow_ = Rows<double>(levels, padded(widest));
}

void Network::begin() {
    const int top = pair_.depth;
    EdgeSets& sets = pair_.flipped ? flipped_ : upright_;
    for (int k = 1; k <= top; ++k) {
        const int of = pair_.layer_of_graph(k);
        layers_[k] = Layer{sets.open.at(of), sets.feeders.at(of), pair_.words(k - 1), pair_.words(k)};
    }
    ready_.clear();
    for (int k = 2; k < top; ++k)
        std::copy_n(pair_.open(k, 0), static_cast<std::ptrdiff_t>(pair_.width(k)) * pair_.words(k - 1), open(k, 0));
    begin_ends();
    if (!pair_.square()) return;
    std::fill(inflow_[0], inflow_[top], 0.0);
    enter_hops();
    find_straight_flows();
    for (int k = 2; k < top; ++k) close_full_edges(k);
}

void Network::begin_ends() {
    const int top = pair_.depth, q = pair_.source, t = pair_.sink;
    const int below_source = padded(pair_.width(top - 1)), above_sink = padded(pair_.width(1));
    if (pair_.square()) {
        for (int k = 2; k <= top; ++k) {
            std::copy_n(columns_.supply(k), below_source, from_source_[k]);
            from_source_[k][t] = columns_.direct(k);
            from_source_[k][q] = columns_.source_column(k);
        }
        std::copy_n(columns_.demand(1), above_sink, into_sink_.data());
        into_sink_[t] = columns_.sink_column(1);
        into_sink_[q] = q == t ? columns_.source_column(1) : columns_.direct(1);
    } else {
        std::copy_n(pair_.row(top, q), below_source, from_source_[top]);
        std::copy_n(pair_.col(1, t), above_sink, into_sink_.data());
        kernels_.cap(from_source_[top], pair_.bound, below_source);
        kernels_.cap(into_sink_.data(), pair_.bound, above_sink);
    }
    kernels_.above(from_source_[top], pair_.negligible, below_source, open(top, q));
    kernels_.above(into_sink_.data(), pair_.negligible, above_sink, open_to_sink_.data());
}

// Closes the edges that step 2 filled, and adds up what it sends into each node and takes from it.
void Network::enter_hops() {
    const std::vector<Residual::Change>& hops = residual_.changes();
    for (auto hop = hops.begin(); hop != hops.end();) {
        const int layer = hop->layer, from = hop->from;
        double *below = inflow_[layer - 1], sum = 0;
        Word* out = open(layer, from);
        for (; hop != hops.end() && hop->layer == layer && hop->from == from; ++hop) {
            below[hop->to] += hop->sent;
            sum += hop->sent;
            if (*hop->left <= pair_.negligible) drop(out, hop->to);
        }
        inflow_[layer][from] -= sum;
    }
}

// Step 1 counts what it sends straight down a column only as a sum; conservation gives it, level by level from the top.
void Network::find_straight_flows() {
    const int top = pair_.depth, n = pair_.width(0);
    for (int k = top; k >= 2; --k) {
        // what enters (k, j) and has not left it by a hop
        const double* flow = inflow_[k];
        double* below = inflow_[k - 1];
        if (k < top) {
            const double *diagonal = pair_.diagonal(k), *demand = columns_.demand(k);
            double* straight = straight_[k];
            columns_.first_demand(k, before_.data());
            for (int j = 0; j < n; ++j) {
                const double capacity = pair_.within_bound(diagonal[j]);
                const double stays = std::min(flow[j] - (before_[j] - demand[j]), capacity);
                const double sent = stays <= pair_.negligible ? 0 : stays;
                below[j] += sent;
                straight[j] = capacity - sent;
            }
        }
        const double* supply = columns_.supply(k);
        columns_.first_supply(k, before_.data());
        for (int j = 0; j < n; ++j) below[j] += before_[j] - supply[j];
    }
}

// Closes the edges of layer k that steps 1 and 2 filled, and those of the two columns that lead to nodes on no path.
void Network::close_full_edges(int k) {
    const int q = pair_.source, t = pair_.sink, n = pair_.width(0), words = pair_.words(k - 1);
    const double least = pair_.negligible;
    Word *to_sink = set_.data(), *straight = other_set_.data();
    kernels_.above(columns_.demand(k), least, padded(n), to_sink);
    kernels_.above(straight_[k], least, padded(n), straight);
    Word* out = open(k, 0);
    for (int j = 0; j < n; ++j, out += words) {
        put(out, t, has(to_sink, j));
        put(out, j, has(straight, j));
    }
    put(open(k, t), t, columns_.sink_column(k) > least);
    kernels_.above(from_source_[k], least, padded(n), open(k, q));
}

void Network::make_ready(int k, int i) {
    add(ready_[k], i);
    if (!pair_.square()) return;
    double* row = residual_.row(k, i);
    const int t = pair_.sink;
    if (i != t) residual_.set(row[i], k, i, i, straight_[k][i]);
    residual_.set(row[t], k, i, t, i == t ? columns_.sink_column(k) : columns_.demand(k)[i]);
}

void Network::take_back(double& left, int k, int i, int j, double amount) {
    const double capacity = pair_.capacity(k, i, j);
    const bool nothing_sent = capacity - (left + amount) <= pair_.negligible;
    const double now = nothing_sent ? capacity : left + amount;
    if (in_residual(k, i)) residual_.set(left, k, i, j, now);
    else left = now;
    add(open(k, i), j);
    if (nothing_sent) drop(feeders(k, j), i);
}

void Network::find_feeders() {
    feeders_known_ = true;
    for (const Residual::Change& at : residual_.changes()) {
        if (pair_.capacity(at.layer, at.from, at.to) - *at.left > pair_.negligible &&
            pair_.on_path(at.layer - 1, at.to))
            add(feeders(at.layer, at.to), at.from);
    }
    if (!pair_.square()) return;
    for (int k = 2; k < pair_.depth; ++k) find_feeders_at_columns(k);
}

// The edges of layer k that leave the source's column, and those that step 1 used in rows that are not ready yet.
void Network::find_feeders_at_columns(int k) {
    const int q = pair_.source, t = pair_.sink, n = pair_.width(0);
    const double least = pair_.negligible;
    const double *capacity = pair_.row(k, q), *left = from_source_[k];
    for (int j = 0; j < n; ++j)
        if (pair_.within_bound(capacity[j]) - left[j] > least && pair_.on_path(k, q) && pair_.on_path(k - 1, j))
            add(feeders(k, j), q);
    const double *diagonal = pair_.diagonal(k), *straight = straight_[k], *demand = columns_.demand(k);
    columns_.first_demand(k, before_.data());
    for (int j = 0; j < n; ++j) {
        if (j == q || has(ready_[k], j)) continue;
        const double stays = j == t ? columns_.sink_column(k) : straight[j];
        if (pair_.within_bound(diagonal[j]) - stays > least && pair_.on_path(k, j) && pair_.on_path(k - 1, j))
            add(feeders(k, j), j);
        if (before_[j] - demand[j] > least) add(feeders(k, t), j);
    }
}

void Network::end() {
    residual_.restore();
    if (!feeders_known_) return;
    feeders_known_ = false;
    for (int k = 2; k <= pair_.depth; ++k)
        std::fill_n(feeders(k, 0), static_cast<std::ptrdiff_t>(pair_.width(k - 1)) * pair_.words(k), Word{0});
}

// A column is cut off if it is full at some layer, and so is everything that leaves it (or enters it) up to there.
bool Network::saturated() const { return source_cut_off() || sink_cut_off(); }

bool Network::source_cut_off() const {
    const int q = pair_.source;
    for (int k = pair_.depth; k >= 2; --k) {
        const Word* out = open(k, q);
        for (int w = 0; w < pair_.words(k - 1); ++w)
            if (out[w] & ~(w == q >> 6 ? Word{1} << (q & 63) : Word{0})) return false;
        if (!has(out, q)) return true;
    }
    return !has(open_to_sink_.data(), q);
}

bool Network::sink_cut_off() const {
    const int t = pair_.sink, n = pair_.width(0);
    for (int w = 0; w < pair_.words(1); ++w)
        if (open_to_sink_[w] & ~(w == t >> 6 ? Word{1} << (t & 63) : Word{0})) return false;
    if (!has(open_to_sink_.data(), t)) return true;
    for (int m = 2; m < pair_.depth; ++m) {
        for (int j = 0; j < n; ++j)
            if (j != t && has(open(m, j), t)) return false;
        if (!has(open(m, t), t)) return true;
    }
    return !has(open(pair_.depth, pair_.source), t);
}

}  // namespace attnflow
