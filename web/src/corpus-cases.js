import { shadeStyle, shares, extent } from "./colour.js";
import { decimals } from "./charts.js";
import { times } from "./corpus-charts.js";
import { el, between, correlation, plainToken, tokenLine } from "./draw.js";
import { many } from "./frame.js";

/** @import { Corpus, CorpusPage, CorpusText } from "./types" */

/**
 * @param {CorpusPage} page
 * @param {CorpusText} text
 * @param {string} method
 * @param {number[]} places of the visible tokens
 */
function textRow(page, text, method, places, kind = "row") {
  const colours = page.colours(),
    values = places.map((i) => text.shares[method][i]),
    parts = shares(values, ...extent([values], true));
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]);
  const line = tokenLine(text, places, (i, place) => ({
    style: shadeStyle(colours, parts[place]),
    title: `${plainToken(text.tokens[i])}: ${method} ${decimals(values[place], 4)}, rank ${order.indexOf(place) + 1}`,
  }));
  const highest = order.slice(0, 3).map((at) => `${plainToken(text.tokens[places[at]])} ${decimals(values[at])}`);
  return el(
    "div",
    { class: kind, "data-method": method },
    el("div", { class: "name" }, method, el("span", { class: "sr" }, `: highest ${highest.join(", ")}`)),
    el("div", { class: "text" }, line),
    el("div", { class: "range", title: "lowest – highest score, and their ratio" }, rangeOf(values)),
  );
}

/** Format the lowest and highest value with enough decimals to distinguish them.
 *
 * @param {number[]} values
 */
function rangeOf(values) {
  const [low, high] = extent([values], true);
  const digits = high > low ? between(3, Math.ceil(-Math.log10(high - low)) + 1, 6) : 3;
  return `${decimals(low, digits)} – ${decimals(high, digits)}${low > 0 ? ` · ${times(high / low)}×` : ""}`;
}

/** Return the fragment that opens a text's page with the same selection.
 *
 * @param {Corpus} corpus
 * @param {string} special
 */
function opening({ disagreement, receptive_field: field, words }, special) {
  return new URLSearchParams({
    ...(/^L\d+$/.test(disagreement.layer) && { l: disagreement.layer.slice(1) }),
    ...(!special && { s: "0" }),
    ...(field && { f: field }),
    ...(words && { u: "words" }),
  });
}

/** @param {CorpusPage} page @param {{ row: number, correlation: number }} entry @param {string[]} methods */
function caseOf(page, { row, correlation: value }, methods) {
  const { corpus, state } = page,
    { s } = state.get(),
    text = corpus.disagreement.texts[row];
  const places = text.tokens.map((_, i) => i).filter((i) => s || !text.special[i]);
  const name = corpus.pages.includes(row)
    ? el("a", { href: `texts/${row}.html#${opening(corpus, s)}` }, text.id)
    : el("span", {}, text.id);
  const answer = text.prediction,
    left = text.size > text.tokens.length && `the first ${text.tokens.length} of ${many(text.size, "token")}`;
  const notes = [
    answer && `${plainToken(answer.label, 40)} ${decimals(answer.probability, 2)}`,
    text.truncated && "truncated to the model's limit",
    text.queries.length > 1 && `mean of ${text.queries.length} queries`,
    left,
  ];
  return el(
    "li",
    { class: "case", "data-row": row },
    el(
      "div",
      { class: "about" },
      name,
      el(
        "strong",
        { title: `Spearman's rank correlation of ${methods.join(" and ")}: ${value}` },
        `ρ ${correlation(value)}`,
      ),
      notes.filter(Boolean).map((note) => el("span", { class: "note" }, note)),
    ),
    corpus.methods.filter((method) => methods.includes(method)).map((method) => textRow(page, text, method, places)),
    corpus.methods
      .filter((method) => !methods.includes(method))
      .map((method) => textRow(page, text, method, places, "row other")),
  );
}

/** The texts on which two methods disagree most.
 *
 * @param {CorpusPage} page
 */
export function disagreementParts(page) {
  const { corpus, state } = page,
    { views: methods, texts } = corpus.disagreement.pairs[Number(state.get().p)];
  return [
    corpus.missing ? el("p", { class: "missing" }, corpus.missing) : null,
    texts.length
      ? el(
          "ol",
          { class: "cases" },
          texts.map((one) => caseOf(page, one, methods)),
        )
      : el("p", { class: "empty" }, "No text is long enough for a meaningful rank correlation."),
  ];
}
