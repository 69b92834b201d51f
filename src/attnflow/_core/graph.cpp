#include "graph.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace attnflow {

namespace {

void fill_bits(const Matrices& from, int k, int rows, int cols, BitMatrices& to) {
    for (int i = 0; i < rows; ++i) {
        const double* row = from.row(k, i);
        for (int w = 0; w < words_for(cols); ++w) {
            Word bits = 0;
            for (int b = 0; b < std::min(64, cols - 64 * w); ++b) bits |= static_cast<Word>(row[64 * w + b] > 0) << b;
            to.row(k, i)[w] = bits;
        }
    }
}

}  // namespace

std::size_t Graph::edges() const {
    std::size_t count = 0;
    for (int k = 1; k <= depth; ++k) count += static_cast<std::size_t>(width[k]) * width[k - 1];
    return count;
}

// In tiles, so that both the source and the destination stay in cache.
void Graph::transpose(int k) {
    constexpr int kTile = 16;
    const int rows = width[k], cols = width[k - 1];
    for (int ib = 0; ib < rows; ib += kTile)
        for (int jb = 0; jb < cols; jb += kTile)
            for (int j = jb; j < std::min(cols, jb + kTile); ++j)
                for (int i = ib; i < std::min(rows, ib + kTile); ++i) cap_t.row(k, j)[i] = cap.row(k, i)[j];
}

Graph::Graph(const std::vector<const double*>& matrices, const std::vector<int>& widths)
    : depth(static_cast<int>(matrices.size())), width(widths) {
    const std::vector<int> upper(widths.begin() + 1, widths.end());
    const std::vector<int> lower(widths.begin(), widths.end() - 1);
    cap = Matrices(upper, lower);
    cap_t = Matrices(lower, upper);
    open = BitMatrices(upper, lower);
    open_t = BitMatrices(lower, upper);
    for (auto* sums : {&out, &in, &aside_out, &aside_in}) sums->resize(widths.size());
    square = std::all_of(widths.begin(), widths.end(), [&](int w) { return w == widths[0]; });

    for (int k = 1; k <= depth; ++k) {
        const int rows = width[k], cols = width[k - 1];
        out[k].assign(rows, 0.0);
        in[k - 1].assign(cols, 0.0);
        aside_out[k].assign(rows, 0.0);
        aside_in[k - 1].assign(cols, 0.0);
        for (int i = 0; i < rows; ++i) {
            const double* from = matrices[k - 1] + static_cast<std::size_t>(i) * cols;
            std::copy_n(from, cols, cap.row(k, i));
            double aside = 0, most = 0, least = from[0];
            for (int j = 0; j < cols; ++j) {
                most = std::max(most, from[j]);
                least = std::min(least, from[j]);
                in[k - 1][j] += from[j];
                if (j == i) continue;
                aside += from[j];
                aside_in[k - 1][j] += from[j];
            }
            aside_out[k][i] = aside;
            out[k][i] = i < cols ? aside + from[i] : aside;
            widest = std::max(widest, most);
            if (std::isinf(most)) finite = false;
            if (least == 0) full = false;
        }
        fill_bits(cap, k, rows, cols, open);
        transpose(k);
        fill_bits(cap_t, k, cols, rows, open_t);
    }
    if (!square) return;
    const int n = width[0];
    diagonal.assign(depth + 1, std::vector<double>(padded(n), 0.0));
    for (int k = 1; k <= depth; ++k)
        for (int j = 0; j < n; ++j) diagonal[k][j] = cap.row(k, j)[j];
    column.assign(depth + 1, std::vector<double>(padded(n), std::numeric_limits<double>::max()));
    for (int l = 3; l <= depth; ++l)
        for (int j = 0; j < n; ++j) column[l][j] = std::min(column[l - 1][j], diagonal[l - 1][j]);
}

}  // namespace attnflow
