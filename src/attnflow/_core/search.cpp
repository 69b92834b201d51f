#include "search.hpp"

#include <algorithm>

namespace attnflow {

namespace {

bool empty(const Word* set, int words) {
    for (int w = 0; w < words; ++w)
        if (set[w]) return false;
    return true;
}

}  // namespace

Search::Search(const Graph& graph, const Pair& pair, Network& network)
    : pair_(pair), network_(network), kernels_(kernels()) {
    const int words = words_for(*std::max_element(graph.width.begin(), graph.width.end()));
    one_word_ = words == 1;
    waves_ = Sets(graph.width.size() * slots_, words);
    waiting_ = Sets(graph.width.size(), words);
    labelled_.assign(words, 0);
}

Search::Result Search::run(const std::atomic<bool>& cancelled) {
    network_.begin();
    const Result result = one_word_ ? dinic<true>(cancelled) : dinic<false>(cancelled);
    network_.end();
    return result;
}

template <bool kOneWord>
Search::Result Search::dinic(const std::atomic<bool>& cancelled) {
    Result result;
    bool back = false;
    while (!cancelled) {
        if (!back && !label<kOneWord>(false)) {
            back = true;  // distances only grow: no later path goes only down
            network_.find_feeders();
        }
        if (back && !label<kOneWord>(true)) {
            result.cut = labelled_cut();
            break;
        }
        ++result.phases;
        result.sent += blocking_flow<kOneWord>(back, cancelled);
        if (pair_.square() && network_.saturated()) {
            result.cut = pair_.bound;
            break;
        }
    }
    return result;
}

void Search::begin_labels() {
    waves_.clear();
    for (int k = 1; k < pair_.depth; ++k) {
        Word* waiting = waiting_[k];
        const int n = pair_.width(k), full = n / 64;
        if (pair_.narrowed()) {
            std::copy_n(pair_.nodes_on_paths(k), pair_.words(k), waiting);
            continue;
        }
        std::fill_n(waiting, full, ~Word{0});
        if (n % 64) waiting[full] = (Word{1} << n % 64) - 1;
    }
    Word *first = wave(1, 0), *waiting = waiting_[1];
    for (int w = 0; w < pair_.words(1); ++w) {
        first[w] = network_.open_to_sink()[w] & waiting[w];
        waiting[w] &= ~first[w];
    }
}

// Distances to the sink, wave by wave; false if the source cannot reach the sink. A node leaves the waiting set at its
// first edge into the last wave, so in a dense graph this takes a few operations per node.
template <bool kOneWord>
bool Search::label(bool back) {
    const int top = pair_.depth;
    begin_labels();
    for (int d = 2;; ++d) {
        if (d / 2 >= slots_) more_slots();
        bool any = false;
        for (int k = back ? 2 - d % 2 : d; k <= std::min(d, top - 1); k += 2)
            any = label_level<kOneWord>(k, (d - k) / 2, back) || any;
        if (d >= top && (d - top) % 2 == 0) {
            source_slot_ = (d - top) / 2;
            if (common(network_.open(top, pair_.source), wave(top - 1, source_slot_), pair_.words(top - 1)))
                return true;
        }
        if (!any) return false;
    }
}

void Search::more_slots() {
    const int levels = waves_.count() / slots_;
    Sets wider(static_cast<std::size_t>(levels) * slots_ * 2, waves_.length());
    for (int level = 0; level < levels; ++level)
        std::copy_n(wave(level, 0), static_cast<std::ptrdiff_t>(slots_) * waves_.length(), wider[level * slots_ * 2]);
    std::swap(waves_, wider);
    slots_ *= 2;
}

// Labels the nodes of a level that can send to the wave below them, or take back from the wave above them; false if
// there are none.
template <bool kOneWord>
bool Search::label_level(int level, int slot, bool back) {
    const Word* under = level > 1 ? wave(level - 1, slot) : nullptr;
    const Word* over = back && slot > 0 && level + 1 < pair_.depth ? wave(level + 1, slot - 1) : nullptr;
    Word *waiting = waiting_[level], *wave_here = wave(level, slot);
    const int below = pair_.words(level - 1), above = over ? pair_.words(level + 1) : 0;
    if (under && empty(under, below)) under = nullptr;
    if (over && empty(over, above)) over = nullptr;
    if (!under && !over) return false;
    if (kOneWord) {
        Word labelled = 0;
        const int n = pair_.width(level);
        if (under) {
            const Word* out = network_.open(level, 0);
            for (int i = 0; i < n; ++i) labelled |= Word{(out[i] & *under) != 0} << i;
        }
        if (over) {
            const Word* from = network_.feeders(level + 1, 0);
            for (int i = 0; i < n; ++i) labelled |= Word{(from[i] & *over) != 0} << i;
        }
        *wave_here = labelled & *waiting;
        *waiting &= ~labelled;
        return *wave_here;
    }
    Word any = 0;
    for (int w = 0; w < pair_.words(level); ++w) {
        Word labelled = 0;
        for (Word rest = waiting[w]; rest; rest &= rest - 1) {
            const int i = w * 64 + lowest(rest);
            if ((under && common(network_.open(level, i), under, below)) ||
                (over && common(network_.feeders(level + 1, i), over, above)))
                labelled |= rest & (~rest + 1);
        }
        waiting[w] &= ~labelled;
        wave_here[w] = labelled;
        any |= labelled;
    }
    return any;
}

// Depth first from the source, one step nearer to the sink each time; returns the amount sent.
template <bool kOneWord>
double Search::blocking_flow(bool back, const std::atomic<bool>& cancelled) {
    const int top = pair_.depth;
    const std::size_t longest = static_cast<std::size_t>(top) + 2 * source_slot_ + 1;
    if (path_.size() < longest) path_.resize(2 * longest);
    Frame* const first = path_.data();
    *first = Frame{pair_.bound, pair_.bound, nullptr, wave(top, source_slot_), top, pair_.source, source_slot_};
    double total = 0;
    for (Frame* at = first; !cancelled;) {
        const int k = at->level, i = at->node;
        if (at->left > 0) {
            if (k == 2 && at->slot == 0) finish<kOneWord>(at);
            else if (k > 1 && step_down<kOneWord>(at)) {
                ++at;
                continue;
            }
        }
        if (at->left > 0) {
            if (back && step_up<kOneWord>(at)) {
                ++at;
                continue;
            }
            drop(at->here, i);  // a dead end
        }
        if (at == first) break;
        const double sent = at->left > 0 ? at->want - at->left : at->want;
        double& edge = *at->via;
        Frame& parent = *--at;
        if (sent <= 0) continue;
        if (k < parent.level) network_.send(edge, parent.level, parent.node, i, sent);
        else network_.take_back(edge, k, i, parent.node, sent);
        if (at == first) total += sent;
        else parent.left -= sent;
    }
    return total;
}

// Continues to a node below, its own column first: the edges there are wide, so fewer of them are needed.
template <bool kOneWord>
bool Search::step_down(Frame* at) {
    const int k = at->level, i = at->node;
    const Word* out = network_.open(k, i);
    Word* below = wave(k - 1, at->slot);
    const int j = pair_.square() && has(out, i) && has(below, i)
                      ? i
                      : first_common(out, below, kOneWord ? 1 : pair_.words(k - 1));
    if (j < 0) return false;
    double& edge = network_.row(k, i)[j];
    const double want = std::min(at->left, edge);
    at[1] = Frame{want, want, &edge, below, k - 1, j, at->slot};
    return true;
}

// Sends over the last two edges to the sink at once.
template <bool kOneWord>
void Search::finish(Frame* at) {
    const int i = at->node, words = kOneWord ? 1 : pair_.words(1);
    const Word* out = network_.open(2, i);
    Word *below = wave(1, 0), *open_to_sink = network_.open_to_sink();
    double *row = network_.row(2, i), *into_sink = network_.into_sink();
    for (int j; at->left > 0 && (j = first_common(out, below, words)) >= 0;) {
        const double amount = std::min({at->left, row[j], into_sink[j]});
        network_.send(row[j], 2, i, j, amount);
        network_.send_to_sink(j, amount);
        if (!has(open_to_sink, j)) drop(below, j);
        at->left -= amount;
    }
}

// Continues to a node above that sends here, to take some of that back.
template <bool kOneWord>
bool Search::step_up(Frame* at) {
    const int k = at->level, i = at->node;
    if (at->slot == 0 || k + 1 >= pair_.depth) return false;
    Word* above = wave(k + 1, at->slot - 1);
    for (;;) {
        const int u = first_common(network_.feeders(k + 1, i), above, kOneWord ? 1 : pair_.words(k + 1));
        if (u < 0) return false;
        double& edge = network_.row(k + 1, u)[i];
        const double flow = pair_.capacity(k + 1, u, i) - edge, want = std::min(at->left, flow);
        at[1] = Frame{want, want, &edge, above, k + 1, u, at->slot - 1};
        if (flow > 0) return true;
        drop(network_.feeders(k + 1, i), u);  // below the last digit of the capacity: nothing to take back
    }
}

// The capacity of the cut between the nodes without a distance and the others, without nodes on no path.
double Search::labelled_cut() {
    const int top = pair_.depth;
    double cut = 0;
    for (int k = 1; k <= top; ++k) {
        const int n = pair_.width(k - 1), words = pair_.words(k - 1);
        std::fill(labelled_.begin(), labelled_.end(), 0);
        if (k == 1) add(labelled_.data(), pair_.sink);
        else
            for (int j = 0; j < n; ++j)
                if (!has(waiting_[k - 1], j) && pair_.on_path(k - 1, j)) add(labelled_.data(), j);
        if (empty(labelled_.data(), words)) continue;
        for (int i = 0; i < pair_.width(k); ++i)
            if (k == top ? i == pair_.source : has(waiting_[k], i))
                cut += kernels_.sum_where(pair_.row(k, i), labelled_.data(), padded(n));
    }
    return cut;
}

}  // namespace attnflow
