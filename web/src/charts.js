import { el, svg, label, tableOf, correlation, plainToken } from "./draw.js";
import { path, tick, ticks, apart, chart, marked, between, decimals, interval, widest } from "./plots.js";
import { many, wideTable } from "./frame.js";

const DASHES = ["2 4", "8 4", null];
const WEAK = 1.2; // the largest score by the smallest, below which their order says little

export const percent = (x, digits = 1) => (Number.isFinite(x) ? `${decimals(100 * x, digits)} %` : "–");

export const unit = ({ words }) => (words ? "word" : "token");

export const times = (x) => decimals(x, x < 2 ? 2 : x < 10 ? 1 : 0);

/** Whether a view gives nearly the same to all of a text. */
export const isWeak = ({ ratio }, view, layer) => ratio[view][layer] !== null && ratio[view][layer] < WEAK;

export const weakly = (held, view, layer, where) =>
  `${view} hardly tells ${unit(held)}s apart ${where}: the largest score is ${times(held.ratio[view][layer])} times the smallest of a typical text`;

const lineLook = (i, hue = i) => ({
  stroke: `var(--hue-${hue})`,
  "stroke-width": 1.8,
  "stroke-dasharray": DASHES[i],
  "stroke-linecap": "round",
});

/** Names of lines, beside the picture where there is room, else below it. */
function lineNames(names, looks, place) {
  return names.map((name, i) => {
    const [x, y] = place(i);
    return [path(`M${x} ${y}h20`, looks[i]), label(x + 26, y, name, { style: `fill:${looks[i].stroke}` })];
  });
}

/** Lines over steps, with a band at each that tells its values.
 *
 * at: the place of each step on the axis, whole numbers from 0; lines go on between neighbours, and what has none is a dot.
 */
function linesChart(page, width, told, { names, looks, rows, at, flip, marks, axes, tell, low, top, bars = [] }) {
  const narrow = width < 560,
    foot = 230,
    end = width - (narrow ? 20 : 50 + widest(names)),
    most = at.at(-1) || 1;
  const x = (s) => 46 + (flip ? 1 - at[s] / most : at[s] / most) * (end - 46),
    y = (v) => foot - 6 - ((v - low) / (top - low || 1)) * (foot - 28);
  const levels = ticks(low, top, 4),
    digits = between(1, Math.ceil(-Math.log10(levels[1] - levels[0]) - 1e-9), 9);
  const axis = [
    levels.map((v) => [path(`M46 ${y(v)}H${end}`), tick(40, y(v), decimals(v, digits), "end")]),
    apart(
      marks.map(([s, text]) => [x(s), text]),
      foot + 12,
    ),
    tick(46, 8, axes[1], "start"),
    tick((46 + end) / 2, foot + 28, axes[0]),
  ];
  const follows = (row, s) =>
    s > 0 && s < at.length && at[s] - at[s - 1] === 1 && row[s] !== null && row[s - 1] !== null;
  const dot = (row, r, s) => svg("circle", { cx: x(s), cy: y(row[s]), r: 3, fill: looks[r].stroke });
  const lines = rows.map((row, r) => {
    const there = at.map((_, s) => s).filter((s) => row[s] !== null);
    const drawn = there.map((s) => `${follows(row, s) ? "L" : "M"}${x(s)} ${y(row[s])}`).join("");
    const alone = there.filter((s) => !follows(row, s) && !follows(row, s + 1));
    return [path(drawn, looks[r]), alone.map((s) => dot(row, r, s))];
  });
  const legend = lineNames(names, looks, (i) => (narrow ? [46, foot + 50 + 16 * i] : [end + 12, 28 + 18 * i]));
  const spans = bars.map(([row, s, from, to]) => path(`M${x(s)} ${y(from)}V${y(to)}`, { stroke: looks[row].stroke }));
  const wide = (end - 46) / most;
  const bands = at.map((_, s) => {
    const dots = rows.flatMap((row, r) => (row[s] === null ? [] : [dot(row, r, s)]));
    const band = svg("rect", { x: x(s) - wide / 2, width: wide, height: foot, fill: "transparent" });
    return marked(tell(s), "band", band, path(`M${x(s)} 20V${foot}`), dots);
  });
  const high = foot + 36 + (narrow ? 10 + 16 * names.length : 0);
  return chart(page, [width, high], told, [axis, lines, spans, legend], [flip ? bands.reverse() : bands]);
}

export function positionsChart(page, width) {
  const { held, state } = page,
    { l, s, e } = state.get();
  const { counts, uniform, shares: found } = held.positions[e][s ? "all" : "plain"],
    rest = held.positions.places;
  const steps = counts.flatMap((n, i) => (n >= held.least ? [i] : []));
  if (steps.length < 2) return [el("p", { class: "empty" }, "Too few tokens stand at any position.")];
  const at = [];
  steps.forEach((i, k) => at.push(k ? at[k - 1] + (i === rest || i - steps[k - 1] > 1 ? 2 : 1) : 0));
  const names = [...held.views, "all the same"],
    rows = [...held.views.map((view) => found[view][l]), uniform].map((row) => steps.map((i) => row[i]));
  const looks = [
    ...held.views.map((_, i) => lineLook(i)),
    { ...lineLook(0), stroke: "var(--faint)", "stroke-dasharray": "1 4" },
  ];
  const named = (i) => (i === rest ? `${rest + 1}+` : String(i + 1)),
    side = { start: "", end: " from the end" }[e];
  const tell = (k) => [
    `position ${named(steps[k])}${side}, ${many(counts[steps[k]], "token")}`,
    ...names.map((name, r) => `${name} ${decimals(rows[r][k], 4)}`),
  ];
  const wanted = [
    steps[0],
    steps.at(-1),
    ...steps.filter((i) => (i + 1) % 10 === 0),
    ...steps.filter((i) => (i + 1) % 5 === 0),
    ...steps,
  ];
  return linesChart(page, width, `Mean score by position${side || " from the start"} at ${l}`, {
    names,
    looks,
    rows,
    tell,
    at,
    flip: e === "end",
    marks: wanted.map((i) => [steps.indexOf(i), named(i)]),
    axes: [`position${side}`, "mean score"],
    low: Math.min(0, ...rows.flat()),
    top: Math.max(...rows.flat()),
  });
}

/** Counts as bars. bars: [name of the range, count]; marks: texts at places between bars, from 0 to their number. */
function barsChart(page, width, told, bars, marks, middle = null) {
  const foot = 110,
    most = Math.max(...bars.map(([, n]) => n)) || 1;
  const x = (i) => 8 + (i / bars.length) * (width - 16),
    high = (n) => (n ? Math.max(1, (n / most) * (foot - 18)) : 0);
  const axis = [
    path(`M8 ${foot}H${width - 8}`),
    apart(
      marks.map(([i, text]) => [between(14, x(i), width - 14), text]),
      foot + 12,
    ),
    tick(8, 8, `highest: ${many(most, "text")}`, "start"),
  ];
  const drawn = bars.map(([name, n], i) => {
    const size = { x: x(i), width: x(i + 1) - x(i) };
    const all = svg("rect", { ...size, y: 0, height: foot, fill: "transparent" });
    const bar = svg("rect", {
      x: size.x + 0.5,
      width: size.width - 1,
      y: foot - high(n),
      height: high(n),
      class: "count",
    });
    return marked([name, many(n, "text")], "cell", all, bar);
  });
  const line =
    middle === null ? [] : [path(`M${x(middle)} 16V${foot}`, { stroke: "var(--ink)", "stroke-dasharray": "4 3" })];
  const [node, list] = chart(page, [width, foot + 22], told, axis, [drawn]);
  node.append(...line);
  return [node, list];
}

/** The width of one of some things beside each other, as the style sets them. */
function besides(width, count) {
  const columns = between(1, Math.floor((width + 28) / (290 + 28)), count);
  return Math.floor((width - 28 * (columns - 1)) / columns);
}

export function agreementParts(page, width) {
  const { held, state } = page,
    { l, s } = state.get();
  const cells = held.pairs.map((pair) => held.cell(pair, l, s));
  const rows = cells.map((one, i) => {
    const { mean, low, high } = one.correlation,
      first = one.first;
    return [
      held.pairs[i],
      `${correlation(mean)} [${correlation(low)}, ${correlation(high)}]`,
      first.share === null
        ? "–"
        : `${percent(first.share, 0)} [${decimals(100 * first.low, 0)}, ${decimals(100 * first.high, 0)}]`,
      one.texts.toLocaleString("en"),
      [
        one.few && `${one.few.toLocaleString("en")} too short`,
        one.flat && `${one.flat.toLocaleString("en")} all the same`,
      ]
        .filter(Boolean)
        .join(", ") || "none",
    ];
  });
  const heads = ["views", "rank correlation", "same token first", "texts", "left out"];
  const each = besides(width, cells.length);
  const places = [-1, -0.5, 0, 0.5, 1].map((v, i) => [5 * i, correlation(v)]);
  const histograms = cells.map((one, i) => {
    const bars = one.histogram.map((n, b) => [
      `ρ from ${correlation(b / 10 - 1)} to ${correlation((b + 1) / 10 - 1)}`,
      n,
    ]);
    const { mean } = one.correlation;
    const told = `${held.pairs[i]}: texts by rank correlation at ${l}`;
    const picture = barsChart(page, each, told, bars, places, mean === null ? null : 10 * (mean + 1));
    return el(
      "div",
      { class: "picture" },
      el("h3", {}, held.pairs[i], el("small", {}, " texts by ρ; the line is the mean")),
      picture,
    );
  });
  const table = tableOf({ "aria-label": "agreement of views" }, heads, rows);
  const weak = held.views.filter((view) => isWeak(held, view, l));
  return [
    weak.map((view) =>
      el(
        "p",
        { class: "weak" },
        `${weakly(held, view, l, `at ${l}`)}, so that its order, and how far others agree with it, says little.`,
      ),
    ),
    wideTable("agreement of views", table),
    el("div", { class: "beside" }, histograms),
    held.layers.length > 1 ? overLayers(page, width) : [],
  ].flat();
}

function overLayers(page, width) {
  const { held, state } = page,
    { s } = state.get();
  const found = held.pairs.map((pair) => held.layers.map((layer) => held.cell(pair, layer, s).correlation));
  const values = found.flat().flatMap(({ mean, low, high }) => (mean === null ? [] : [low ?? mean, high ?? mean]));
  if (!values.length) return [];
  const tell = (k) => [held.layers[k], ...held.pairs.map((pair, i) => `${pair} ${interval(found[i][k])}`)];
  return [
    el("h3", { class: "second" }, "Rank correlation layer by layer"),
    ...linesChart(page, width, "Rank correlation layer by layer", {
      names: held.pairs,
      looks: held.pairs.map((_, i) => lineLook(i, 3 + i)), // other hues than those of the views
      rows: found.map((row) => row.map(({ mean }) => mean)),
      bars: found.flatMap((row, i) => row.flatMap(({ low, high }, k) => (low === null ? [] : [[i, k, low, high]]))),
      at: held.layers.map((_, i) => i),
      marks: held.layers.map((layer, i) => [i, layer]),
      axes: ["layer", "mean ρ"],
      tell,
      low: Math.min(0, ...values),
      top: 1,
    }),
  ];
}

export function textsParts(page, width) {
  const { lengths, predictions, errors, scored } = page.held;
  const bars = lengths.counts.map((n, i) => {
    const [from, to] = [1 + i * lengths.width, (i + 1) * lengths.width];
    return [from === to ? many(from, "token") : `${from} to ${to} tokens`, n];
  });
  const most = bars.length * lengths.width;
  // a number below its own bar, or at the end of the bar that reaches up to it
  const place = (n) => (lengths.width === 1 ? n - 0.5 : n / lengths.width);
  const marks = ticks(0, most, 6).flatMap((n) => (n % 1 || place(n) < 0 ? [] : [[place(n), String(n)]]));
  const summary = `${many(scored, "text")} of ${lengths.shortest} to ${lengths.longest} tokens, median ${lengths.median}`;
  const there = 1 + (predictions.top.length > 0) + (errors.length > 0);
  const parts = [
    el(
      "div",
      { class: "picture" },
      el("h3", {}, "Lengths"),
      el("p", { class: "told" }, summary),
      barsChart(page, Math.min(besides(width, there), 420), "Texts by their number of tokens", bars, marks),
    ),
  ];
  if (predictions.top.length) {
    const kinds = [...new Set(predictions.top.map(({ kind }) => kind))];
    const rows = predictions.top.map((one) => [
      plainToken(one.label, 40),
      one.count.toLocaleString("en"),
      percent(one.count / predictions.texts),
      decimals(one.mean, 2),
    ]);
    const rest = predictions.labels - predictions.top.length;
    const heads = [kinds.join(", "), "texts", "share", kinds[0] === "score" ? "mean score" : "mean probability"];
    const note = rest ? [el("p", { class: "hint" }, `and ${many(rest, "other")}, less often`)] : [];
    parts.push(
      el(
        "div",
        { class: "said" },
        el("h3", {}, "Predictions"),
        wideTable("predictions", tableOf({ "aria-label": "predictions" }, heads, rows)),
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
