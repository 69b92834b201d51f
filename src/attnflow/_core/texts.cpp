#include "texts.hpp"

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>

#include "crew.hpp"
#include "straighten.hpp"

namespace attnflow {

namespace {

constexpr std::size_t kWhole = 256;  // a text with at most this many pairs is not divided
constexpr std::size_t kPart = 16;

template <class Number>
void copy_block(const void* data, std::size_t text, int width, int n, double* to) {
    const Number* from = static_cast<const Number*>(data) + text * width * width;
    for (int i = 0; i < n; ++i, from += width) to = std::copy_n(from, n, to);
}

// The graph of one text while threads work on it: the first one builds it, and the last one to leave frees it.
class Shared {
public:
    void make(const Texts& texts, std::size_t text) {
        std::call_once(once_, [&] {
            graph_.emplace(texts.graph(text));
            if (has_narrow_columns(*graph_)) straight_.emplace(straighten(*graph_));
        });
    }
    const Graph& graph() const { return straight_ ? straight_->graph : *graph_; }
    int query(int layer, int query) const { return straight_ ? straight_->name[layer][query] : query; }

private:
    std::once_flag once_;
    std::optional<Graph> graph_;
    std::optional<Straightened> straight_;
};

struct Part {
    std::size_t begin, end;  // pairs
    std::shared_ptr<Shared> shared;
};

std::vector<Part> divide(const TextPair* pairs, std::size_t count) {
    std::vector<Part> parts;
    for (std::size_t begin = 0, end = 0; begin < count; begin = end) {
        while (end < count && pairs[end].text == pairs[begin].text) ++end;
        const auto shared = std::make_shared<Shared>();
        const std::size_t size = end - begin <= kWhole ? kWhole : kPart;
        for (std::size_t p = begin; p < end; p += size) parts.push_back({p, std::min(end, p + size), shared});
    }
    return parts;
}

}  // namespace

Graph Texts::graph(std::size_t text) const {
    const int n = lengths_[text];
    const std::size_t size = static_cast<std::size_t>(n) * n;
    std::vector<double> capacities(layers_.size() * size);
    std::vector<const double*> matrices;
    for (const Layer& layer : layers_) {
        double* to = capacities.data() + matrices.size() * size;
        if (layer.single) copy_block<float>(layer.data, text, width_, n, to);
        else copy_block<double>(layer.data, text, width_, n, to);
        matrices.push_back(to);
    }
    if (!std::all_of(capacities.begin(), capacities.end(), [](double c) { return c >= 0; }))
        throw std::invalid_argument("a capacity is negative or NaN");
    return Graph(matrices, std::vector<int>(layers_.size() + 1, n));
}

bool flows_of_texts(const Texts& texts, const TextPair* pairs, std::size_t count, int threads, double* out,
                    Counters& counters, const std::function<bool()>& interrupted) {
    if (count == 0) return true;
    std::vector<Part> parts = divide(pairs, count);
    Crew crew(parts.size(), 1);
    const auto work = [&] {
        Counters counts;
        std::shared_ptr<Shared> shared;  // the text of the solver
        std::unique_ptr<Solver> solver;
        for (auto share = crew.next(); share.begin < share.end && !crew.cancelled; share = crew.next()) {
            Part& part = parts[parts.size() - 1 - share.begin];  // deep pairs come last and take longest
            if (part.shared != shared) {
                if (solver) counts += solver->counters;
                solver.reset();
                shared = std::move(part.shared);
                shared->make(texts, pairs[part.begin].text);
                solver = std::make_unique<Solver>(shared->graph());
            }
            part.shared.reset();
            for (std::size_t p = part.begin; p < part.end && !crew.cancelled; ++p)
                out[p] = solver->solve(pairs[p].layer, shared->query(pairs[p].layer, pairs[p].query), pairs[p].token,
                                       crew.cancelled);
        }
        if (solver) counts += solver->counters;
        return counts;
    };
    std::size_t edges = 0;
    for (std::size_t p = 0; p < count; ++p) {
        const std::size_t n = texts.length(pairs[p].text);
        edges += n * n * texts.depth();
    }
    const bool complete = crew.run(threads, is_little(edges, threads), work, interrupted);
    counters += crew.counters;
    return complete;
}

}  // namespace attnflow
