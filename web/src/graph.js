import { el, svg, figure, label, number, plainToken, hiddenTable, choice, press, textWidth } from "./draw.js";
import { shade } from "./colour.js";
import { exportMenu } from "./keep.js";

const EDGES = 1000;

/** The strongest edges of the steps up to `end`: what rollout carries from the query, or the weights alone.
 *
 * Millions of edges are only counted, by the leading bits of their amounts; those above the level that leaves at most `most`
 * are then picked.
 */
export function strongest(graph, end, query, carried, most = EDGES) {
  const masses = [],
    tops = [];
  masses[end + 1] = carried ? new Float64Array(graph[end].rows) : null;
  if (carried) masses[end + 1][query] = 1;
  const amount = new Float32Array(1),
    bits = new Uint32Array(amount.buffer),
    counts = new Uint32Array(1 << 13);
  let count = 0;
  for (let s = end; s >= 0; s--) {
    let top = 0;
    const { rows, cols, values } = graph[s],
      mass = masses[s + 1],
      below = carried ? new Float64Array(cols) : null;
    for (let q = 0, e = 0; q < rows; q++) {
      const share = carried ? mass[q] : 1;
      if (share === 0) {
        e += cols;
        continue;
      }
      for (let k = 0; k < cols; k++, e++) {
        const sent = share * values[e];
        if (sent <= 0) continue;
        if (values[e] > top) top = values[e];
        if (carried) below[k] += sent;
        amount[0] = sent;
        counts[bits[0] >>> 18]++;
        count++;
      }
    }
    masses[s] = below;
    tops[s] = top;
  }
  let bin = counts.length - 1;
  for (let kept = counts[bin]; bin > 0 && kept + counts[bin - 1] <= most; bin--) kept += counts[bin - 1];
  bits[0] = bin << 18;
  const least = amount[0],
    edges = [];
  for (let s = end; s >= 0; s--) {
    const { rows, cols, values } = graph[s],
      mass = masses[s + 1];
    for (let q = 0; q < rows; q++) {
      const share = carried ? mass[q] : 1;
      if (share * tops[s] < least) continue;
      for (let k = 0, e = q * cols; k < cols; k++, e++) {
        const sent = share * values[e];
        if (sent >= least && sent > 0) edges.push({ step: s, query: q, key: k, amount: sent });
      }
    }
  }
  edges.sort((a, b) => b.amount - a.amount);
  if (edges.length > most) edges.length = most;
  return { edges, count, masses };
}

/** Columns and levels of a layered graph, with room for tokens below and names of levels at the left. */
export function grid(columns, levels, names, levelNames, colours, { title, width, top = 30 }) {
  const labels = columns.map((position) => plainToken(names[position] ?? String(position), 16)),
    longest = Math.max(...labels.map((text) => textWidth(text, 11)));
  const gap = Math.max(columns.length > 60 ? 15 : 22, Math.min(110, (width - 98) / Math.max(1, columns.length)));
  const slanted = gap < 62 || longest > gap - 4,
    left = slanted ? Math.max(58, 0.58 * longest + 8 - gap / 2) : 58;
  const rise = levels > 20 ? 22 : levels > 14 ? 34 : levels > 8 ? 44 : 58;
  const foot = 18 + (slanted ? Math.max(30, 0.82 * longest) : 14);
  const wide = Math.ceil(left + columns.length * gap + 14),
    high = top + (levels - 1) * rise + foot + 12;
  const found = figure(wide, high, colours, title);
  const place = new Map(columns.map((position, c) => [position, left + (c + 0.5) * gap]));
  const x = (position) => place.get(position),
    y = (level) => top + (levels - 1 - level) * rise + 6;
  for (let level = 0; level < levels; level++) {
    found.append(
      svg("line", { x1: left, x2: wide - 14, y1: y(level), y2: y(level), stroke: colours.line, "stroke-width": 0.6 }),
    );
    found.append(label(0, y(level), level ? levelNames[level - 1] : "input", { "font-size": 10, fill: colours.faint }));
  }
  for (const [c, position] of columns.entries()) {
    const under = y(0) + 16;
    found.append(
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
  return { node: found, x, y, gap };
}

export function curve(x1, y1, x2, y2) {
  const middle = (y1 + y2) / 2;
  return `M${x1.toFixed(1)} ${y1.toFixed(1)}C${x1.toFixed(1)} ${middle.toFixed(1)} ${x2.toFixed(1)} ${middle.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
}

const KINDS = {
  carried: "what rollout carries from the query",
  weights: "weights with the residual",
  attention: "attention alone",
};

/** Figure 1 of the paper: tokens across, layers up, strength as opacity. */
export function graphPanel(page) {
  const { data, state } = page;
  const holder = el("div", { class: "scroll" }),
    note = el("p", { class: "hint" }),
    told = el("p", { class: "told", "aria-live": "polite" });
  const pick = choice("edges", KINDS, "", (g) => state.set({ g }));
  const node = el(
    "section",
    { class: "view", "data-view": "graph" },
    el(
      "header",
      {},
      pick,
      note,
      exportMenu(
        "graph",
        (colours) => (data.hasWeights ? draw(colours).node : figure(200, 40, colours, "not held")),
        csvRows,
        data,
        page.announce,
      ),
    ),
    holder,
    told,
  );
  let focus = null;

  function gathered() {
    const at = page.now(),
      { g } = state.get();
    const end = data.ends[data.layers[at.layer]];
    const graph = g === "attention" ? data.steps(at.unit) : data.graph(at.unit, at.field === "layer" ? "layer" : "");
    return { at, end, ...strongest(graph, end, at.query, g === "carried"), kind: g };
  }

  function shownColumns(found) {
    // positions that nothing reaches would only stretch a long text
    const n = found.at.tokens.length;
    if (n <= 60) return Array.from({ length: n }, (_, i) => i);
    const used = new Set([found.at.query]);
    for (const edge of found.edges) {
      used.add(edge.query);
      used.add(edge.key);
    }
    return [...used].sort((a, b) => a - b);
  }

  function draw(colours, found = gathered()) {
    const { at, end, edges, masses, kind } = found;
    const columns = shownColumns(found),
      levels = end + 2;
    const names = at.tokens;
    const frame = grid(columns, levels, names, data.levels, colours, {
      title: `${KINDS[kind]} · ${at.queryName} at ${at.layerName}`,
      width: page.width() - 40,
    });
    const most = edges[0]?.amount || 1;
    const drawn = [];
    const lines = svg("g", { fill: "none", "stroke-linecap": "round" });
    for (const edge of [...edges].reverse()) {
      const share = edge.amount / most;
      if (share < 0.004) continue;
      const path = svg("path", {
        d: curve(frame.x(edge.query), frame.y(edge.step + 1), frame.x(edge.key), frame.y(edge.step)),
        stroke: colours.css[200],
        "stroke-opacity": Math.max(0.04, share ** 0.6).toFixed(3),
        "stroke-width": (0.7 + 5 * share ** 0.8).toFixed(2),
      });
      drawn.push({ edge, path });
      lines.append(path);
    }
    frame.node.append(
      label(0, 10, `${KINDS[kind]} · ${at.queryName} at ${at.layerName}`, { "font-size": 12, "font-weight": 600 }),
      lines,
    );
    const nodes = [],
      drawnStates = new Set(
        drawn.flatMap(({ edge }) => [`${edge.step + 1} ${edge.query}`, `${edge.step} ${edge.key}`]),
      );
    for (let level = 0; level < levels; level++) {
      const width = level ? data.steps(at.unit)[level - 1].rows : data.steps(at.unit)[0].cols;
      for (const position of columns) {
        if (position >= width || (at.tokens.length > 60 && level && !drawnStates.has(`${level} ${position}`))) continue;
        const mass = masses[level]?.[position];
        const top = level === end + 1 && position === at.query;
        const dot = svg("circle", {
          cx: frame.x(position).toFixed(1),
          cy: frame.y(level).toFixed(1),
          r: top ? 6 : 4,
          fill: mass === undefined ? colours.paper : shade(colours, Math.min(1, mass * 1.6)),
          stroke: top || (level === 0 && position === at.token) ? colours.accent : colours.faint,
          "stroke-width": top ? 2 : 1,
          "data-level": level,
          "data-position": position,
        });
        nodes.push(dot);
      }
    }
    frame.node.append(...nodes);
    return { ...frame, drawn, columns, levels, found };
  }

  let current = null;

  function paint() {
    if (!data.hasWeights) {
      holder.replaceChildren(el("p", { class: "why" }, "The graph needs the weights, which this page does not hold."));
      return;
    }
    const colours = page.colours();
    press(pick, state.get().g);
    current = draw(colours);
    const { at, edges, count, end } = current.found;
    note.textContent =
      count > edges.length
        ? `the ${edges.length.toLocaleString("en")} strongest of ${count.toLocaleString("en")} edges`
        : "";
    const picture = current.node;
    picture.setAttribute("tabindex", "0");
    picture.classList.add("graph");
    picture.addEventListener("pointermove", (event) => {
      const dot = event.target.closest("circle");
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
      const dot = event.target.closest("circle");
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
      if (focus && (focus.level > end + 1 || !current.columns.includes(focus.position))) focus = null;
      picture.focus();
      return;
    }
    told.textContent =
      "Hover a state, or focus the graph and use the arrow keys, to see what flows into it and out of it.";
  }

  function move(event) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step && event.key !== "Enter") return;
    event.preventDefault();
    event.stopPropagation();
    const { columns, levels } = current;
    if (event.key === "Enter") {
      const layer = data.layers.find((l) => data.ends[l] === focus.level - 1);
      if (focus.level === 0) state.set({ t: focus.position });
      else if (layer !== undefined) state.set({ q: focus.position, l: layer + 1 });
      return;
    }
    const c = Math.min(columns.length - 1, Math.max(0, columns.indexOf(focus.position) + step[0]));
    focus = { level: Math.min(levels - 1, Math.max(0, focus.level + step[1])), position: columns[c] };
    light(focus.level, focus.position);
  }

  function stateName(level, position) {
    return `${page.stateName(level, position)}${level ? ` at ${data.levels[level - 1]}` : " (input)"}`;
  }

  /** What flows into a state from below and out of it upwards; the rest steps back. */
  function light(level, position, event) {
    if (!current) return;
    const colours = page.colours();
    const into = [],
      out = [];
    for (const { edge, path } of current.drawn) {
      const below = edge.step === level - 1 && edge.query === position,
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
    const list = (edges, name) =>
      edges
        .sort((a, b) => b.amount - a.amount)
        .slice(0, 4)
        .map((edge) => `${name(edge)} ${number(edge.amount)}`)
        .join(", ") || "nothing drawn";
    const lines = [
      stateName(level, position),
      level > 0 && `takes from: ${list(into, (edge) => stateName(edge.step, edge.key))}`,
      level < current.levels - 1 && `gives to: ${list(out, (edge) => stateName(edge.step + 1, edge.query))}`,
    ].filter(Boolean);
    told.textContent = lines.join(" · ");
    if (event) page.tip.show(event, lines);
  }

  function csvRows() {
    const edges = data.hasWeights ? gathered().edges : [];
    return [
      ["from_level", "from", "to_level", "to", "amount"],
      ...edges.map((edge) => [edge.step + 1, edge.query, edge.step, edge.key, edge.amount]),
    ];
  }

  return {
    node,
    update(changed) {
      if (!changed || ["q", "l", "t", "u", "f", "g", "v", "theme", "width"].some((key) => changed.has(key))) paint();
    },
  };
}
