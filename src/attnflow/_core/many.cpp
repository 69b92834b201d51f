#include "many.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "straighten.hpp"

namespace attnflow {

namespace {

// `name`, unless null, says what a query is called in the graph.
bool solve_all(const Graph& graph, const std::vector<std::vector<int>>* name, const std::vector<int>& layers,
               const std::vector<int>& queries, const std::vector<int>& tokens, int threads, double* out,
               Counters& counters, const std::function<bool()>& interrupted) {
    const std::size_t per_layer = queries.size() * tokens.size(), total = layers.size() * per_layer;
    if (total == 0) return true;
    constexpr std::size_t kChunk = 16;
    std::atomic<bool> cancelled{false};
    std::atomic<std::size_t> next{0};
    std::mutex mutex;
    std::condition_variable finished;
    std::exception_ptr failure;
    int running = 0;

    const auto work = [&] {
        try {
            Solver solver(graph);
            for (;;) {
                const std::size_t begin = next.fetch_add(kChunk);
                if (begin >= total) break;
                for (std::size_t p = begin; p < std::min(total, begin + kChunk); ++p) {
                    if (cancelled) return;
                    const std::size_t inner = p % per_layer;
                    const int layer = layers[p / per_layer], query = queries[inner / tokens.size()];
                    out[p] = solver.solve(layer, name ? (*name)[layer][query] : query, tokens[inner % tokens.size()],
                                          cancelled);
                }
            }
            const std::lock_guard<std::mutex> lock(mutex);
            counters += solver.counters;
        } catch (...) {
            const std::lock_guard<std::mutex> lock(mutex);
            failure = std::current_exception();
            cancelled = true;
        }
    };

    // A few milliseconds of work are done here, without the cost of a thread and of waiting for it.
    if (total * graph.edges() < (threads <= 1 ? 2000000u : 200000u)) {
        work();
    } else {
        const int useful = static_cast<int>(std::min<std::size_t>(std::max(threads, 1), (total + kChunk - 1) / kChunk));
        std::vector<std::thread> pool;
        try {
            for (int w = 0; w < useful; ++w) {
                {
                    const std::lock_guard<std::mutex> lock(mutex);
                    ++running;
                }
                pool.emplace_back([&] {
                    work();
                    const std::lock_guard<std::mutex> lock(mutex);
                    --running;
                    finished.notify_all();
                });
            }
        } catch (...) {  // no more threads to be had: those that started do the work
            const std::lock_guard<std::mutex> lock(mutex);
            --running;
            if (pool.empty()) failure = std::current_exception();
        }
        std::unique_lock<std::mutex> lock(mutex);
        while (running > 0) {
            if (finished.wait_for(lock, std::chrono::milliseconds(50), [&] { return running == 0; })) break;
            lock.unlock();
            if (!cancelled && interrupted()) cancelled = true;
            lock.lock();
        }
        lock.unlock();
        for (std::thread& t : pool) t.join();
    }
    if (failure) std::rethrow_exception(failure);
    return !cancelled;
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
