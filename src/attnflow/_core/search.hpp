// Step 3: Dinic's algorithm in the network that steps 1 and 2 leave.
//
// A phase labels nodes by their distance to the sink and then sends, depth first and one step nearer each time, until
// the sink is cut off at that distance. Open edges and labelled nodes are bit sets, so the next useful edge is an `and`
// of two words. Paths that only go down are the shortest paths, so edges that would take flow back are considered only
// when there are none of those left, which is rare. At the end the nodes without a label are the source's side of a cut
// that the flow fills.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "network.hpp"

namespace attnflow {

class Search {
public:
    Search(const Graph& graph, const Pair& pair, Network& network);

    struct Result {
        double sent = 0;
        double cut = 0;  // the capacity of a cut that the flow fills
        int phases = 0;
    };
    Result run(const std::atomic<bool>& cancelled);

private:
    // A node on the current path: it should pass on `want`, of which `left` is not passed on yet. `via` is what the
    // edge that led here can carry, `here` the nodes of this level at this distance.
    struct Frame {
        double want, left;
        double* via;
        Word* here;
        int level, node, slot;
    };

    // kOneWord: no level has more than 64 nodes, so every set is one word.
    template <bool kOneWord>
    Result dinic(const std::atomic<bool>& cancelled);
    template <bool kOneWord>
    bool label(bool back);
    template <bool kOneWord>
    bool label_level(int level, int slot, bool back);
    template <bool kOneWord>
    double blocking_flow(bool back, const std::atomic<bool>& cancelled);
    template <bool kOneWord>
    bool step_down(Frame* at);
    template <bool kOneWord>
    bool step_up(Frame* at);
    template <bool kOneWord>
    void finish(Frame* at);
    void begin_labels();
    void more_slots();
    double labelled_cut();

    Word* wave(int level, int slot) { return waves_[level * slots_ + slot]; }

    const Pair& pair_;
    Network& network_;
    const Kernels& kernels_;
    bool one_word_;
    // A step changes level and distance by one, so a node of level k is at distance k + 2 * slot.
    int slots_ = 8, source_slot_ = 0;
    Sets waves_;    // [level][slot] the nodes at that distance
    Sets waiting_;  // [level] the nodes without a distance
    std::vector<Frame> path_;
    std::vector<Word> labelled_;  // scratch
};

}  // namespace attnflow
