// Pairs of many graphs, those of a batch of texts: every layer is one array [text, position, position], padded to the
// longest text.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "solver.hpp"

namespace attnflow {

class Texts {
public:
    // One layer of all texts, in the model's precision.
    struct Layer {
        const void* data;
        bool single;
    };
    Texts(std::vector<Layer> layers, const std::int32_t* lengths, std::size_t count, int width)
        : layers_(std::move(layers)), lengths_(lengths), count_(count), width_(width) {}

    std::size_t count() const { return count_; }
    int depth() const { return static_cast<int>(layers_.size()); }
    int length(std::size_t text) const { return lengths_[text]; }
    // The graph of a text, without entries beyond its length. Throws if a capacity is negative or NaN.
    Graph graph(std::size_t text) const;

private:
    std::vector<Layer> layers_;
    const std::int32_t* lengths_;
    std::size_t count_;
    int width_;
};

struct TextPair {
    std::int32_t text, layer, query, token;
};

// out[p] = maximum flow of pairs[p], which are sorted by text; otherwise like many_flows. Threads take whole texts, and
// parts of texts with many pairs.
bool flows_of_texts(const Texts& texts, const TextPair* pairs, std::size_t count, int threads, double* out,
                    Counters& counters, const std::function<bool()>& interrupted);

}  // namespace attnflow
