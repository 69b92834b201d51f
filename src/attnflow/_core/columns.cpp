#include "columns.hpp"

#include <algorithm>
#include <limits>

namespace attnflow {

namespace {
constexpr double kUnlimited = std::numeric_limits<double>::infinity();
}

Columns::Columns(const Graph& graph, const Pair& pair) : pair_(pair), kernels_(kernels()) {
    if (!graph.square) return;
    const std::size_t levels = graph.width.size();
    const int n = padded(graph.width[0]);
    supply_ = demand_ = Rows<double>(levels, n);
    budget_.assign(n, 0.0);
    source_column_ = sink_column_ = direct_ = std::vector<double>(levels);
    source_room_ = sink_room_ = std::vector<double>(levels + 1);
}

bool Columns::run() {
    begin();
    send_directly();
    for (int k = pair_.depth; k >= 3; --k)
        for (int m = k - 1; m >= 2 && source_room(k) > 0; --m) match(k, m);
    for (int k = 2; k <= pair_.depth; ++k) match(k, 1);
    return saturated();
}

void Columns::begin() {
    const int top = pair_.depth, q = pair_.source, t = pair_.sink;
    value_ = 0;
    for (int k = 2; k <= top; ++k) first_supply(k, supply_[k]);
    for (int m = 1; m < top; ++m) first_demand(m, demand_[m]);
    std::copy_n(pair_.column(), budget_.size(), budget_.data());
    const auto capacity = [&](int k, int i, int j) {
        return pair_.on_path(k, i) && pair_.on_path(k - 1, j) ? pair_.capacity(k, i, j) : 0;
    };
    for (int k = 1; k <= top; ++k) {
        source_column_[k] = capacity(k, q, q);
        sink_column_[k] = q != t ? capacity(k, t, t) : 0;
        direct_[k] = q != t ? capacity(k, q, t) : 0;
    }
    source_room_[top] = sink_room_[1] = kUnlimited;
    for (int k = top - 1; k >= 0; --k) source_room_[k] = std::min(source_room_[k + 1], source_column_[k + 1]);
    for (int m = 2; m <= top; ++m) sink_room_[m] = std::min(sink_room_[m - 1], sink_column_[m - 1]);
}

void Columns::first_supply(int k, double* to) const {
    copy_on_paths(to, pair_.row(k, pair_.source), pair_.on_path(k, pair_.source), k - 1);
}

void Columns::first_demand(int m, double* to) const {
    copy_on_paths(to, pair_.col(m, pair_.sink), pair_.on_path(m - 1, pair_.sink), m);
}

// The edges of a node of the two columns, to or from the nodes of level `ends_at`.
void Columns::copy_on_paths(double* to, const double* edges, bool node_on_path, int ends_at) const {
    const int n = static_cast<int>(budget_.size());
    if (!node_on_path) std::fill_n(to, n, 0.0);
    else if (pair_.narrowed()) kernels_.copy_where(to, edges, pair_.nodes_on_paths(ends_at), n);
    else std::copy_n(edges, n, to);
    if (pair_.has_wider_edges()) kernels_.cap(to, pair_.bound, n);
    to[pair_.source] = to[pair_.sink] = 0;
}

// Paths that never leave the two columns.
void Columns::send_directly() {
    if (pair_.source == pair_.sink) leave_source(0, source_room(0));
    for (int k = pair_.depth; k >= 1; --k) {
        const double amount = std::min({direct_[k], source_room(k), sink_room(k)});
        if (amount <= 0) continue;
        direct_[k] -= amount;
        leave_source(k, amount);
        enter_sink(k, amount);
    }
}

// Paths that leave the source's column at layer k and enter the sink's at layer m.
void Columns::match(int k, int m) {
    const double room = std::min(source_room(k), sink_room(m));
    if (room <= 0) return;
    const int n = static_cast<int>(budget_.size());
    const double amount = m + 1 == k ? kernels_.take(supply_[k], demand_[m], n, room)
                                     : kernels_.take_via(supply_[k], demand_[m], budget_.data(), n, room);
    if (amount <= 0) return;
    leave_source(k, amount);
    enter_sink(m, amount);
}

// The room above layer k shrinks by the amount, like all the edges there; the room below may be limited by others.
void Columns::leave_source(int k, double amount) {
    for (int i = k; i < pair_.depth; ++i) {
        source_column_[i + 1] -= amount;
        source_room_[i] -= amount;
    }
    for (int i = k - 1; i >= 0; --i) source_room_[i] = std::min(source_room_[i + 1], source_column_[i + 1]);
    value_ += amount;
}

void Columns::enter_sink(int m, double amount) {
    for (int i = 1; i < m; ++i) {
        sink_column_[i] -= amount;
        sink_room_[i + 1] -= amount;
    }
    if (m == 1) return;
    for (int i = m + 1; i <= pair_.depth; ++i) sink_room_[i] = std::min(sink_room_[i - 1], sink_column_[i - 1]);
}

// A column is cut off if it is full at some layer, and so is everything that leaves it (or enters it) up to there.
bool Columns::saturated() const {
    const int top = pair_.depth, n = static_cast<int>(budget_.size());
    const double least = pair_.negligible;
    const bool one_column = pair_.source == pair_.sink;
    for (int k = top; k >= 1; --k) {
        if (direct_[k] > least) break;
        if (k > 1 && kernels_.largest(supply_[k], n) > least) break;
        if ((k == 1 && !one_column) || source_column_[k] <= least) return true;
    }
    const std::vector<double>& column = one_column ? source_column_ : sink_column_;
    for (int m = 1; m <= top; ++m) {
        if (direct_[m] > least) break;
        if (m < top && kernels_.largest(demand_[m], n) > least) break;
        if ((m == top && !one_column) || column[m] <= least) return true;
    }
    return false;
}

}  // namespace attnflow
