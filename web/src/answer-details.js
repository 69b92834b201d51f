import { el } from "./draw.js";
import { notesOf, percent } from "./answer-lead.js";
import { sourceTable } from "./answer-table.js";
import { RULE } from "./answer-truth.js";
import { spanFrom } from "./answer-span.js";

/** @import { AnswerData, AnswerPage, Span } from "./types" */

/** @param {number} p */
const probability = (p) => (p >= 0.001 ? p.toFixed(3) : p.toExponential(1).replace("e-", "e−"));

/** @param {number} x */
const oneDigit = (x) =>
  x
    .toFixed(1)
    .replace(/^-(?=0\.0$)/, "")
    .replace("-", "−");

/** How likely the answer is, and whose it is. @param {AnswerData} data */
function likely({ answer }) {
  const sum = answer.logProbabilities.reduce((a, b) => a + b, 0),
    each = Math.exp(sum / answer.tokens.length);
  const whose = answer.written ? "The model wrote this" : "This answer was given, the model did not write it here";
  const tokens = answer.tokens.length > 1 ? `, ${probability(each)} a token` : "";
  return `${whose}: probability ${probability(Math.exp(sum))}${tokens}.`;
}

/** What the log-odds are made of. @param {AnswerData} data @param {Span} span @param {string} unit @param {string} hops */
function oddsOf(data, span, unit, hops) {
  const { odds, atFirst } = data.sources(span, unit, hops);
  const addends = [
    `prompt ${oneDigit(odds.prompt - atFirst)}`,
    data.first && `first token ${oneDigit(atFirst)}`,
    `the answer itself ${oneDigit(odds.answer)}`,
    Number.isFinite(odds.log) && `constants ${oneDigit(odds.log - odds.prompt - odds.answer)}`,
  ];
  const sum = Number.isFinite(odds.log) ? `Log-odds ${oneDigit(odds.log)}: ` : "";
  return `${sum}${addends.filter(Boolean).join(", ")}.`;
}

/** How the shares that are shown were made.
 *
 * @param {AnswerData} data
 * @param {Span} span
 * @param {string} unit
 * @param {string} hops
 */
function madeBy(data, span, unit, hops) {
  const { method } = data.sources(span, unit, hops),
    kind = `${unit}s`;
  if (method === "hops")
    return `Shares of ${kind} by answer rows; what stands on earlier words of the answer is passed on by their own rows (hops).`;
  if (method === "combined")
    return `Shares of ${kind} by what the answer read from them and how fast it falls as attention to them fades (combined).`;
  const rows = `Shares of ${kind} by what the answer read from them (answer rows).`;
  if (!data.units[unit].faded || !data.fading) return rows;
  const parts = data.fading.by === "sentence" ? "whole sentences of the answer and for the part" : "the part";
  return `${rows} The answer is long: the page has the better way, combined, for ${parts} that it opens with.`;
}

/** What the page holds of a matrix that is too large for it. @param {AnswerData} data @param {string} unit */
function coverage(data, unit) {
  const { exact, rows } = data.units[unit],
    covered = rows?.covered ?? data.matrix.covered;
  if (exact) return "";
  return `The text is long: of each answer token the page holds the largest parts, at least ${Math.floor(100 * covered)} % of their size. What it opens with is exact.`;
}

/** What the numbers mean, for whoever asks. */
function howToRead() {
  const lines = [
    "A share is a part of all that the prompt gave. For tokens and words: what the position that decides an answer token reads from a unit, in log-odds, cut off at zero; each chosen token counts alike. For sentences and larger units: that, and how fast the answer falls as attention to the unit fades, added on one scale. What speaks against the answer has a negative part in log-odds.",
    "The slider follows what came from earlier words of the answer back: each hop passes it on by what those words read, until all of it stands in the prompt.",
    "Apart from the shading are the first token, where attention goes that has nowhere to go, marks of the chat template, and the answer's own words. The first token's share is of all; the others are of the rest.",
    `${RULE} Estimated: a share, scaled to those that were left out.`,
  ];
  return el(
    "details",
    { class: "how" },
    el("summary", {}, "how to read this"),
    lines.map((line) => el("p", {}, line)),
  );
}

/** @param {AnswerData} data */
function madeWith({ provenance }) {
  const facts = Object.entries(provenance).filter(([, value]) => ["string", "number"].includes(typeof value));
  return el("p", { class: "hint made" }, facts.map(([name, value]) => `${name} ${value}`).join(" · "));
}

/** All that the first screen leaves out: numbers, what they are parts of, how they were made.
 *
 * @param {AnswerPage} page
 */
export function details(page) {
  const { state } = page;
  const facts = el("section", { class: "facts" }),
    table = sourceTable(page),
    made = el("div", {});
  const node = el(
    "details",
    { class: "everything" },
    el("summary", {}, "Details"),
    table.node,
    facts,
    howToRead(),
    made,
  );
  node.addEventListener("toggle", () => state.set({ d: node.open ? "1" : "" }));

  function draw() {
    const { s, u, h, d } = state.get(),
      { data } = page,
      span = spanFrom(s, data);
    node.open = Boolean(d);
    if (!d) return;
    table.draw();
    const { first, marks, itself } = data.sources(span, u, h);
    const apart = [
      data.first && `first token ${percent(first)} of all`,
      data.prompt.marks.some((token) => token || !data.first) && `special tokens and chat marks ${percent(marks)}`,
      `earlier words of the answer ${percent(itself)}`,
    ].filter(Boolean);
    facts.replaceChildren(
      el("p", { class: "likely" }, likely(data)),
      el("p", { class: "odds" }, oddsOf(data, span, u, h)),
      el("p", { class: "unshaded" }, `Not shaded: ${apart.join(", ")}.`),
      el("p", { class: "method" }, madeBy(data, span, u, h)),
      el("p", { class: "covered" }, coverage(data, u)),
      ...notesOf(data, span).map((note) => el("p", { class: "reliability" }, note)),
    );
    made.replaceChildren(madeWith(data));
  }
  return { node, draw };
}
