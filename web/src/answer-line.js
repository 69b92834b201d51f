import { shadeStyle } from "./colour.js";
import { between, closest, el, percent, plainToken, readable } from "./draw.js";
import { shadingOf } from "./answer-shading.js";
import { spanFrom, spanText, spanWords, trimmed } from "./answer-span.js";

/** @import { AnswerPage, Piece } from "./types" */

const LEAST = 0.05; // smaller shares are not mentioned
const SAID = 4; // at most this many words of the answer are named for a source

/** The answer in large letters. Click, drag or keys select tokens; hovering a source shades what it contributed to.
 *
 * @param {AnswerPage} page
 */
export function answerLine(page) {
  const { state, tip } = page;
  /** @type {{ node: HTMLElement, first: number, last: number }[]} */
  let options = [];
  /** @type {Piece[] | null} */
  let built = null;
  const node = el("div", {
    class: "said",
    role: "listbox",
    "aria-multiselectable": "true",
    "aria-label": "answer: select a part",
  });
  const note = el("p", { class: "hint feeds", role: "status" });
  let anchor = 0,
    focus = 0,
    dragging = false;

  function build() {
    const { pieces } = page.data.answer;
    options = [];
    const nodes = pieces.flatMap(([text, ...its]) => {
      const { before, core, after } = trimmed(text);
      if (!its.length) return [readable(text)];
      const shown = core || (text.includes("\n") ? "⏎" : text); // a line break is a token too
      const one = el(
        "span",
        { class: "tok", role: "option", tabindex: -1, "data-at": options.length },
        readable(shown),
      );
      options.push({ node: one, first: its[0], last: its[its.length - 1] });
      return core ? [before, one, after] : [one, text.includes("\n") ? text : ""];
    });
    const refocus = node.contains(document.activeElement);
    node.replaceChildren(...nodes);
    focus = Math.min(focus, options.length - 1);
    if (refocus) options[focus]?.node.focus();
    built = pieces;
  }

  /** @param {number} start @param {number} end */
  function choose(start, end) {
    const [low, high] = [Math.min(start, end), Math.max(start, end)];
    state.set({ s: spanText({ from: options[low].first, to: options[high].last }, page.data) });
  }
  /** @param {Event} event */
  const place = (event) => Number(closest(event, "[data-at]")?.getAttribute("data-at") ?? -1);
  const isAlone = (/** @type {number} */ at) => {
    const { s } = state.get(),
      { from, to } = spanFrom(s, page.data);
    return s !== "" && options[at].first === from && options[at].last === to;
  };

  node.addEventListener("pointerdown", (event) => {
    const at = place(event);
    if (at < 0 || event.button) return;
    event.preventDefault();
    options[at].node.focus();
    focus = at;
    if (event.shiftKey) return choose(anchor, at);
    if (isAlone(at)) return state.set({ s: "" }); // a second click selects the whole answer
    anchor = at;
    dragging = true;
    choose(at, at);
  });
  node.addEventListener("pointermove", (event) => {
    const under = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-at]"); // touch is captured
    const at = under && node.contains(under) ? Number(under.getAttribute("data-at")) : -1;
    if (dragging && at >= 0) choose(anchor, at);
    if (at < 0 || dragging) return tip.hide();
    const { first, last } = options[at],
      { tokens, logProbabilities } = page.data.answer;
    const p = Math.exp(logProbabilities.slice(first, last + 1).reduce((a, b) => a + b, 0));
    tip.show(event, [under?.textContent || plainToken(tokens[first]), `probability ${p.toFixed(3)}`]);
  });
  node.addEventListener("pointerleave", () => tip.hide());
  for (const name of ["pointerup", "pointercancel"])
    addEventListener(name, () => (dragging = false), { signal: page.signal });
  node.addEventListener("keydown", (event) => {
    const forward = getComputedStyle(options[focus].node).direction === "rtl" ? -1 : 1;
    /** @type {Record<string, number>} */
    const steps = {
      ArrowLeft: focus - forward,
      ArrowRight: focus + forward,
      Home: 0,
      End: options.length - 1,
      " ": focus,
      Enter: focus,
    };
    if (event.key === "Escape") return state.set({ s: "" });
    if (event.key === "a" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      return state.set({ s: "" });
    }
    if (!(event.key in steps)) return;
    event.preventDefault();
    focus = between(0, steps[event.key], options.length - 1);
    if (!event.shiftKey) anchor = focus;
    options[focus].node.focus();
    choose(anchor, focus);
  });

  function draw() {
    if (built !== page.data.answer.pieces) build();
    const { s, a } = state.get(),
      span = spanFrom(s, page.data);
    options.forEach(({ node: one, first, last }, i) => {
      const inside = s !== "" && first >= span.from && last <= span.to;
      one.setAttribute("aria-selected", String(inside));
      one.tabIndex = i === focus ? 0 : -1;
    });
    node.classList.toggle("narrowed", s !== "");
    const inside = a ? shadingOf(page).inside : null;
    shadeBy(options.map(({ first, last }) => (inside ? sumOf(inside, first, last) : 0)));
    note.textContent = options.length > 1 ? "Drag over any part of the answer to see its sources." : "";
  }

  /** @param {number[]} parts of each option */
  function shadeBy(parts) {
    options.forEach(({ node: one }, i) => {
      if (parts[i] >= LEAST) one.setAttribute("style", shadeStyle(page.colours(), Math.min(1, parts[i])));
      else one.removeAttribute("style");
    });
  }

  /** Return the first and last token of each word of the answer, joining neighbouring options of one word. */
  function answerWords() {
    const { words } = page.data.answer;
    /** @type {{ from: number, to: number }[]} */
    const spans = [];
    for (const { first, last } of options) {
      const before = spans.at(-1);
      if (before && words[first] !== null && words[first] === words[before.to]) before.to = last;
      else spans.push({ from: first, to: last });
    }
    return spans;
  }

  /** Shade what a source contributed to, and say how much of each word came from it (the mean over its tokens).
   *
   * @param {number} unit
   */
  function point(unit) {
    if (unit < 0) return draw();
    const { u, h } = state.get(),
      shares = page.data.fed(u, unit, h);
    /** @param {number} from @param {number} to */
    const meanOf = (from, to) => sumOf(shares, from, to) / (to - from + 1);
    shadeBy(options.map(({ first, last }) => meanOf(first, last)));
    const most = answerWords()
      .map((span) => ({ span, share: meanOf(span.from, span.to) }))
      .filter(({ share }) => share >= LEAST)
      .sort((x, y) => y.share - x.share);
    const said = most
      .slice(0, SAID)
      .map(({ span, share }) => `“${spanWords(page.data.answer.pieces, span) || "⏎"}” ${percent(share)}`);
    note.textContent = said.length
      ? `It contributes to ${said.join(" · ")}${most.length > SAID ? " …" : ""}`
      : "It contributes to no part of the answer.";
  }
  return { node, note, draw, point };
}

/** @param {ArrayLike<number>} values @param {number} from @param {number} to */
function sumOf(values, from, to) {
  let sum = 0;
  for (let i = from; i <= to; i++) sum += values[i];
  return sum;
}
