import { el, between, rowOf, tableOf, correlation, percent, plainToken } from "./draw.js";
import { many, wideTable } from "./frame.js";
import { barsChart, decimals, interval, lineLook, linesChart, ticks } from "./charts.js";

/** @import { Corpus, CorpusPage } from "./types" */

const DASHES = ["2 4", "8 4", null];
const HUES = 6; // of a theme
const WEAK = 1.2; // if the largest score is less than this many times the smallest, their order says little

/** @param {Corpus} corpus */
export const unit = ({ unit: name }) => name;

/** Name the layer of scores within a sentence. @param {string} layer */
export const atLayer = (layer) => (/^L\d+$/.test(layer) ? `at ${layer}` : `over ${layer}`);

/** @param {number} x */
export const times = (x) => decimals(x, x < 2 ? 2 : x < 10 ? 1 : 0);

/** Return whether a method gives all tokens of a text nearly the same score.
 *
 * @param {Corpus} corpus
 * @param {string} method
 * @param {string} layer
 */
export const isWeak = ({ ratio }, method, layer) => (ratio[method][layer] ?? WEAK) < WEAK;

/** @param {Corpus} corpus @param {string} method @param {string} layer @param {string} where */
export const weakly = (corpus, method, layer, where) =>
  `${method} hardly distinguishes ${unit(corpus)}s ${where}: in a typical text the largest score is only ${times(corpus.ratio[method][layer] ?? NaN)} times the smallest`;

/** @param {number} i @param {number} hue */
const hued = (i, hue) => lineLook(`var(--hue-${hue % HUES})`, DASHES[i % DASHES.length]);

/** @param {CorpusPage} page @param {number} width */
export function positionsChart(page, width) {
  const { corpus, state } = page,
    { l, s, e } = state.get();
  const side = e === "end" ? "end" : "start",
    from = side === "end" ? " from the end" : "";
  const { counts, uniform, shares } = corpus.positions[side][s ? "all" : "plain"],
    rest = corpus.positions.places;
  const steps = counts.flatMap((n, i) => (n >= corpus.least ? [i] : []));
  if (steps.length < 2) return [el("p", { class: "empty" }, "Every position has too few tokens.")];
  /** @type {number[]} */
  const at = [];
  steps.forEach((i, k) => at.push(k ? at[k - 1] + (i === rest || i - steps[k - 1] > 1 ? 2 : 1) : 0));
  const names = [...corpus.methods, "all the same"],
    rows = [...corpus.methods.map((method) => shares[method][l]), uniform].map((row) => steps.map((i) => row[i]));
  const looks = [...corpus.methods.map((_, i) => hued(i, i)), lineLook("var(--faint)", "1 4")];
  const named = (/** @type {number} */ i) => (i === rest ? `${rest + 1}+` : String(i + 1));
  const tell = (/** @type {number} */ k) => [
    `position ${named(steps[k])}${from}, ${many(counts[steps[k]], "token")}`,
    ...names.map((name, r) => `${name} ${decimals(rows[r][k], 4)}`),
  ];
  const labelled = [
    steps[0],
    steps[steps.length - 1],
    ...steps.filter((i) => (i + 1) % 10 === 0),
    ...steps.filter((i) => (i + 1) % 5 === 0),
    ...steps,
  ];
  return linesChart(page, width, `Mean score by position${from || " from the start"} ${atLayer(l)}`, {
    names,
    looks,
    rows,
    tell,
    at,
    flip: side === "end",
    marks: labelled.map((i) => [at[steps.indexOf(i)], named(i)]),
    axes: [`position${from}`, "mean score"],
    low: Math.min(0, ...rows.flat()),
    top: Math.max(...rows.flat()),
  });
}

/** Return the width of one of several things side by side, as the style sheet arranges them.
 *
 * @param {number} width
 * @param {number} count
 */
function besides(width, count) {
  const columns = between(1, Math.floor((width + 28) / (290 + 28)), count);
  return Math.floor((width - 28 * (columns - 1)) / columns);
}

/** @param {CorpusPage} page @param {number} width */
export function agreementParts(page, width) {
  const { corpus, state } = page,
    { l, s } = state.get();
  const cells = corpus.pairs.map((pair) => corpus.cell(pair, l, s));
  const rows = cells.map((one, i) => {
    const { mean, low, high } = one.correlation,
      first = one.first;
    return [
      corpus.pairs[i],
      `${correlation(mean)} [${correlation(low)}, ${correlation(high)}]`,
      first.share === null
        ? "–"
        : `${percent(first.share)} [${decimals(100 * first.low, 0)}, ${decimals(100 * first.high, 0)}]`,
      one.texts.toLocaleString("en"),
      [
        one.few && `${one.few.toLocaleString("en")} too short`,
        one.flat && `${one.flat.toLocaleString("en")} all the same`,
      ]
        .filter(Boolean)
        .join(", ") || "none",
    ];
  });
  const heads = ["methods", "rank correlation", "same token first", "texts", "left out"];
  const each = besides(width, cells.length);
  /** @type {[number, string][]} */
  const places = [-1, -0.5, 0, 0.5, 1].map((v, i) => [5 * i, correlation(v)]);
  const histograms = cells.map((one, i) => {
    /** @type {[string, number][]} */
    const bars = one.histogram.map((n, b) => [
      `ρ from ${correlation(b / 10 - 1)} to ${correlation((b + 1) / 10 - 1)}`,
      n,
    ]);
    const { mean } = one.correlation;
    const title = `${corpus.pairs[i]}: texts by rank correlation ${atLayer(l)}`;
    const picture = barsChart(page, each, title, bars, places, mean === null ? null : 10 * (mean + 1));
    return el(
      "div",
      { class: "picture" },
      el("h3", {}, corpus.pairs[i], el("small", {}, " number of texts by ρ; the line is the mean")),
      picture,
    );
  });
  const table = tableOf({ "aria-label": "agreement of methods" }, heads, rows.map(rowOf));
  const weak = corpus.methods.filter((method) => isWeak(corpus, method, l));
  return [
    weak.map((method) =>
      el(
        "p",
        { class: "weak" },
        `${weakly(corpus, method, l, atLayer(l))}, so its order, and its agreement with other methods, says little.`,
      ),
    ),
    wideTable("agreement of methods", table),
    el("div", { class: "beside" }, histograms),
    corpus.layers.length > 1 ? overLayers(page, width) : [],
  ].flat();
}

/** @param {CorpusPage} page @param {number} width */
function overLayers(page, width) {
  const { corpus, state } = page,
    { s } = state.get();
  const cells = corpus.pairs.map((pair) => corpus.layers.map((layer) => corpus.cell(pair, layer, s).correlation));
  const values = cells.flat().flatMap(({ mean, low, high }) => (mean === null ? [] : [low ?? mean, high ?? mean]));
  if (!values.length) return [];
  /** @type {[number, number, number, number][]} */
  const bars = cells.flatMap((row, i) =>
    row.flatMap(
      ({ low, high }, k) => /** @type {typeof bars} */ (low === null || high === null ? [] : [[i, k, low, high]]),
    ),
  );
  const tell = (/** @type {number} */ k) => [
    corpus.layers[k],
    ...corpus.pairs.map((pair, i) => `${pair} ${interval(cells[i][k])}`),
  ];
  return [
    el("h3", { class: "second" }, "Rank correlation layer by layer"),
    ...linesChart(page, width, "Rank correlation layer by layer", {
      names: corpus.pairs,
      looks: corpus.pairs.map((_, i) => hued(i, 3 + i)), // not the hues of the methods
      rows: cells.map((row) => row.map(({ mean }) => mean)),
      bars,
      at: corpus.layers.map((_, i) => i),
      marks: corpus.layers.map((layer, i) => [i, layer]),
      axes: ["layer", "mean ρ"],
      tell,
      low: Math.min(0, ...values),
      top: 1,
    }),
  ];
}

/** @param {CorpusPage} page @param {number} width */
export function textsParts(page, width) {
  const { lengths, predictions, errors, scored } = page.corpus;
  /** @type {[string, number][]} */
  const bars = lengths.counts.map((n, i) => {
    const [from, to] = [1 + i * lengths.width, (i + 1) * lengths.width];
    return [from === to ? many(from, "token") : `${from} to ${to} tokens`, n];
  });
  const most = bars.length * lengths.width;
  // a number is below its own bar, or at the end of the bar that ends with it
  const place = (/** @type {number} */ n) => (lengths.width === 1 ? n - 0.5 : n / lengths.width);
  /** @type {[number, string][]} */
  const marks = ticks(0, most, 6).flatMap((n) => (n % 1 || place(n) < 0 ? [] : [[place(n), String(n)]]));
  const summary = `${many(scored, "text")} of ${lengths.shortest} to ${lengths.longest} tokens, median ${lengths.median}`;
  const there = [true, predictions.top.length, errors.length].filter(Boolean).length;
  const parts = [
    el(
      "div",
      { class: "picture" },
      el("h3", {}, "Lengths"),
      el("p", { class: "summary" }, summary),
      barsChart(page, Math.min(besides(width, there), 420), "Texts by their number of tokens", bars, marks),
    ),
  ];
  if (predictions.top.length) {
    const kinds = [...new Set(predictions.top.map(({ kind }) => kind))];
    const rows = predictions.top.map((one) => [
      plainToken(one.label, 40),
      one.count.toLocaleString("en"),
      percent(one.count / predictions.texts, 1),
      decimals(one.mean, 2),
    ]);
    const rest = predictions.labels - predictions.top.length;
    const heads = [kinds.join(", "), "texts", "share", kinds[0] === "score" ? "mean score" : "mean probability"];
    const note = rest ? [el("p", { class: "hint" }, `and ${many(rest, "other")} that are less frequent`)] : [];
    parts.push(
      el(
        "div",
        { class: "predictions" },
        el("h3", {}, "Predictions"),
        wideTable("predictions", tableOf({ "aria-label": "predictions" }, heads, rows.map(rowOf))),
        note,
      ),
    );
  }
  if (errors.length) {
    const lists = errors.map(({ kind, count, examples }) =>
      el(
        "details",
        { "data-kind": kind },
        el("summary", {}, `${kind}: ${many(count, "text")}`),
        el(
          "ul",
          {},
          examples.map(({ id, message }) => el("li", {}, el("strong", {}, id), ` ${message ?? ""}`)),
          count > examples.length ? el("li", {}, "…") : null,
        ),
      ),
    );
    parts.push(el("div", { class: "failures" }, el("h3", {}, "Failed"), lists));
  }
  return [el("div", { class: "beside" }, parts)];
}
