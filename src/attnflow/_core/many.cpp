#include "many.hpp"

#include "crew.hpp"
#include "straighten.hpp"

namespace attnflow {

namespace {

constexpr std::size_t kPairsAtATime = 16;

// `name`, unless null, maps a query to its name in the graph.
bool solve_all(const Graph& graph, const std::vector<std::vector<int>>* name, const std::vector<int>& layers,
               const std::vector<int>& queries, const std::vector<int>& tokens, int threads, double* out,
               Counters& counters, const std::function<bool()>& interrupted) {
    const std::size_t per_layer = queries.size() * tokens.size(), total = layers.size() * per_layer;
    if (total == 0) return true;
    Crew crew(total, kPairsAtATime);
    const auto work = [&] {
        Solver solver(graph);
        for (auto share = crew.next(); share.begin < share.end; share = crew.next())
            for (std::size_t p = share.begin; p < share.end && !crew.cancelled; ++p) {
                const std::size_t inner = p % per_layer;
                const int layer = layers[p / per_layer], query = queries[inner / tokens.size()];
                out[p] = solver.solve(layer, name ? (*name)[layer][query] : query, tokens[inner % tokens.size()],
                                      crew.cancelled);
            }
        return solver.counters;
    };
    const bool complete = crew.run(threads, is_little(total * graph.edges(), threads), work, interrupted);
    counters += crew.counters;
    return complete;
}

}  // namespace

bool many_flows(const Graph& graph, const std::vector<int>& layers, const std::vector<int>& queries,
                const std::vector<int>& tokens, int threads, double* out, Counters& counters,
                const std::function<bool()>& interrupted) {
    if (!has_narrow_columns(graph))
        return solve_all(graph, nullptr, layers, queries, tokens, threads, out, counters, interrupted);
    const Straightened straight = straighten(graph);
    return solve_all(straight.graph, &straight.name, layers, queries, tokens, threads, out, counters, interrupted);
}

}  // namespace attnflow
