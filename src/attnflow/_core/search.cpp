// Step 3 of FastSolver: Dinic's algorithm in the residual graph that steps 1 and 2 leave.
#include <algorithm>
#include <cstring>

#include "fast.hpp"

namespace attnflow {

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
// Then the edges that steps 1 and 2 filled are closed, and those on no path, which have no residual there.
void FastSolver::prepare() {
    if (!g_.square) return;
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
                const double aside = on_path(k - 1, t) && on_path(k, j) ? std::min(into_sink[j], bound_) - wanted[j] : 0;
                double straight = std::min(flow[j] - aside, c);
                if (straight <= eps_) straight = 0;
                below[j] += straight;
                own(k)[j] = c - straight;
                if (c - straight <= eps_) drop(out, j);
            }
        }
        if (k > 1)
            for (int j = 0; j < n; ++j) {
                if (on_path(k, q) && on_path(k - 1, j)) below[j] += std::min(from_source[j], bound_) - more[j];
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

// Who feeds whom, for the phases that may take flow back: all edges that carry any.
void FastSolver::prepare_back() {
    const auto carries = [&](int k, int i, int j) {
        if (on_path(k, i) && on_path(k - 1, j) && capacity(k, i, j) - left(k, i, j) > eps_) add(fed(k, j), i);
    };
    for (const Hop& hop : hops_) carries(hop.edge.layer, hop.edge.from, hop.edge.to);
    for (const Edge& e : changed_) carries(e.layer, e.from, e.to);
    if (!g_.square) return;
    const int q = v_.source, t = v_.sink, n = v_.width[0];
    for (int k = 1; k <= v_.depth; ++k) {
        carries(k, q, q);
        if (q != t) carries(k, q, t);
        if (k > 1 && on_path(k, q)) {
            const double *from_source = row(k, q), *more = supply(k);
            for (int j = 0; j < n; ++j)
                if (std::min(from_source[j], bound_) - more[j] > eps_ && j != q && j != t && on_path(k - 1, j))
                    add(fed(k, j), q);
        }
        if (k == v_.depth) continue;
        if (q != t) carries(k, t, t);
        const double *into_sink = col(k, t), *wanted = demand(k);
        Word* feeds_sink = fed(k, t);
        const bool sink_on_path = on_path(k - 1, t);
        for (int j = 0; j < n; ++j) {
            if (j == q || j == t) continue;
            if (sink_on_path && std::min(into_sink[j], bound_) - wanted[j] > eps_ && on_path(k, j)) add(feeds_sink, j);
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
    for (int k = 1; back && k <= v_.depth; ++k)
        std::memset(fed(k, 0), 0, sizeof(Word) * static_cast<std::size_t>(v_.width[k - 1]) * words(k));
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

// The capacity of the cut between the nodes without a distance and the others, nodes on no path left out.
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
                if (!has(cut_off(k - 1), j) && on_path(k - 1, j)) add(labelled_.data(), j);
        for (const Word w : labelled_) any |= w;
        if (!any) continue;
        for (int i = 0; i < v_.width[k]; ++i)  // at the top, only the source waits
            if (has(cut_off(k), i) && on_path(k, i)) cut += fast_.sum_where(row(k, i), labelled_.data(), padded(n));
    }
    return cut;
}

}  // namespace attnflow
