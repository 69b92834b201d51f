import { isAnswerEdges } from "./data.js";
import { PALETTES, inkOn, shade, shadeStyle } from "./colour.js";
import { align, areOpposite, byDifference, columnsOf, methodsOf, sideOf, titleOf, unitIn } from "./pair-data.js";
import {
  button,
  choice,
  closest,
  between,
  el,
  figure,
  label,
  makeTip,
  number,
  percent,
  plainToken,
  press,
  svg,
  tableOf,
  textWidth,
  tokenNodes,
} from "./draw.js";
import { exportMenu, exportsOf } from "./keep.js";
import { shortName } from "./frame.js";
import { makeState } from "./state.js";

/** @import { Cells, Child, Data, Pair, PairColumn, PairSide, Palette } from "./types" */

const SHOWN = 8; // rows in the list, before "more"
const NAMED = 2; // most changes in the headline

/** Two texts, two models or two methods (one document twice), aligned word by word and shaded by their difference.
 *
 * @param {Data} first
 * @param {Data} second
 * @param {object} [options]
 * @param {string} [options.prefix] of its names in the address
 * @param {Record<string, Pair[]> | null} [options.alignments] if they are already known
 * @param {string} [options.opening] the initial selection, in the format of an address
 * @param {boolean} [options.hasMenu] whether to show an export menu; `works` has the exports too
 * @param {{ names(): string[], sides(): [PairSide, PairSide] } | null} [options.led] two methods selected elsewhere, instead
 *   of menus here
 */
export function pairView(
  first,
  second,
  { prefix = "p.", alignments = null, opening = "", hasMenu = true, led = null } = {},
) {
  const alone = first === second,
    ended = new AbortController();
  const shared = methodsOf(first).filter((name) => methodsOf(second).includes(name));
  const hasWords = !led && Boolean(first.units.words || second.units.words);
  const defaults = {
    m: (alone ? null : shared.find((name) => name === first.state.method)) ?? shared[0] ?? "",
    n: alone ? (shared[1] ?? "") : "",
    u: hasWords ? "words" : "subwords",
    w: "",
    c: -1,
  };
  const state = makeState(
    defaults,
    { m: shared, n: alone ? shared : [""], u: hasWords ? ["words", "subwords"] : ["subwords"], w: ["", "each"] },
    prefix,
    ended.signal,
    opening,
  );
  let all = false;
  /** @type {Map<string, Pair[]>} */
  const known = new Map();

  /** @param {string} unit */
  function pairsOf(unit) {
    const own = alignments?.[unit] ?? known.get(unit);
    if (own) return own;
    const [a, b] = [first, second].map((data) => data.units[unitIn(data, unit)]);
    const pairs = align(a.tokens, b.tokens, a.special, b.special);
    known.set(unit, pairs);
    return pairs;
  }

  function columns() {
    const { m, n, u } = state.get();
    if (led) {
      const sides = led.sides();
      return columnsOf(...sides, /** @type {Pair[]} */ (sides[0].tokens.map((_, i) => [i, i])));
    }
    return columnsOf(sideOf(first, m, u, alone), sideOf(second, alone ? n : m, u, alone, isTurned()), pairsOf(u));
  }

  /** Return whether the answers are opposite, so that both texts are shown for the first answer. */
  const isTurned = () => !alone && !led && state.get().m === "answer_inputs" && areOpposite(first, second);

  const names = sideNames(first, second);
  const named = alone || names[0] !== "the first text";
  const sides = () => (led ? led.names() : alone ? [titleOf(state.get().m), titleOf(state.get().n)] : names);
  const headline = el("h2", { class: "pair-answer" }),
    change = el("p", { class: "pair-change" }),
    apart = el("p", { class: "pair-apart hint" }),
    legend = el("p", { class: "pair-legend hint" });
  const lines = el("div", { class: "pair-lines", role: "listbox", tabindex: "0", dir: "auto" }),
    list = el("div", { class: "pair-list" }),
    live = el("p", { class: "sr", "aria-live": "polite" });
  const announce = (/** @type {string} */ text) => void (live.textContent = text);
  const more = button("", () => ((all = !all), drawList(columns())), { class: "more" });
  const units = hasWords
    ? choice("unit", { words: "words", subwords: "pieces" }, "", (u) => state.set({ u, c: -1 }))
    : "";
  const ways = choice("shading", { "": "difference", each: "each text" }, "", (w) => state.set({ w }));
  /** @param {string} key @param {string} name */
  const pick = (key, name) =>
    el(
      "label",
      {},
      `${name} `,
      el(
        "select",
        { "data-pick": key, onchange: (event) => state.set({ [key]: event.target.value }) },
        shared.map((value) => el("option", { value }, titleOf(value))),
      ),
    );
  const picks = led
    ? []
    : alone
      ? [pick("m", "first"), pick("n", "second")]
      : shared.length > 1
        ? [pick("m", "method")]
        : [];
  const subject = {
    data: {
      text: alone ? first.text : [first.text, second.text],
      model: alone ? first.model : [first.model, second.model],
      prediction: alone ? first.prediction : [first.prediction, second.prediction],
    },
    announce,
    view: () => state.text(),
  };
  const drawn = (/** @type {Palette} */ palette) =>
    pairFigure(columns(), sides(), [headline, change].map((node) => node.textContent).join(". "), palette);
  const menu = hasMenu ? exportMenu(subject, "pair", drawn, tableRows) : "";
  const node = el(
    "section",
    { class: "beside-view", "aria-label": "two side by side" },
    headline,
    change,
    el("div", { class: "pair-controls" }, picks, units, ways, menu),
    el("div", { class: "pair-body" }, el("div", {}, lines, apart, legend), el("div", {}, list, more)),
    live,
  );
  const tip = makeTip(node);

  const colours = () => {
    const around = /** @type {HTMLElement | null} */ (node.closest("[data-theme]"));
    return PALETTES[around?.dataset.theme === "dark" ? "dark" : "light"];
  };

  /** @param {PairColumn[]} shown */
  function drawLines(shown) {
    const palette = colours(),
      { w, c } = state.get(),
      largest = largestOf(shown);
    lines.replaceChildren(
      ...shown.flatMap((column, at) => [
        at ? " " : "",
        el(
          "span",
          {
            class: `col ${column.kind}`,
            role: "option",
            id: `${prefix}col${at}`,
            "data-c": at,
            "aria-selected": String(at === c),
            "aria-label": spokenColumn(column),
          },
          ["a", "b"].map((side, s) =>
            el(
              "span",
              { class: side, style: shadeStyle(palette, shareOf(column, s, largest, Boolean(w))) },
              column.words[s] ? tokenNodes(column.words[s]) : "",
            ),
          ),
        ),
      ]),
    );
    lines.setAttribute("aria-label", `${sides()[0]}, above, and ${sides()[1]}, below, word by word`);
    if (c >= 0) lines.setAttribute("aria-activedescendant", `${prefix}col${c}`);
    legend.replaceChildren(
      ...(w
        ? ["Stronger colours are larger values, on one scale for both lines."]
        : [
            el("span", { class: "swatch", style: shadeStyle(palette, -0.6) }),
            ` lower in ${sides()[1]} (below) than in ${sides()[0]} (above)  `,
            el("span", { class: "swatch", style: shadeStyle(palette, 0.6) }),
            " higher",
          ]),
      ...(alone ? [". Each method's values are shares of its sum over words."] : ["."]),
    );
  }

  /** @param {PairColumn[]} shown */
  function drawList(shown) {
    const palette = colours(),
      sorted = byDifference(shown),
      { c } = state.get();
    const largest = Math.max(...sorted.map(({ difference }) => Math.abs(difference)), 0) || 1;
    const rows = (all ? sorted : sorted.slice(0, SHOWN)).map((column) => {
      const at = shown.indexOf(column),
        width = `${(50 * Math.abs(column.difference)) / largest}%`,
        less = column.difference < 0;
      const bar = el("span", {
        class: less ? "bar less" : "bar",
        style: `width:${width};background:${shade(palette, less ? -0.6 : 0.6)}`,
      });
      return el(
        "tr",
        { "data-c": at, class: at === c ? "chosen" : null },
        el("th", { scope: "row" }, namesIn(column)),
        el("td", {}, column.a === null ? "–" : number(column.a)),
        el("td", {}, column.b === null ? "–" : number(column.b)),
        el("td", { class: "signed" }, signed(column.difference)),
        el("td", { class: "bars", "aria-hidden": "true" }, bar),
      );
    });
    const heads = [
      "word",
      ...(named ? sides().map((name) => plainToken(name, 14)) : ["first", "second"]),
      "change",
      el("td"),
    ];
    list.replaceChildren(tableOf({}, heads, rows, "What differs most"));
    more.hidden = sorted.length <= SHOWN;
    more.textContent = all ? `show only the first ${SHOWN}` : `${sorted.length - SHOWN} more`;
  }

  /** Introduce the changes, and say which answers they are about if the answers differ. */
  function changed() {
    const [a, b] = [first, second].map((data) => data.prediction?.top[0][0] ?? "");
    if (!isAnswerEdges(state.get().m) || a === b) return "What changed: ";
    return isTurned()
      ? `What changed, for or against ${plainToken(a, 30)}: `
      : "What changed, each for its own answer: ";
  }

  /** @param {PairColumn[]} shown */
  function drawHead(shown) {
    headline.replaceChildren(...(alone ? [`${sides()[0]} and ${sides()[1]}`] : answerWords(first, second)));
    const sorted = byDifference(shown),
      least = Math.max(0.0005, Math.abs(sorted[0]?.difference ?? 0) / 5);
    const changes = sorted.filter(({ difference }) => Math.abs(difference) >= least).slice(0, NAMED);
    change.replaceChildren(
      changes.length ? (alone ? "They differ most on " : changed()) : "No word matters more or less than before.",
      ...changes.flatMap((column, at) => [at ? "; " : "", ...changeWords(column, alone)]),
      changes.length ? "." : "",
    );
    const still = shown.filter((column) => column.apart);
    apart.textContent = still.length
      ? `Not shaded: ${still
          .slice(0, 4)
          .map(({ words, a, b }) => `${plainToken(words[0] || words[1])} ${either(a)} → ${either(b)}`)
          .join(", ")}${still.length > 4 ? ` and ${still.length - 4} more` : ""}`
      : "";
  }

  function paint() {
    const shown = columns(),
      { m, n, u, w } = state.get();
    if (units) press(units, u);
    press(ways, w);
    for (const select of node.querySelectorAll("select")) select.value = select.dataset.pick === "m" ? m : n;
    drawHead(shown);
    drawLines(shown);
    drawList(shown);
    node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
  }

  /** @returns {Cells[]} */
  function tableRows() {
    const { m, n } = state.get();
    return [
      [
        "position",
        "word",
        "position beside",
        "word beside",
        "kind",
        "method",
        "value",
        "method beside",
        "value beside",
        "difference",
      ],
      ...columns().map(({ i, j, words, kind, a, b, difference }) => [
        i < 0 ? null : i,
        words[0],
        j < 0 ? null : j,
        words[1],
        kind,
        m,
        a,
        alone ? n : m,
        b,
        difference,
      ]),
    ];
  }

  /** @param {number} c */
  function chooseColumn(c) {
    state.set({ c });
    lines.querySelector('[aria-selected="true"]')?.scrollIntoView({ block: "nearest" });
    const column = columns()[c];
    if (column) announce(spokenColumn(column));
  }

  node.addEventListener("click", (event) => {
    const spot = closest(event, "[data-c]");
    if (spot) chooseColumn(Number(spot.dataset.c));
  });
  node.addEventListener("pointermove", (event) => {
    const spot = closest(event, ".col"),
      column = spot && columns()[Number(spot.dataset.c)];
    if (column) tip.show(event, [spokenColumn(column), column.kind === "same" && `difference ${column.difference}`]);
    else tip.hide();
  });
  node.addEventListener("pointerleave", () => tip.hide());
  lines.addEventListener("keydown", (event) => {
    const last = columns().length - 1,
      { c } = state.get();
    const next = { ArrowLeft: c - 1, ArrowRight: c + 1, Home: 0, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    chooseColumn(between(0, next, last));
  });
  state.listen(paint);
  const watch = new MutationObserver(paint);
  watch.observe(document.documentElement, { subtree: true, attributeFilter: ["data-theme"] });
  paint();

  function close() {
    ended.abort();
    watch.disconnect();
    node.remove();
  }
  return { node, state, paint, close, works: exportsOf(subject, "pair", drawn, tableRows) };
}

/** @param {number | null} x */
const either = (x) => (x === null ? "–" : number(x, 2));

/** @param {number} x */
const signed = (x) => (x > 0 ? `+${number(x)}` : number(x));

/** Name the two sides: by their models if those differ.
 *
 * @param {Data} first
 * @param {Data} second
 */
function sideNames(first, second) {
  const models = [first, second].map((data) => shortName(data.model.model));
  return models[0] === models[1] ? ["the first text", "the second text"] : models;
}

/** @param {Data} first @param {Data} second @returns {Child[] & (Node | string)[]} */
function answerWords(first, second) {
  const [a, b] = [first, second].map((data) => data.prediction?.top[0]);
  if (!a || !b) return ["What changed"];
  const name = (/** @type {[string, number]} */ [text]) => el("strong", {}, el("bdi", {}, plainToken(text, 40)));
  const { kind } = first.prediction ?? {};
  const chance = (/** @type {[string, number]} */ [, p]) => (kind === "score" ? number(p, 2) : percent(p));
  const next = kind === "next token" ? "Next: " : "";
  if (a[0] === b[0]) return [next || "still ", name(a), ` ${chance(a)} → ${chance(b)}`];
  return [next, name(a), ` ${chance(a)} → `, name(b), ` ${chance(b)}`];
}

/** Describe how a word changed.
 *
 * @param {PairColumn} column
 * @param {boolean} alone
 */
function changeWords({ kind, words, a, b }, alone) {
  const word = (/** @type {number} */ s) => el("em", {}, el("bdi", {}, plainToken(words[s], 40)));
  const [x, y] = [number(a ?? 0, 2), number(b ?? 0, 2)];
  if (alone) return [word(1), ` (${x} and ${y})`];
  if (kind === "gone") return [word(0), ` (${x}) is gone`];
  if (kind === "new") return [word(1), ` (${y}) is new`];
  if (kind === "replaced") return [word(0), ` (${x}) became `, word(1), ` (${y})`];
  return [word(1), ` ${(b ?? 0) < (a ?? 0) ? "fell" : "rose"} from ${x} to ${y}`];
}

/** @param {PairColumn} column */
function spokenColumn(column) {
  const { words, kind, a, b } = column,
    name = plainToken(words[1] || words[0]);
  if (kind === "gone") return `${name}: ${number(a ?? 0)}, gone`;
  if (kind === "new") return `${name}: ${number(b ?? 0)}, new`;
  if (kind === "replaced") return `${plainToken(words[0])} ${number(a ?? 0)} → ${name} ${number(b ?? 0)}`;
  return `${name}: ${number(a ?? 0)} → ${number(b ?? 0)}`;
}

/** @param {PairColumn} column */
function namesIn({ words, kind }) {
  const word = (/** @type {number} */ s) => el("bdi", {}, plainToken(words[s]));
  if (kind === "gone") return el("s", {}, word(0));
  if (kind === "new") return el("u", {}, word(1));
  return kind === "replaced" ? [word(0), " → ", word(1)] : word(1);
}

/** Return what the strongest colour means: the largest value or difference, so that a small difference stays pale.
 *
 * @param {PairColumn[]} shown
 */
function largestOf(shown) {
  const sizes = shown
    .filter((column) => !column.apart)
    .flatMap(({ a, b, difference }) => [a ?? 0, b ?? 0, difference].map(Math.abs));
  return sizes.reduce((most, size) => (size > most ? size : most), 0) || 1;
}

/** Return how strongly to shade a word: above if its value is lower below, and vice versa; or in the only text that has it.
 *
 * @param {PairColumn} column
 * @param {number} side
 * @param {number} largest
 * @param {boolean} each
 */
function shareOf({ kind, a, b, difference, apart }, side, largest, each) {
  if (apart) return 0;
  if (each) return ((side ? b : a) ?? 0) / largest;
  if (kind === "gone" || kind === "new") return (kind === "new") === Boolean(side) ? difference / largest : 0;
  return side ? Math.max(0, difference) / largest : Math.min(0, difference) / largest;
}

/** Draw both lines as a figure.
 *
 * @param {PairColumn[]} shown
 * @param {string[]} sides
 * @param {string} title
 * @param {Palette} colours
 */
function pairFigure(shown, sides, title, colours, width = 680) {
  const size = 12,
    high = 20,
    block = 2 * high + 12,
    top = 30,
    largest = largestOf(shown);
  /** @type {{ left: number, line: number, own: number }[]} */
  const place = [];
  let x = 0,
    line = 0;
  for (const { words } of shown) {
    const own = Math.max(...words.map((word) => (word ? textWidth(plainToken(word, 40), size) : 0)), 8) + 8;
    if (x + own > width && x) {
      x = 0;
      line++;
    }
    place.push({ left: x, line, own });
    x += own + 4;
  }
  const foot = `orange: lower in ${sides[1]} (below) than in ${sides[0]} (above); blue: higher`;
  const drawing = figure(
    Math.ceil(Math.max(width, textWidth(title, size, "600"), textWidth(foot, 10.5))) + 4,
    top + (line + 1) * block + 18,
    colours,
    title,
    12,
  );
  shown.forEach((column, c) => {
    const { left, line: at, own } = place[c];
    column.words.forEach((word, s) => {
      const y = top + at * block + s * high,
        share = shareOf(column, s, largest, false);
      drawing.append(
        svg("rect", {
          x: left,
          y,
          width: own,
          height: high,
          fill: shade(colours, share),
          stroke: colours.line,
          "stroke-width": 0.5,
        }),
      );
      if (word)
        drawing.append(
          label(left + own / 2, y + high / 2 + 0.5, plainToken(word, 40), {
            "text-anchor": "middle",
            "font-size": size,
            fill: inkOn(colours, share),
            direction: "ltr",
            ...(column.kind === "gone" && { "text-decoration": "line-through" }),
            ...(column.kind === "new" && { "text-decoration": "underline" }),
          }),
        );
    });
  });
  drawing.append(label(0, top + (line + 1) * block + 8, foot, { "font-size": 10.5, fill: colours.faint }));
  return drawing;
}
