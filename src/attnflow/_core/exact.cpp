#include "exact.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace attnflow {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

class Dinic {
public:
    Dinic(const Graph& graph, int layer, int query, int token, Matrices& flow, const std::function<bool()>& stop)
        : g_(graph), top_(layer), query_(query), token_(token), f_(flow), stop_(stop) {
        for (int k = 0; k <= top_; ++k) {
            distance_.emplace_back(g_.width[k], -1);
            next_.emplace_back(g_.width[k], 0);
        }
    }

    double run() {
        if (infinite_path()) return kInfinity;
        double value = 0;
        while (!stopped() && label()) value += blocking_flow();
        return value;
    }

    // Whether a path of infinite capacity joins the two.
    bool infinite_path() const {
        if (g_.finite) return false;
        std::vector<char> reached(g_.width[top_], 0);
        reached[query_] = 1;
        for (int k = top_; k >= 1; --k) {
            std::vector<char> below(g_.width[k - 1], 0);
            for (int i = 0; i < g_.width[k]; ++i)
                if (reached[i])
                    for (int j = 0; j < g_.width[k - 1]; ++j)
                        if (std::isinf(g_.cap.row(k, i)[j])) below[j] = 1;
            reached = below;
        }
        return reached[token_];
    }

    bool stopped() {
        if (!stopped_ && asked_++ % 1024 == 0) stopped_ = stop_();
        return stopped_;
    }

    // After run(): nodes from which the sink can still be reached are labelled, the others are the source's side.
    Certificate certificate(double value) const {
        Certificate c;
        c.value = value;
        for (int k = 0; k <= top_; ++k) {
            c.sink_side.emplace_back(g_.width[k], 0);
            for (int i = 0; i < g_.width[k]; ++i) c.sink_side[k][i] = distance_[k][i] >= 0;
        }
        for (int i = 0; i < g_.width[top_]; ++i) c.sink_side[top_][i] = i != query_;  // only the query is a source
        for (int k = 1; k <= top_; ++k)
            for (int i = 0; i < g_.width[k]; ++i) {
                if (c.sink_side[k][i]) continue;
                const double* row = g_.cap.row(k, i);
                for (int j = 0; j < g_.width[k - 1]; ++j)
                    if (c.sink_side[k - 1][j]) c.cut += row[j];
            }
        return c;
    }

private:
    struct Step {
        int level, node;
    };

    double residual_down(int k, int i, int j) const { return g_.cap.row(k, i)[j] - f_.row(k, i)[j]; }

    // Distances to the sink along edges with capacity left, breadth first from the sink. False once the source is cut
    // off. The whole reachable set is labelled then, because it is the certificate.
    bool label() {
        for (auto& level : distance_) std::fill(level.begin(), level.end(), -1);
        for (auto& level : next_) std::fill(level.begin(), level.end(), 0);
        queue_.assign(1, Step{0, token_});
        distance_[0][token_] = 0;
        for (std::size_t head = 0; head < queue_.size(); ++head) {
            const Step v = queue_[head];
            const int d = distance_[v.level][v.node] + 1;
            if (v.level < top_)
                for (int i = 0; i < g_.width[v.level + 1]; ++i)
                    if (distance_[v.level + 1][i] < 0 && residual_down(v.level + 1, i, v.node) > 0)
                        enqueue(v.level + 1, i, d);
            if (v.level > 1) {
                const double* row = f_.row(v.level, v.node);
                for (int j = 0; j < g_.width[v.level - 1]; ++j)
                    if (distance_[v.level - 1][j] < 0 && row[j] > 0) enqueue(v.level - 1, j, d);
            }
            if (distance_[top_][query_] >= 0) return true;
        }
        return false;
    }

    void enqueue(int k, int i, int d) {
        if (k == top_ && i != query_) return;  // nothing enters the top level, so only the source matters there
        distance_[k][i] = d;
        queue_.push_back(Step{k, i});
    }

    // Depth first from the source, always one step nearer to the sink; `next_` stores how far each node was tried.
    double blocking_flow() {
        double total = 0;
        path_.assign(1, Step{top_, query_});
        while (!path_.empty()) {
            if (stopped()) break;
            const Step u = path_.back();
            if (u.level == 0) {
                total += augment();
                continue;
            }
            if (advance(u)) continue;
            distance_[u.level][u.node] = -2;  // a dead end in this phase
            path_.pop_back();
        }
        return total;
    }

    bool advance(const Step u) {
        const int d = distance_[u.level][u.node] - 1;
        const int below = u.level == 1 ? 1 : g_.width[u.level - 1];
        const int above = u.level < top_ ? g_.width[u.level + 1] : 0;
        for (int& a = next_[u.level][u.node]; a < below + above; ++a) {
            if (a < below) {
                const int j = u.level == 1 ? token_ : a;
                if (distance_[u.level - 1][j] == d && residual_down(u.level, u.node, j) > 0) {
                    path_.push_back(Step{u.level - 1, j});
                    return true;
                }
            } else {
                const int i = a - below;
                if (distance_[u.level + 1][i] == d && f_.row(u.level + 1, i)[u.node] > 0) {
                    path_.push_back(Step{u.level + 1, i});
                    return true;
                }
            }
        }
        return false;
    }

    // Sends as much as the path can take, and cuts the path back to the first edge that this fills.
    double augment() {
        double least = kInfinity;
        for (std::size_t s = 1; s < path_.size(); ++s) least = std::min(least, room(path_[s - 1], path_[s]));
        std::size_t keep = path_.size();
        for (std::size_t s = 1; s < path_.size(); ++s) {
            const Step u = path_[s - 1], v = path_[s];
            const bool full = room(u, v) == least;
            if (v.level < u.level) {
                double& f = f_.row(u.level, u.node)[v.node];
                f = full ? g_.cap.row(u.level, u.node)[v.node] : f + least;
            } else {
                double& f = f_.row(v.level, v.node)[u.node];
                f = full ? 0.0 : f - least;
            }
            if (full && keep == path_.size()) keep = s;
        }
        path_.resize(keep);
        return least;
    }

    double room(const Step u, const Step v) const {
        return v.level < u.level ? residual_down(u.level, u.node, v.node) : f_.row(v.level, v.node)[u.node];
    }

    const Graph& g_;
    const int top_, query_, token_;
    Matrices& f_;
    const std::function<bool()>& stop_;
    bool stopped_ = false;
    unsigned asked_ = 0;
    std::vector<std::vector<int>> distance_, next_;
    std::vector<Step> queue_, path_;
};

}  // namespace

Certificate exact_flow(const Graph& graph, int layer, int query, int token, Matrices& flow,
                       const std::function<bool()>& stop) {
    for (int k = 1; k <= layer; ++k) std::fill_n(flow.at(k), flow.size(k), 0.0);
    Dinic dinic(graph, layer, query, token, flow, stop);
    const double value = dinic.run();
    Certificate c;
    if (dinic.stopped() || dinic.infinite_path()) {
        c.value = c.cut = value;
        c.stopped = dinic.stopped();
        return c;
    }
    if (std::isfinite(value)) c = dinic.certificate(value);
    if (!std::isfinite(value) || !std::isfinite(c.cut)) throw std::overflow_error("a flow exceeds the largest double");
    return c;
}

}  // namespace attnflow
