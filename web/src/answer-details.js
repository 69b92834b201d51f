import { el, percent } from "./draw.js";
import { notesOf } from "./answer-lead.js";
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

/** Say how likely the answer is, and who wrote it. @param {AnswerData} data */
function likely({ answer }) {
  const sum = answer.logProbabilities.reduce((a, b) => a + b, 0),
    each = Math.exp(sum / answer.tokens.length);
  const whose = answer.written ? "The model wrote this answer" : "This answer was given, not written by the model";
  const tokens = answer.tokens.length > 1 ? `, ${probability(each)} per token` : "";
  return `${whose}: probability ${probability(Math.exp(sum))}${tokens}.`;
}

/** Say what the log-odds add up from. @param {AnswerData} data @param {Span} span @param {string} unit @param {string} hops */
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

/** Say how the shares were computed.
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
    return `Shares of ${kind} by what the answer read from them; what came through earlier words of the answer is passed back to what those words read (hops).`;
  if (method === "combined")
    return `Shares of ${kind} by what the answer read from them, and by how fast its probability falls as attention to them fades (combined).`;
  if (method === "answer_inputs")
    return `Shares of ${kind} by what each word and image patch contributes to the answer, followed through all layers and the vision tower (answer edges).`;
  const rows = `Shares of ${kind} by what the answer read from them (answer rows).`;
  if (!data.units[unit].faded || !data.fading) return rows;
  const parts = data.fading.by === "sentence" ? "whole sentences of the answer and for the part" : "the part";
  return `${rows} The answer is long: the page has the better method, combined, only for ${parts} that it opens with.`;
}

/** Say how much of a large matrix the page stores. @param {AnswerData} data @param {string} unit */
function coverage(data, unit) {
  const { exact, rows } = data.units[unit],
    covered = rows?.covered ?? data.matrix.covered;
  if (exact) return "";
  return `The text is long: for each answer token the page stores only the largest parts, at least ${Math.floor(100 * covered)} % of their size. The part that it opens with is exact.`;
}

/** Explain the numbers. @param {AnswerData} data */
function howToRead({ picture }) {
  const lines = [
    "A share is a fraction of everything the prompt contributed. For tokens and words, it is the log-odds that the model reads from a unit when it chooses an answer token; negative values count as zero, and all selected tokens count equally. For sentences and larger units, it also includes how fast the answer's probability falls as attention to the unit fades. Units that count against the answer have negative log-odds.",
    "The slider follows what came through earlier words of the answer: each hop passes it back to what those words read, until everything is in the prompt.",
    "Not shaded: the first token (models park unused attention there), marks of the chat template, and the answer's own words. The first token's share is a share of everything; the other shares are of the rest.",
    picture ? "" : `${RULE} Estimated: a share, scaled to match the sources that were left out.`,
  ];
  return el(
    "details",
    { class: "how" },
    el("summary", {}, "how to read this"),
    lines.filter(Boolean).map((line) => el("p", {}, line)),
  );
}

/** @param {AnswerData} data */
function madeWith({ provenance }) {
  const facts = Object.entries(provenance).filter(([, value]) => ["string", "number"].includes(typeof value));
  return el("p", { class: "hint made" }, facts.map(([name, value]) => `${name} ${value}`).join(" · "));
}

/** The details below the first screen: all numbers, what they add up to, and how they were computed.
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
    howToRead(page.data),
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
      data.first && `first token ${percent(first)} of everything`,
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
