// Sets of nodes as machine words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>
#ifdef _MSC_VER
#include <intrin.h>
#endif

#include "rows.hpp"

namespace attnflow {

using Word = std::uint64_t;

inline int words_for(int n) { return (n + 63) / 64; }
inline bool has(const Word* set, int j) { return set[j >> 6] >> (j & 63) & 1; }
inline void add(Word* set, int j) { set[j >> 6] |= Word{1} << (j & 63); }
inline void drop(Word* set, int j) { set[j >> 6] &= ~(Word{1} << (j & 63)); }
inline void put(Word* set, int j, bool member) {
    set[j >> 6] = (set[j >> 6] & ~(Word{1} << (j & 63))) | Word{member} << (j & 63);
}

inline int lowest(Word w) {
#ifdef _MSC_VER
    unsigned long at;
    _BitScanForward64(&at, w);
    return static_cast<int>(at);
#else
    return __builtin_ctzll(w);
#endif
}

inline bool common(const Word* a, const Word* b, int words) {
    for (int w = 0; w < words; ++w)
        if (a[w] & b[w]) return true;
    return false;
}

// The smallest member of both sets, or -1.
inline int first_common(const Word* a, const Word* b, int words) {
    for (int w = 0; w < words; ++w)
        if (const Word both = a[w] & b[w]) return w * 64 + lowest(both);
    return -1;
}

// One set after the other, all of the same size.
using Sets = Rows<Word>;

// One set per row of every layer.
class BitMatrices {
public:
    BitMatrices() = default;
    BitMatrices(const std::vector<int>& rows, const std::vector<int>& cols) {
        std::size_t total = 0;
        for (std::size_t k = 0; k < rows.size(); ++k) {
            offset_.push_back(total);
            words_.push_back(words_for(cols[k]));
            total += static_cast<std::size_t>(rows[k]) * static_cast<std::size_t>(words_.back());
        }
        data_.assign(total, 0);
    }
    // All sets empty.
    BitMatrices like() const {
        BitMatrices other = *this;
        other.data_.assign(data_.size(), 0);
        return other;
    }
    bool all_empty() const {
        return std::all_of(data_.begin(), data_.end(), [](Word word) { return word == 0; });
    }
    Word* at(int k) { return data_.data() + offset_[static_cast<std::size_t>(k - 1)]; }
    const Word* at(int k) const { return data_.data() + offset_[static_cast<std::size_t>(k - 1)]; }
    int words(int k) const { return words_[static_cast<std::size_t>(k - 1)]; }
    Word* row(int k, int i) { return at(k) + static_cast<std::ptrdiff_t>(i) * words(k); }
    const Word* row(int k, int i) const { return at(k) + static_cast<std::ptrdiff_t>(i) * words(k); }

private:
    std::vector<std::size_t> offset_;
    std::vector<int> words_;
    std::vector<Word> data_;
};

}  // namespace attnflow
