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
        reaching_.assign(levels * span_words_ * g_.width[0], 0);
        reaching_known_.assign(g_.width[0], 0);
    }
    waiting_.assign(levels * span_words_, 0);
    waves_.assign(levels * slots_ * span_words_, 0);
    for (auto* v : {&v_.cap, &v_.cap_t}) v->resize(levels);
    for (auto* v : {&v_.width, &v_.stride, &v_.stride_t}) v->resize(levels);
    v_.res.resize(levels);
    v_.open.resize(levels);
    v_.open_at_first.resize(levels);
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
double FastSolver::attempt(int layer, int query, int token, bool flipped, double bound, const std::atomic<bool>& cancelled) {
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
    if (!reaching_known_[token]) {
        reaching_known_[token] = 1;
        add(reaching(token, 0), token);
        for (int k = 1; k <= g_.depth; ++k)
            for (int i = 0; i < g_.width[k]; ++i)
                if (common(g_.open.row(k, i), reaching(token, k - 1), words_for(g_.width[k - 1]))) add(reaching(token, k), i);
    }
    const Word *from = reached_.data(), *to = reaching(token, 0);
    for (int w = 0; w < (layer + 1) * span_words_; ++w) active_[w] = from[w] & to[w];
    return true;
}

// The narrowest cut around the query's own column: (layer, query) ... (m, query) against the rest, for every m.
double FastSolver::source_cut(int layer, int query, int token) {
    if (g_.full && !g_.square) return g_.out[layer][query];
    double least = kUnlimited, aside = 0;
    for (int m = layer; m >= 2; --m) {
        double beside, own;
        if (g_.full) {
            beside = g_.aside_out[m][query];
            own = g_.cap.row(m, query)[query];
        } else {
            Word* below = active_.data() + static_cast<std::ptrdiff_t>(m - 1) * span_words_;
            const bool on = query < g_.width[m - 1] && has(below, query);
            if (on) drop(below, query);
            beside = fast_.sum_where(g_.cap.row(m, query), below, padded(g_.width[m - 1]));
            if (on) add(below, query);
            own = on ? g_.cap.row(m, query)[query] : 0;
        }
        least = std::min(least, aside + (beside + own));
        aside += beside;
        if (own == 0) return std::min(least, aside);
        if (!g_.square) return least;
    }
    return std::min(least, aside + g_.cap.row(1, query)[token]);
}

double FastSolver::sink_cut(int layer, int query, int token) {
    if (g_.full && !g_.square) return g_.in[0][token];
    double least = kUnlimited, aside = 0;
    for (int m = 1; m < layer; ++m) {
        double beside, own;
        if (g_.full) {
            beside = g_.aside_in[m - 1][token];
            own = g_.cap.row(m, token)[token];
        } else {
            Word* above = active_.data() + static_cast<std::ptrdiff_t>(m) * span_words_;
            const bool on = token < g_.width[m] && has(above, token);
            if (on) drop(above, token);
            beside = fast_.sum_where(g_.cap_t.row(m, token), above, padded(g_.width[m]));
            if (on) add(above, token);
            own = on ? g_.cap.row(m, token)[token] : 0;
        }
        least = std::min(least, aside + (beside + own));
        aside += beside;
        if (own == 0) return std::min(least, aside);
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

inline double& FastSolver::left(int k, int i, int j) {
    if (g_.square) {
        if (i == v_.source) return j == v_.source ? source_column_[k] : j == v_.sink ? direct_[k] : supply(k)[j];
        if (j == v_.sink) return i == v_.sink ? sink_column_[k] : demand(k)[i];
        if (i == j) return own(k)[j];
    }
    return v_.res[k][static_cast<std::ptrdiff_t>(i) * v_.stride[k] + j];
}

// Step 1. A path goes down the source's column to layer k, hops to column j, goes straight down to layer m, hops into
// the sink's column. For fixed (k, m) all j at once are one vector operation, sum_j min(supply_k[j], demand_m[j]).
// High layers are served first, each by the highest demand below it: a supply at layer k can only use demands m < k.
bool FastSolver::columns() {
    const int top = v_.depth, q = v_.source, t = v_.sink, n = padded(v_.width[0]);
    const bool all = g_.full;
    const auto on = [&](int level, int i) { return all || has(active(level), i); };
    for (int k = 2; k <= top; ++k) {
        if (all) std::memcpy(supply(k), row(k, q), sizeof(double) * n);
        else if (on(k, q)) fast_.copy_where(supply(k), row(k, q), active(k - 1), n);
        else std::fill(supply(k), supply(k) + n, 0.0);
        if (g_.widest > bound_) fast_.cap(supply(k), bound_, n);
        supply(k)[q] = supply(k)[t] = 0;
    }
    for (int m = 1; m < top; ++m) {
        if (all) std::memcpy(demand(m), col(m, t), sizeof(double) * n);
        else if (on(m - 1, t)) fast_.copy_where(demand(m), col(m, t), active(m), n);
        else std::fill(demand(m), demand(m) + n, 0.0);
        if (g_.widest > bound_) fast_.cap(demand(m), bound_, n);
        demand(m)[q] = demand(m)[t] = 0;
    }
    std::memcpy(straight_.data(), g_.column[top].data(), sizeof(double) * n);
    for (int k = 1; k <= top; ++k) {
        source_column_[k] = on(k, q) && on(k - 1, q) ? capacity(k, q, q) : 0;
        sink_column_[k] = q != t && on(k, t) && on(k - 1, t) ? capacity(k, t, t) : 0;
        direct_[k] = q != t && on(k, q) && on(k - 1, t) ? capacity(k, q, t) : 0;
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

// Step 3. Dinic's algorithm on the residual capacities. Paths that only go down are as short as paths can be, so edges
// that would take flow back are not looked at before there are none of those left.
double FastSolver::search(double column_cut, const std::atomic<bool>& cancelled) {
    prepare();
    bool back = false;
    const double cut =
        span_words_ == 1 ? dinic<true>(column_cut, back, cancelled) : dinic<false>(column_cut, back, cancelled);
    restore(back);
    return cut;
}

template <bool kNarrow>
double FastSolver::dinic(double column_cut, bool& back, const std::atomic<bool>& cancelled) {
    while (!cancelled) {
        if (!back && !label<kNarrow>(false)) {
            back = true;  // distances only grow: no path that only goes down will come again
            prepare_back();
        }
        if (back && !label<kNarrow>(true)) return labelled_cut();
        ++counters.phases;
        blocking_flow<kNarrow>(back, cancelled);
        if (g_.square && saturated()) return column_cut;
    }
    return -1;
}


// What step 1 sent straight down a column it counted only as a sum; conservation gives it, level by level from the top.
// Then the edges that steps 1 and 2 filled are closed.
void FastSolver::prepare() {
    if (!g_.square) return;
    if (!g_.full) unmask();
    const int top = v_.depth, q = v_.source, t = v_.sink, n = v_.width[0];
    std::fill(inflow_.begin(), inflow_.begin() + static_cast<std::ptrdiff_t>(top) * span_, 0.0);
    for (const Hop& hop : hops_) {
        inflow_[static_cast<std::size_t>(hop.edge.layer) * span_ + hop.edge.from] -= hop.amount;
        inflow_[static_cast<std::size_t>(hop.edge.layer - 1) * span_ + hop.edge.to] += hop.amount;
    }
    for (int k = top; k >= 1; --k) {
        // flow[j]: what enters (k, j) and has not left it by a hop
        const double* flow = inflow_.data() + static_cast<std::ptrdiff_t>(k) * span_;
        double* below = inflow_.data() + static_cast<std::ptrdiff_t>(k - 1) * span_;
        const double* from_source = row(k, q);
        const double* into_sink = col(k, t);
        const double *more = supply(k), *wanted = demand(k);
        Word* from_q = open(k, q);
        if (k < top) {
            for (int j = 0; j < n; ++j) {
                if (j == q || j == t) continue;
                Word* out = open(k, j);
                if (wanted[j] <= eps_) drop(out, t);
                if (k == 1) continue;
                const double c = capacity(k, j, j);
                double straight = std::min(flow[j] - (std::min(into_sink[j], bound_) - wanted[j]), c);
                if (straight <= eps_) straight = 0;
                below[j] += straight;
                own(k)[j] = c - straight;
                if (c - straight <= eps_) drop(out, j);
            }
        }
        if (k > 1)
            for (int j = 0; j < n; ++j) {
                below[j] += std::min(from_source[j], bound_) - more[j];
                if (more[j] <= eps_) drop(from_q, j);
            }
        const auto open_if = [&](int i, int j, double residual) {
            if (residual > eps_) add(open(k, i), j);
            else drop(open(k, i), j);
        };
        open_if(q, q, source_column_[k]);
        if (q == t) continue;
        open_if(q, t, direct_[k]);
        open_if(t, t, sink_column_[k]);
    }
}

// Steps 1 and 2 leave out what lies on no path; in the residual graph those edges are there, and empty.
void FastSolver::unmask() {
    const int top = v_.depth, q = v_.source, t = v_.sink, n = v_.width[0];
    const auto on = [&](int level, int i) { return has(active(level), i); };
    for (int k = 1; k <= top; ++k) {
        for (int j = 0; j < n; ++j) {
            if (j == q || j == t) continue;
            if (k > 1 && !(on(k, q) && on(k - 1, j))) supply(k)[j] = capacity(k, q, j);
            if (k < top && !(on(k - 1, t) && on(k, j))) demand(k)[j] = capacity(k, j, t);
        }
        if (!(on(k, q) && on(k - 1, q))) source_column_[k] = capacity(k, q, q);
        if (q == t) continue;
        if (!(on(k, t) && on(k - 1, t))) sink_column_[k] = capacity(k, t, t);
        if (!(on(k, q) && on(k - 1, t))) direct_[k] = capacity(k, q, t);
    }
}

// Who feeds whom, for the phases that may take flow back: all edges that carry any.
void FastSolver::prepare_back() {
    if (fed_.empty()) fed_.assign(static_cast<std::size_t>(g_.depth + 1) * span_ * span_words_, 0);
    const auto carries = [&](int k, int i, int j) {
        if (capacity(k, i, j) - left(k, i, j) > eps_) add(fed(k, j), i);
    };
    for (const Hop& hop : hops_) carries(hop.edge.layer, hop.edge.from, hop.edge.to);
    for (const Edge& e : changed_) carries(e.layer, e.from, e.to);
    if (!g_.square) return;
    const int q = v_.source, t = v_.sink, n = v_.width[0];
    for (int k = 1; k <= v_.depth; ++k) {
        carries(k, q, q);
        if (q != t) carries(k, q, t);
        if (k > 1) {
            const double *from_source = row(k, q), *more = supply(k);
            for (int j = 0; j < n; ++j)
                if (std::min(from_source[j], bound_) - more[j] > eps_ && j != q && j != t) add(fed(k, j), q);
        }
        if (k == v_.depth) continue;
        if (q != t) carries(k, t, t);
        const double *into_sink = col(k, t), *wanted = demand(k);
        Word* feeds_sink = fed(k, t);
        for (int j = 0; j < n; ++j) {
            if (j == q || j == t) continue;
            if (std::min(into_sink[j], bound_) - wanted[j] > eps_) add(feeds_sink, j);
            if (k > 1 && capacity(k, j, j) - own(k)[j] > eps_) add(fed(k, j), j);
        }
    }
}

// Puts the edges that step 2 used back as they were.
void FastSolver::restore_hops() {
    for (const Hop& hop : hops_) restore_edge(hop.edge);
    hops_.clear();
}

inline void FastSolver::restore_edge(const Edge& e) {
    v_.res[e.layer][static_cast<std::ptrdiff_t>(e.from) * v_.stride[e.layer] + e.to] = row(e.layer, e.from)[e.to];
    add(open(e.layer, e.from), e.to);
}

void FastSolver::restore(bool back) {
    restore_hops();
    for (const Edge& e : changed_) restore_edge(e);
    changed_.clear();
    if (back) std::memset(fed(1, 0), 0, sizeof(Word) * static_cast<std::size_t>(v_.depth) * span_ * span_words_);
    if (!g_.square) return;
    const int q = v_.source, t = v_.sink, n = v_.width[0], w = words(0);
    for (int k = 1; k <= v_.depth; ++k) {
        const Word* first = v_.open_at_first[k];
        std::memcpy(open(k, q), first + static_cast<std::ptrdiff_t>(q) * w, sizeof(Word) * w);
        for (int j = 0; j < n; ++j) {
            open(k, j)[t >> 6] = first[static_cast<std::ptrdiff_t>(j) * w + (t >> 6)];
            open(k, j)[j >> 6] = first[static_cast<std::ptrdiff_t>(j) * w + (j >> 6)];
        }
    }
}

// Distances to the sink, wave by wave; false when the source is not among those that reach it. A node leaves the set of
// the waiting at the first edge into the last wave, so in a dense graph this takes a few operations a node.
template <bool kNarrow>
bool FastSolver::label(bool back) {
    const int top = v_.depth;
    std::memset(waves_.data(), 0, sizeof(Word) * waves_.size());
    add(wave(0, 0), v_.sink);
    for (int k = 1; k < top; ++k) {
        Word* waiting = waiting_.data() + static_cast<std::ptrdiff_t>(k) * span_words_;
        const int n = v_.width[k], full = n / 64;
        for (int w = 0; w < full; ++w) waiting[w] = ~Word{0};
        if (n % 64) waiting[full] = (Word{1} << n % 64) - 1;
    }
    std::memset(waiting_.data(), 0, sizeof(Word) * span_words_);
    Word* last = waiting_.data() + static_cast<std::ptrdiff_t>(top) * span_words_;
    std::memset(last, 0, sizeof(Word) * span_words_);
    add(last, v_.source);
    for (int d = 1;; ++d) {
        bool any = false;
        if (d / 2 >= slots_) more_slots();
        for (int k = back ? 2 - d % 2 : d; k <= std::min(d, top); k += 2)
            any = label_level<kNarrow>(k, (d - k) / 2, back) || any;
        if (!has(last, v_.source)) return true;
        if (!any) return false;
    }
}

void FastSolver::more_slots() {
    const std::size_t before = static_cast<std::size_t>(slots_) * span_words_;
    std::vector<Word> wider(waves_.size() * 2, 0);
    for (std::size_t at = 0; at * before < waves_.size(); ++at)
        std::copy_n(waves_.data() + at * before, before, wider.data() + at * before * 2);
    waves_.swap(wider);
    slots_ *= 2;
}

template <bool kNarrow>
bool FastSolver::label_level(int level, int slot, bool back) {
    const Word* under = wave(level - 1, slot);
    const Word* over = back && slot > 0 && level < v_.depth ? wave(level + 1, slot - 1) : nullptr;
    Word* waiting = waiting_.data() + static_cast<std::ptrdiff_t>(level) * span_words_;
    if (kNarrow) {
        if (!*under && !(over && *over)) return false;
        Word found = 0;
        const Word* out = v_.open[level];
        for (int i = 0; i < v_.width[level]; ++i) found |= Word{(out[i] & *under) != 0} << i;
        if (over && *over) {
            const Word* from = fed(level + 1, 0);
            for (int i = 0; i < v_.width[level]; ++i) found |= Word{(from[i] & *over) != 0} << i;
        }
        found &= *waiting;
        *waiting &= ~found;
        *wave(level, slot) = found;
        return found;
    }
    const int below = words(level - 1), above = over ? words(level + 1) : 0;
    const auto empty = [](const Word* set, int n) {
        for (int w = 0; w < n; ++w)
            if (set[w]) return false;
        return true;
    };
    if (empty(under, below)) under = nullptr;
    if (over && empty(over, above)) over = nullptr;
    if (!under && !over) return false;
    Word any = 0;
    for (int w = 0; w < words(level); ++w) {
        Word found = 0;
        for (Word rest = waiting[w]; rest; rest &= rest - 1) {
            const int i = w * 64 + lowest(rest);
            if ((under && common(open(level, i), under, below)) || (over && common(fed(level + 1, i), over, above)))
                found |= rest & (~rest + 1);
        }
        waiting[w] &= ~found;
        wave(level, slot)[w] = found;
        any |= found;
    }
    return any;
}

inline void FastSolver::add_flow(double& residual, int k, int i, int j, double amount, bool back) {
    if (!special(i, j) && residual == row(k, i)[j]) {
        changed_.push_back(Edge{k, i, j});
        residual = std::min(residual, bound_);
    }
    residual -= amount;
    if (residual <= eps_) drop(open(k, i), j);
    if (back) add(fed(k, j), i);
}

inline void FastSolver::take_back(double& residual, int k, int i, int j, double amount) {
    const double most = capacity(k, i, j);
    residual += amount;
    add(open(k, i), j);
    if (most - residual > eps_) return;
    residual = most;
    drop(fed(k, j), i);
}

// Depth first from the source, one step nearer to the sink each time. A node's own column comes first: its edges are the
// wide ones, so fewer of them are needed.
template <bool kNarrow>
void FastSolver::blocking_flow(bool back, const std::atomic<bool>& cancelled) {
    const std::ptrdiff_t one = span_words_, level_up = slots_ * one;
    const int top = v_.depth, t = v_.sink;
    int slot = 0;
    while (!has(wave(top, slot), v_.source)) ++slot;
    const std::size_t longest = static_cast<std::size_t>(top) + 2 * slot + 1;  // a step nearer each time
    if (path_.size() < longest) path_.resize(2 * longest);
    Frame* const first = path_.data();
    Frame* at = first;
    *at = Frame{bound_, bound_, nullptr, wave(top, slot), top, v_.source, slot};
    while (!cancelled) {
        Frame& f = *at;
        const int k = f.level, i = f.node;
        if (f.left > 0) {
            const Word* out = open(k, i);
            Word* below = f.here - level_up;  // one level down and one step nearer
            const int words_below = kNarrow ? 1 : words(k - 1);
            if (k > 2 || f.slot > 0) {
                const int j = g_.square && has(out, i) && has(below, i) ? i : first_common(out, below, words_below);
                if (j >= 0) {
                    double& r = left(k, i, j);
                    const double want = std::min(f.left, r);
                    *++at = Frame{want, want, &r, below, k - 1, j, f.slot};
                    continue;
                }
            } else {
                // The last two edges at once.
                for (int j; f.left > 0 && (j = first_common(out, below, words_below)) >= 0;) {
                    double &r = left(2, i, j), &last = left(1, j, t);
                    const double x = std::min({f.left, r, last});
                    add_flow(r, 2, i, j, x, back);
                    add_flow(last, 1, j, t, x, back);
                    if (last <= eps_) drop(below, j);
                    f.left -= x;
                }
            }
        }
        if (back && f.left > 0 && f.slot > 0 && k + 1 < top) {
            Word* above = f.here + level_up - one;  // one level up and one step nearer
            const int u = first_common(fed(k + 1, i), above, kNarrow ? 1 : words(k + 1));
            if (u >= 0) {
                double& r = left(k + 1, u, i);
                const double flow = capacity(k + 1, u, i) - r, want = std::min(f.left, flow);
                if (flow <= 0) drop(fed(k + 1, i), u);  // less than the capacity's last digit: nothing to take back
                else *++at = Frame{want, want, &r, above, k + 1, u, f.slot - 1};
                continue;
            }
        }
        if (f.left > 0) drop(f.here, i);  // a dead end
        const double sent = f.left > 0 ? f.want - f.left : f.want;
        if (at == first) return;
        Frame& parent = *--at;
        if (sent <= 0) continue;
        if (k < parent.level) add_flow(*f.via, parent.level, parent.node, i, sent, back);
        else take_back(*f.via, k, i, parent.node, sent);
        if (at == first) value_ += sent;
        else parent.left -= sent;
    }
}

// The capacity of the cut between the nodes without a distance and the others.
double FastSolver::labelled_cut() {
    const auto cut_off = [&](int level) { return waiting_.data() + static_cast<std::ptrdiff_t>(level) * span_words_; };
    double cut = 0;
    for (int k = 1; k <= v_.depth; ++k) {
        const int n = v_.width[k - 1];
        Word any = 0;
        std::fill(labelled_.begin(), labelled_.end(), 0);
        if (k == 1) add(labelled_.data(), v_.sink);
        else
            for (int j = 0; j < n; ++j)
                if (!has(cut_off(k - 1), j)) add(labelled_.data(), j);
        for (const Word w : labelled_) any |= w;
        if (!any) continue;
        for (int i = 0; i < v_.width[k]; ++i)  // at the top, only the source waits
            if (has(cut_off(k), i)) cut += fast_.sum_where(row(k, i), labelled_.data(), padded(n));
    }
    return cut;
}

}  // namespace attnflow
