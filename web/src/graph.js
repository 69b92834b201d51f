import { shade } from "./colour.js";
import { el, svg, between, closest, figure, hiddenTable, label, number, plainToken, textWidth } from "./draw.js";
import { exportMenu } from "./keep.js";
import { touched } from "./state.js";

/** @import { Cells, Changed, Edge, Matrix, Page, Palette } from "./types" */
/** @typedef {Edge & { amount: number }} Amount */

const EDGES = 1000;
const PALE = 0.004; // edges with a smaller part of the strongest one are not drawn

/** Return the strongest edges of the steps up to `end`, by what rollout carries from the query, how many carry anything, and
 * what reaches each state.
 *
 * @param {Matrix[]} graph
 * @param {number} end
 * @param {number} query
 */
export function strongest(graph, end, query) {
  /** @type {Float64Array[]} */
  const masses = [];
  masses[end + 1] = new Float64Array(graph[end].rows);
  masses[end + 1][query] = 1;
  let most = 0,
    count = 0;
  /** @param {number} s @param {(query: number, key: number, amount: number) => void} visit */
  const visitStep = (s, visit) => {
    const { cols, values } = graph[s];
    masses[s + 1].forEach((mass, q) => {
      if (mass) for (let k = 0, e = q * cols; k < cols; k++, e++) if (values[e] > 0) visit(q, k, mass * values[e]);
    });
  };
  for (let s = end; s >= 0; s--) {
    masses[s] = new Float64Array(graph[s].cols);
    visitStep(s, (_, key, amount) => {
      masses[s][key] += amount;
      most = Math.max(most, amount);
      count++;
    });
  }
  /** @type {Amount[]} */
  const edges = [];
  for (let s = end; s >= 0; s--)
    visitStep(s, (q, key, amount) => {
      if (amount >= PALE * most) edges.push({ step: s, query: q, key, amount });
    });
  edges.sort((a, b) => b.amount - a.amount);
  return { edges: edges.slice(0, EDGES), count, masses };
}

/** Lay out a layered graph: columns and levels, with room for tokens below and level names at the left.
 *
 * @param {number[]} columns
 * @param {number} levels
 * @param {string[]} names
 * @param {string[]} levelNames
 * @param {Palette} colours
 * @param {{ title: string, width: number, top?: number }} layout
 */
export function layered(columns, levels, names, levelNames, colours, { title, width, top = 30 }) {
  const labels = columns.map((position) => plainToken(names[position] ?? String(position), 16)),
    longest = Math.max(...labels.map((text) => textWidth(text, 11)));
  const gap = Math.max(columns.length > 60 ? 15 : 22, Math.min(110, (width - 98) / Math.max(1, columns.length)));
  const slanted = gap < 62 || longest > gap - 4,
    left = slanted ? Math.max(58, 0.58 * longest + 8 - gap / 2) : 58;
  const rise = levels > 20 ? 22 : levels > 14 ? 34 : levels > 8 ? 44 : 58;
  const foot = 18 + (slanted ? Math.max(30, 0.82 * longest) : 14);
  const wide = Math.ceil(left + columns.length * gap + 14),
    high = top + (levels - 1) * rise + foot + 12;
  const drawing = figure(Math.max(wide, Math.ceil(textWidth(title, 12, "600")) + 2), high, colours, title, 10);
  const place = new Map(columns.map((position, c) => [position, left + (c + 0.5) * gap]));
  const x = (/** @type {number} */ position) => place.get(position) ?? NaN,
    y = (/** @type {number} */ level) => top + (levels - 1 - level) * rise + 6;
  for (let level = 0; level < levels; level++) {
    drawing.append(
      svg("line", { x1: left, x2: wide - 14, y1: y(level), y2: y(level), stroke: colours.line, "stroke-width": 0.6 }),
    );
    drawing.append(
      label(0, y(level), level ? levelNames[level - 1] : "input", { "font-size": 10, fill: colours.faint }),
    );
  }
  for (const [c, position] of columns.entries()) {
    const under = y(0) + 16;
    drawing.append(
      label(
        x(position),
        under,
        labels[c],
        slanted
          ? { "text-anchor": "end", "font-size": 10.5, transform: `rotate(-55 ${x(position)} ${under})` }
          : { "text-anchor": "middle", "font-size": 12 },
      ),
    );
  }
  return { node: drawing, x, y, gap };
}

/** @param {number} x1 @param {number} y1 @param {number} x2 @param {number} y2 */
export function curve(x1, y1, x2, y2) {
  const middle = (y1 + y2) / 2;
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${x1.toFixed(1)} ${middle.toFixed(1)} ${x2.toFixed(1)} ${middle.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}

/** Figure 1 of the paper: tokens from left to right, layers from bottom to top, strength as opacity.
 *
 * @param {Page} page
 */
export function graphPanel(page) {
  const { data, state } = page;
  const holder = el("div", { class: "scroll" }),
    note = el("p", { class: "hint" }),
    summary = el("p", { class: "summary", "aria-live": "polite" });
  const node = el(
    "section",
    { class: "view", "data-view": "graph" },
    el("header", {}, note, exportMenu(page, "graph", csvRows)),
    holder,
    summary,
  );
  /** @type {{ level: number, position: number } | null} */
  let focus = null;

  function gathered() {
    const at = page.now(),
      end = data.ends[data.layers[at.layer]];
    return { at, end, ...strongest(data.graph(at.unit), end, at.query) };
  }

  /** @param {ReturnType<typeof gathered>} strong */
  function shownColumns(strong) {
    // in a long text, leave out positions that no edge reaches
    const n = strong.at.tokens.length;
    if (n <= 60) return Array.from({ length: n }, (_, i) => i);
    const used = new Set([strong.at.query]);
    for (const edge of strong.edges) {
      used.add(edge.query);
      used.add(edge.key);
    }
    return [...used].sort((a, b) => a - b);
  }

  /** @param {Palette} colours */
  function draw(colours) {
    const strong = gathered(),
      { at, end, edges, masses } = strong;
    const columns = shownColumns(strong),
      levels = end + 2;
    const names = at.tokens;
    const frame = layered(columns, levels, names, data.levels, colours, {
      title: `what rollout carries from the query · ${at.queryName} at ${at.layerName}`,
      width: page.width() - 40,
    });
    const most = edges[0]?.amount || 1;
    const drawn = [];
    const lines = svg("g", { fill: "none", "stroke-linecap": "round" });
    for (const edge of [...edges].reverse()) {
      const share = edge.amount / most;
      const path = svg("path", {
        d: curve(frame.x(edge.query), frame.y(edge.step + 1), frame.x(edge.key), frame.y(edge.step)),
        stroke: colours.css[200],
        "stroke-opacity": Math.max(0.04, share ** 0.6).toFixed(3),
        "stroke-width": (0.7 + 5 * share ** 0.8).toFixed(2),
      });
      drawn.push({ edge, path });
      lines.append(path);
    }
    frame.node.append(lines);
    const nodes = [],
      drawnStates = new Set(
        drawn.flatMap(({ edge }) => [`${edge.step + 1} ${edge.query}`, `${edge.step} ${edge.key}`]),
      );
    for (let level = 0; level < levels; level++) {
      const width = level ? data.steps(at.unit)[level - 1].rows : data.steps(at.unit)[0].cols;
      for (const position of columns) {
        if (position >= width || (at.tokens.length > 60 && level && !drawnStates.has(`${level} ${position}`))) continue;
        const mass = masses[level][position];
        const top = level === end + 1 && position === at.query;
        const dot = svg("circle", {
          cx: frame.x(position).toFixed(1),
          cy: frame.y(level).toFixed(1),
          r: top ? 6 : 4,
          fill: shade(colours, Math.min(1, mass * 1.6)),
          stroke: top || (level === 0 && position === at.token) ? colours.accent : colours.faint,
          "stroke-width": top ? 2 : 1,
          "data-level": level,
          "data-position": position,
        });
        nodes.push(dot);
      }
    }
    frame.node.append(...nodes);
    return { ...frame, drawn, columns, levels, strong };
  }

  /** @type {ReturnType<typeof draw> | null} */
  let current = null;

  function paint() {
    if (!data.hasWeights) {
      holder.replaceChildren(
        el("p", { class: "why" }, "The graph needs the weights, which this page does not include."),
      );
      return;
    }
    const colours = page.colours();
    const drawing = draw(colours),
      { at, edges, count, end } = drawing.strong;
    current = drawing;
    note.textContent =
      count > edges.length
        ? `the ${edges.length.toLocaleString("en")} strongest of ${count.toLocaleString("en")} edges`
        : "";
    const picture = drawing.node;
    picture.setAttribute("tabindex", "0");
    picture.classList.add("graph");
    picture.addEventListener("pointermove", (event) => {
      const dot = closest(event, "circle");
      if (dot) {
        light(Number(dot.dataset.level), Number(dot.dataset.position), event);
        return;
      }
      light(null);
      page.tip.hide();
    });
    picture.addEventListener("pointerleave", () => {
      light(null);
      page.tip.hide();
    });
    picture.addEventListener("click", (event) => {
      const dot = closest(event, "circle");
      if (!dot) return;
      const level = Number(dot.dataset.level),
        position = Number(dot.dataset.position);
      if (level === 0) {
        state.set({ t: position });
        return;
      }
      const layer = data.layers.find((l) => data.ends[l] === level - 1);
      if (layer !== undefined && position >= data.firstQuery) state.set({ q: position, l: layer + 1 });
    });
    picture.addEventListener("focus", () => {
      focus ??= { level: end + 1, position: at.query };
      light(focus.level, focus.position);
    });
    picture.addEventListener("blur", () => light(null));
    picture.addEventListener("keydown", move);
    const focused = holder.contains(document.activeElement);
    holder.replaceChildren(
      picture,
      hiddenTable(
        "The strongest edges",
        ["from", "to", "amount"],
        edges
          .slice(0, 20)
          .map((edge) => [stateName(edge.step + 1, edge.query), stateName(edge.step, edge.key), number(edge.amount)]),
      ),
    );
    if (focused) {
      if (focus && (focus.level > end + 1 || !drawing.columns.includes(focus.position))) focus = null;
      picture.focus();
      return;
    }
    summary.textContent =
      "Hover over a state, or focus the graph and use the arrow keys, to see what flows into and out of it.";
  }

  /** @param {KeyboardEvent} event */
  function move(event) {
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Enter: [0, 0] };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (!step || !current || !focus) return;
    event.preventDefault();
    event.stopPropagation();
    const { columns, levels } = current;
    if (event.key === "Enter") {
      const { level, position } = focus,
        layer = data.layers.find((l) => data.ends[l] === level - 1);
      if (level === 0) state.set({ t: position });
      else if (layer !== undefined) state.set({ q: position, l: layer + 1 });
      return;
    }
    const c = between(0, columns.indexOf(focus.position) + step[0], columns.length - 1);
    focus = { level: between(0, focus.level + step[1], levels - 1), position: columns[c] };
    light(focus.level, focus.position);
  }

  /** @param {number} level @param {number} position */
  function stateName(level, position) {
    return `${page.stateName(level, position)}${level ? ` at ${data.levels[level - 1]}` : " (input)"}`;
  }

  /** Highlight what flows into a state and out of it, and fade the rest.
   *
   * @param {number | null} level
   * @param {number} [position]
   * @param {PointerEvent} [event]
   */
  function light(level, position = 0, event) {
    if (!current) return;
    const colours = page.colours();
    /** @type {Amount[]} */
    const into = [];
    /** @type {Amount[]} */
    const out = [];
    for (const { edge, path } of current.drawn) {
      const below = edge.step + 1 === level && edge.query === position,
        above = edge.step === level && edge.key === position;
      if (below) into.push(edge);
      if (above) out.push(edge);
      path.style.stroke = below || above ? colours.accent : "";
      path.style.opacity = level === null || below || above ? "" : "0.15";
    }
    for (const dot of current.node.querySelectorAll("circle")) {
      dot.style.strokeWidth =
        level !== null && Number(dot.dataset.level) === level && Number(dot.dataset.position) === position ? "3" : "";
    }
    if (level === null) return;
    /** @param {Amount[]} edges @param {(edge: Edge) => string} name */
    const list = (edges, name) =>
      edges
        .sort((a, b) => b.amount - a.amount)
        .slice(0, 4)
        .map((edge) => `${name(edge)} ${number(edge.amount)}`)
        .join(", ") || "nothing shown";
    const lines = [
      stateName(level, position),
      level > 0 && `takes from: ${list(into, (edge) => stateName(edge.step, edge.key))}`,
      level < current.levels - 1 && `gives to: ${list(out, (edge) => stateName(edge.step + 1, edge.query))}`,
    ].filter(Boolean);
    summary.textContent = lines.join(" · ");
    if (event) page.tip.show(event, lines);
  }

  /** @returns {Cells[]} */
  function csvRows() {
    const edges = data.hasWeights ? gathered().edges : [];
    return [
      ["from_level", "from", "to_level", "to", "amount"],
      ...edges.map((edge) => [edge.step + 1, edge.query, edge.step, edge.key, edge.amount]),
    ];
  }

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "q", "l", "t", "u", "v", "theme", "width")) paint();
    },
  };
}
