// Two texts, shaded by what each word contributes to their similarity.
import { boot } from "./boot.js";
import { shadeStyle } from "./colour.js";
import { el, flattened, number, plainToken, readable, rowOf, tableOf } from "./draw.js";
import { shortName, showPanels, switched, topOf } from "./frame.js";
import { running } from "./reading.js";

/** @import { PanelsPage, SimilarText, SimilarityDocument } from "./types" */

const NAMED = 2; // most words of a text in the headline
const NEAR = 0.5; // words with at least this part of the highest value are named too
const LISTED = 8; // words of a text in its list
const TITLES = /** @type {Record<string, string>} */ ({
  answer_inputs: "answer edges",
  answer_rows: "answer edges, rows",
  rollout: "attention × gradient, rollout",
});
const BLANKED = "Without a blue word the texts are less similar; without an orange word they are more similar.";
const PARTS =
  "Blue words make the texts more similar, orange words less: each value is the word's part of the similarity.";

/** Return both texts with the values of a method, and the largest size of a value, which is the scale of both.
 *
 * @param {SimilarityDocument} doc
 * @param {string} method
 */
function valuesOf({ texts }, method) {
  const sides = texts.map((text) => {
    const values = text.methods.find(({ name }) => name === method)?.values ?? [];
    const words = text.tokens.map((_, i) => i).filter((i) => !text.special[i]);
    return { ...text, values, words: words.sort((i, j) => values[j] - values[i] || i - j) };
  });
  const sizes = sides.flatMap(({ values, words }) => words.map((i) => Math.abs(values[i])));
  return { sides, most: Math.max(...sizes, 1e-30) };
}

/** @typedef {SimilarText & { values: number[], words: number[] }} Side */

/** The words that a text's part of the similarity rests on most. @param {Side} side */
function strongest({ tokens, values, words }) {
  const near = words.slice(0, NAMED).filter((i) => values[i] > 0 && values[i] >= NEAR * values[words[0]]);
  return near.flatMap((i, at) => [at ? ", " : "", el("em", {}, el("bdi", {}, plainToken(tokens[i], 30)))]);
}

/** @param {PanelsPage} page @param {Side} side @param {number} at its place @param {number} most */
function shaded(page, { text, tokens, special, values, words }, at, most) {
  const pieces = running(text, { tokens, special, joins: [] }).flatMap((piece, i) => {
    if (special[i]) return [];
    const style = shadeStyle(page.colours(), values[i] / most),
      title = `${plainToken(tokens[i])} ${number(values[i])}`;
    return [readable(piece.before), el("span", { class: "tok", "data-i": i, style, title }, readable(piece.text))];
  });
  const rows = [...words]
    .sort((i, j) => Math.abs(values[j]) - Math.abs(values[i]) || i - j)
    .slice(0, LISTED)
    .map((i) => rowOf([el("bdi", {}, plainToken(tokens[i], 22)), number(values[i])]));
  const apart = tokens.flatMap((token, i) => (special[i] ? [`${plainToken(token)} ${number(values[i])}`] : []));
  return el(
    "div",
    {},
    el("div", { class: "reading", role: "group", "aria-label": `text ${at + 1}, shaded` }, pieces),
    tableOf({}, ["word", "value"], rows, `text ${at + 1}: what its words contribute`),
    apart.length ? el("p", { class: "hint" }, `Not shaded: ${apart.join(", ")}`) : "",
  );
}

/** @param {HTMLElement} root @param {SimilarityDocument} doc */
function showSimilarity(root, doc) {
  if (doc.version > 1) throw new Error(`this page cannot read a document of format ${doc.format} ${doc.version}`);
  const names = doc.texts[0].methods.map(({ name }) => name);
  const headline = el("h2", { class: "headline" }),
    legend = el("p", { class: "hint" }),
    box = el("div", { class: "sides" });
  showPanels(root, {
    kind: "similarity",
    subject: {},
    defaults: { m: names[0] },
    allowed: { m: names },
    head: (theme) => topOf([shortName(doc.model.model)], null, theme),
    fill: (page) => {
      const titles = Object.fromEntries(names.map((name) => [name, TITLES[name] ?? name]));
      const menu = names.length > 1 ? switched(page, "method", "m", titles) : "";
      function draw() {
        const { m } = page.state.get(),
          { sides, most } = valuesOf(doc, m),
          [first, second] = sides.map(strongest);
        const rests =
          first.length && second.length ? ["rests on ", first, " and ", second] : "no word makes them similar";
        const value = el("strong", {}, number(doc.value));
        headline.replaceChildren(...flattened([value, ` ${doc.measure} similarity — `, rests]));
        legend.textContent = m === "blank-out" ? BLANKED : PARTS;
        box.replaceChildren(...sides.map((side, at) => shaded(page, side, at, most)));
      }
      const node = el("section", { class: "lead" }, headline, el("div", { class: "bar" }, legend, menu), box);
      return { sections: [{ node, needs: ["m", "theme"], draw }], foot: "" };
    },
  });
}

boot(showSimilarity);
