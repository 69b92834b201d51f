import { shade } from "./colour.js";
import { ticks } from "./charts.js";
import { between, button, el, figure, label, percent, plainToken, press, svg } from "./draw.js";
import { touched } from "./state.js";

/** @import { Changed, Heard, Lead, Page, Palette, Panel, Sound, SpokenWord } from "./types" */

const SPOKEN = "cross_attention"; // the method's name in a document that has only words
const WIDTH = 960;
const WAVE = 150; // height of the waveform
const AXIS = 26; // height of the axis
const BINS = 240; // largest number of shaded columns

/** @param {number} second */
const seconds = (second) => second.toFixed(2);

/** @param {{ start: number, end: number }} span */
export const spanText = ({ start, end }) => `${seconds(start)}–${seconds(end)} s`;

/** Return the word that the selected position writes, unless another method is selected.
 *
 * @param {Page} page
 * @returns {SpokenWord | null}
 */
export function wordOf(page) {
  const { q, a } = page.state.get();
  return a && a !== SPOKEN ? null : (page.data.sound?.words.find(({ query }) => query === q) ?? null);
}

/** Return the shaded columns of time, each with a shade from -1 to 1 and its share of the whole.
 *
 * @param {Page} page
 * @param {Sound} sound
 * @param {Pick<Lead, "method" | "values" | "shades" | "shareOf"> | null} lead
 * @returns {Heard | null}
 */
export function heard(page, sound, lead) {
  const word = wordOf(page);
  if (word) {
    const most = Math.max(...word.row) || 1,
      sum = word.row.reduce((total, value) => total + value, 0) || 1,
      wide = sound.end / word.row.length;
    return {
      title: "cross-attention",
      columns: word.row.map((value, k) => ({
        start: k * wide,
        end: (k + 1) * wide,
        shade: value / most,
        share: value / sum,
      })),
    };
  }
  if (!lead) return null;
  const count = Math.min(BINS, sound.spans.filter((span) => span && span[0] < sound.end).length),
    columns = Array.from({ length: count }, (_, k) => ({
      start: (k * sound.end) / count,
      end: ((k + 1) * sound.end) / count,
      shade: 0,
      share: 0,
    }));
  const { special } = page.data.units.subwords;
  sound.spans.forEach((span, i) => {
    if (!span || special[i]) return;
    const middle = (span[0] + span[1]) / 2,
      column = columns[between(0, Math.floor((middle / sound.end) * columns.length), columns.length - 1)];
    column.share += lead.shareOf(i);
  });
  const most = columns.reduce((top, { share }) => Math.max(top, Math.abs(share)), 0) || 1;
  for (const column of columns) column.shade = column.share / most;
  return { title: lead.method.title, columns };
}

/** Draw the shaded waveform over an axis of seconds.
 *
 * @param {Sound} sound
 * @param {Heard | null} shown
 * @param {SpokenWord | null} word whose seconds are marked
 * @param {Palette} colours
 * @param {string} title
 */
export function soundFigure(sound, shown, word, colours, title, width = WIDTH) {
  const node = figure(width, WAVE + AXIS, colours, title),
    x = (/** @type {number} */ second) => (second / sound.end) * width;
  for (const column of shown?.columns ?? []) {
    if (Math.abs(column.shade) < 0.03) continue;
    node.append(
      svg("rect", {
        x: x(column.start).toFixed(2),
        width: (x(column.end) - x(column.start) + 0.3).toFixed(2),
        height: WAVE,
        fill: shade(colours, column.shade),
      }),
    );
  }
  node.append(waveform(sound, x, colours));
  if (word) {
    const [from, to] = [x(word.start), x(word.end)];
    node.append(
      svg("rect", {
        x: from,
        y: 1,
        width: Math.max(2, to - from),
        height: WAVE - 2,
        fill: "none",
        stroke: colours.accent,
        "stroke-width": 2,
      }),
    );
  }
  node.append(svg("line", { x1: 0, x2: width, y1: WAVE, y2: WAVE, stroke: colours.line }));
  const marks = ticks(0, sound.end, Math.max(2, Math.round(width / 120)));
  marks.forEach((second, i) => {
    const at = x(second),
      text = `${Number(second.toFixed(3))} s`;
    if (at > width - 18 && i) return;
    node.append(
      svg("line", { x1: at, x2: at, y1: WAVE, y2: WAVE + 5, stroke: colours.faint }),
      label(at, WAVE + 16, text, { "text-anchor": i ? "middle" : "start", fill: colours.faint }),
    );
  });
  return node;
}

/** @param {Sound} sound @param {(second: number) => number} x @param {Palette} colours */
function waveform({ envelope, duration }, x, colours) {
  const most = envelope.reduce((top, [low, high]) => Math.max(top, -low, high), 0) || 1,
    y = (/** @type {number} */ value) => (WAVE / 2 - (value / most) * (WAVE / 2 - 8)).toFixed(1),
    at = (/** @type {number} */ k) => x(((k + 0.5) * duration) / envelope.length).toFixed(1);
  const above = envelope.map(([, high], k) => `${at(k)},${y(high)}`),
    below = envelope.map(([low], k) => `${at(k)},${y(low)}`).reverse();
  return svg("path", {
    d: envelope.length ? `M${[...above, ...below].join("L")}Z` : "",
    fill: colours.ink,
    "fill-opacity": 0.55,
    stroke: colours.ink,
    "stroke-width": 0.6,
  });
}

/** The audio: its words, its shaded waveform, and a line of text about the column under the pointer.
 *
 * @param {Page} page
 * @param {Sound} sound
 * @param {() => Lead | null} lead the method selected on the first screen
 * @returns {Panel}
 */
export function soundLead(page, sound, lead) {
  const { state } = page;
  const frame = el("div", { class: "frame" }),
    says = el("p", { class: "patch", "aria-live": "polite" }),
    scale = el("p", { class: "scale" });
  const words = sound.words.map((word) =>
    button(plainToken(word.word, 30), () => state.set({ q: word.query, a: "" }), {
      "data-value": word.query,
      title: spanText(word),
    }),
  );
  const group = el("div", { class: "spoken", role: "group", "aria-label": "words of the transcript" }, words);
  const node = el(
    "figure",
    { class: "sound-lead" },
    words.length ? group : "",
    frame,
    el("figcaption", {}, says, scale),
  );
  /** @type {Heard | null} */
  let shown = null;

  /** @param {Heard["columns"][number]} [column] that is pointed at */
  function say(column) {
    const word = wordOf(page);
    if (column) says.textContent = `${spanText(column)} · ${percent(column.share)}`;
    else if (word)
      says.textContent = `${plainToken(word.word, 30)}: ${spanText(word)} · ${percent(word.share)} of its attention`;
    else {
      const best = shown?.columns.reduce((top, one) => (one.share > top.share ? one : top));
      says.textContent = best ? `Strongest: ${spanText(best)} · ${percent(best.share)}` : "";
    }
  }

  function paint() {
    shown = heard(page, sound, lead());
    const word = wordOf(page),
      about = word ? `; ${word.word} was heard at ${spanText(word)}` : "";
    const title = `the waveform of ${seconds(sound.duration)} seconds${about}`,
      width = Math.max(280, frame.clientWidth || WIDTH);
    frame.replaceChildren(soundFigure(sound, shown, word, page.colours(), title, width));
    press(group, String(word?.query ?? ""));
    scale.textContent = shown ? `shaded by ${shown.title}` : "";
    say();
  }

  frame.addEventListener("pointermove", (event) => {
    const box = frame.getBoundingClientRect(),
      { columns } = shown ?? { columns: [] };
    const column =
      columns[between(0, Math.floor(((event.clientX - box.left) / box.width) * columns.length), columns.length - 1)];
    if (column) say(column);
  });
  frame.addEventListener("pointerleave", () => say());

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "q", "l", "f", "a", "x", "rows", "theme", "width")) paint();
    },
  };
}
