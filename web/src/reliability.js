// Why numbers should not be read as they are: the rules and sentences of attnflow/reliability.py, for any row of a page.
import { plainToken } from "./draw.js";

/** @import { RowLabels } from "./types" */

const NEARLY_ALL = 0.9;
const EQUAL = 1e-9;
const SAME_ROW = 0.99;
const UNLIKELY = 0.01;
const OUTWEIGHED = 0.1;
const FIRST = 0.5;
const GAP = 0.01;
const WITNESSES = 4;
const ELSEWHERE = "what is left says little about the other tokens; answer edges show what the answer rests on.";

/** @param {number} share */
const percent = (share) => `${(100 * share).toFixed(0)} %`;

/** @param {ArrayLike<number>} values */
const sum = (values) => Array.from(values).reduce((total, x) => total + x, 0);

/** @param {string} token */
const quoted = (token) => `'${plainToken(token, 30)}'`;

/** Notes on one row over all inputs.
 *
 * @param {Float64Array} row
 * @param {RowLabels} labels
 * @returns {string[]}
 */
export function rowNotes(row, labels) {
  if (row.length < 2) return [];
  const content = Array.from(row.keys()).filter((i) => !labels.special[i]);
  let notes = tieNotes(
    content.map((i) => row[i]),
    labels,
  );
  const { bound } = labels;
  if (bound && !notes.length)
    notes = boundNotes(
      content.map((i) => row[i]),
      content.map((i) => Math.min(bound.entering[i], bound.leaving)),
      labels,
    );
  return row.some((x) => x < 0) ? notes : [...notes, ...sinkNotes(row, labels)];
}

/** How many of the nonzero values tie at the top; null if that is not nearly all of them.
 *
 * @param {number[]} values
 */
export function tiesOf(values) {
  const reached = values.filter((x) => x),
    most = Math.max(...reached),
    count = most > 0 ? reached.filter((x) => x >= most * (1 - EQUAL)).length : 0;
  return count < 2 || count < NEARLY_ALL * reached.length ? null : { count, reached: reached.length };
}

/** How many of the values above 0 are at their bound; null if that is not nearly all of them.
 *
 * @param {number[]} values
 * @param {number[]} bounds
 */
export function boundOf(values, bounds) {
  const reached = values.filter((x) => x > 0).length,
    count = values.filter((x, i) => x > 0 && x >= bounds[i] * (1 - EQUAL)).length;
  return count < 2 || count < NEARLY_ALL * reached ? null : { count, reached };
}

/** @param {number[]} values @param {RowLabels} labels */
function tieNotes(values, { method, layer }) {
  if (values.length > 1 && values.every((x) => !x)) return [`Every token gets 0 from ${method}: it ranks nothing.`];
  const ties = tiesOf(values);
  if (!ties) return [];
  const name = method[0].toUpperCase() + method.slice(1);
  return [`${name} cannot tell these tokens apart at ${layer}: ${ties.count} of ${ties.reached} tie.`];
}

/** @param {number[]} values @param {number[]} bounds @param {RowLabels} labels */
function boundNotes(values, bounds, { layer }) {
  const full = boundOf(values, bounds);
  if (!full) return [];
  return [
    `Flow at ${layer} is at its upper bound for ${full.count} of ${full.reached} tokens (all that leaves the query, or all that the first layer takes from the token), so it shows nothing of the layers in between. Lower layers show more.`,
  ];
}

/** @param {Float64Array} row @param {RowLabels} labels */
function sinkNotes(row, { tokens, special, sinks, causal, method, own, bound }) {
  const place = row.indexOf(Math.max(...row)),
    token = quoted(tokens[place]),
    aSink = `${token}, a sink whose value carries next to nothing: ${ELSEWHERE}`;
  if (method === "flow") {
    if (!bound || !sinks.includes(place) || row[place] < NEARLY_ALL * bound.leaving) return [];
    return [`${percent(row[place] / bound.leaving)} of what leaves the query can flow to ${aSink}`];
  }
  const total = sum(row);
  if (!total || row[place] < NEARLY_ALL * total) return [];
  const taken = `${percent(row[place] / total)} of this ${method === "raw" ? "raw attention" : method}`;
  if (sinks.includes(place)) return [`${taken} is on ${aSink}`];
  if (place === own) return [`${taken} stays at the query ${token} itself: ${ELSEWHERE}`];
  if (special[place] || (place === 0 && causal))
    return [`${taken} is on the ${place ? "special" : "first"} token ${token}: ${ELSEWHERE}`];
  return [];
}

/** Other queries, spread over the text, to compare a row with.
 *
 * @param {number} count
 * @param {number} query
 */
export function witnesses(count, query) {
  const steps = Math.min(count, WITNESSES + 1) - 1;
  const places = Array.from({ length: steps + 1 }, (_, i) => Math.floor(((count - 1) * i) / steps));
  return count > 2 ? places.filter((place) => place !== query) : [];
}

/** A note if a rollout is nearly that of other queries.
 *
 * @param {Float64Array} row
 * @param {Float64Array[]} others
 */
export function mixedNotes(row, others) {
  if (!others.length) return [];
  const shared = others.map(
    (other) => sum(row.map((x, i) => Math.min(x, other[i]))) / (Math.max(sum(row), sum(other)) || Infinity),
  );
  const common = sum(shared) / shared.length;
  if (common < SAME_ROW) return [];
  return [
    `Other queries have nearly the same row (${percent(common)} in common): this rollout has mixed all tokens and says little about its query.`,
  ];
}

/** Notes on the shares of an answer's log-odds. sizes: what supports each of its tokens, counts against it, and supports it
 * at a first token that is left out; logs: their log-probabilities.
 *
 * @param {[number, number, number][]} sizes
 * @param {number[]} logs
 * @param {number} gap
 */
export function evidenceNotes(sizes, logs, gap) {
  const [speaksFor, against, first] = [0, 1, 2].map((i) => sum(sizes.map((size) => size[i]))),
    each = Math.exp(sum(logs) / logs.length);
  return [
    each < UNLIKELY &&
      `The model is unlikely to give this answer (probability ${short(each)} per token): only what supports it is explained.`,
    speaksFor < OUTWEIGHED * against &&
      `Far more counts against the answer (${against.toFixed(1)} of log-odds) than supports it (${speaksFor.toFixed(1)}): the shares are shares of that ${speaksFor.toFixed(1)}.`,
    first > FIRST * (first + speaksFor) &&
      `${percent(first / (first + speaksFor))} of the support for the answer is on the first token, which is left out: the shares are shares of the rest.`,
    gap > GAP &&
      `The parts miss the log-odds by ${percent(gap)} of their sizes: a dtype with more precision adds up better.`,
  ].filter((note) => typeof note === "string");
}

/** One digit, as the library writes it: 0.004, 2e-06. @param {number} x */
const short = (x) =>
  Number(x.toPrecision(1)) >= 1e-4 ? String(Number(x.toPrecision(1))) : x.toExponential(0).replace(/e-(\d)$/, "e-0$1");
