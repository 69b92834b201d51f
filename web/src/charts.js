import { el, svg, between, label, textWidth } from "./draw.js";

/** @import { Attributes, Child, Interval, Mark, PanelsPage } from "./types" */

const LEFT = 46; // room for the numbers left of the axis
const NARROW = 560; // in narrower charts, names are below instead of at the side

/** @param {string} d @param {Attributes} [attributes] */
export const path = (d, attributes) => svg("path", { d, fill: "none", stroke: "var(--line)", ...attributes });

/** @param {number} x @param {number} y @param {string} text */
export const tick = (x, y, text, anchor = "middle") => label(x, y, text, { "text-anchor": anchor, class: "tick" });

/** Format with a fixed number of decimals, so that columns can be compared; never as a power of ten.
 *
 * @param {number | null | undefined} x
 */
export const decimals = (x, digits = 3) =>
  typeof x === "number" && Number.isFinite(x) ? x.toFixed(digits).replace("-", "−") : "–";

/** @param {Interval} interval */
export const interval = ({ mean, low, high }) => `${decimals(mean)} [${decimals(low)}, ${decimals(high)}]`;

/** @param {string[]} names */
export const widest = (names) => Math.max(0, ...names.map((name) => textWidth(name, 12)));

/** Return the attributes of a line. @param {string} stroke @param {string | null | undefined} dash */
export const lineLook = (stroke, dash) => ({
  stroke,
  "stroke-width": 1.8,
  "stroke-dasharray": dash,
  "stroke-linecap": "round",
});

/** Return about `count` round numbers in a range.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} count
 */
export function ticks(low, high, count) {
  const rough = (high - low) / count || 1,
    size = 10 ** Math.floor(Math.log10(rough)),
    step = size * ([1, 2, 5].find((times) => times * size >= rough) ?? 10);
  const from = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - from + 1 }, (_, i) => (from + i) * step);
}

/** Label places on an axis, most important first; labels that would touch an earlier one are left out.
 *
 * @param {[number, string][]} entries
 * @param {number} y
 */
export function apart(entries, y) {
  /** @type {[number, number][]} */
  const taken = [];
  return entries.flatMap(([x, text]) => {
    const reach = textWidth(text, 11) / 2 + 3;
    if (taken.some(([at, other]) => Math.abs(at - x) < reach + other)) return [];
    taken.push([x, reach]);
    return [tick(x, y, text)];
  });
}

/** A chart. The pointer and the arrow keys show the text of `marks[row][column]`; screen readers get them as a list.
 *
 * @param {PanelsPage} page
 * @param {[number, number]} size
 * @param {string} title
 * @param {Child} parts
 * @param {Mark[][]} marks
 */
export function chart(page, [width, height], title, parts, marks) {
  const size = { viewBox: `0 0 ${width} ${height}`, width, height };
  const all = marks.flat();
  const look = { ...size, class: "chart", role: "img", tabindex: 0, "aria-label": title };
  const node = svg("svg", look, parts, ...all.map((mark) => mark.node));
  const places = new Map(marks.flatMap((row, r) => row.map((mark, c) => [/** @type {Element} */ (mark.node), [r, c]])));
  /** @type {number[] | null} */
  let at = null;
  function leave() {
    if (at) marks[at[0]][at[1]].node.classList.remove("lit");
    at = null;
    page.tip.hide();
  }
  /** @param {number[]} place @param {PointerEvent} [event] */
  function enter(place, event) {
    leave();
    at = place;
    const mark = marks[at[0]][at[1]],
      box = mark.node.getBoundingClientRect();
    mark.node.classList.add("lit");
    page.tip.show(event ?? { clientX: (box.left + box.right) / 2, clientY: (box.top + box.bottom) / 2 }, mark.lines);
  }
  node.addEventListener("pointermove", (event) => {
    const mark = /** @type {Element} */ (event.target).closest(".mark-of"),
      place = mark && places.get(mark);
    if (place) enter(place, event);
    else leave();
  });
  node.addEventListener("pointerleave", leave);
  node.addEventListener("blur", leave);
  node.addEventListener("keydown", (event) => {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (!step || !places.size) return;
    event.preventDefault();
    const r = at ? between(0, at[0] + step[0], marks.length - 1) : 0;
    enter([r, at ? between(0, at[1] + step[1], marks[r].length - 1) : 0]);
  });
  const lines = all.map((mark) => el("li", {}, mark.lines.join(", ")));
  return [node, el("ul", { class: "sr", "aria-label": title }, lines)];
}

/** @param {string[]} lines @param {string} kind @param {...Child} parts @returns {Mark} */
export const marked = (lines, kind, ...parts) => ({ node: svg("g", { class: `mark-of ${kind}` }, parts), lines });

/** A line chart. Each step has a band that shows its values; names are at the side if there is room, or below.
 *
 * @param {PanelsPage} page
 * @param {number} width
 * @param {string} title
 * @param {object} parts
 * @param {string[]} parts.names of the lines
 * @param {ReturnType<typeof lineLook>[]} parts.looks
 * @param {(number | null)[][]} parts.rows a value of each line at each step
 * @param {number[]} parts.at where each step is on the axis, whole numbers from 0; lines connect neighbours, and a step
 *   without neighbours is a dot
 * @param {[number, string][]} parts.marks labels on that axis, most important first
 * @param {[string, string]} parts.axes their titles
 * @param {(step: number) => string[]} parts.tell
 * @param {number} parts.low
 * @param {number} parts.top
 * @param {boolean} [parts.flip] the first step is at the right
 * @param {[number, number, number, number][]} [parts.bars] the line, the step, from and to
 * @param {number} [parts.foot] how far down the axis is
 */
export function linesChart(page, width, title, parts) {
  const { names, looks, rows, at, marks, axes, tell, low, top, flip = false, bars = [], foot = 230 } = parts;
  const narrow = width < NARROW,
    end = width - (narrow ? 20 : 50 + widest(names)),
    most = at.at(-1) || 1;
  const x = (/** @type {number} */ place) => LEFT + (flip ? 1 - place / most : place / most) * (end - LEFT),
    y = (/** @type {number} */ v) => foot - 6 - ((v - low) / (top - low || 1)) * (foot - 28);
  const levels = ticks(low, top, Math.round(foot / 55)),
    digits = levels.length > 1 ? between(1, Math.ceil(-Math.log10(levels[1] - levels[0]) - 1e-9), 9) : 2;
  const axis = [
    levels.map((v) => [path(`M${LEFT} ${y(v)}H${end}`), tick(LEFT - 6, y(v), decimals(v, digits), "end")]),
    apart(
      marks.map(([place, text]) => [x(place), text]),
      foot + 12,
    ),
    tick(LEFT, 8, axes[1], "start"),
    tick((LEFT + end) / 2, foot + 28, axes[0]),
  ];
  const lines = rows.map((row, r) => {
    const points = row.flatMap((v, s) => (v === null ? [] : [{ place: at[s], at: `${x(at[s])} ${y(v)}`, v }]));
    const follows = (/** @type {number} */ k) =>
      k > 0 && k < points.length && points[k].place - points[k - 1].place === 1;
    const alone = points.filter((_, k) => !follows(k) && !follows(k + 1));
    return [
      path(points.map((point, k) => `${follows(k) ? "L" : "M"}${point.at}`).join(""), looks[r]),
      alone.map(({ place, v }) => dot(r, place, v)),
    ];
  });
  const legend = names.map((name, i) => {
    const [left, high] = narrow ? [LEFT, foot + 50 + 16 * i] : [end + 12, 28 + 17 * i];
    return [path(`M${left} ${high}h20`, looks[i]), label(left + 26, high, name, { style: `fill:${looks[i].stroke}` })];
  });
  const spans = bars.map(([r, s, from, to]) => path(`M${x(at[s])} ${y(from)}V${y(to)}`, { stroke: looks[r].stroke }));
  const wide = (end - LEFT) / most;
  const bands = at.map((place, s) => {
    const dots = rows.map((row, r) => row[s] !== null && dot(r, place, row[s]));
    const band = svg("rect", { x: x(place) - wide / 2, width: wide, height: foot, fill: "transparent" });
    return marked(tell(s), "band", band, path(`M${x(place)} 20V${foot}`), dots);
  });
  /** @param {number} r @param {number} place @param {number} v */
  function dot(r, place, v) {
    return svg("circle", { cx: x(place), cy: y(v), r: 3, fill: looks[r].stroke });
  }
  const high = Math.max(foot + 36, (narrow ? foot + 46 : 24) + (narrow ? 16 : 17) * names.length);
  return chart(page, [width, high], title, [axis, lines, spans, legend], [flip ? bands.reverse() : bands]);
}
