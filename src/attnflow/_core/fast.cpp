#include "fast.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attnflow {

namespace {
constexpr double kUnlimited = std::numeric_limits<double>::max();
constexpr double kTight = 1e-12;  // how far, relatively, the flow may stay below the cut that proves it
}  // namespace

FastSolver::FastSolver(const Graph& graph) : g_(graph), fast_(kernels()) {
    const int widest = *std::max_element(g_.width.begin(), g_.width.end());
    span_ = padded(widest);
    span_words_ = words_for(widest);
    if (g_.depth >= 3) {
        res_ = inner_layers(g_.cap);
        res_t_ = inner_layers(g_.cap_t);
        open_ = g_.open;
        open_t_ = g_.open_t;
        fed_ = g_.open_t.like();
        fed_t_ = g_.open.like();
    }
    const std::size_t levels = static_cast<std::size_t>(g_.depth) + 1, nodes = levels * span_;
    for (auto* v : {&supply_, &demand_, &own_, &inflow_}) v->assign(nodes, 0.0);
    for (auto* v : {&source_column_, &sink_column_, &direct_}) v->assign(levels, 0.0);
    sink_room_.assign(levels + 1, 0.0);
    straight_.assign(span_, 0.0);
    labelled_.assign(span_words_, 0);
    active_.assign(levels * span_words_, 0);
    if (!g_.full && g_.depth >= 3) {
        reached_.assign(levels * span_words_, 0);
        // For all tokens, unless one level is so much wider than the others that this would outgrow the graph.
        const std::size_t all = levels * span_words_ * g_.width[0];
        reaching_of_.assign(all <= g_.edges() / 8 ? g_.width[0] : 1, -1);
        reaching_.assign(levels * span_words_ * reaching_of_.size(), 0);
    }
    waiting_.assign(levels * span_words_, 0);
    waves_.assign(levels * slots_ * span_words_, 0);
    for (auto* v : {&v_.cap, &v_.cap_t}) v->resize(levels);
    for (auto* v : {&v_.width, &v_.stride, &v_.stride_t}) v->resize(levels);
    v_.res.resize(levels);
    v_.open.resize(levels);
    v_.open_at_first.resize(levels);
    v_.fed.resize(levels);
}

// A copy of what step 3 needs: in a square graph, all edges of the first and of the last layer that a pair can use are
// in vectors of their own.
Matrices FastSolver::inner_layers(const Matrices& of) const {
    std::vector<int> rows(g_.depth), cols(g_.depth);
    for (int k = 1; k <= g_.depth; ++k) {
        rows[k - 1] = g_.square && (k == 1 || k == g_.depth) ? 0 : of.rows(k);
        cols[k - 1] = of.cols(k);
    }
    Matrices inner(rows, cols);
    for (int k = 1; k <= g_.depth; ++k)
        std::copy_n(of.at(k), static_cast<std::ptrdiff_t>(inner.rows(k)) * inner.stride(k), inner.at(k));
    return inner;
}

double FastSolver::solve(int layer, int query, int token, const std::atomic<bool>& cancelled) {
    ++counters.pairs;
    if (layer == 1) return g_.cap.row(1, query)[token];
    if (layer == 2) return fast_.sum_min(g_.cap.row(2, query), g_.cap_t.row(1, token), padded(g_.width[1]));
    if (g_.finite) {
        if (!g_.full && !find_active(layer, query, token)) return 0;
        const double above = source_cut(layer, query, token), below = sink_cut(layer, query, token);
        double cut = std::min(above, below);
        if (cut == 0) return 0;
        // Any cut bounds the flow. Where the one found is far below the bound in use, residuals were too coarse for it:
        // once more, with that one as the bound.
        for (double bound = cut; std::isfinite(bound) && !cancelled;) {
            cut = attempt(layer, query, token, below < above, bound, cancelled);
            if (cut * 16 >= bound || cut <= 0) break;
            bound = cut;
        }
        if (cancelled || (std::isfinite(cut) && std::abs(cut - value_) <= kTight * cut)) return cut;
    }
    ++counters.by_reference;
    if (reference_flow_.empty()) reference_flow_ = g_.cap;
    return exact_flow(g_, layer, query, token, reference_flow_, [&] { return cancelled.load(); }).cut;
}

// The capacity of a cut, and in value_ what the flow found carries. No edge can carry more than `bound`, so wider ones
// count as that wide, which keeps small flows from drowning in the rounding of large capacities.
double FastSolver::attempt(int layer, int query, int token, bool flipped, double bound,
                           const std::atomic<bool>& cancelled) {
    look(layer, query, token, flipped);
    value_ = 0;
    bound_ = bound;
    eps_ = bound * 1e-15;
    if (g_.square && columns()) {
        ++counters.by_columns;
        return bound;
    }
    if (g_.square && hops()) {
        ++counters.by_hops;
        restore_hops();
        return bound;
    }
    ++counters.by_search;
    return search(bound, cancelled);
}

void FastSolver::look(int layer, int query, int token, bool flipped) {
    v_.depth = layer;
    v_.flipped = flipped;
    v_.source = flipped ? token : query;
    v_.sink = flipped ? query : token;
    const Matrices& rows = flipped ? g_.cap_t : g_.cap;
    const Matrices& cols = flipped ? g_.cap : g_.cap_t;
    for (int k = 1; k <= layer; ++k) {
        const int of = flipped ? layer + 1 - k : k;
        v_.cap[k] = rows.at(of);
        v_.cap_t[k] = cols.at(of);
        v_.res[k] = (flipped ? res_t_ : res_).at(of);
        v_.open[k] = (flipped ? open_t_ : open_).at(of);
        v_.fed[k] = (flipped ? fed_t_ : fed_).at(of);
        v_.open_at_first[k] = (flipped ? g_.open_t : g_.open).at(of);
        v_.stride[k] = rows.stride(of);
        v_.stride_t[k] = cols.stride(of);
    }
    for (int k = 0; k <= layer; ++k) v_.width[k] = g_.width[flipped ? layer - k : k];
}

// Where capacities are zero, many nodes lie on no path between the two; false when there is no path at all.
bool FastSolver::find_active(int layer, int query, int token) {
    if (reached_layer_ != layer || reached_query_ != query) {
        reached_layer_ = layer;
        reached_query_ = query;
        std::fill(reached_.begin(), reached_.end(), 0);
        add(reached(layer), query);
        for (int k = layer; k >= 1; --k)
            for (int i = 0; i < g_.width[k]; ++i)
                if (has(reached(k), i))
                    for (int w = 0; w < words_for(g_.width[k - 1]); ++w) reached(k - 1)[w] |= g_.open.row(k, i)[w];
    }
    if (!has(reached(0), token)) return false;
    int& known = reaching_of_[reaching_of_.size() > 1 ? token : 0];
    if (known != token) {
        known = token;
        std::fill(reaching(token, 0), reaching(token, 0) + (g_.depth + 1) * span_words_, 0);
        add(reaching(token, 0), token);
        for (int k = 1; k <= g_.depth; ++k)
            for (int i = 0; i < g_.width[k]; ++i)
                if (common(g_.open.row(k, i), reaching(token, k - 1), words_for(g_.width[k - 1])))
                    add(reaching(token, k), i);
    }
    const Word *from = reached_.data(), *to = reaching(token, 0);
    for (int w = 0; w < (layer + 1) * span_words_; ++w) active_[w] = from[w] & to[w];
    return true;
}

// What a node sends (or receives) beside its own column, and within it, by way of nodes on a path; `level` is where its
// edges lead, and `beside` what it sends beside its column where no capacity is zero.
FastSolver::Split FastSolver::split(const double* edges, int level, int node, double beside) {
    if (g_.full) return {beside, edges[node]};
    Word* ends = active_.data() + static_cast<std::ptrdiff_t>(level) * span_words_;
    const bool own = node < g_.width[level] && has(ends, node);
    if (own) drop(ends, node);
    beside = fast_.sum_where(edges, ends, padded(g_.width[level]));
    if (own) add(ends, node);
    return {beside, own ? edges[node] : 0};
}

// The narrowest cut around the query's own column: (layer, query) ... (m, query) against the rest, for every m.
double FastSolver::source_cut(int layer, int query, int token) {
    if (g_.full && !g_.square) return g_.out[layer][query];
    double least = kUnlimited, aside = 0;
    for (int m = layer; m >= 2; --m) {
        const Split at = split(g_.cap.row(m, query), m - 1, query, g_.aside_out[m][query]);
        least = std::min(least, aside + (at.beside + at.own));
        aside += at.beside;
        if (at.own == 0) return std::min(least, aside);
        if (!g_.square) return least;
    }
    return std::min(least, aside + g_.cap.row(1, query)[token]);
}

// The same around the token's column.
double FastSolver::sink_cut(int layer, int query, int token) {
    if (g_.full && !g_.square) return g_.in[0][token];
    double least = kUnlimited, aside = 0;
    for (int m = 1; m < layer; ++m) {
        const Split at = split(g_.cap_t.row(m, token), m, token, g_.aside_in[m - 1][token]);
        least = std::min(least, aside + (at.beside + at.own));
        aside += at.beside;
        if (at.own == 0) return std::min(least, aside);
        if (!g_.square) return least;
    }
    return std::min(least, aside + g_.cap.row(layer, query)[token]);
}

// What can still come down the source's column to layer k, and down the sink's column from layer m.
double FastSolver::source_room(int k) const {
    double room = kUnlimited;
    for (int i = k + 1; i <= v_.depth; ++i) room = std::min(room, source_column_[i]);
    return room;
}

double FastSolver::sink_room(int m) const { return sink_room_[m]; }

void FastSolver::leave_source(int k, double amount) {
    for (int i = k + 1; i <= v_.depth; ++i) source_column_[i] -= amount;
    value_ += amount;
}

void FastSolver::enter_sink(int m, double amount) {
    for (int i = 1; i < m; ++i) sink_column_[i] -= amount;
    if (m > 1) find_sink_rooms();
}

void FastSolver::find_sink_rooms() {
    sink_room_[1] = kUnlimited;
    for (int m = 2; m <= v_.depth; ++m) sink_room_[m] = std::min(sink_room_[m - 1], sink_column_[m - 1]);
}

// Step 1. A path goes down the source's column to layer k, hops to column j, goes straight down to layer m, hops into
// the sink's column. For fixed (k, m) all j at once are one vector operation, sum_j min(supply_k[j], demand_m[j]).
// A supply at layer k can only use demands m < k, so high layers are served first, by the highest demands below them; the
// demands of the first layer, which every supply can use, are left to the lowest layers.
bool FastSolver::columns() {
    const int top = v_.depth, q = v_.source, t = v_.sink, n = padded(v_.width[0]);
    const bool all = g_.full;
    for (int k = 2; k <= top; ++k) {
        if (all) std::memcpy(supply(k), row(k, q), sizeof(double) * n);
        else if (on_path(k, q)) fast_.copy_where(supply(k), row(k, q), active(k - 1), n);
        else std::fill(supply(k), supply(k) + n, 0.0);
        if (g_.widest > bound_) fast_.cap(supply(k), bound_, n);
        supply(k)[q] = supply(k)[t] = 0;
    }
    for (int m = 1; m < top; ++m) {
        if (all) std::memcpy(demand(m), col(m, t), sizeof(double) * n);
        else if (on_path(m - 1, t)) fast_.copy_where(demand(m), col(m, t), active(m), n);
        else std::fill(demand(m), demand(m) + n, 0.0);
        if (g_.widest > bound_) fast_.cap(demand(m), bound_, n);
        demand(m)[q] = demand(m)[t] = 0;
    }
    std::memcpy(straight_.data(), g_.column[top].data(), sizeof(double) * n);
    for (int k = 1; k <= top; ++k) {
        source_column_[k] = on_path(k, q) && on_path(k - 1, q) ? capacity(k, q, q) : 0;
        sink_column_[k] = q != t && on_path(k, t) && on_path(k - 1, t) ? capacity(k, t, t) : 0;
        direct_[k] = q != t && on_path(k, q) && on_path(k - 1, t) ? capacity(k, q, t) : 0;
    }
    find_sink_rooms();
    if (q == t) leave_source(0, source_room(0));
    for (int k = top; k >= 1; --k) {
        const double x = std::min({direct_[k], source_room(k), sink_room(k)});
        if (x <= 0) continue;
        direct_[k] -= x;
        leave_source(k, x);
        enter_sink(k, x);
    }
    const auto match = [&](int k, int m, double& from_source) {
        const double room = std::min(from_source, sink_room(m));
        if (room <= 0) return;
        const double x = m + 1 == k ? fast_.take(supply(k), demand(m), n, room)
                                    : fast_.take_via(supply(k), demand(m), straight_.data(), n, room);
        if (x <= 0) return;
        leave_source(k, x);
        enter_sink(m, x);
        from_source = source_room(k);
    };
    for (int k = top; k >= 3; --k) {
        double room = source_room(k);
        for (int m = k - 1; m >= 2 && room > 0; --m) match(k, m, room);
    }
    for (int k = 2; k <= top; ++k) {
        double room = source_room(k);
        match(k, 1, room);
    }
    return saturated();
}

// Step 2. What is left at the source's side makes one hop more: from column h, at some layer m, to a column that still
// has demand, at the layer right below or at the first.
bool FastSolver::hops() {
    const int n = v_.width[0], top = v_.depth;
    const auto list_wanting = [&](int m) {
        Word* set = wanting(m);
        std::memset(set, 0, sizeof(Word) * span_words_);
        for (int j = 0; j < n; ++j)
            if (demand(m)[j] > 0) add(set, j);
    };
    list_wanting(1);
    const bool column_open = sink_room(2) > 0;
    if (column_open)
        for (int m = 2; m < top - 1; ++m) list_wanting(m);
    for (int k = top; k >= 3; --k) {
        double room = source_room(k);
        for (int h = 0; h < n && room > 0; ++h) {
            const double have = std::min(supply(k)[h], room);
            if (have <= 0) continue;
            double rest = have;
            const auto send = [&](int m, int to, double limit) {
                const double s = std::min({rest, limit, m < k - 1 ? straight_[h] : rest});
                if (s <= 0) return;
                const double x = s - hop(m, h, to, s);
                rest = x < rest ? rest - x : 0;
                if (m < k - 1) straight_[h] -= x;
                if (to > 1) enter_sink(to, x);
            };
            if (column_open)
                for (int m = k - 1; m >= 3 && rest > 0; --m) send(m, m - 1, sink_room(m - 1));
            for (int m = k - 1; m >= 2 && rest > 0; --m) send(m, 1, rest);
            if (rest == have) continue;
            supply(k)[h] -= have - rest;
            leave_source(k, have - rest);
            room = source_room(k);
        }
    }
    return saturated();
}

// Sends up to `amount` from (m, h) to columns with demand at layer `to`; returns what could not be sent.
double FastSolver::hop(int m, int h, int to, double amount) {
    double* residual = v_.res[m] + static_cast<std::ptrdiff_t>(h) * v_.stride[m];
    double* wanted = demand(to);
    Word *out = open(m, h), *set = wanting(to);
    for (int w = 0; w < words(0); ++w)
        for (Word both = out[w] & set[w]; both; both &= both - 1) {
            const int j = w * 64 + lowest(both);
            if (j == h) continue;
            if (residual[j] > bound_) residual[j] = bound_;
            double x = std::min({amount, residual[j], wanted[j]});
            if (m > to + 1) {
                x = std::min(x, straight_[j]);
                straight_[j] -= x;
            }
            hops_.push_back(Hop{Edge{m, h, j}, x});
            if (x <= 0) continue;
            residual[j] -= x;
            wanted[j] -= x;
            if (residual[j] <= eps_) drop(out, j);
            if (wanted[j] <= eps_) drop(set, j);
            amount -= x;
            if (amount <= 0) return 0;
        }
    return amount;
}

// Whether the source's column, or the sink's, is cut off: full at some layer, and everything beside it up to there.
bool FastSolver::saturated() const {
    const int top = v_.depth, n = padded(v_.width[0]);
    for (int k = top; k >= 1; --k) {
        if (direct_[k] > eps_) break;
        if (k > 1 && fast_.largest(supply(k), n) > eps_) break;
        if (k == 1 ? v_.source != v_.sink || source_column_[1] <= eps_ : source_column_[k] <= eps_) return true;
    }
    const std::vector<double>& column = v_.source == v_.sink ? source_column_ : sink_column_;
    for (int m = 1; m <= top; ++m) {
        if (direct_[m] > eps_) break;
        if (m < top && fast_.largest(demand(m), n) > eps_) break;
        if (m == top ? v_.source != v_.sink || column[top] <= eps_ : column[m] <= eps_) return true;
    }
    return false;
}

}  // namespace attnflow
