// The threads that share the work of one call.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>

#include "solver.hpp"

namespace attnflow {

class Crew {
public:
    Crew(std::size_t units, std::size_t at_a_time) : units_(units), at_a_time_(at_a_time) {}

    // The next units of work, [begin, end); none are left if begin = end.
    struct Share {
        std::size_t begin, end;
    };
    Share next();
    // Runs `work` until no units are left: on up to `threads` threads, or on this thread if that is faster. Every
    // thread calls it once, and it returns what its solvers counted. `interrupted` is polled on the calling thread; if
    // it returns true, everything stops and false is returned. What `work` throws is thrown here.
    bool run(int threads, bool here, const std::function<Counters()>& work, const std::function<bool()>& interrupted);

    std::atomic<bool> cancelled{false};
    Counters counters;

private:
    void take_part(const std::function<Counters()>& work);
    void run_threads(std::size_t count, const std::function<Counters()>& work,
                     const std::function<bool()>& interrupted);

    const std::size_t units_, at_a_time_;
    std::atomic<std::size_t> next_{0};
    std::mutex mutex_;
    std::exception_ptr failure_;
};

// Whether this work takes only a few milliseconds: it is then done without the cost of starting threads.
inline bool is_little(std::size_t pairs_times_edges, int threads) {
    return pairs_times_edges < (threads <= 1 ? 2000000u : 200000u);
}

}  // namespace attnflow
