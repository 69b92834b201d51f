import { between, closest, el, plainToken, readable } from "./draw.js";

/** @import { AnswerPage, Span } from "./types" */

/** The span that the state names: all of the answer where it names none.
 *
 * @param {string} text
 * @param {{ whole: Span }} data
 * @returns {Span}
 */
export function spanFrom(text, { whole }) {
  if (!text) return whole;
  const [from, to = from] = text.split("-").map(Number);
  return { from: Math.min(from, to), to: Math.max(from, to) };
}

/** A span as the state names it.
 *
 * @param {Span} span
 * @param {{ whole: Span }} data
 */
export function spanText({ from, to }, { whole }) {
  if (from === 0 && to === whole.to && to > 0) return "";
  return from === to ? String(from) : `${from}-${to}`;
}

/** White space around a text, and the text. @param {string} text */
export function trimmed(text) {
  const [, before, core, after] = /** @type {string[]} */ (/^(\s*)([^]*?)(\s*)$/.exec(text));
  return { before, core, after };
}

/** The answer in large letters, whose tokens are chosen by click, drag or keys.
 *
 * @param {AnswerPage} page
 */
export function answerLine(page) {
  const { data, state, tip } = page,
    { pieces, tokens, logProbabilities } = data.answer;
  /** @type {{ node: HTMLElement, first: number, last: number }[]} */
  const options = [];
  const nodes = pieces.flatMap(([text, ...its]) => {
    const { before, core, after } = trimmed(text);
    if (!its.length) return [readable(text)];
    const shown = core || (text.includes("\n") ? "⏎" : text); // a line break is a token too
    const node = el("span", { class: "tok", role: "option", tabindex: -1, "data-at": options.length }, readable(shown));
    options.push({ node, first: its[0], last: its[its.length - 1] });
    return core ? [before, node, after] : [node, text.includes("\n") ? text : ""];
  });
  const node = el(
    "div",
    { class: "said", role: "listbox", "aria-multiselectable": "true", "aria-label": "answer: choose a part" },
    nodes,
  );
  let anchor = 0,
    focus = 0,
    dragging = false;

  /** @param {number} start @param {number} end */
  function choose(start, end) {
    const [low, high] = [Math.min(start, end), Math.max(start, end)];
    state.set({ s: spanText({ from: options[low].first, to: options[high].last }, data) });
  }
  /** @param {Event} event */
  const place = (event) => Number(closest(event, "[data-at]")?.getAttribute("data-at") ?? -1);
  const isAlone = (/** @type {number} */ at) => {
    const { s } = state.get();
    return s !== "" && options[at].first === spanFrom(s, data).from && options[at].last === spanFrom(s, data).to;
  };

  node.addEventListener("pointerdown", (event) => {
    const at = place(event);
    if (at < 0 || event.button) return;
    event.preventDefault();
    options[at].node.focus();
    focus = at;
    if (event.shiftKey) return choose(anchor, at);
    if (isAlone(at)) return state.set({ s: "" }); // once more: the whole answer again
    anchor = at;
    dragging = true;
    choose(at, at);
  });
  node.addEventListener("pointermove", (event) => {
    const under = document.elementFromPoint(event.clientX, event.clientY)?.closest(".said [data-at]"); // touch is captured
    const at = Number(under?.getAttribute("data-at") ?? -1);
    if (dragging && at >= 0) choose(anchor, at);
    if (at < 0 || dragging) return tip.hide();
    const { first, last } = options[at];
    const p = Math.exp(logProbabilities.slice(first, last + 1).reduce((a, b) => a + b, 0));
    tip.show(event, [plainToken(tokens[first]), `probability ${p.toFixed(3)}`]);
  });
  node.addEventListener("pointerleave", () => tip.hide());
  for (const name of ["pointerup", "pointercancel"]) addEventListener(name, () => (dragging = false));
  node.addEventListener("keydown", (event) => {
    /** @type {Record<string, number>} */
    const steps = {
      ArrowLeft: focus - 1,
      ArrowRight: focus + 1,
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
    const { s } = state.get(),
      span = spanFrom(s, data);
    options.forEach(({ node: one, first, last }, i) => {
      const inside = s !== "" && first >= span.from && last <= span.to;
      one.setAttribute("aria-selected", String(inside));
      one.tabIndex = i === focus ? 0 : -1;
    });
    node.classList.toggle("narrowed", s !== "");
  }
  return { node, needs: ["s"], draw };
}
