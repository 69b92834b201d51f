import { shade } from "./colour.js";
import { button, el, number, readable, tableOf } from "./draw.js";
import { spanFrom } from "./answer-span.js";

/** @import { AnswerPage } from "./types" */

const FIRST = 8; // units in the table, unless all are shown
const ALL = 500;
const AGAINST = 3;
const LEAST = 0.0005; // the smallest share outside all units that three digits can show
const FALLS = "log p falls by";

/** The table of units: those that contributed most to the selected part of the answer, and those that count against it.
 *
 * @param {AnswerPage} page
 */
export function sourceTable(page) {
  const { state } = page;
  const node = el("section", { class: "sources", "aria-label": "numbers" });

  /** Return the measurements in the document, if they are for the selected span and unit. */
  function measuredHere() {
    const { verified, isOpening } = page.data,
      { s, u } = state.get();
    return verified?.unit === u && isOpening(spanFrom(s, page.data)) ? verified : null;
  }

  function draw() {
    const { s, u, h, n } = state.get(),
      { data } = page,
      span = spanFrom(s, data),
      measured = measuredHere();
    const { units: sums, outside } = data.sources(span, u, h),
      signed = data.signedOf(span, u);
    const order = Array.from(sums, (_, i) => i).sort((a, b) => sums[b] - sums[a] || signed[b] - signed[a] || a - b);
    const shown = order.slice(0, n ? ALL : FIRST),
      listed = new Set(shown);
    const least = (n ? [] : order)
      .filter((i) => signed[i] < 0 && !listed.has(i))
      .sort((a, b) => signed[a] - signed[b])
      .slice(0, AGAINST);
    const most = sums[order[0]] || 1,
      largest = signed.reduce((size, x) => Math.max(size, Math.abs(x)), 0) || 1;
    /** Return the bar of a unit. Units against the answer have hardly any share, so their bars show log-odds, in the
     * negative hue.
     *
     * @param {number} i
     */
    const barOf = (i) => {
      const against = least.includes(i),
        part = against ? -signed[i] / largest : sums[i] / most,
        hue = shade(page.colours(), against ? -0.55 : 0.55);
      return el("span", { class: "bar", style: `--part:${(100 * part).toFixed(1)}%;--hue:${hue}` });
    };

    /** @param {number} i */
    function rowOf(i) {
      const name = readable(data.units[u].texts[i]).replace(/\s+/g, " ") || "␣";
      /** @param {string} label @param {string} text */
      const cell = (label, text) => el("td", { "data-label": label || null, "data-of": label || "how" }, text);
      const left = data.first && u === "token" && i === 0; // the first token has no share
      return el(
        "tr",
        { "data-row": i, class: signed[i] < 0 ? "against" : false },
        measured && cell(FALLS, number(measured.falls[i], 2)),
        measured && cell("", measured.measured[i] ? "verified" : "estimated"),
        cell("share", left ? "–" : sums[i].toFixed(3)),
        cell("log-odds", number(signed[i], 2)),
        el(
          "th",
          { scope: "row" },
          button(name, () => page.point(i, true), { class: "name", title: name, dir: "auto" }),
          barOf(i),
        ),
      );
    }

    const heads = [...(measured ? [FALLS, ""] : []), "share", "log-odds", u].map((head) =>
      head ? el("th", { scope: "col" }, head) : el("td"),
    );
    const rows = [
      ...shown.map(rowOf),
      ...(least.length
        ? [el("tr", { class: "apart" }, el("td", { colspan: heads.length }, "most against")), ...least.map(rowOf)]
        : []),
    ];
    const rest = order.length - shown.length;
    const more = n
      ? button("show fewer", () => state.set({ n: "" }), { class: "more" })
      : button(`${rest.toLocaleString("en")} more`, () => state.set({ n: "1" }), { class: "more" });
    const refocus = node.contains(document.activeElement) && document.activeElement?.classList.contains("more");
    node.classList.toggle("all", Boolean(n));
    node.replaceChildren(
      el("div", { class: "scroll" }, tableOf({ "aria-label": "sources" }, heads, rows)),
      ...((n && order.length > FIRST) || rest > 0 ? [more] : []),
      ...(n && rest > 0
        ? [el("p", { class: "hint" }, `These are the first ${ALL} of ${order.length.toLocaleString("en")}.`)]
        : []),
      ...(outside >= LEAST ? [el("p", { class: "hint outside" }, `in no ${u}: a share of ${outside.toFixed(3)}`)] : []),
    );
    if (refocus) more.focus(); // the button was rebuilt
  }
  return { node, draw };
}
