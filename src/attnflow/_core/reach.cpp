#include "reach.hpp"

#include <algorithm>

namespace attnflow {

Reach::Reach(const Graph& graph) : graph_(graph) {
    if (graph.full || graph.depth < 3) return;  // not needed
    const int words = words_for(*std::max_element(graph.width.begin(), graph.width.end()));
    const std::size_t levels = graph.width.size();
    // For all tokens, unless one level is so much wider than the others that this would need more memory than the
    // graph.
    const std::size_t all = levels * words * graph.width[0];
    known_token_.assign(all <= graph.edges() / 8 ? graph.width[0] : 1, -1);
    reached_ = Sets(levels, words);
    reaching_ = Sets(levels * known_token_.size(), words);
    on_paths_ = Sets(levels, words);
}

bool Reach::find(int layer, int query, int token) {
    find_reached(layer, query);
    if (!has(reached_[0], token)) return false;
    find_reaching(token);
    const Word *from = reached_[0], *to = reaching_[place(token, 0)];
    Word* both = on_paths_[0];
    for (int w = 0; w < (layer + 1) * on_paths_.length(); ++w) both[w] = from[w] & to[w];
    return true;
}

void Reach::find_reached(int layer, int query) {
    if (reached_layer_ == layer && reached_query_ == query) return;
    reached_layer_ = layer;
    reached_query_ = query;
    reached_.clear();
    add(reached_[layer], query);
    for (int k = layer; k >= 1; --k)
        for (int i = 0; i < graph_.width[k]; ++i)
            if (has(reached_[k], i))
                for (int w = 0; w < words_for(graph_.width[k - 1]); ++w) reached_[k - 1][w] |= graph_.open.row(k, i)[w];
}

void Reach::find_reaching(int token) {
    int& known = known_token_[known_token_.size() > 1 ? token : 0];
    if (known == token) return;
    known = token;
    Word* first = reaching_[place(token, 0)];
    std::fill(first, first + (graph_.depth + 1) * reaching_.length(), Word{0});
    add(first, token);
    for (int k = 1; k <= graph_.depth; ++k)
        for (int i = 0; i < graph_.width[k]; ++i)
            if (common(graph_.open.row(k, i), reaching_[place(token, k - 1)], words_for(graph_.width[k - 1])))
                add(reaching_[place(token, k)], i);
}

}  // namespace attnflow
