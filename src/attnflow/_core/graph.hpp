// A layered graph in memory. Node (k, i) is position i at level k; level 0 is the input. Layer k (1..depth) joins level
// k to level k-1, and capacity(k)[i][j] belongs to the edge (k, i) -> (k-1, j). Rows are padded with zeros.
#pragma once

#include <cstddef>
#include <vector>

#include "bits.hpp"
#include "kernels.hpp"

namespace attnflow {

// One matrix per layer in one block of memory; rows of layer k are the nodes of level k (or, transposed, of level k-1).
// Layers count from 1.
class Matrices {
public:
    Matrices() = default;
    Matrices(const std::vector<int>& rows, const std::vector<int>& cols) : layers_(1) {
        std::size_t total = 0;
        for (std::size_t k = 0; k < rows.size(); ++k) {
            layers_.push_back(Layer{total, rows[k], cols[k], padded(cols[k])});
            total += static_cast<std::size_t>(rows[k]) * static_cast<std::size_t>(padded(cols[k]));
        }
        data_.assign(total, 0.0);
    }
    bool empty() const { return data_.empty(); }
    int rows(int k) const { return layers_[k].rows; }
    int cols(int k) const { return layers_[k].cols; }
    int stride(int k) const { return layers_[k].stride; }
    std::size_t size(int k) const { return static_cast<std::size_t>(rows(k)) * static_cast<std::size_t>(stride(k)); }
    double* at(int k) { return data_.data() + layers_[k].offset; }
    const double* at(int k) const { return data_.data() + layers_[k].offset; }
    double* row(int k, int i) { return at(k) + static_cast<std::ptrdiff_t>(i) * stride(k); }
    const double* row(int k, int i) const { return at(k) + static_cast<std::ptrdiff_t>(i) * stride(k); }

private:
    struct Layer {
        std::size_t offset = 0;
        int rows = 0, cols = 0, stride = 0;
    };
    std::vector<Layer> layers_;
    std::vector<double> data_;
};

struct Graph {
    int depth = 0;
    std::vector<int> width;                    // width[k]: nodes at level k, k = 0..depth
    Matrices cap;                              // cap.row(k, i)[j]
    Matrices cap_t;                            // cap_t.row(k, j)[i], the same edges by where they end
    BitMatrices open, open_t;                  // where cap and cap_t are positive
    std::vector<std::vector<double>> out, in;  // out[k][i]: all that leaves (k, i); in[k][j]: all that enters (k, j)
    std::vector<std::vector<double>> aside_out, aside_in;  // the same without the edge that stays in its column
    std::vector<std::vector<double>> diagonal;  // diagonal[k][j]: capacity of (k, j) -> (k-1, j), in square graphs
    std::vector<std::vector<double>> column;    // column[l][j]: the least diagonal[k][j] over 1 < k < l
    bool square = false;                        // every level has the same number of nodes
    bool finite = true;                         // no infinite capacity
    bool full = true;                           // no zero capacity
    double widest = 0;                          // the largest capacity

    std::size_t edges() const;
    // matrices[k-1] is layer k, row-major [width[k]][width[k-1]].
    Graph(const std::vector<const double*>& matrices, const std::vector<int>& widths);

private:
    void transpose(int k);
};

}  // namespace attnflow
