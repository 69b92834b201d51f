import { shade, shadeStyle } from "./colour.js";
import { closest, el, number, plainToken, readable } from "./draw.js";
import { spanFrom, trimmed } from "./answer-line.js";

/** @import { AnswerPage } from "./types" */

const LONG = 1500; // tokens above which the prompt scrolls in a box of its own
const PLAIN = 0.03; // of the largest share: less is not shaded, so that the rest can be read

/** The prompt as text that one reads. Its tokens are shaded by their shares, its units underlined by theirs.
 *
 * @param {AnswerPage} page
 */
export function promptText(page) {
  const { data, state, tip } = page,
    { pieces, marks, tokens: names } = data.prompt;
  const text = el("div", { class: "prompt", role: "region", "aria-label": "prompt", tabindex: 0 });
  const strip = el("canvas", { class: "strip", width: 1, height: 300, "aria-hidden": "true" });
  const long = names.length > LONG;
  const node = el("section", { class: long ? "read long" : "read" }, text, long ? strip : null);
  /** @type {{ node: HTMLElement, tokens: number[] }[]} */
  let shown = [];
  /** @type {HTMLElement[]} */
  let underlined = [];
  let built = "",
    chosen = "none yet";

  /** Spans of units around spans of tokens. @param {string} unit */
  function build(unit) {
    const { of } = data.units[unit];
    shown = [];
    underlined = [];
    text.replaceChildren();
    /** @type {HTMLElement} */
    let into = text;
    let last = -1,
      open = /** @type {Node[]} */ ([]);
    for (const [content, ...tokens] of pieces) {
      if (!tokens.length) {
        open.push(document.createTextNode(readable(content))); // with the unit, if it goes on behind it
        continue;
      }
      const its = of[tokens[0]] ?? -1;
      if (its !== last) {
        text.append(...open);
        into = its >= 0 ? el("span", { class: "unit", "data-unit": its }) : text;
        if (its >= 0) {
          text.append(into);
          underlined.push(into);
        }
        last = its;
      } else into.append(...open);
      open = [];
      const { before, core, after } = trimmed(content);
      const mark = tokens.some((token) => marks[token]);
      const one = el("span", { class: mark ? "mark" : "tok", "data-at": shown.length }, readable(core));
      shown.push({ node: one, tokens });
      // white space in front of a unit's first word is not underlined
      if (into !== text && !into.hasChildNodes()) into.before(before);
      else into.append(before);
      if (core) into.append(one);
      if (after.includes("\n")) {
        text.append(after);
        last = its >= 0 && unit !== "token" && unit !== "word" ? continued(its) : -1;
      } else into.append(after);
    }
    text.append(...open);
    built = unit;

    /** A new span of the same unit behind a line break. @param {number} its */
    function continued(its) {
      into = el("span", { class: "unit", "data-unit": its });
      text.append(into);
      underlined.push(into);
      return its;
    }
  }

  function draw() {
    const { s, u, h } = state.get(),
      colours = page.colours();
    if (built !== u) build(u);
    const { shares, units } = data.sources(spanFrom(s, data), u, Boolean(h));
    const sums = shown.map(({ tokens }) => tokens.reduce((sum, token) => sum + shares[token], 0));
    const most = Math.max(...sums.filter((_, i) => !shown[i].node.classList.contains("mark")), 0) || 1;
    const parts = sums.map((x, i) => (shown[i].node.classList.contains("mark") ? 0 : x / most));
    shown.forEach(({ node: one }, i) => {
      if (parts[i] >= PLAIN) one.setAttribute("style", shadeStyle(colours, parts[i]));
      else one.removeAttribute("style");
    });
    const top = Math.max(...Array.from(units), 0) || 1;
    for (const one of underlined) {
      const part = u === "token" ? 0 : units[Number(one.dataset.unit)] / top;
      one.style.borderBottomColor = part >= PLAIN ? shade(colours, part) : "transparent";
    }
    if (long) paintStrip(parts, colours);
    if (long && chosen !== `${s} ${h}`) {
      const strongest = shown[parts.indexOf(Math.max(...parts))]?.node;
      if (strongest) text.scrollTop = strongest.offsetTop - text.offsetTop - text.clientHeight / 3;
    }
    chosen = `${s} ${h}`;
  }

  /** Where in a long prompt the shades are. @param {number[]} parts @param {import("./types").Palette} colours */
  function paintStrip(parts, colours) {
    const brush = strip.getContext("2d");
    if (!brush) return;
    const rows = new Float64Array(strip.height);
    shown.forEach(({ node: one }, i) => {
      const at = Math.floor(((one.offsetTop - text.offsetTop) / text.scrollHeight) * rows.length);
      if (at >= 0 && at < rows.length) rows[at] = Math.max(rows[at], parts[i]);
    });
    brush.clearRect(0, 0, 1, rows.length);
    rows.forEach((part, y) => {
      if (part < PLAIN) return;
      brush.fillStyle = shade(colours, part);
      brush.fillRect(0, y, 1, 1);
    });
  }
  strip.addEventListener("click", (event) => {
    text.scrollTop = (event.offsetY / strip.clientHeight) * text.scrollHeight - text.clientHeight / 2;
  });

  text.addEventListener("pointermove", (event) => {
    const at = closest(event, "[data-at]")?.getAttribute("data-at"),
      unit = closest(event, "[data-unit]")?.getAttribute("data-unit");
    if (at === null || at === undefined) return tip.hide();
    const { s, u, h } = state.get(),
      { shares, parts, units } = data.sources(spanFrom(s, data), u, Boolean(h));
    const { tokens } = shown[Number(at)];
    const share = tokens.reduce((sum, token) => sum + shares[token], 0),
      part = tokens.reduce((sum, token) => sum + parts[token], 0);
    const whole = unit && u !== "token" && units[Number(unit)];
    tip.show(event, [
      tokens.map((token) => plainToken(data.units.token.texts[token])).join(" "),
      data.first && tokens[0] === 0 ? "first token: it has no share" : `share ${number(share)}`,
      `${part < 0 ? "against: " : ""}${number(part, 2)} of the log-odds`,
      whole !== "" && typeof whole === "number" && `its ${u}: share ${number(whole)}`,
    ]);
  });
  text.addEventListener("pointerleave", () => tip.hide());

  /** Lights up one unit, or none; where asked for, scrolls to it.
   *
   * @param {number} unit
   * @param {boolean} [into]
   */
  function point(unit, into = false) {
    text.querySelectorAll(".lit").forEach((one) => one.classList.remove("lit"));
    const all = text.querySelectorAll(`[data-unit="${unit}"]`);
    all.forEach((one) => one.classList.add("lit"));
    if (into) all[0]?.scrollIntoView({ block: "center", behavior: "smooth" });
  }

  return { node, draw, point };
}
