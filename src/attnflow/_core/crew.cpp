#include "crew.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <thread>
#include <vector>

namespace attnflow {

Crew::Share Crew::next() {
    const std::size_t begin = std::min(units_, next_.fetch_add(at_a_time_));
    return {begin, std::min(units_, begin + at_a_time_)};
}

bool Crew::run(int threads, bool here, const std::function<Counters()>& work,
               const std::function<bool()>& interrupted) {
    const std::size_t useful = std::min<std::size_t>(std::max(threads, 1), (units_ + at_a_time_ - 1) / at_a_time_);
    if (here) take_part(work);
    else run_threads(useful, work, interrupted);
    if (failure_) std::rethrow_exception(failure_);
    return !cancelled;
}

void Crew::take_part(const std::function<Counters()>& work) {
    try {
        const Counters counts = work();
        const std::lock_guard<std::mutex> lock(mutex_);
        counters += counts;
    } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex_);
        failure_ = std::current_exception();
        cancelled = true;
    }
}

void Crew::run_threads(std::size_t count, const std::function<Counters()>& work,
                       const std::function<bool()>& interrupted) {
    std::condition_variable finished;
    std::vector<std::thread> pool;
    int running = 0;
    try {
        for (std::size_t w = 0; w < count; ++w) {
            {
                const std::lock_guard<std::mutex> lock(mutex_);
                ++running;
            }
            pool.emplace_back([&] {
                take_part(work);
                const std::lock_guard<std::mutex> lock(mutex_);
                --running;
                finished.notify_all();
            });
        }
    } catch (...) {  // no more threads available: those that started do the work
        const std::lock_guard<std::mutex> lock(mutex_);
        --running;
        if (pool.empty()) failure_ = std::current_exception();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    while (running > 0) {
        if (finished.wait_for(lock, std::chrono::milliseconds(50), [&] { return running == 0; })) break;
        lock.unlock();
        if (!cancelled && interrupted()) cancelled = true;
        lock.lock();
    }
    lock.unlock();
    for (std::thread& t : pool) t.join();
}

}  // namespace attnflow
