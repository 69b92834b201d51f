import { boot } from "./boot.js";
import { decimals, interval } from "./charts.js";
import { el, button } from "./draw.js";
import {
  many,
  listed,
  topOf,
  shortName,
  panel,
  sideways,
  wideTable,
  pick,
  switched,
  checks,
  showPanels,
} from "./frame.js";
import {
  KINDS,
  passes,
  curvesChart,
  ranksChart,
  agreementChart,
  sanityChart,
  costChart,
  verdictChart,
} from "./grid-charts.js";

/** @import { Child, Grid, GridCell, GridPage, GridSummary } from "./types" */

/** @type {Record<string, string>} */
const CAPTIONS = {
  table:
    "Means over texts. Columns named after an importance are rank correlations with it; the others come from deleting tokens in a method's order. The best value of a column is bold; shaded values do not differ significantly from it (Wilcoxon's test over texts, p ≥ 0.05 after Holm's correction for comparing the best with every other method of the column). Hover over a number for its 95 % interval. Cost is in forward and backward passes of the model. Click a heading to sort: ▾ descending, ▴ ascending.",
  curves:
    "The mean probability of the answer as tokens are deleted, most important first: a line that falls early belongs to a method that finds what the answer rests on. Kept is the reverse: only the most important tokens stay, and a line that rises early is good. Names are in the order of the lines.",
  ranks:
    "Methods are ranked within each text (1 is best) and placed at their mean rank. A thick bar joins methods that do not differ by Nemenyi's test at 0.05: their mean ranks are closer than the critical difference, which the ruler shows (Demšar 2006).",
  agreement:
    "Spearman's rank correlation between the scores of two methods, averaged over texts. Stronger blue is more agreement, no colour is none, yellow is negative. Hatched cells compare a method with itself. Methods are in the order of their mean ranks by the metric selected above, and columns are numbered in the same order.",
  sanity:
    "Rank correlation between a method's scores for the real model and for a model with some or all weights shuffled. Lines are 95 % intervals. A method that explains what was learnt falls towards 0; one that stays high reflects the architecture or positions instead (Adebayo et al. 2018).",
  cost: "The cost of a method, in forward and backward passes of the model, against its quality by the selected metric, with 95 % intervals. The dashed line is three passes. The paper's methods are named, and others if there is room. Hover over a mark for its name.",
};

/** What the names of a grid mean, by the field of a method or the part of the grid. */
const MEANINGS = /** @type {Record<string, { title: string } & Record<string, string>>} */ ({
  edges: {
    title: "Edges: how much one position takes from another in a layer",
  },
  normalize: {
    title: "Normalisations: how these weights become a graph. In brackets if it is not the published one",
    rows: "each row divided by its sum, so that a position takes shares; the published one for all edges except gradients",
    graph: "all layers divided by one number, the largest sum of any row",
    none: "the weights as they are; the published one for gradients",
  },
  propagation: {
    title: "Propagations: how the graph of all layers becomes one score per token",
    raw: "only the edges of the last layer, from the answering position",
    rollout: "the weights are multiplied along every path down to a token, and the paths are added",
    flow: "the most that can flow from the answering position to a token if each weight is the width of a pipe",
    answer_rows: "what the answering position reads in all layers, by answer edges; new here",
    answer_inputs: "what each token contributes to the answer, followed through all layers, by answer edges; new here",
  },
  receptive_field: {
    title:
      "Receptive field: a correction for early tokens, which more positions can see in a model that only looks back",
    ratio: "divided by the same method on uniform attention",
    difference: "minus the same method on uniform attention",
    layer: "each layer is corrected before anything is propagated",
  },
  columns: {
    title: "Metrics: p is the probability of the answer, or the output of a model without probabilities",
    "an importance's name":
      "Spearman's rank correlation of a method's scores with that importance, within each text; higher is better",
    comprehensiveness: "p of the whole text minus p without a method's top fifth of the tokens; higher is better",
    sufficiency: "p of the whole text minus p of only the top fifth of the tokens; lower is better",
    aopc: "how much p has fallen, averaged over all steps of the deletion; higher is better",
    "log-odds":
      "the logarithm of p without tokens divided by p with all tokens, averaged over the first half of the steps; lower is better",
    "deletion-area": "the area under p as tokens are deleted, most important first; lower is better",
    "insertion-area": "the area under p as only the most important tokens are kept, from none to all; higher is better",
  },
  deletions: {
    title: "Deletions: what replaces a deleted token",
    mask: "the mask token",
    unk: "the token for unknown words",
    remove: "nothing: the text after it moves up",
  },
  importance: {
    title: "Importances: how much a token matters, measured with the model itself",
    "blank-out": "how much p changes when the token is blanked",
    gradient: "the length of the gradient of the answer at the token's embedding",
    "gradient-input": "the absolute value of that gradient times the embedding",
    "integrated-gradients": "the same, with the mean gradient along the way from the blanked text to this one",
  },
  baseline: {
    title: "Baselines: what a method must beat to say anything about the model",
    random: "random scores",
    first: "the earlier a token, the more important",
    last: "the later a token, the more important",
  },
});

/** Read a grid, and add what the panels need: cells by metric and method, columns, orders. Methods are numbered.
 *
 * @param {GridSummary} summary
 */
export function readGrid(summary) {
  const names = summary.methods.map(({ name }) => name),
    metrics = summary.metrics.map(({ name }) => name);
  const cells = new Map(summary.cells.map((cell) => [`${cell.metric}\n${cell.method}`, cell]));
  const columns = [...new Set(metrics.map((name) => name.replace(/ \(.+\)$/, "")))];
  const ways = new Map(summary.metrics.map(({ name, better }) => [name.replace(/ \(.+\)$/, ""), better]));
  const deletions = [...new Set(metrics.flatMap((name) => name.match(/ \((.+)\)$/)?.[1] ?? []))];
  const ofKind = (/** @type {string} */ kind) => names.flatMap((_, i) => (summary.methods[i].kind === kind ? [i] : []));
  const ordered = (/** @type {string} */ metric) =>
    [...new Set([...summary.ranking[metric].methods, ...names])].map((name) => names.indexOf(name));
  /** @param {string} column @param {string} deletion */
  const metricOf = (column, deletion) => (metrics.includes(column) ? column : `${column} (${deletion})`);
  const way = (/** @type {string} */ metric) => ways.get(metric.replace(/ \(.+\)$/, ""));
  const nothing = { mean: null, low: null, high: null, n: 0, rank: null, level: false };
  /** @param {string} metric @param {number} i @returns {GridCell} */
  const cell = (metric, i) => cells.get(`${metric}\n${names[i]}`) ?? { metric, method: names[i], ...nothing };
  return { ...summary, names, metrics, columns, way, deletions, ofKind, ordered, metricOf, cell };
}

/** Return the methods drawn by default: the paper's, the best three others, and chance.
 *
 * @param {Grid} grid
 */
function firstLines(grid) {
  const metric = grid.metrics.find((name) => name.startsWith("comprehensiveness")) ?? grid.metrics[0];
  const others = grid.ofKind(grid.ofKind("edges").length ? "edges" : "importance");
  const best = grid.ordered(metric).filter((i) => others.includes(i));
  return [...grid.ofKind("paper"), ...best.slice(0, 3), ...grid.ofKind("baseline").slice(0, 1)];
}

/** A panel with one picture. `draw` returns its nodes for a width; `needs` are the names in the state that it depends on.
 *
 * @param {GridPage} page
 * @param {string} name
 * @param {string} title
 * @param {Child} controls
 * @param {string[]} needs
 * @param {(page: GridPage, width: number) => Element[]} draw
 */
function picture(page, name, title, controls, needs, draw) {
  const box = el("div", { class: "picture scroll" });
  const node = panel(name, title, CAPTIONS[name], controls, sideways(box));
  return { node, needs, draw: () => box.replaceChildren(...draw(page, Math.max(280, box.clientWidth))) };
}

/** @param {GridPage} page */
function tableSection(page) {
  const { grid, state } = page;
  const names = ["method", ...grid.columns, "cost"];
  const heads = names.map((column) => {
    const way = grid.columns.includes(column) && grid.way(column);
    const first = way === "higher" ? "down" : "up",
      other = { up: "down", down: "up" }[first];
    const sort = () => state.set({ o: `${column}.${state.get().o === `${column}.${first}` ? other : first}` });
    return el("th", { scope: "col" }, button(column, sort), way && el("small", {}, `${way} is better`));
  });
  const present = Object.entries(KINDS).filter(([kind]) => grid.ofKind(kind).length);
  const body = el("tbody");

  /** @param {string} column @param {number} i @param {number} best */
  function cellOf(column, i, best) {
    const cell = grid.cell(grid.metricOf(column, state.get().d), i);
    if (cell.mean === null) return el("td", {}, "–");
    const top = cell.mean === best,
      rank = cell.rank === null ? "" : `, mean rank ${decimals(cell.rank, 1)}`;
    const place = top ? ", the best" : cell.level ? ", not significantly different from the best" : "";
    return el(
      "td",
      {
        class: top ? "level best" : cell.level ? "level" : false,
        title: `${interval(cell)}, ${cell.n} texts${rank}${place}`,
      },
      decimals(cell.mean),
      el("span", { class: "sr" }, ` from ${decimals(cell.low)} to ${decimals(cell.high)}${place}`),
    );
  }

  function draw() {
    const { d, k, o } = state.get(),
      dot = o.lastIndexOf("."),
      [by, way] = [o.slice(0, dot), o.slice(dot + 1)];
    /** @param {string} column @param {number} i */
    const mean = (column, i) => grid.cell(grid.metricOf(column, d), i).mean;
    /** @param {number} i @returns {any} a string in the column of methods, otherwise a number or null */
    const value = (i) => (by === "method" ? grid.names[i] : by === "cost" ? grid.methods[i].cost : mean(by, i));
    const best = grid.columns.map((column) => {
      const means = grid.names.map((_, i) => mean(column, i)).filter((x) => x !== null);
      return Math[grid.way(column) === "higher" ? "max" : "min"](...means);
    });
    /** @param {any} x @param {any} y */
    const compare = (x, y) => (way === "down" ? -1 : 1) * (by === "method" ? x.localeCompare(y) : x - y);
    const shown = grid.names.map((_, i) => i).filter((i) => listed(k).includes(grid.methods[i].kind));
    const there = shown.filter((i) => value(i) !== null).sort((a, b) => compare(value(a), value(b)));
    heads.forEach((head, i) => {
      if (names[i] === by) head.setAttribute("aria-sort", way === "down" ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    const rows = [...there, ...shown.filter((i) => value(i) === null)].map((i) => {
      const cells = grid.columns.map((column, c) => cellOf(column, i, best[c]));
      const first = el("th", { scope: "row" }, grid.names[i]);
      return el("tr", { class: grid.methods[i].kind }, first, cells, el("td", {}, passes(grid.methods[i].cost)));
    });
    body.replaceChildren(...rows);
  }

  const table = el("table", { "aria-label": "means" }, el("thead", {}, el("tr", {}, heads)), body);
  const controls = [checks(page, "kinds of methods", "k", present), pick(page, "deletion", "d", grid.deletions)];
  const node = panel("table", "Methods and metrics", CAPTIONS.table, controls, wideTable("table", table));
  return { node, needs: ["o", "k", "d"], draw };
}

/** @param {GridPage} page */
function curvesSection(page) {
  const { grid } = page;
  const side = switched(page, "curve", "c", { deleted: "deleted", kept: "kept" });
  const controls = [side, pick(page, "deletion", "d", grid.deletions)];
  const section = picture(page, "curves", "Deletion curves", controls, ["d", "c", "m"], curvesChart);
  const entries = grid.names.map((name, i) => [String(i), name]);
  section.node.append(checks(page, "methods drawn", "m", entries));
  return section;
}

/** @param {GridPage} page */
function sanitySection(page) {
  const section = picture(page, "sanity", "Sanity under randomisation", [], ["r"], sanityChart);
  const { samples, provenance } = page.grid;
  if (provenance.sanity)
    section.node
      .querySelector(".hint")
      ?.append(` Measured on the first ${provenance.sanity} of ${many(samples, "text")}.`);
  return section;
}

/** Explain every name in this grid.
 *
 * @param {Grid} grid
 */
function namesSection(grid) {
  const used = (/** @type {string} */ field) => grid.methods.map((method) => method[field]);
  /** @type {Record<string, any[]>} */
  const there = {
    ...Object.fromEntries(
      ["edges", "normalize", "propagation", "receptive_field"].map((field) => [field, used(field)]),
    ),
    columns: [...grid.columns, grid.columns.some((name) => MEANINGS.importance[name]) && "an importance's name"],
    deletions: grid.deletions,
    importance: grid.ofKind("importance").map((i) => grid.names[i]),
    baseline: grid.ofKind("baseline").map((i) => grid.names[i]),
  };
  const parts = Object.entries(MEANINGS).map(([part, { title, ...meanings }]) => {
    const names = Object.entries(part === "edges" ? grid.edges : meanings).filter(([name]) =>
      there[part].includes(name),
    );
    const lines = names.map(([name, text]) => [el("dt", {}, name), el("dd", {}, text)]);
    return lines.length ? el("section", {}, el("h3", {}, title), el("dl", {}, lines)) : "";
  });
  const scheme =
    "A method is named edges · propagation, with the normalisation in brackets. Importances and baselines have their own names.";
  return el("details", { class: "names" }, el("summary", {}, "What the names mean"), el("p", {}, scheme), parts);
}

/** Say which methods are better than the paper's, or that there are too few texts.
 *
 * @param {Grid} grid
 */
function aheadOf(grid) {
  const { needed, samples } = grid;
  if (!grid.ofKind("paper").length || !grid.ofKind("edges").length) return "";
  if (needed && needed.texts > samples) {
    const few = `${many(samples, "text")} ${samples === 1 ? "is" : "are"} too few to tell`;
    const most = `${many(needed.comparisons, "comparison")} need at least ${needed.texts.toLocaleString("en")}`;
    return el("p", { class: "ahead" }, `${few}: ${most}.`);
  }
  const ahead = grid.ahead_of_all.map(({ method, cost }) => `${method} (${passes(cost)})`).join(", ");
  const claim = "Better than all of the paper's methods, in comprehensiveness and in rank correlation with blank-out: ";
  return el("p", { class: "ahead" }, claim, el("strong", {}, ahead || "none"), ".");
}

/** Say what was measured, which methods are better, and what the names mean.
 *
 * @param {Grid} grid
 */
function measured(grid) {
  const { data, explained, revision, dtype, excluded = {} } = grid.provenance;
  const size = [many(grid.samples, "text"), many(grid.names.length, "method"), many(grid.metrics.length, "metric")];
  const out = Object.entries(/** @type {Record<string, number>} */ (excluded)).map(
    ([why, n]) => `${many(n, "text")} left out: ${why}.`,
  );
  const made = [revision && `revision ${String(revision).slice(0, 12)}`, dtype].filter(Boolean).join(", ");
  return [
    el(
      "p",
      { class: "prediction" },
      `${data ? `${data}: ` : ""}${size.join(", ")}. ${explained ? `Explained: ${explained}. ` : ""}`,
      out.join(" "),
      made && ` Model: ${made}.`,
    ),
    grid.recommendation ? el("p", { class: "recommendation" }, grid.recommendation) : "",
    aheadOf(grid),
    namesSection(grid),
  ];
}

/** A headline with the recommended method in bold.
 *
 * @param {string} headline
 * @param {string | null} method
 */
function emphasised(headline, method) {
  const at = method ? headline.indexOf(method) : -1;
  if (!method || at < 0) return headline;
  return [headline.slice(0, at), el("strong", {}, method), headline.slice(at + method.length)];
}

/** Explain a method's parts to a newcomer.
 *
 * @param {Grid} grid
 * @param {string} name
 */
function whatItIs(grid, name) {
  const method = grid.methods[grid.names.indexOf(name)] ?? {},
    edges = grid.edges[method.edges],
    way = MEANINGS.propagation[method.propagation];
  const parts = [
    edges && `Its edges measure how much one position takes from another in a layer: ${edges}.`,
    way && `Then all layers become one score per token: ${way}.`,
  ].filter(Boolean);
  return parts.length
    ? el("details", { class: "what" }, el("summary", {}, `What is ${name}?`), el("p", {}, parts.join(" ")))
    : "";
}

/** The first screen: a recommendation, how certain it is, and the ranked methods.
 *
 * @param {GridPage} page
 */
function verdictSection(page) {
  const { grid } = page,
    verdict = grid.verdict,
    name = grid.recommended ?? null;
  const headline = verdict?.headline ?? "This grid recommends no method: it has nothing to compare the methods with.",
    reason = verdict?.reason ?? "A recommendation needs baselines, and deletion or blank-out as a metric.";
  const box = el("div", { class: "picture scroll" });
  const node = el(
    "section",
    { class: "verdict", "data-panel": "verdict", "aria-label": "recommendation" },
    el(
      "div",
      { class: "say" },
      el("h2", { class: "headline" }, emphasised(headline, name)),
      el("p", { class: "reason" }, reason),
      name ? whatItIs(grid, name) : "",
    ),
    box,
  );
  return { node, needs: [], draw: () => box.replaceChildren(...verdictChart(page, Math.max(280, box.clientWidth))) };
}

/** @param {GridPage} page */
function sectionsOf(page) {
  const { grid } = page;
  const metric = () => pick(page, "metric", "r", grid.metrics),
    every = checks(page, "methods ranked", "a", [["1", "all methods"]]);
  return [
    tableSection(page),
    Object.keys(grid.curves).length ? curvesSection(page) : null,
    picture(page, "ranks", "Who differs from whom", [every, metric()], ["r", "a"], ranksChart),
    picture(page, "agreement", "Do methods agree?", [], ["r", "theme"], agreementChart),
    Object.keys(grid.sanity).length ? sanitySection(page) : null,
    picture(page, "cost", "Cost against quality", [metric()], ["r"], costChart),
  ].filter((section) => section !== null);
}

/** Return the full name of a model if it is shortened. @param {Grid} grid */
function fullName({ provenance: { model } }) {
  return model && model !== shortName(model) ? model : null;
}

/** Show the page of a grid in an element.
 *
 * @param {HTMLElement} root
 * @param {GridSummary} summary
 */
function showGrid(root, summary) {
  const grid = readGrid(summary);
  const [column] = grid.columns;
  const defaults = {
    o: `${column}.${grid.way(column) === "higher" ? "down" : "up"}`,
    k: Object.keys(KINDS).join(),
    d: grid.deletions[0] ?? "",
    c: "deleted",
    m: firstLines(grid).join(),
    r: grid.metrics[0],
    a: "",
    open: "",
  };
  const orders = ["method", ...grid.columns, "cost"].flatMap((name) => [`${name}.up`, `${name}.down`]);
  const isDrawable = (/** @type {string} */ i) => String(Number(i)) === i && Boolean(grid.names[Number(i)]);
  const drawable = { includes: (/** @type {string} */ text) => listed(text).every(isDrawable) };
  const allowed = {
    o: orders,
    d: grid.deletions,
    c: ["deleted", "kept"],
    m: drawable,
    r: grid.metrics,
    open: ["", "1"],
  };
  const foot = grid.ofKind("edges").length
    ? "All tests and all values are in grid.json, grid.parquet and curves.parquet next to this page."
    : "";
  showPanels(root, {
    kind: "grid",
    subject: { grid },
    defaults,
    allowed,
    head: (theme) => topOf([shortName(grid.provenance.model)], fullName(grid), theme),
    fill: (page) => ({
      lead: [verdictSection(page)],
      above: measured(grid),
      sections: sectionsOf(page),
      foot,
    }),
  });
}

boot(showGrid);
