import { shade } from "./colour.js";
import { button, closest, el, number, readable, tableOf } from "./draw.js";
import { spanFrom } from "./answer-line.js";

/** @import { AnswerPage } from "./types" */

const FIRST = 8; // units in the table, unless all are asked for
const AGAINST = 3;
const LEAST = 0.0005; // a share outside of all units that three digits show
const FALLS = "log p falls by";

/** The units that gave most to the chosen part of the answer, and those that spoke against it.
 *
 * @param {AnswerPage} page
 * @param {(unit: number, into?: boolean) => void} point
 * @param {() => boolean} isVerified whether it shows what was measured
 */
export function sourceTable(page, point, isVerified) {
  const { data, state } = page;
  const node = el("section", { class: "sources", "aria-live": "polite" });

  function draw() {
    const { s, u, h, n } = state.get();
    const measured = isVerified() ? data.verified : null;
    const sources = data.sources(spanFrom(s, data), u, Boolean(h)),
      sums = Array.from(sources.units),
      signed = Array.from(sources.signed),
      ranked = measured ? measured.falls : sums;
    const order = ranked.map((_, i) => i).sort((a, b) => ranked[b] - ranked[a] || signed[b] - signed[a] || a - b);
    const shown = n ? order.slice(0, 500) : order.slice(0, FIRST);
    const least = (n ? [] : order)
      .filter((i) => signed[i] < 0 && !shown.includes(i))
      .sort((a, b) => signed[a] - signed[b])
      .slice(0, AGAINST);
    const most = Math.max(...ranked.map(Math.abs)) || 1,
      colours = page.colours();

    /** @param {number} i */
    function rowOf(i) {
      const part = Math.max(0, ranked[i]) / most,
        name = readable(data.units[u].texts[i]).replace(/\s+/g, " ") || "␣";
      const bar = el("span", {
        class: "bar",
        style: `--part:${(100 * part).toFixed(1)}%;--hue:${shade(colours, 0.55)}`,
      });
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
          button(name, () => point(i, true), { class: "name", title: name }),
          bar,
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
    const inside = sums.reduce((sum, x) => sum + x, 0),
      outside = inside ? 1 - inside : 0; // marks of a chat template, and what a document or a message does not have
    const more = n
      ? button("show fewer", () => state.set({ n: "" }), { class: "more" })
      : button(`${rest.toLocaleString("en")} more`, () => state.set({ n: "1" }), { class: "more" });
    const refocus = node.contains(document.activeElement) && document.activeElement?.classList.contains("more");
    node.classList.toggle("all", Boolean(n));
    node.replaceChildren(
      el("div", { class: "scroll" }, tableOf({ "aria-label": "sources" }, heads, rows)),
      ...((n && order.length > FIRST) || rest > 0 ? [more] : []),
      ...(outside >= LEAST ? [el("p", { class: "hint outside" }, `in no ${u}: a share of ${outside.toFixed(3)}`)] : []),
    );
    if (refocus) more.focus(); // it was made anew
  }

  const lit = (/** @type {Event} */ event) =>
    point(Number(closest(event, "[data-row]")?.getAttribute("data-row") ?? -1));
  for (const name of ["pointerover", "focusin"]) node.addEventListener(name, lit);
  for (const name of ["pointerleave", "focusout"]) node.addEventListener(name, () => point(-1));
  return { node, needs: ["s", "u", "h", "v", "n", "theme"], draw };
}
