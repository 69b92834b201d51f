// Rows of equal length in one block of memory, initially zero.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace attnflow {

template <class T>
class Rows {
public:
    Rows() = default;
    Rows(std::size_t count, int length)
        : count_(static_cast<int>(count)), length_(length), data_(count * static_cast<std::size_t>(length)) {}
    T* operator[](int at) { return data_.data() + static_cast<std::ptrdiff_t>(at) * length_; }
    const T* operator[](int at) const { return data_.data() + static_cast<std::ptrdiff_t>(at) * length_; }
    int count() const { return count_; }
    int length() const { return length_; }
    void clear() { std::fill(data_.begin(), data_.end(), T{}); }

private:
    int count_ = 0, length_ = 0;
    std::vector<T> data_;
};

}  // namespace attnflow
