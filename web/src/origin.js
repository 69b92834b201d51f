import { between, closest, el, figure, label, percent, plainToken, svg, textWidth } from "./draw.js";
import { curve } from "./graph.js";
import { recommended } from "./headline.js";
import { touched } from "./state.js";

/** @import { Changed, Origin, Page, Palette } from "./types" */

/** Return how much of one token each edge carries to the top, along the edges that are drawn.
 *
 * @param {Origin} origin
 * @param {number} token
 */
export function waysOf({ edges, top }, token) {
  const layers = Math.max(...edges.map(([layer]) => layer)) + 1;
  /** @type {Map<number, number>[]} */
  const mass = Array.from({ length: layers + 1 }, () => new Map()),
    reach = Array.from({ length: layers + 1 }, () => new Map());
  const add = (/** @type {Map<number, number>} */ map, /** @type {number} */ at, /** @type {number} */ x) =>
    map.set(at, (map.get(at) ?? 0) + x);
  const order = edges.map((_, i) => i).sort((i, j) => edges[i][0] - edges[j][0]);
  mass[0].set(token, 1);
  for (const i of order) {
    const [layer, query, key, , part] = edges[i];
    add(mass[layer + 1], query, part * (mass[layer].get(key) ?? 0));
  }
  for (const place of top) reach[layers].set(place, 1);
  for (const i of order.reverse()) {
    const [layer, query, key, , part] = edges[i];
    add(reach[layer], key, part * (reach[layer + 1].get(query) ?? 0));
  }
  return edges.map(
    ([layer, query, key, , part]) => (mass[layer].get(key) ?? 0) * part * (reach[layer + 1].get(query) ?? 0),
  );
}

/** Draw the picture: tokens at the bottom, the answer at the top, and the edges that carry most of its support.
 *
 * @param {Page} page
 * @param {Origin} origin
 * @param {string} answer
 * @param {Palette} colours
 * @param {number} width
 * @param {number} high largest height of all layers together
 */
export function originFigure(page, origin, answer, colours, width, high = 250) {
  const at = page.now(),
    { edges, top } = origin,
    layers = page.data.levels.length;
  const columns = [...new Set([...top.slice(0, 1), ...edges.flatMap(([, query, key]) => [query, key])])].sort(
    (a, b) => a - b,
  );
  const names = columns.map((position) => plainToken(at.tokens[position] ?? String(position), 14));
  const size = 12,
    longest = Math.max(...names.map((name) => textWidth(name, size)));
  const count = Math.max(1, columns.length - 1),
    slanted = longest > (width - 68) / count - 8,
    side = slanted ? 34 : Math.max(34, 2 + textWidth(names[names.length - 1], size) / 2),
    gap = (width - 34 - side) / count;
  const rise = Math.max(7, Math.min(64, high / layers)),
    head = 34,
    foot = slanted ? 16 + 0.75 * longest : 26;
  const x = (/** @type {number} */ position) => (columns.length > 1 ? 34 + columns.indexOf(position) * gap : width / 2);
  const y = (/** @type {number} */ level) => head + (layers - level) * rise;
  const drawing = figure(width, head + layers * rise + foot, colours, `where ${answer} came from`);
  const step = Math.max(1, Math.ceil(layers / 6));
  for (let level = step; level <= layers; level += step)
    drawing.append(
      label(0, y(level), page.data.levels[level - 1], { "font-size": 9.5, fill: colours.faint }),
      svg("line", { x1: 26, x2: width, y1: y(level), y2: y(level), stroke: colours.line, "stroke-width": 0.5 }),
    );
  const most = Math.max(...edges.map(([, , , amount]) => amount), 1e-9);
  const lines = svg("g", { fill: "none" });
  const paths = edges.map(([layer, query, key, amount], i) => {
    const path = svg("path", {
      d: curve(x(query), y(layer + 1), x(key), y(layer)),
      stroke: colours.css[190],
      "stroke-width": (1 + 9 * (amount / most) ** 0.8).toFixed(2),
      "stroke-opacity": (0.25 + 0.6 * (amount / most) ** 0.6).toFixed(3),
      "stroke-linecap": query === key ? "butt" : "round", // round ends would show as beads along a straight line
      "data-edge": i,
      style: `--from:${layer / layers}`,
    });
    lines.append(path);
    return path;
  });
  drawing.append(lines);
  const states = new Set(edges.flatMap(([layer, query, key]) => [`${layer + 1} ${query}`, `${layer} ${key}`]));
  for (const state of states) {
    const [level, position] = state.split(" ").map(Number);
    if (!level || level === layers)
      drawing.append(
        svg("circle", {
          cx: x(position).toFixed(1),
          cy: y(level).toFixed(1),
          r: level ? 5 : 3.5,
          fill: level ? colours.accent : colours.ink,
          "data-position": level ? null : position,
        }),
      );
  }
  const crown = x(top[0] ?? columns[0]),
    own = textWidth(answer, 13, "600") / 2;
  drawing.append(
    label(Math.max(own, Math.min(width - own, crown)), 12, answer, {
      "text-anchor": "middle",
      "font-size": 13,
      "font-weight": 600,
    }),
  );
  columns.forEach((position, c) => {
    const under = y(0) + 15,
      place = x(position);
    drawing.append(
      label(place, under, names[c], {
        "font-size": size,
        "data-position": position,
        class: "word",
        ...(slanted
          ? { "text-anchor": "end", transform: `rotate(-45 ${place} ${under})` }
          : { "text-anchor": "middle" }),
      }),
    );
  });
  return { node: drawing, paths };
}

/** The picture on the first screen.
 *
 * @param {Page} page
 * @param {(token: number | null) => void} onpoint
 */
export function originPicture(page, onpoint) {
  const holder = el("div", { class: "holder" }),
    caption = el("figcaption", { class: "hint" });
  const node = el("figure", { class: "origin" }, caption, holder);
  /** @type {ReturnType<typeof originFigure> | null} */
  let current = null;
  const here = () => page.data.origin?.[page.now().unit] ?? null;
  const isShown = () => Boolean(here()?.edges.length);

  function draw() {
    const origin = here();
    node.hidden = !isShown();
    if (!origin || node.hidden) return;
    const width = Math.max(260, Math.min(900, holder.clientWidth || node.clientWidth || 520));
    current = originFigure(
      page,
      origin,
      answerName(page),
      page.colours(),
      width,
      between(200, 0.34 * innerHeight, 420),
    );
    const best = recommended(page),
      { a } = page.state.get();
    const by = a && a !== best?.name ? ` (by ${best?.title})` : "",
      signed = page.values(best?.name ?? "")?.row.some((value) => value < 0);
    caption.textContent = `Where it came from${by}: the paths that carry ${percent(origin.carried)}${signed ? " of its support" : ""}.`;
    holder.replaceChildren(current.node);
  }

  /** Highlight what a token contributes to the answer. @param {number | null} token */
  function light(token) {
    const origin = here();
    if (!origin || !current || node.hidden) return;
    const ways = token === null ? null : waysOf(origin, token),
      own = ways?.some((part) => part > 1e-6) ? ways : null; // a word that contributes nothing changes nothing
    const most = own ? Math.max(...own, 1e-9) : 1;
    current.paths.forEach((path, i) => {
      path.style.opacity = own ? (own[i] > 1e-6 ? "1" : "0.12") : "";
      path.style.stroke = own && own[i] > 1e-6 ? page.colours().accent : "";
      path.style.strokeOpacity = own && own[i] > 1e-6 ? String(0.3 + 0.7 * (own[i] / most)) : "";
    });
    for (const word of current.node.querySelectorAll(".word"))
      /** @type {SVGElement} */ (word).style.opacity =
        own === null || Number(word.getAttribute("data-position")) === token ? "" : "0.4";
  }
  holder.addEventListener("pointermove", (event) => {
    const spot = closest(event, "[data-position]");
    onpoint(spot ? Number(spot.dataset.position) : null);
  });
  holder.addEventListener("pointerleave", () => onpoint(null));
  holder.addEventListener("click", (event) => {
    const spot = closest(event, "[data-position]");
    if (spot) page.state.set({ t: Number(spot.dataset.position) });
  });
  return {
    node,
    light,
    isShown,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "u", "a", "theme", "width")) draw();
    },
  };
}

/** Return the model's answer in a word or two, or the explained position if there is none.
 *
 * @param {Page} page
 */
export function answerName(page) {
  const { prediction } = page.data;
  return prediction ? plainToken(prediction.top[0][0].trim() || prediction.top[0][0], 40) : page.now().queryName;
}
