import { shade } from "./colour.js";
import { button, closest, el, percent } from "./draw.js";
import { clipped } from "./answer-lead.js";
import { EFFECT, RULE } from "./answer-truth.js";
import { spanFrom } from "./answer-span.js";

/** @import { AnswerPage, Truth } from "./types" */

const FIRST = 6; // sources in the list
const VERIFY = 4; // units that the suggested command leaves out

/** The strongest sources of the selected part, each with its share and, if it was measured, what happened without it.
 *
 * @param {AnswerPage} page
 */
export function sourceList(page) {
  const { state, truth } = page;
  const list = el("ol", { "aria-label": "sources" }),
    rest = button("", () => page.open(), { class: "more" }),
    note = el("div", { class: "verify-note", role: "status", hidden: true });
  const how = button("is it true?", tell, { class: "verify", "aria-expanded": "false" });
  const node = el("section", { class: "list" }, list, el("div", { class: "foot" }, rest, how), note);

  function tell() {
    note.hidden = !note.hidden;
    how.setAttribute("aria-expanded", String(!note.hidden));
  }

  /** @param {number} i @param {number} most @param {Float64Array} units */
  function entry(i, most, units) {
    const { u } = state.get(),
      name = clipped(page.data.units[u].texts[i], 400),
      style = `--part:${((100 * units[i]) / most).toFixed(1)}%;--hue:${shade(page.colours(), 0.5)}`;
    return el(
      "li",
      { "data-source": i },
      button(name, () => page.point(i, true), { class: "name", title: name, dir: "auto" }),
      el("span", { class: "share" }, percent(units[i])),
      el("span", { class: "bar", style }),
      verdict(i),
    );
  }

  /** @param {number} i */
  function verdict(i) {
    const known = truth.measured(i);
    if (!known) {
      if (!page.server || !truth.isPossible()) return "";
      return button("is it true?", () => truth.ask(i), { class: "ask" });
    }
    return el("span", { class: "truth", role: "status", title: RULE }, words(known, truth.agrees(i)));
  }

  /** @param {Truth} known @param {boolean | null} agrees */
  function words({ fall, failed }, agrees) {
    if (failed) return failed;
    if (fall === undefined) return "leaving it out …";
    const size = Math.abs(fall).toFixed(2),
      sign = Number(size) ? (fall < 0 ? "+" : "−") : "±",
      said = `without it: log p ${sign}${size} `;
    const judgement = !agrees ? "disagrees" : fall < EFFECT ? "little effect, as its share says" : "✓";
    return [said, el("span", { class: agrees ? "agrees" : "disagrees" }, judgement)];
  }

  function draw() {
    const { s, u, h } = state.get(),
      { units } = page.data.sources(spanFrom(s, page.data), u, h);
    const order = truth.ranked(units),
      most = Math.max(...order.map((i) => units[i]));
    const refocus = focused();
    list.replaceChildren(...order.slice(0, FIRST).map((i) => entry(i, most, units)));
    const more = page.data.units[u].count - Math.min(FIRST, order.length);
    rest.textContent = more > 0 ? `${more.toLocaleString("en")} more` : "";
    rest.hidden = more <= 0;
    if (refocus) /** @type {HTMLElement | null} */ (list.querySelector(refocus))?.focus(); // the list was rebuilt
    how.hidden = Boolean(page.server) || !truth.isPossible() || order.slice(0, FIRST).some((i) => truth.measured(i));
    if (how.hidden) note.hidden = true;
    note.replaceChildren(
      el("p", {}, "To leave sources out, the page needs the model. Save it again with either of these:"),
      el("code", {}, `answer.save("answer.html", unit="${u}", verify=${VERIFY})`),
      el("code", {}, `attnflow answer PROMPT -m MODEL --unit ${u} --verify ${VERIFY} -o answer.html`),
    );
  }

  /** Return a selector for the focused element that still works after the list is rebuilt. */
  function focused() {
    const at = document.activeElement;
    if (!at || !list.contains(at)) return "";
    return `[data-source="${at.closest("li")?.dataset.source}"] .${at.classList[0]}`;
  }

  /** @param {number} unit */
  function point(unit) {
    for (const one of list.children) one.classList.toggle("lit", Number(one.getAttribute("data-source")) === unit);
  }
  const over = (/** @type {Event} */ event) =>
    page.point(Number(closest(event, "[data-source]")?.getAttribute("data-source") ?? -1));
  for (const name of ["pointerover", "focusin"]) list.addEventListener(name, over);
  for (const name of ["pointerleave", "focusout"]) list.addEventListener(name, () => page.point(-1));
  truth.listen(draw);
  return { node, draw, point };
}
