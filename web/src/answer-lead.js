import { shadeStyle } from "./colour.js";
import { button, el, readable } from "./draw.js";
import { SMALL } from "./answer-shading.js";
import { spanFrom, spanWords } from "./answer-span.js";
import { evidenceNotes } from "./reliability.js";

/** @import { AnswerData, AnswerPage, Span } from "./types" */

const ENOUGH = 0.8; // of what the units have: the headline names so much of it, if few units have it
const BESIDE = 1 / 3; // of the strongest: weaker ones are no headline
const NAMED = { small: 3, large: 2 };
const CLIPPED = 150; // characters of a source in the headline
const HOPS = 6; // hops that the slider has one by one
const TOLD = 0.01; // less is not said of what stands apart
const BY_ROWS = "For this part: by what it read alone, a weaker measure. Fading was not computed for it.";
const SPREAD = 0.02; // where the strongest unit has less, nothing rests on it alone

/** @param {number} share */
export const percent = (share) =>
  `${share >= 0.01 || share < 0.0001 ? Math.round(100 * share) : Number((100 * share).toPrecision(1))} %`;

/** @param {string} text @param {number} most */
export function clipped(text, most) {
  const line = readable(text).replace(/\s+/g, " ");
  return [...line].length > most ? `${[...line].slice(0, most - 1).join("")}…` : line || "␣";
}

/** What the shares of a span are cautioned by, as the library says it. @param {AnswerData} data @param {Span} span */
export const notesOf = (data, { from, to }) =>
  evidenceNotes(data.sizes.slice(from, to + 1), data.answer.logProbabilities.slice(from, to + 1), data.evidence.gap);

/** The strongest units, as few as have most. @param {ArrayLike<number>} shares @param {number} most */
export function strongest(shares, most) {
  const order = Array.from(shares, (_, i) => i)
    .filter((i) => shares[i] > 0)
    .sort((a, b) => shares[b] - shares[a] || a - b)
    .slice(0, most);
  const total = Array.from(shares).reduce((sum, x) => sum + x, 0);
  let sum = 0;
  return order.filter((i) => {
    const named = sum < ENOUGH * total && shares[i] >= BESIDE * shares[order[0]];
    sum += shares[i];
    return named;
  });
}

/** What the chosen part of the answer rests on, in words.
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
      named = strongest(units, small ? NAMED.small : NAMED.large),
      top = units[named[0]];
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
          ? ` rests on many ${u}s, a little on each; most on`
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

/** What stands apart from the shading, with its share; a button brings it in.
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
    words.textContent = [parts.length && `Apart: ${parts.join(", ")}.`, earlier && `${earlier}.`]
      .filter(Boolean)
      .join(" ");
    toggle.textContent = "shade these too";
    toggle.setAttribute("aria-pressed", String(Boolean(a)));
  }
  return { node, draw };
}

/** What the slider shows, in words. @param {string} hops */
function hopWords(hops) {
  if (!hops) return "";
  if (hops === "0")
    return "What came through earlier words of the answer stays with them. Shares add up anew, over prompt and answer.";
  const far = hops === "all" ? "all the way" : hops === "1" ? "one step" : `${hops} steps`;
  return `What came through earlier words of the answer is followed back ${far}. Shares add up anew, over prompt and answer.`;
}

/** How far what came from earlier words of the answer is followed back: from the answer to the prompt.
 *
 * @param {AnswerPage} page
 */
export function hopSlider(page) {
  const { state } = page;
  const slider = el("input", { type: "range", min: 0, step: 1, "aria-label": "follow it back through the answer" });
  const ends = ["answer", "reasoning", "prompt"].map((name) => el("span", {}, name));
  const said = el("span", { class: "hint hop", role: "status" });
  const reset = button("×", () => state.set({ h: "" }), { class: "reset", "aria-label": "what it read itself" });
  const track = el("div", { class: "track" }, slider, el("div", { class: "ends" }, ends));
  const node = el("div", { class: "hops" }, el("span", { class: "hint" }, "followed back to"), track, said, reset);
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
    slider.setAttribute("aria-valuetext", words || "what it read itself");
    said.textContent = words;
    reset.hidden = !h;
  }
  return { node, draw };
}
