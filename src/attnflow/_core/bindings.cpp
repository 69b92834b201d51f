#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "exact.hpp"
#include "many.hpp"
#include "texts.hpp"

namespace nb = nanobind;
using namespace attnflow;

using Capacities = nb::ndarray<const double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::numpy, double>;
using Batch = nb::ndarray<nb::ro, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Lengths = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pairs = nb::ndarray<const std::int32_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;

static Array owned(std::unique_ptr<double[]> data, std::initializer_list<std::size_t> shape) {
    double* raw = data.release();
    nb::capsule owner(raw, [](void* p) noexcept { delete[] static_cast<double*>(p); });
    return Array(raw, shape, owner);
}

static int position(int index, int size, const char* what) {
    if (index < 0 || index >= size) throw nb::index_error(what);
    return index;
}

static void make_graph(Graph* self, const std::vector<Capacities>& layers) {
    if (layers.empty()) throw nb::value_error("a graph needs at least one layer");
    std::vector<const double*> matrices;
    std::vector<int> width{static_cast<int>(layers[0].shape(1))};
    for (const Capacities& layer : layers) {
        if (static_cast<int>(layer.shape(1)) != width.back()) throw nb::value_error("layers do not fit together");
        if (layer.shape(0) == 0 || layer.shape(1) == 0) throw nb::value_error("a layer has no positions");
        const double* capacity = layer.data();
        if (!std::all_of(capacity, capacity + layer.size(), [](double c) { return c >= 0; }))
            throw nb::value_error("a capacity is negative or NaN");
        width.push_back(static_cast<int>(layer.shape(0)));
        matrices.push_back(layer.data());
    }
    nb::gil_scoped_release release;
    new (self) Graph(matrices, width);
}

static bool signalled() {
    nb::gil_scoped_acquire acquire;
    return PyErr_CheckSignals() != 0;
}

static nb::dict steps_of(const Counters& counters) {
    nb::dict steps;
    steps["pairs"] = counters.pairs;
    steps["columns"] = counters.by_columns;
    steps["hops"] = counters.by_hops;
    steps["search"] = counters.by_search;
    steps["reference"] = counters.by_reference;
    steps["phases"] = counters.phases;
    return steps;
}

static nb::tuple flow(const Graph& graph, const std::vector<int>& layers, const std::vector<int>& queries,
                      const std::vector<int>& tokens, int threads) {
    for (const int l : layers) {
        if (l < 1 || l > graph.depth) throw nb::index_error("layer");
        for (const int q : queries) position(q, graph.width[l], "query");
    }
    for (const int t : tokens) position(t, graph.width[0], "token");
    auto out = std::make_unique<double[]>(layers.size() * queries.size() * tokens.size() + 1);
    Counters counters;
    bool complete = false;
    {
        nb::gil_scoped_release release;
        complete = many_flows(graph, layers, queries, tokens, threads, out.get(), counters, signalled);
    }
    if (!complete) throw nb::python_error();
    return nb::make_tuple(owned(std::move(out), {layers.size(), queries.size(), tokens.size()}), steps_of(counters));
}

static Texts texts_of(const std::vector<Batch>& layers, const Lengths& lengths) {
    if (layers.empty()) throw nb::value_error("a graph needs at least one layer");
    std::vector<Texts::Layer> data;
    for (const Batch& layer : layers) {
        if (layer.shape(0) != lengths.shape(0) || layer.shape(1) != layer.shape(2) ||
            layer.shape(1) != layers[0].shape(1))
            throw nb::value_error("layers do not fit together");
        const bool single = layer.dtype() == nb::dtype<float>();
        if (!single && layer.dtype() != nb::dtype<double>()) throw nb::type_error("a layer is no float32 or float64");
        data.push_back({layer.data(), single});
    }
    const int width = static_cast<int>(layers[0].shape(1));
    for (std::size_t text = 0; text < lengths.shape(0); ++text) {
        if (lengths.data()[text] == 0) throw nb::value_error("a layer has no positions");
        position(lengths.data()[text] - 1, width, "length");
    }
    return Texts(std::move(data), lengths.data(), lengths.shape(0), width);
}

static nb::tuple text_flows(const std::vector<Batch>& layers, const Lengths& lengths, const Pairs& pairs, int threads) {
    const Texts texts = texts_of(layers, lengths);
    const std::size_t count = pairs.shape(0);
    const auto* const first = reinterpret_cast<const TextPair*>(pairs.data());
    for (const TextPair* pair = first; pair < first + count; ++pair) {
        position(pair->text, static_cast<int>(texts.count()), "text");
        if (pair > first && pair->text < pair[-1].text) throw nb::value_error("the pairs are not sorted by text");
        position(pair->layer - 1, texts.depth(), "layer");
        position(pair->query, texts.length(pair->text), "query");
        position(pair->token, texts.length(pair->text), "token");
    }
    auto out = std::make_unique<double[]>(count + 1);
    Counters counters;
    bool complete = false;
    {
        nb::gil_scoped_release release;
        complete = flows_of_texts(texts, first, count, threads, out.get(), counters, signalled);
    }
    if (!complete) throw nb::python_error();
    return nb::make_tuple(owned(std::move(out), {count}), steps_of(counters));
}

static nb::tuple max_flow(const Graph& graph, int layer, int query, int token) {
    if (layer < 1 || layer > graph.depth) throw nb::index_error("layer");
    position(query, graph.width[layer], "query");
    position(token, graph.width[0], "token");
    Matrices edges = graph.cap;
    Certificate proof;
    {
        nb::gil_scoped_release release;
        proof = exact_flow(graph, layer, query, token, edges, signalled);
    }
    if (proof.stopped) throw nb::python_error();
    nb::list flows, sides;
    for (int k = 1; k <= layer; ++k) {
        const std::size_t rows = graph.width[k], cols = graph.width[k - 1];
        auto data = std::make_unique<double[]>(rows * cols);
        for (std::size_t i = 0; i < rows; ++i)
            std::copy_n(edges.row(k, static_cast<int>(i)), cols, data.get() + i * cols);
        flows.append(owned(std::move(data), {rows, cols}));
    }
    for (const auto& level : proof.sink_side) {
        nb::list side;
        for (const char s : level) side.append(s != 0);
        sides.append(side);
    }
    return nb::make_tuple(proof.value, proof.cut, flows, sides);
}

NB_MODULE(_native, m) {
    m.doc() = "Maximum flow in layered graphs. Internal: use attnflow.flow and attnflow.max_flow.";
    m.def("instruction_set", [] { return kernels().name; });
    m.def("text_flows", &text_flows, nb::arg("layers"), nb::arg("lengths"), nb::arg("pairs"), nb::arg("threads"));
    nb::class_<Graph>(m, "Graph")
        .def("__init__", &make_graph, nb::arg("layers"))
        .def("flow", &flow, nb::arg("layers"), nb::arg("queries"), nb::arg("tokens"), nb::arg("threads"))
        .def("max_flow", &max_flow, nb::arg("layer"), nb::arg("query"), nb::arg("token"));
}
