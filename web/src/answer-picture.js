import { closest, el, percent } from "./draw.js";
import { spanFrom } from "./answer-span.js";
import { greyed, overlayColour } from "./image-lead.js";
import { imageCanvas } from "./patches.js";

/** @import { AnswerData, AnswerPage, Span } from "./types" */

/** Return what each patch contributed to a span, as shares of what the whole image contributed.
 *
 * @param {NonNullable<AnswerData["picture"]>} picture
 * @param {Span} span
 */
export function patchShares({ rows, columns, maps }, { from, to }) {
  const size = rows * columns,
    shares = new Float64Array(size);
  let total = 0;
  for (let token = from; token <= to; token++) {
    const map = maps.subarray(token * size, (token + 1) * size);
    map.forEach((x, i) => {
      shares[i] += x;
      total += x;
    });
  }
  return shares.map((x) => x / (total || 1));
}

/** The image of a prompt in grey, overlaid with what each patch contributed to the selected part of the answer.
 *
 * @param {AnswerPage} page
 */
export function answerPicture(page) {
  const { state } = page,
    { picture } = page.data;
  if (!picture) return { node: el("div", { hidden: "" }), draw: () => {} };
  const { rows, columns, image } = picture,
    [high, wide] = image?.shape ?? [rows, columns];
  const cells = Array.from({ length: rows * columns }, (_, i) => el("span", { role: "listitem", "data-i": i }));
  const grid = el(
    "div",
    {
      class: "cells",
      role: "list",
      "aria-label": `the image in ${rows} rows and ${columns} columns of patches`,
      style: `grid-template-columns:repeat(${columns},1fr);grid-template-rows:repeat(${rows},1fr)`,
    },
    cells,
  );
  const says = el("p", { class: "patch", "aria-live": "polite" });
  const node = el(
    "figure",
    { class: "image-lead", style: `--ratio:${(wide / high).toFixed(4)}` },
    el("div", { class: "frame" }, image && greyed(imageCanvas(image)), grid),
    el("figcaption", {}, says),
  );
  let shares = new Float64Array(rows * columns);

  /** @param {number} i */
  const named = (i) =>
    `row ${Math.floor(i / columns) + 1}, column ${(i % columns) + 1} · ${percent(shares[i])} of the image's share`;

  /** @param {number} [pointed] */
  function say(pointed) {
    const strongest = shares.reduce((best, x, i) => (x > shares[best] ? i : best), 0);
    says.textContent = pointed === undefined ? `Strongest: ${named(strongest)}` : named(pointed);
  }

  grid.addEventListener("pointermove", (event) => {
    const cell = closest(event, "[data-i]");
    if (cell) say(Number(cell.dataset.i));
  });
  grid.addEventListener("pointerleave", () => say());

  return {
    node,
    draw() {
      const { data } = page;
      if (!data.picture) return;
      shares = patchShares(data.picture, spanFrom(state.get().s, data));
      const most = Math.max(...shares) || 1;
      cells.forEach((cell, i) => {
        cell.style.background = overlayColour(shares[i] / most);
        cell.setAttribute("aria-label", named(i));
      });
      say();
    },
  };
}
