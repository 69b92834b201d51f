import { shadeStyle } from "./colour.js";
import { button, el, percent, readable } from "./draw.js";
import { SMALL } from "./answer-shading.js";
import { spanFrom, spanWords } from "./answer-span.js";

/** @import { AnswerData, AnswerPage, Span } from "./types" */

const ENOUGH = 0.8; // the headline stops once the named units have this part of all shares
const BESIDE = 1 / 3; // the headline names no unit below this part of the largest share
const NAMED = { small: 3, large: 2 };
const CLIPPED = 150; // characters of a source in the headline
const HOPS = 6; // single hops on the slider, before "all"
const TOLD = 0.01; // smaller shares of unshaded tokens are not mentioned
const BY_ROWS = "This part uses a weaker measure: only what the model read from each source.";
const SPREAD = 0.02; // below this largest share, the answer rests on no single unit

/** @param {string} text @param {number} most */
export function clipped(text, most) {
  const line = readable(text).replace(/\s+/g, " ");
  return [...line].length > most ? `${[...line].slice(0, most - 1).join("")}…` : line || "␣";
}

/** Return the library's cautions about the shares of a span. @param {AnswerData} data @param {Span} span */
export const notesOf = (data, { from, to }) => data.reliability[`${from}-${to}`] ?? [];

/** Return the fewest units that have most of the shares. ranked: all units with a share, strongest first.
 *
 * @param {ArrayLike<number>} shares
 * @param {number[]} ranked
 * @param {number} most
 */
function strongest(shares, ranked, most) {
  const order = ranked.slice(0, most);
  const total = Array.from(shares).reduce((sum, x) => sum + x, 0);
  let sum = 0;
  return order.filter((i) => {
    const named = sum < ENOUGH * total && shares[i] >= BESIDE * shares[order[0]];
    sum += shares[i];
    return named;
  });
}

/** The headline: what the selected part of the answer rests on.
 *
 * @param {AnswerPage} page
 */
export function headline(page) {
  const { state } = page;
  const node = el("section", { class: "lead" });

  function draw() {
    const { s, u, h } = state.get(),
      { data } = page,
      span = spanFrom(s, data),
      { units, method } = data.sources(span, u, h);
    const small = SMALL.includes(u),
      named = strongest(units, page.truth.ranked(units), small ? NAMED.small : NAMED.large),
      top = Math.max(...named.map((i) => units[i]));
    const subject = s ? ["“", el("bdi", {}, clipped(spanWords(data.answer.pieces, span), 60)), "”"] : ["The answer"];
    const causes = named.map((i) => {
      const style = shadeStyle(page.colours(), (small ? 0.55 : 0.36) * (units[i] / top));
      const text = el("mark", { style, dir: "auto" }, clipped(data.units[u].texts[i], CLIPPED));
      return el("span", { class: "cause" }, text, " ", el("span", { class: "share" }, percent(units[i])));
    });
    const notes = notesOf(data, span),
      restsOn = !causes.length
        ? " rests on nothing in the prompt."
        : top < SPREAD
          ? ` rests a little on many ${u}s, most of all on`
          : " rests on";
    node.replaceChildren(
      el("h2", {}, subject, restsOn),
      causes.length ? el("p", { class: small ? "causes few" : "causes" }, causes) : "",
      method === "answer_rows" && data.fading && data.units[u].faded ? el("p", { class: "hint by-rows" }, BY_ROWS) : "",
      notes.length
        ? button(`⚠ ${notes[0].split(/[:(]/)[0].trim()}`, () => page.open(), {
            class: "caution",
            title: notes.join(" "),
          })
        : "",
    );
  }
  return { node, draw };
}

/** The shares of tokens that are not shaded, and a button that shades them.
 *
 * @param {AnswerPage} page
 */
export function apartLine(page) {
  const { state } = page;
  const words = el("span", {});
  const toggle = button("", () => state.set({ a: state.get().a ? "" : "1" }), { class: "bring" });
  const node = el("p", { class: "apart-line" }, words, " ", toggle);

  function draw() {
    const { s, u, h, a } = state.get(),
      { data } = page,
      { first, marks, itself } = data.sources(spanFrom(s, data), u, h);
    const parts = [
      first >= TOLD && `first token ${percent(first)}`,
      marks >= TOLD && `chat marks ${percent(marks)}`,
    ].filter(Boolean);
    const earlier = itself >= TOLD && `${percent(itself)} comes from earlier words of the answer`;
    node.hidden = !parts.length && !earlier;
    words.textContent = [parts.length && `Not shaded: ${parts.join(", ")}.`, earlier && `${earlier}.`]
      .filter(Boolean)
      .join(" ");
    toggle.textContent = "shade these too";
    toggle.setAttribute("aria-pressed", String(Boolean(a)));
  }
  return { node, draw };
}

/** Describe the position of the slider. @param {string} hops */
function hopWords(hops) {
  if (!hops) return "";
  if (hops === "0")
    return "What came through earlier words of the answer counts as theirs. Shares now add up over prompt and answer.";
  const far = hops === "all" ? "all the way" : hops === "1" ? "one step" : `${hops} steps`;
  return `What came through earlier words of the answer is followed back ${far}. Shares now add up over prompt and answer.`;
}

/** A slider: how far to follow what came through earlier words of the answer back to the prompt.
 *
 * @param {AnswerPage} page
 */
export function hopSlider(page) {
  const { state } = page;
  const slider = el("input", {
    type: "range",
    min: 0,
    step: 1,
    "aria-label": "follow sources back through the answer",
  });
  const ends = ["answer", "reasoning", "prompt"].map((name) => el("span", {}, name));
  const said = el("span", { class: "hint hop", role: "status" });
  const reset = button("×", () => state.set({ h: "" }), { class: "reset", "aria-label": "only what it read itself" });
  const track = el("div", { class: "track" }, slider, el("div", { class: "ends" }, ends));
  const node = el("div", { class: "hops" }, el("span", { class: "hint" }, "follow back to"), track, said, reset);
  const most = () => Math.min(page.data.answer.tokens.length - 1, HOPS) + 1;
  slider.addEventListener("input", () => {
    const at = Number(slider.value);
    state.set({ h: at >= most() ? "all" : String(at) });
  });

  function draw() {
    const { h } = state.get(),
      all = most();
    node.hidden = page.data.answer.tokens.length < 2;
    slider.max = String(all);
    slider.value = h === "all" ? String(all) : h || "0";
    const words = hopWords(h);
    slider.setAttribute("aria-valuetext", words || "only what it read itself");
    said.textContent = words;
    reset.hidden = !h;
  }
  return { node, draw };
}
