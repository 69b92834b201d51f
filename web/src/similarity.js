import { PALETTES, inkOn, shade, shadeStyle } from "./colour.js";
import { closest, el, figure, label, makeTip, number, plainToken, readable, svg, tableOf, textWidth } from "./draw.js";
import { shortName, topOf } from "./frame.js";
import { exportsOf } from "./keep.js";
import { running } from "./reading.js";
import { keepControls } from "./share.js";
import { makeState } from "./state.js";
import { makeTheme } from "./theme.js";

/** @import { Cells, Palette, SimilarText, SimilarityDocument } from "./types" */

const NAMED = 2; // most words of a text in the headline
const NEAR = 0.5; // words with at least this part of the highest value are named too
const LISTED = 8; // words of a text in its list
const TITLES = /** @type {Record<string, string>} */ ({
  answer_inputs: "answer edges",
  answer_rows: "answer edges, rows",
  gather: "attention × gradient, gathered",
  rollout: "attention × gradient, rollout",
});
const BLANKED = "Without a blue word the texts are less similar; without an orange word they are more similar.";
const PARTS =
  "Blue words make the texts more similar, orange words less: each value is the word's part of the similarity.";

/** Show two texts, shaded by what each word contributes to their similarity.
 *
 * @param {HTMLElement} root
 * @param {SimilarityDocument} doc
 */
export function showSimilarity(root, doc) {
  if (doc.version > 1) throw new Error(`this page cannot read a document of format ${doc.format} ${doc.version}`);
  const names = doc.texts[0].methods.map(({ name }) => name),
    { signal } = new AbortController();
  const state = makeState(
    { m: names[0], theme: "" },
    { m: names, theme: ["", "light", "dark"] },
    "",
    signal,
    root.dataset.view ?? "",
  );
  const theme = makeTheme(root, state, signal, paint);
  const headline = el("h2", { class: "headline" }),
    legend = el("p", { class: "hint" }),
    live = el("p", { class: "sr", "aria-live": "polite" });
  const pick = el(
    "select",
    { "aria-label": "method", onchange: (event) => state.set({ m: event.target.value }) },
    names.map((value) => el("option", { value }, TITLES[value] ?? value)),
  );
  const papers = doc.texts.map((_, i) =>
    el("div", { class: "reading", role: "group", "aria-label": `text ${i + 1}, shaded` }),
  );
  const lists = doc.texts.map(() => el("div", { class: "list" }));
  const announce = (/** @type {string} */ text) => void (live.textContent = text);
  const values = (/** @type {SimilarText} */ text) =>
    text.methods.find(({ name }) => name === state.get().m)?.values ?? text.methods[0].values;

  /** Return the largest value of both texts, which share one scale. */
  const largest = () =>
    Math.max(
      ...doc.texts.flatMap((text) =>
        values(text)
          .filter((_, i) => !text.special[i])
          .map(Math.abs),
      ),
      1e-30,
    );

  /** Return the words, strongest first. @param {SimilarText} text */
  const ranked = (text) =>
    text.tokens
      .map((_, i) => i)
      .filter((i) => !text.special[i])
      .sort((i, j) => values(text)[j] - values(text)[i] || i - j);

  /** @param {SimilarText} text */
  function strongest(text) {
    const order = ranked(text),
      own = values(text);
    return order.slice(0, NAMED).filter((i) => own[i] > 0 && own[i] >= NEAR * own[order[0]]);
  }

  /** @param {SimilarText} text */
  const words = (text) =>
    strongest(text).flatMap((i, at) => [at ? ", " : "", el("em", {}, el("bdi", {}, plainToken(text.tokens[i], 30)))]);

  function paint() {
    const palette = theme.colours(),
      most = largest();
    theme.paint();
    pick.value = state.get().m;
    const [first, second] = doc.texts.map(words);
    headline.replaceChildren(
      el("strong", {}, number(doc.value)),
      ` ${doc.measure} similarity`,
      el("span", { class: "dash" }, " — "),
      ...(first.length && second.length
        ? ["rests on ", ...first, " and ", ...second]
        : ["no word makes the texts similar"]),
    );
    doc.texts.forEach((text, side) => {
      const own = values(text),
        pieces = running(text.text, { tokens: text.tokens, special: text.special, joins: [] });
      papers[side].replaceChildren(
        ...pieces.flatMap((piece, i) =>
          text.special[i]
            ? []
            : [
                readable(piece.before),
                el(
                  "span",
                  { class: "tok", "data-side": side, "data-i": i, style: shadeStyle(palette, own[i] / most) },
                  readable(piece.text),
                ),
              ],
        ),
      );
      const rows = ranked(text)
        .sort((i, j) => Math.abs(own[j]) - Math.abs(own[i]) || i - j)
        .slice(0, LISTED)
        .map((i) =>
          el(
            "tr",
            { "data-side": side, "data-i": i },
            el("th", { scope: "row" }, el("bdi", {}, plainToken(text.tokens[i], 22))),
            el("td", { class: "n" }, number(own[i])),
            el(
              "td",
              { class: "b" },
              el("span", {
                class: "bar",
                style: `width:${(100 * Math.abs(own[i])) / most}%;background:${shade(palette, 0.6 * Math.sign(own[i]))}`,
              }),
            ),
          ),
        );
      const apart = text.tokens.flatMap((token, i) =>
        text.special[i] ? [`${plainToken(token)} ${number(own[i])}`] : [],
      );
      lists[side].replaceChildren(
        tableOf({}, ["word", "value", el("td")], rows, `text ${side + 1}: what its words contribute`),
        apart.length ? el("p", { class: "hint" }, `Not shaded: ${apart.join(", ")}`) : "",
      );
    });
    legend.textContent = state.get().m === "blank-out" ? BLANKED : PARTS;
    node.dataset.settled = node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
  }

  /** @returns {Cells[]} */
  const rows = () => [
    ["text", "position", "word", "special", "method", "value"],
    ...doc.texts.flatMap((text, side) =>
      text.methods.flatMap(({ name, values: own }) =>
        text.tokens.map((token, i) => [side + 1, i, token, text.special[i], name, own[i]]),
      ),
    ),
  ];
  const subject = {
    data: { text: doc.texts.map(({ text }) => text), model: doc.model, prediction: null },
    announce,
    view: () => state.text(),
  };
  const drawn = (/** @type {Palette} */ palette) =>
    similarityFigure(
      doc.texts.map((text) => ({ ...text, values: values(text) })),
      headline.textContent ?? "",
      largest(),
      palette,
    );
  const works = exportsOf(subject, "similarity", drawn, rows);
  const node = el(
    "article",
    { class: "attnflow similarity-page", lang: "en" },
    topOf([shortName(doc.model.model)], null, keepControls({ state, name: "similarity", announce, works }), theme.node),
    el(
      "section",
      { class: "lead" },
      headline,
      el("div", { class: "bar" }, legend, el("span", { class: "spring" }), names.length > 1 ? pick : ""),
      el(
        "div",
        { class: "sides" },
        papers.map((paper, i) => el("div", {}, paper, lists[i])),
      ),
    ),
    live,
  );
  const tip = makeTip(node);
  node.addEventListener("pointermove", (event) => {
    const spot = closest(event, "[data-i]"),
      text = spot && doc.texts[Number(spot.dataset.side)];
    if (!text) return tip.hide();
    const i = Number(spot.dataset.i);
    tip.show(event, [text.tokens[i], ...text.methods.map(({ name, values: v }) => `${TITLES[name] ?? name} ${v[i]}`)]);
  });
  node.addEventListener("pointerleave", () => tip.hide());
  state.listen(paint);
  root.replaceChildren(node);
  root.removeAttribute("aria-busy");
  paint();
}

/** Draw both texts as a figure.
 *
 * @param {(SimilarText & { values: number[] })[]} texts
 * @param {string} title
 * @param {number} most
 * @param {Palette} colours
 */
function similarityFigure(texts, title, most, colours = PALETTES.light, width = 680) {
  const size = 12,
    high = 22;
  /** @type {SVGElement[]} */
  const boxes = [];
  let y = 30;
  for (const { tokens, special, values } of texts) {
    let x = 0;
    tokens.forEach((token, i) => {
      if (special[i]) return;
      const name = plainToken(token, 40),
        own = textWidth(name, size) + 8,
        share = values[i] / most;
      if (x + own > width && x) {
        x = 0;
        y += high + 4;
      }
      boxes.push(
        svg("rect", { x, y, width: own, height: high, rx: 3, fill: shade(colours, share) }),
        label(x + own / 2, y + high / 2 + 0.5, name, {
          "text-anchor": "middle",
          "font-size": size,
          fill: inkOn(colours, share),
        }),
      );
      x += own + 3;
    });
    y += high + 16;
  }
  const drawing = figure(Math.ceil(Math.max(width, textWidth(title, size, "600"))) + 4, y, colours, title, 12);
  drawing.append(...boxes);
  return drawing;
}
