import { shade, inkOn } from "./colour.js";
import { el, svg, between, correlation, label, textWidth } from "./draw.js";
import { many, listed } from "./frame.js";
import { apart, chart, decimals, interval, lineLook, linesChart, marked, path, tick, ticks, widest } from "./charts.js";

/** @import { Attributes, Grid, GridPage } from "./types" */

/** @type {Record<string, string>} */
export const KINDS = { paper: "the paper's", edges: "other edges", importance: "importance", baseline: "baselines" };
const RANKED = 7; // methods on the first screen, unless the verdict is about more
const BEST = 20; // methods in the diagram of ranks, unless all are shown
const AFFORDABLE = 3; // forward and backward passes
const HUES = 6; // --hue-0, … of the style

/** @type {((x: number, y: number) => string)[]} */
const SHAPES = [
  (x, y) => `M${x - 4} ${y}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0`,
  (x, y) => `M${x - 3.5} ${y - 3.5}h7v7h-7z`,
  (x, y) => `M${x} ${y - 4.5}l4.5 8h-9z`,
  (x, y) => `M${x} ${y - 5}l4 5l-4 5l-4 -5z`,
];

/** @param {number | null} cost */
export const passes = (cost) =>
  cost === null ? "–" : `${cost < 10 ? Number(cost.toPrecision(2)) : Math.round(cost)}×`;

/** @param {string} name @param {number} most */
const short = (name, most) => (name.length > most ? `${name.slice(0, most - 1)}…` : name);

/** @param {string} text */
const empty = (text) => [el("p", { class: "empty" }, text)];

/** @param {[string, number, Attributes][]} entries name, shape and look of each @param {number} x @param {number} y */
function legendOf(entries, x, y) {
  return entries.flatMap(([name, shape, look]) => {
    const at = x;
    x += 30 + textWidth(name, 12);
    return [svg("path", { d: SHAPES[shape % SHAPES.length](at + 6, y), ...look }), label(at + 14, y, name)];
  });
}

/** What each metric measures, for a newcomer. @type {Record<string, string>} */
const MEASURES = {
  comprehensiveness: "how much the answer's probability falls without a method's top tokens",
  "blank-out": "how well a method's ranking agrees with leaving each token out",
};

/** What some methods do, for a newcomer. @type {Record<string, string>} */
const PLAINLY = {
  random: "chance",
  first: "earliest first",
  last: "latest first",
  "blank-out": "leaving each token out",
};

/** Return the methods that the verdict is about, and the best others if there is room, best first.
 *
 * @param {Grid} grid
 * @param {string} metric
 */
export function rankedMethods(grid, metric) {
  const sign = grid.way(metric) === "lower" ? 1 : -1;
  const there = grid.names.flatMap((_, i) => (grid.cell(metric, i).mean === null ? [] : [i]));
  const mean = (/** @type {number} */ i) => grid.cell(metric, i).mean ?? 0;
  const sorted = there.sort((a, b) => sign * (mean(a) - mean(b)));
  const compared = new Set(grid.verdict?.methods ?? []);
  const first = sorted.filter((i) => compared.has(grid.names[i])),
    others = sorted.filter((i) => !compared.has(grid.names[i]));
  const kept = new Set([...first, ...others].slice(0, Math.max(first.length, RANKED)));
  return sorted.filter((i) => kept.has(i));
}

/** A chart of the methods ranked by the deciding metric, with 95 % intervals; the recommended one is highlighted.
 *
 * @param {GridPage} page
 * @param {number} width
 */
export function verdictChart(page, width) {
  const { grid } = page,
    metric = grid.verdict?.metric ?? grid.metrics[0],
    order = rankedMethods(grid, metric);
  if (!order.length) return empty("No method has a value by this metric.");
  const names = order.map((i) => PLAINLY[grid.names[i]] ?? grid.names[i]),
    size = width > 640 ? 15 : 13,
    wide = Math.max(...names.map((name) => textWidth(name, size, "650"))),
    beside = wide < 0.45 * width, // otherwise names are above
    left = beside ? wide + 18 : 16,
    [room, high] = beside ? [0, 2 * size + 4] : [18, 44],
    right = width - 58,
    top = 34;
  const cells = order.map((i) => grid.cell(metric, i)),
    lows = cells.map(({ mean, low }) => low ?? mean ?? 0),
    highs = cells.map(({ mean, high: end }) => end ?? mean ?? 0);
  const [from, to] = [Math.min(0, ...lows), Math.max(...highs)];
  const x = (/** @type {number} */ v) => left + ((v - from) / (to - from || 1)) * (right - left),
    bottom = top + high * order.length;
  const about = MEASURES[metric.replace(/ \(.+\)$/, "")] ?? `${metric}: ${grid.way(metric)} is better`;
  const axis = [
    ticks(from, to, width < 560 ? 3 : 5).map((v) => [
      path(`M${x(v)} ${top}V${bottom}`, { stroke: Math.abs(v) < 1e-9 ? "var(--faint)" : "var(--line)" }),
      tick(x(v), bottom + 12, decimals(v, 2)),
    ]),
  ];
  const marks = order.map((i, row) => {
    const cell = cells[row],
      y = top + high * row + room + (high - room) / 2,
      isChosen = grid.names[i] === grid.recommended,
      look = isChosen ? "ranked chosen" : grid.methods[i].kind === "baseline" ? "ranked plain" : "ranked";
    const name = beside
      ? label(left - 12, y, names[row], { "text-anchor": "end", class: "who" })
      : label(left + 6, y - room + 4, names[row], { class: "who" });
    return [
      marked(
        [grid.names[i], `${metric} ${interval(cell)}`, many(cell.n, "text")],
        look,
        svg("rect", { x: 0, y: y - high / 2 - (beside ? 0 : room / 2), width, height: high, fill: "transparent" }),
        name,
        path(`M${x(lows[row])} ${y}H${x(highs[row])}`, { class: "span" }),
        svg("circle", { cx: x(cell.mean ?? 0), cy: y, r: isChosen ? 5.5 : 4 }),
        label(width - 4, y, decimals(cell.mean, 2), { "text-anchor": "end", class: "mean" }),
      ),
    ];
  });
  const title = `${order.length < grid.names.length ? "Some methods" : "Methods"} ranked by ${metric}`;
  return [
    el("p", { class: "measure" }, `${about[0].toUpperCase()}${about.slice(1)}, 95 % intervals`),
    ...sized(chart(page, [width, bottom + 24], title, axis, marks), size),
  ];
}

/** @param {(HTMLElement | SVGElement)[]} picture and its list @param {number} size of letters */
function sized(picture, size) {
  picture[0].style.fontSize = `${size}px`;
  return picture;
}

/** Return the look of a line: ink with dashes for the paper's methods, faint for baselines, hues for others.
 *
 * @param {Grid} grid
 * @param {number[]} methods
 */
function methodLooks(grid, methods) {
  const paper = grid.ofKind("paper");
  const hued = methods.filter((i) => !["paper", "baseline"].includes(grid.methods[i].kind));
  return (/** @type {number} */ i) => {
    const { kind } = grid.methods[i];
    if (kind === "paper") return lineLook("var(--ink)", ["2 4", "8 4", null][paper.indexOf(i) % 3]);
    if (kind === "baseline") return lineLook("var(--faint)", "1 4");
    return lineLook(`var(--hue-${hued.indexOf(i) % HUES})`, null);
  };
}

/** @param {GridPage} page @param {number} width */
export function curvesChart(page, width) {
  const { grid, state } = page;
  const { d, c, m } = state.get(),
    chosen = listed(m).map(Number),
    look = methodLooks(grid, chosen);
  const curve = (/** @type {number} */ i) => grid.curves[d]?.[grid.names[i]]?.[c] ?? [null];
  const area = (/** @type {number} */ i) => curve(i).reduce((sum, v) => sum + v, 0);
  const lines = chosen.filter((i) => curve(i).every((v) => v !== null)).sort((a, b) => area(b) - area(a));
  if (!lines.length) return empty("None of the selected methods has a curve.");
  const rows = lines.map(curve),
    values = rows.flat(),
    last = rows[0].length - 1;
  return linesChart(page, width, `Mean probability, tokens ${c} (${d})`, {
    names: lines.map((i) => grid.names[i]),
    looks: lines.map(look),
    rows,
    at: rows[0].map((_, s) => s),
    marks: [0, 0.25, 0.5, 0.75, 1].map((part) => [part * last, `${100 * part} %`]),
    axes: [`share of tokens ${c}`, "mean probability"],
    tell: (s) => [
      `${Math.round((100 * s) / last)} % ${c}`,
      ...[...lines].sort((a, b) => curve(b)[s] - curve(a)[s]).map((i) => `${decimals(curve(i)[s])} ${grid.names[i]}`),
    ],
    low: Math.min(...values),
    top: Math.max(...values),
    foot: 300,
  });
}

/** Return the runs of shown methods that do not differ; runs that do not touch share a track.
 *
 * @param {[number, number][]} groups
 * @param {number} count
 */
function joinedRuns(groups, count) {
  /** @type {{ i: number, j: number, track: number }[]} */
  const runs = [];
  /** @type {number[]} */
  const tracks = [];
  for (const [i, end] of groups) {
    const j = Math.min(end, count - 1);
    if (j <= i || runs.some((run) => run.j >= j)) continue;
    const free = tracks.findIndex((last) => last < i),
      track = free < 0 ? tracks.length : free;
    tracks[track] = j;
    runs.push({ i, j, track });
  }
  return { runs, tracks: tracks.length };
}

/** @param {GridPage} page @param {number} room */
export function ranksChart(page, room) {
  const { grid, state } = page;
  const { r, a } = state.get(),
    { methods, ranks, n, friedman, groups, critical_difference: distance } = grid.ranking[r];
  if (distance === null) return empty("By this metric, no text has a value for every method.");
  const count = a ? methods.length : Math.min(BEST, methods.length),
    half = Math.ceil(count / 2);
  const p = friedman && (friedman.p < 1e-4 ? "p < 0.0001" : `p ${decimals(friedman.p, 4)}`);
  const summary = [
    count < methods.length ? `the best ${count} of ${methods.length} methods` : `${count} methods`,
    `${many(n, "text")} with a value for every method`,
    friedman ? `Friedman's χ² ${decimals(friedman.chi2, 1)}, ${p}` : "all methods tie on every text",
  ].join(" · ");
  const width = Math.max(700, room),
    margin = Math.min(width * 0.36, 28 + widest(methods.slice(0, count).map((name) => `${name} 00.0`)));
  const low = Math.floor(ranks[0]),
    high = Math.max(Math.ceil(ranks[count - 1]), low + 1, low + distance);
  const x = (/** @type {number} */ rank) => margin + ((rank - low) / (high - low)) * (width - 2 * margin);
  const { runs, tracks } = joinedRuns(groups, count),
    first = 70 + 6 * tracks;
  const marks = ranks.slice(0, count).map((rank, i) => {
    const left = i < half,
      y = first + 17 * (left ? i : count - 1 - i),
      edge = left ? margin - 8 : width - margin + 8;
    const parts = [short(methods[i], 36), decimals(rank, 1)],
      text = (left ? parts : parts.reverse()).join("  ");
    const name = label(edge + (left ? -4 : 4), y, text, { "text-anchor": left ? "end" : "start" });
    const mean = interval(grid.cell(r, grid.names.indexOf(methods[i])));
    const lines = [methods[i], `mean rank ${decimals(rank, 2)}`, `mean ${mean}`];
    return [marked(lines, "leader", path(`M${x(rank)} 52V${y}H${edge}`), name)];
  });
  const axis = [
    path(`M${x(low)} 52H${x(high)}`, { stroke: "var(--ink)" }),
    ticks(low, high, 8).map((v) => [
      path(`M${x(v)} 52v-5`, { stroke: "var(--ink)" }),
      tick(x(v), 40, String(Number(v.toFixed(2)))),
    ]),
    path(`M${x(low)} 8v8m0 -4H${x(low + distance)}m0 -4v8`, { stroke: "var(--accent)", "stroke-width": 1.5 }),
    tick(x(low + distance) + 6, 12, `critical difference ${decimals(distance, 2)}`, "start"),
    runs.map(({ i, j, track }) =>
      path(`M${x(ranks[i]) - 3} ${61 + 6 * track}H${x(ranks[j]) + 3}`, { class: "joined" }),
    ),
  ];
  return [
    el("p", { class: "summary" }, summary),
    ...chart(page, [width, first + 17 * half], `Mean ranks by ${r}`, axis, marks),
  ];
}

/** @param {GridPage} page @param {number} width */
export function agreementChart(page, width) {
  const { grid, state } = page;
  const order = grid.ordered(state.get().r),
    colours = page.colours();
  const left = 34 + widest(grid.names),
    size = between(15, (width - left - 4) / order.length, 36),
    lines = size < 22 ? 2 : 1, // column numbers alternate between two lines if they would touch
    top = 6 + 14 * lines;
  /** @param {number} x @param {number} y @param {number} s */
  const hatch = (x, y, s) =>
    path(`M${x} ${y + s / 2}l${s / 2} ${-s / 2}M${x} ${y + s}l${s} ${-s}M${x + s / 2} ${y + s}l${s / 2} ${-s / 2}`);
  const marks = order.map((i, row) =>
    order.map((j, column) => {
      const value = i === j ? null : grid.agreement[i][j],
        [x, y] = [left + column * size, top + row * size];
      const fill = i === j ? "var(--line)" : value === null ? "var(--wash)" : shade(colours, value);
      const text = label(x + size / 2, y + size / 2, correlation(value), { "text-anchor": "middle" });
      text.style.fill = inkOn(colours, value ?? 0);
      const reading = i === j ? "the same method" : value === null ? "no value" : correlation(value);
      const cell = svg("rect", { x, y, width: size - 1, height: size - 1, fill });
      const over = i === j ? [hatch(x, y, size - 1)] : value !== null && size >= 28 ? [text] : [];
      return marked([`${grid.names[i]} and ${grid.names[j]}`, reading], i === j ? "cell self" : "cell", cell, over);
    }),
  );
  const names = order.map((i, at) => [
    label(left - 6, top + (at + 0.5) * size, `${grid.names[i]}  ${at + 1}`, { "text-anchor": "end" }),
    tick(left + (at + 0.5) * size, 10 + 14 * (at % lines), String(at + 1)),
  ]);
  /** @type {[string, number, Attributes][]} */
  const scale = [-1, -0.5, 0, 0.5, 1].map((v) => [correlation(v), 1, { fill: shade(colours, v), class: "scale" }]);
  const bottom = top + order.length * size,
    parts = [names, legendOf(scale, 0, bottom + 14)];
  return chart(page, [left + order.length * size + 4, bottom + 26], "Rank correlations between methods", parts, marks);
}

/** @param {GridPage} page @param {number} width */
export function sanityChart(page, width) {
  const { grid, state } = page;
  const levels = Object.keys(grid.sanity),
    cell = (/** @type {string} */ level, /** @type {number} */ i) => grid.sanity[level][grid.names[i]];
  const order = grid.ordered(state.get().r).filter((i) => levels.some((level) => cell(level, i).mean !== null));
  const names = order.map((i) => grid.names[i]),
    beside = widest(names) < 0.35 * width, // otherwise names are above: shortened, two could look the same
    left = 16 + (beside ? widest(names) : 0),
    [room, high] = beside ? [0, 26] : [16, 40], // heights of a name above its row, and of a row
    bottom = 30 + high * order.length;
  const low = Math.min(-0.1, ...order.flatMap((i) => levels.map((level) => cell(level, i).low ?? 0)));
  const x = (/** @type {number} */ v) => left + ((v - low) / (1 - low)) * (width - left - 14);
  const axis = [
    ticks(low, 1, width < 560 ? 4 : 8).map((v) => [
      path(order.map((_, row) => `M${x(v)} ${30 + high * row + room}v${high - room}`).join(""), {
        stroke: Math.abs(v) < 1e-9 ? "var(--faint)" : "var(--line)",
      }),
      tick(x(v), bottom + 12, correlation(v)),
    ]),
    order.map((_, row) => path(`M${left} ${30 + high * row}H${width - 14}`)),
    names.map((name, row) =>
      beside ? label(left - 8, 43 + high * row, name, { "text-anchor": "end" }) : label(left, 40 + high * row, name),
    ),
    legendOf(
      levels.map((level, k) => [level, k, { fill: `var(--hue-${k % HUES})` }]),
      0,
      10,
    ),
  ];
  const marks = order.map((i, row) =>
    levels.map((level, k) => {
      const one = cell(level, i),
        y = 30 + high * row + room + ((high - room) * (k + 1)) / (levels.length + 1),
        hue = `var(--hue-${k % HUES})`;
      if (one.mean === null) return marked([grid.names[i], `${level}: no value`], "");
      const dot = svg("path", { d: SHAPES[k % SHAPES.length](x(one.mean), y), fill: hue });
      const line = path(`M${x(one.low ?? one.mean)} ${y}H${x(one.high ?? one.mean)}`, { stroke: hue });
      return marked([grid.names[i], `${level}: ${interval(one)}`], "", line, dot);
    }),
  );
  return chart(page, [width, bottom + 24], "Scores of randomised models", axis, marks);
}

/** @param {GridPage} page @param {number} width */
export function costChart(page, width) {
  const { grid, state } = page;
  const { r } = state.get(),
    kinds = Object.keys(KINDS),
    foot = 334;
  const there = grid.ordered(r).flatMap((i) => {
    const { name, kind, cost } = grid.methods[i],
      { mean, low, high } = grid.cell(r, i);
    return cost === null || mean === null ? [] : [{ name, kind, cost, mean, low: low ?? mean, high: high ?? mean }];
  });
  if (!there.length) return empty("No method has both a cost and a value by this metric.");
  const free = there.some(({ cost }) => !cost), // 0 has no logarithm: these are left of the axis
    left = free ? 48 + between(48, width / 12, 96) : 48;
  const logs = [AFFORDABLE, 1, ...there.flatMap(({ cost }) => (cost ? [cost] : []))].map(Math.log10),
    [from, to] = [Math.min(...logs) - 0.15, Math.max(...logs) + 0.15];
  const [low, top] = [Math.min(...there.map((one) => one.low)), Math.max(...there.map((one) => one.high))];
  const x = (/** @type {number} */ cost) =>
      cost ? left + ((Math.log10(cost) - from) / (to - from)) * (width - 12 - left) : (48 + left) / 2,
    y = (/** @type {number} */ v) => foot - 8 - ((v - low) / (top - low || 1)) * (foot - 56);
  const powers = Array.from({ length: 13 }, (_, i) => i - 6).filter((power) => power >= from && power <= to);
  const costs = [...(free ? [0] : []), AFFORDABLE, 1, ...powers.map((power) => Number((10 ** power).toFixed(6)))];
  const levels = ticks(low, top, 6);
  const axis = [
    levels.map((v) => [path(`M48 ${y(v)}H${width - 12}`), tick(42, y(v), decimals(v, 2), "end")]),
    apart(
      costs.map((cost) => [x(cost), `${cost}×`]),
      foot + 12,
    ),
    tick(width / 2, foot + 32, "cost in forward and backward passes"),
    tick(8, 26, `${r}: ${grid.way(r)} is better`, "start"),
    path(`M${x(AFFORDABLE)} 36V${foot}`, { stroke: "var(--accent)", "stroke-dasharray": "4 3" }),
    free ? path(`M${left} 36V${foot}`) : [],
    legendOf(
      kinds.flatMap((kind, k) => (grid.ofKind(kind).length ? [[KINDS[kind], k, { class: kind }]] : [])),
      2,
      8,
    ),
  ];
  const named = namesOf(
    there.map((one) => ({ ...one, x: x(one.cost), y: y(one.mean) })),
    levels.map((v) => [0, y(v) - 6, 44, y(v) + 6]),
    [2, 36, width - 2, foot],
  );
  const marks = there.map((one) => {
    const dot = svg("path", { d: SHAPES[kinds.indexOf(one.kind)](x(one.cost), y(one.mean)), class: one.kind });
    const line = path(`M${x(one.cost)} ${y(one.low)}V${y(one.high)}`);
    return marked([one.name, `cost ${passes(one.cost)}`, `${r} ${interval(one)}`], "", line, dot);
  });
  return chart(page, [width, foot + 44], `Cost against ${r}`, [axis, named], [marks]);
}

/** Place names next to points, first the paper's, then the best; none overlaps a name, a point or a `reserved` box.
 *
 * The paper's names may be further away, with a line to their point; other names are left out if they do not fit.
 *
 * @param {{ name: string, kind: string, x: number, y: number }[]} points
 * @param {number[][]} reserved
 * @param {[number, number, number, number]} frame
 */
function namesOf(points, reserved, [left, top, right, bottom]) {
  const taken = [...reserved, ...points.map(({ x, y }) => [x - 5, y - 5, x + 5, y + 5])];
  const clear = (/** @type {number[]} */ own) =>
    !taken.some((t) => own[0] < t[2] && t[0] < own[2] && own[1] < t[3] && t[1] < own[3]);
  const inside = (/** @type {number[]} */ own) => own[0] > left && own[1] > top && own[2] < right && own[3] < bottom;
  const away = [0, ...Array.from({ length: 40 }, (_, i) => 10 + 4 * i).flatMap((off) => [-off, off])];
  const paper = (/** @type {{ kind: string }} */ { kind }) => kind === "paper";
  return [...points.filter(paper), ...points.filter((one) => !paper(one))].flatMap((one) => {
    const wide = textWidth(one.name, 12, paper(one) ? "600" : "");
    const places = (paper(one) ? away : [0]).flatMap((off) => {
      const starts = [one.x + 8, one.x - 8 - wide, ...(off ? [one.x - wide / 2] : [])];
      return starts.map((start) => [start, one.y + off - 7, start + wide, one.y + off + 7]);
    });
    const own = places.find((place) => inside(place) && clear(place));
    if (!own) return [];
    taken.push(own);
    const at = own[1] + 7,
      off = at - one.y,
      end = [between(own[0], one.x, own[2]), at - 6 * Math.sign(off)];
    const line = Math.abs(off) < 1 ? [] : [path(`M${one.x} ${one.y}L${end.join(" ")}`, { stroke: "var(--faint)" })];
    return [...line, label(own[0], at, one.name, { class: paper(one) ? "name paper" : "name" })];
  });
}
