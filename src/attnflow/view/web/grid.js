import { PALETTES } from "./colour.js";
import { el, number, makeTip, button, choice, press } from "./draw.js";
import { makeState } from "./state.js";
import { KINDS, listed, interval, passes } from "./plots.js";
import { curvesChart, ranksChart, agreementChart, sanityChart, costChart } from "./plots.js";

const CAPTIONS = {
  table:
    "Means over texts. Columns named after an importance are rank correlations with it; the others come from deleting tokens in the order of a method. Bold is the best of a column; shaded is what does not differ significantly from it (Wilcoxon's test text by text, p ≥ 0.05 after Holm's correction). Point at a number for its 95 % interval. Cost is in forward and backward passes of the model.",
  curves:
    "The mean probability of the answer as tokens are deleted, the most important by a method first: a line that falls early found what the answer rests on. Kept is the reverse: only the most important tokens stay, and a line that rises early is good. Names stand in the order of the lines.",
  ranks:
    "Methods are ranked within each text, 1 is best, and hang from the axis at their mean rank. A thick bar joins methods that do not differ by Nemenyi's test at 0.05: their mean ranks are closer than the critical difference, which the ruler shows (Demšar 2006).",
  agreement:
    "Spearman's rank correlation between the scores of two methods, its mean over texts. The further from the paper's colour, the more they say the same; yellow is negative. Methods stand in the order of their mean ranks by the metric chosen above, and numbers name the columns.",
  sanity:
    "Rank correlation of a method's scores for the real model with those for one whose weights were shuffled, in part or all of them. Lines are 95 % intervals. A method that explains what was learnt falls towards 0; one that stays high tells more of the architecture or of positions (Adebayo et al. 2018).",
  cost: "What a method costs, as a multiple of one forward and backward pass of the model, against how good it is by the metric chosen, with 95 % intervals. The dashed line is three passes. Names that would overlap are only read out.",
};

/** What a grid is asked for: cells by metric and method, columns of the table, orders. Methods go by their numbers. */
function readGrid(held) {
  const names = held.methods.map(({ name }) => name),
    metrics = held.metrics.map(({ name }) => name);
  const cells = new Map(held.cells.map((cell) => [`${cell.metric}\n${cell.method}`, cell]));
  const columns = [...new Set(metrics.map((name) => name.replace(/ \(.+\)$/, "")))];
  const ways = new Map(held.metrics.map(({ name, better }) => [name.replace(/ \(.+\)$/, ""), better]));
  const deletions = [...new Set(metrics.map((name) => name.match(/ \((.+)\)$/)?.[1]).filter(Boolean))];
  const ofKind = (kind) => names.flatMap((_, i) => (held.methods[i].kind === kind ? [i] : []));
  const ordered = (metric) =>
    [...new Set([...held.ranking[metric].methods, ...names])].map((name) => names.indexOf(name));
  const metricOf = (column, deletion) => (metrics.includes(column) ? column : `${column} (${deletion})`);
  const cell = (metric, i) => cells.get(`${metric}\n${names[i]}`) ?? { mean: null };
  return { ...held, names, metrics, columns, ways, deletions, ofKind, ordered, metricOf, cell };
}

/** The lines that are drawn first: the paper's methods, the best three others, chance. */
function firstLines(grid) {
  const metric = grid.metrics.find((name) => name.startsWith("comprehensiveness")) ?? grid.metrics[0];
  const others = grid.ofKind(grid.ofKind("edges").length ? "edges" : "importance");
  const best = grid.ordered(metric).filter((i) => others.includes(i));
  return [...grid.ofKind("paper"), ...best.slice(0, 3), ...grid.ofKind("baseline").slice(0, 1)];
}

function panel(name, title, controls, ...body) {
  const top = el("header", {}, el("h2", {}, title), controls);
  return el("section", { class: "panel", "data-panel": name }, top, el("p", { class: "hint" }, CAPTIONS[name]), body);
}

/** A panel of one picture: `draw` gives its nodes for a width; `needs` are the names in the state that it depends on. */
function picture(page, name, title, controls, needs, draw) {
  const box = el("div", { class: "picture scroll" });
  const node = panel(name, title, controls, box);
  return { node, needs, draw: () => box.replaceChildren(...draw(page, Math.max(280, box.clientWidth))) };
}

/** One of some texts: the same choice in every panel that has it. */
function pick(page, name, key, options) {
  const onchange = () => page.state.set({ [key]: select.value });
  const entries = options.map((value) => el("option", { value }, value));
  const select = el("select", { "data-pick": key, onchange }, entries);
  page.follow(() => (select.value = page.state.get()[key]));
  return options.length > 1 ? el("label", {}, `${name} `, select) : "";
}

/** Any of some: their values with commas between. */
function checks(page, name, key, entries) {
  const onchange = () => page.state.set({ [key]: boxes.flatMap((box) => (box.checked ? [box.value] : [])).join() });
  const boxes = entries.map(([value]) => el("input", { type: "checkbox", value, onchange }));
  page.follow(() => boxes.forEach((box) => (box.checked = listed(page.state.get()[key]).includes(box.value))));
  const labels = entries.map(([, text], i) => el("label", {}, boxes[i], ` ${text}`));
  return el("div", { class: "checks", role: "group", "aria-label": name }, labels);
}

function tableSection(page) {
  const { grid, state } = page;
  const heads = ["method", ...grid.columns, "cost"].map((column) => {
    const way = grid.ways.get(column);
    const first = way === "higher" ? "down" : "up",
      other = { up: "down", down: "up" }[first];
    const sort = () => state.set({ o: `${column}.${state.get().o === `${column}.${first}` ? other : first}` });
    return el("th", { scope: "col", title: way && `${way} is better` }, button(column, sort));
  });
  const present = Object.entries(KINDS).filter(([kind]) => grid.ofKind(kind).length);
  const body = el("tbody");

  function cellOf(column, i, best) {
    const cell = grid.cell(grid.metricOf(column, state.get().d), i);
    if (cell.mean === null) return el("td", {}, "–");
    const top = cell.mean === best,
      rank = cell.rank === null ? "" : `, mean rank ${number(cell.rank, 1)}`;
    const told = top ? ", the best" : cell.level ? ", not significantly different from the best" : "";
    return el(
      "td",
      { class: top ? "level best" : cell.level && "level", title: `${interval(cell)}, ${cell.n} texts${rank}${told}` },
      number(cell.mean),
      el("span", { class: "sr" }, ` from ${number(cell.low)} to ${number(cell.high)}${told}`),
    );
  }

  function draw() {
    const { d, k, o } = state.get(),
      [, by, way] = o.match(/(.*)\.(up|down)$/);
    const mean = (column, i) => grid.cell(grid.metricOf(column, d), i).mean;
    const value = (i) => (by === "method" ? grid.names[i] : by === "cost" ? grid.methods[i].cost : mean(by, i));
    const best = grid.columns.map((column) => {
      const means = grid.names.map((_, i) => mean(column, i)).filter((x) => x !== null);
      return Math[grid.ways.get(column) === "higher" ? "max" : "min"](...means);
    });
    const compare = (x, y) => (way === "down" ? -1 : 1) * (by === "method" ? x.localeCompare(y) : x - y);
    const shown = grid.names.map((_, i) => i).filter((i) => listed(k).includes(grid.methods[i].kind));
    const there = shown.filter((i) => value(i) !== null).sort((a, b) => compare(value(a), value(b)));
    for (const head of heads) {
      if (head.textContent === by) head.setAttribute("aria-sort", way === "down" ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    const rows = [...there, ...shown.filter((i) => value(i) === null)].map((i) => {
      const cells = grid.columns.map((column, c) => cellOf(column, i, best[c]));
      const first = el("th", { scope: "row" }, grid.names[i]);
      return el("tr", { class: grid.methods[i].kind }, first, cells, el("td", {}, passes(grid.methods[i].cost)));
    });
    body.replaceChildren(...rows);
  }

  const table = el("table", { "aria-label": "means" }, el("thead", {}, el("tr", {}, heads)), body);
  const box = el("div", { class: "scroll wide", tabindex: 0, role: "region", "aria-label": "table" }, table);
  const controls = [checks(page, "kinds of methods", "k", present), pick(page, "deletion", "d", grid.deletions)];
  return { node: panel("table", "Methods and metrics", controls, box), needs: ["o", "k", "d"], draw };
}

function curvesSection(page) {
  const { grid, state } = page;
  const side = choice("curve", { deleted: "deleted", kept: "kept" }, "", (c) => state.set({ c }));
  page.follow(() => press(side, state.get().c));
  const controls = [side, pick(page, "deletion", "d", grid.deletions)];
  const section = picture(page, "curves", "Deletion curves", controls, ["d", "c", "m"], curvesChart);
  const entries = grid.names.map((name, i) => [String(i), name]);
  section.node.append(checks(page, "methods drawn", "m", entries));
  return section;
}

/** What was measured, and what came out in a sentence. */
function headOf(grid, theme) {
  const { model, revision, dtype, data, explained, excluded = {} } = grid.provenance;
  const told = [model, revision?.replace(/^([0-9a-f]{12})[0-9a-f]+$/, "$1"), dtype].filter(Boolean).join(" · ");
  const count = (n, name) => `${n.toLocaleString("en")} ${name}${n === 1 ? "" : "s"}`;
  const size = [count(grid.samples, "text"), count(grid.names.length, "method"), count(grid.metrics.length, "metric")];
  const ahead = grid.ahead_of_all.map(({ method, cost }) => `${method} (${passes(cost)})`).join(", ");
  const out = Object.entries(excluded).map(([why, n]) => `${count(n, "text")} left out: ${why}.`);
  const top = el("div", { class: "brand" }, el("h1", {}, "attnflow"), el("span", { class: "told-model" }, told));
  return [
    el("header", { class: "top" }, top, el("div", { class: "controls" }, theme)),
    el(
      "p",
      { class: "prediction" },
      `${data ? `${data}: ` : ""}${size.join(", ")}. ${explained ? `What is explained is ${explained}. ` : ""}`,
      out.join(" "),
    ),
    grid.ofKind("paper").length
      ? el(
          "p",
          { class: "ahead" },
          "Ahead of all the paper's methods, in comprehensiveness and in rank correlation with blank-out: ",
          el("strong", {}, ahead || "none"),
          ".",
        )
      : "",
  ];
}

/** Puts the grid of the document into an element. */
export function showGrid(root) {
  const grid = readGrid(JSON.parse(document.getElementById("attnflow-document").textContent));
  const dark = matchMedia("(prefers-color-scheme: dark)"),
    { signal } = new AbortController();
  const [column] = grid.columns;
  const defaults = {
    o: `${column}.${grid.ways.get(column) === "higher" ? "down" : "up"}`,
    k: Object.keys(KINDS).join(),
    d: grid.deletions[0] ?? "",
    c: "deleted",
    m: firstLines(grid).join(),
    r: grid.metrics[0],
    a: "",
    theme: "",
  };
  const orders = ["method", ...grid.columns, "cost"].flatMap((name) => [`${name}.up`, `${name}.down`]);
  const themes = ["", "light", "dark"],
    drawable = { includes: (text) => listed(text).every((i) => String(Number(i)) === i && grid.names[i]) };
  const allowed = { o: orders, d: grid.deletions, c: ["deleted", "kept"], m: drawable, r: grid.metrics, theme: themes };
  const state = makeState(defaults, allowed, "", signal);
  let printing = false;
  const isDark = () => !printing && (state.get().theme === "dark" || (state.get().theme !== "light" && dark.matches));
  const theme = button("", () => state.set({ theme: isDark() ? "light" : "dark" }), { class: "theme" });
  const node = el("article", { class: "attnflow grid" }, headOf(grid, theme));
  root.replaceChildren(node);
  const followers = [],
    follow = (follower) => followers.push(follower);
  const page = { grid, state, follow, tip: makeTip(root), colours: () => PALETTES[isDark() ? "dark" : "light"] };
  const metric = () => pick(page, "metric", "r", grid.metrics),
    every = checks(page, "methods ranked", "a", [["1", "all methods"]]);
  const sections = [
    tableSection(page),
    Object.keys(grid.curves).length && curvesSection(page),
    picture(page, "ranks", "Who differs from whom", [every, metric()], ["r", "a"], ranksChart),
    picture(page, "agreement", "Do methods agree?", [], ["r", "theme"], agreementChart),
    Object.keys(grid.sanity).length && picture(page, "sanity", "Sanity under randomisation", [], ["r"], sanityChart),
    picture(page, "cost", "Cost against quality", [metric()], ["r"], costChart),
  ].filter(Boolean);
  const foot = "Every test and every single value is in grid.json, grid.parquet and curves.parquet beside this page.";
  node.append(...sections.map((section) => section.node), el("footer", {}, foot));
  function update(changed) {
    root.dataset.theme = isDark() ? "dark" : "light";
    theme.textContent = isDark() ? "☀" : "☾";
    theme.setAttribute("aria-label", isDark() ? "light theme" : "dark theme");
    page.tip.hide();
    followers.forEach((follower) => follower());
    for (const { needs, draw } of sections) if (!changed || needs.some((name) => changed.has(name))) draw();
    node.dataset.settled = node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
  }
  state.listen(update);
  dark.addEventListener("change", () => update());
  for (const [name, flag] of Object.entries({ beforeprint: true, afterprint: false }))
    addEventListener(name, () => {
      printing = flag; // paper is white
      update();
    });
  let width = node.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(node.clientWidth - width) < 8) return;
    width = node.clientWidth;
    update();
  }).observe(node);
  root.removeAttribute("aria-busy");
  update();
}
