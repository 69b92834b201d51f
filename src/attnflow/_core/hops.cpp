#include "hops.hpp"

#include <algorithm>

namespace attnflow {

Hops::Hops(const Graph& graph, const Pair& pair, Columns& columns, Residual& residual)
    : pair_(pair), columns_(columns), residual_(residual), kernels_(kernels()) {
    if (graph.square) wanting_ = Sets(graph.width.size(), words_for(graph.width[0]));
}

bool Hops::run() {
    const int n = pair_.width(0);
    const bool sink_column_open = columns_.sink_room(2) > 0;
    for (int m = 1; m < (sink_column_open ? pair_.depth - 1 : 2); ++m)
        kernels_.above(columns_.demand(m), 0, padded(n), wanting_[m]);
    for (int k = pair_.depth; k >= 3; --k) {
        double* supply = columns_.supply(k);
        for (int h = 0; h < n && columns_.source_room(k) > 0; ++h) {
            if (supply[h] <= 0) continue;
            const double sent = send_supply(k, h, std::min(supply[h], columns_.source_room(k)), sink_column_open);
            if (sent <= 0) continue;
            supply[h] -= sent;
            columns_.leave_source(k, sent);
        }
    }
    return columns_.saturated();
}

// Sends up to `amount`, which left the source's column for column h at layer k; returns the amount sent.
double Hops::send_supply(int k, int h, double amount, bool sink_column_open) {
    double left = amount;
    const auto less = [&](double sent) { left = sent < left ? left - sent : 0; };
    if (sink_column_open)
        for (int m = k - 1; m >= 3 && left > 0; --m)
            less(send(k, m, h, m - 1, std::min(left, columns_.sink_room(m - 1))));
    for (int m = k - 1; m >= 2 && left > 0; --m) less(send(k, m, h, 1, left));
    return amount - left;
}

// The same with the hop at layer m, to demands of layer `to`.
double Hops::send(int k, int m, int h, int to, double amount) {
    double& budget = columns_.budget()[h];
    const bool straight_first = m < k - 1;
    if (straight_first) amount = std::min(amount, budget);
    if (amount <= 0) return 0;
    const double sent = hop(m, h, to, amount);
    if (straight_first) budget -= sent;
    columns_.enter_sink(to, sent);
    return sent;
}

// Sends up to `amount` from (m, h) to columns with demand at layer `to`, from the left; returns the amount sent.
double Hops::hop(int m, int h, int to, double amount) {
    const bool straight_after = m > to + 1;
    const Word* out = pair_.open(m, h);
    Word* wanting = wanting_[to];
    double *row = residual_.row(m, h), *demand = columns_.demand(to), *budget = columns_.budget();
    double left = amount;
    for (int w = 0; w < wanting_.length(); ++w)
        for (Word both = out[w] & wanting[w]; both; both &= both - 1) {
            const int j = w * 64 + lowest(both);
            if (j == h) continue;
            double sent = std::min({left, row[j], demand[j]});
            if (straight_after) sent = std::min(sent, budget[j]);
            if (sent <= 0) continue;
            residual_.send(row[j], m, h, j, sent);
            if (straight_after) budget[j] -= sent;
            demand[j] -= sent;
            if (demand[j] <= pair_.negligible) drop(wanting, j);
            left -= sent;
            if (left <= 0) return amount;
        }
    return amount - left;
}

}  // namespace attnflow
