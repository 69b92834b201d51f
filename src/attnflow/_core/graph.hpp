// A layered graph in memory. Node (k, i) is position i at level k, level 0 is the input; layer k (1..depth) joins level
// k to level k-1, and capacity(k)[i][j] belongs to the edge (k, i) -> (k-1, j). Rows are padded with zeros.
#pragma once

#include <cstddef>
#include <vector>

#include "bits.hpp"
#include "kernels.hpp"

namespace attnflow {

// One matrix per layer in one block of memory; rows of layer k are the nodes of level k (or, transposed, of level k-1).
class Matrices {
public:
    Matrices() = default;
    Matrices(const std::vector<int>& rows, const std::vector<int>& cols) : rows_(rows), cols_(cols) {
        std::size_t total = 0;
        for (std::size_t k = 0; k < rows.size(); ++k) {
            offset_.push_back(total);
            total += static_cast<std::size_t>(rows[k]) * static_cast<std::size_t>(padded(cols[k]));
        }
        data_.assign(total, 0.0);
    }
    bool empty() const { return data_.empty(); }
    // k counts from 1, as layers do.
    double* at(int k) { return data_.data() + offset_[static_cast<std::size_t>(k - 1)]; }
    const double* at(int k) const { return data_.data() + offset_[static_cast<std::size_t>(k - 1)]; }
    int cols(int k) const { return cols_[static_cast<std::size_t>(k - 1)]; }
    int rows(int k) const { return rows_[static_cast<std::size_t>(k - 1)]; }
    int stride(int k) const { return padded(cols_[static_cast<std::size_t>(k - 1)]); }
    double* row(int k, int i) { return at(k) + static_cast<std::ptrdiff_t>(i) * stride(k); }
    const double* row(int k, int i) const { return at(k) + static_cast<std::ptrdiff_t>(i) * stride(k); }

private:
    std::vector<int> rows_, cols_;
    std::vector<std::size_t> offset_;
    std::vector<double> data_;
};

struct Graph {
    int depth = 0;
    std::vector<int> width;  // width[k]: nodes at level k, k = 0..depth
    Matrices cap;            // cap.row(k, i)[j]
    Matrices cap_t;          // cap_t.row(k, j)[i], the same edges by where they end
    BitMatrices open, open_t;  // where cap and cap_t are positive
    std::vector<std::vector<double>> out, in;  // out[k][i]: all that leaves (k, i); in[k][j]: all that enters (k, j)
    std::vector<std::vector<double>> aside_out, aside_in;  // the same without the edge that stays in its column
    std::vector<std::vector<double>> column;   // column[l][j]: least capacity of (k, j) -> (k-1, j) over 1 < k < l
    bool square = false;     // every level has the same number of nodes
    bool finite = true;      // no infinite capacity
    bool full = true;        // no zero capacity
    double widest = 0;       // the largest capacity

    std::size_t edges() const;
    // matrices[k-1] is layer k, row-major [width[k]][width[k-1]].
    Graph(const std::vector<const double*>& matrices, const std::vector<int>& widths);

private:
    void transpose(int k);
};

}  // namespace attnflow
