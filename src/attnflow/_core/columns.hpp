// Step 1: vector operations along the columns of a square graph.
//
// A path goes down the source's column to layer k, hops to column j, goes straight down to layer m, and hops into the
// sink's column, which it follows to the sink. Paths with different j are disjoint, so for every pair of layers k > m
// all j are one vector operation: sum_j min(supply_k[j], demand_m[j]). A column j that is passed over several layers
// has a budget, the least of its capacities there.
//
// A supply at layer k can only use demands m < k. High layers are therefore served first, by the highest demands below
// them. Every supply can use the demands of the first layer, so these are left to the lowest layers.
//
// After the step, this has what the edges at the two columns can still carry; steps 2 and 3 start from it.
#pragma once

#include <vector>

#include "pair.hpp"

namespace attnflow {

class Columns {
public:
    Columns(const Graph& graph, const Pair& pair);

    // Sends along the columns; returns whether the flow then fills a cut around the source's or the sink's column.
    bool run();
    // Whether one of those two cuts is full.
    bool saturated() const;
    // What was sent, by this step and by others through `leave_source`.
    double value() const { return value_; }

    // What can still come down the source's column to layer k, and go down the sink's column from layer m.
    double source_room(int k) const { return source_room_[k]; }
    double sink_room(int m) const { return sink_room_[m]; }
    // Records that `amount` leaves the source's column at layer k, or enters the sink's at layer m.
    void leave_source(int k, double amount);
    void enter_sink(int m, double amount);

    // What can still go from the source's column to column j at layer k, from column j into the sink's at layer m, and
    // straight down column j between the first layer and the last. Zero for the two columns themselves.
    double* supply(int k) { return supply_[k]; }
    double* demand(int m) { return demand_[m]; }
    double* budget() { return budget_.data(); }
    const double* supply(int k) const { return supply_[k]; }
    const double* demand(int m) const { return demand_[m]; }

    // What can still stay in the source's column at layer k, stay in the sink's, and go from one to the other. For
    // source = sink only the first is used.
    double source_column(int k) const { return source_column_[k]; }
    double sink_column(int k) const { return sink_column_[k]; }
    double direct(int k) const { return direct_[k]; }

    // What supply(k) and demand(m) were before anything was sent.
    void first_supply(int k, double* to) const;
    void first_demand(int m, double* to) const;

private:
    void begin();
    void send_directly();
    void match(int k, int m);
    void copy_on_paths(double* to, const double* edges, bool node_on_path, int ends_at) const;

    const Pair& pair_;
    const Kernels& kernels_;
    double value_ = 0;
    Rows<double> supply_, demand_;                              // [layer][column]
    std::vector<double> budget_;                                // [column]
    std::vector<double> source_column_, sink_column_, direct_;  // [layer]
    std::vector<double> source_room_, sink_room_;  // [layer] the least of source_column_ above, of sink_column_ below
};

}  // namespace attnflow
