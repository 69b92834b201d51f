// Step 2: supply that step 1 left makes one more hop. From column h it goes, at some layer m, to a column that still
// has demand, at the layer right below or at the first.
#pragma once

#include "columns.hpp"
#include "residual.hpp"

namespace attnflow {

class Hops {
public:
    Hops(const Graph& graph, const Pair& pair, Columns& columns, Residual& residual);
    // Sends by one more hop; returns whether the flow then fills a cut around the source's or the sink's column.
    bool run();

private:
    double send_supply(int k, int h, double amount, bool sink_column_open);
    double send(int k, int m, int h, int to, double amount);
    double hop(int m, int h, int to, double amount);

    const Pair& pair_;
    Columns& columns_;
    Residual& residual_;
    const Kernels& kernels_;
    Sets wanting_;  // [layer] the columns with demand left
};

}  // namespace attnflow
