import { isAnswerEdges } from "./data.js";
import { percent, plainToken } from "./draw.js";

/** @import { Data, Lead, Now, Page } from "./types" */

const MOST = 3; // words that a headline names
const NEAR = 0.5; // words with at least this part of the highest value are named too
const AGAINST = 0.4; // a negative value at least this large, relative to the highest, is named
const FEW = 5; // with fewer words, the highest is always named
const FLAT = 1.5; // the highest value must be this many times the mean to stand out
const EQUAL = 1e-9; // values that differ by less, relatively, are the same
const NEARLY_ALL = 0.9; // the share of a row that leaves the other tokens nothing to say
const ATTENTION = ["raw", "rollout", "flow"];

/** Return which inputs are left out of the shading because they would dominate it: special tokens, the first token of a
 * decoder (an attention sink), and the position being explained.
 *
 * @param {Data} data
 * @param {Pick<Now, "tokens" | "special" | "query">} at
 */
export function apartOf(data, at) {
  const { tokens, special } = at;
  const own = data.queries ? -1 : at.query,
    apart = tokens.map((_, i) => special[i] || (data.causal && i === 0) || i === own);
  return apart.every(Boolean) ? tokens.map(() => false) : apart;
}

/** Return the method that the first screen shows by default: answer edges if the document has them.
 *
 * @param {Page} page
 */
export function recommended({ methods }) {
  return (
    methods.find(({ name }) => isAnswerEdges(name)) ?? methods.find(({ name }) => name === "rollout") ?? methods[0]
  );
}

/** Return what the first screen shows: the values of one method, and how they are shaded.
 *
 * @param {Page} page
 * @returns {Lead | null}
 */
export function leadOf(page) {
  const { data, state, methods } = page,
    at = page.now(),
    { a, x } = state.get();
  const method = methods.find(({ name }) => name === a) ?? recommended(page),
    own = method && page.values(method.name);
  if (!method || !own) return null;
  const values = own.row,
    apart = apartOf(data, at),
    sum = values.reduce((total, v) => total + (v > 0 ? v : 0), 0) || 1;
  const shaded = values.map((v, i) => (!x && apart[i] ? NaN : v));
  const most = shaded.reduce((top, v) => Math.max(top, Math.abs(v) || 0), 0) || 1;
  // the library stores the shares of tokens that it left out of the values separately
  const aside = data.importance.find(({ name }) => name === method.name)?.aside ?? {};
  const shareOf = (/** @type {number} */ i) =>
    at.unit in aside && i in aside[at.unit] ? aside[at.unit][i] : values[i] / sum;
  return { method, values, apart, shades: Array.from(shaded, (v) => v / most), shareOf };
}

/** Return the shaded inputs, highest value first.
 *
 * @param {Pick<Lead, "values" | "apart">} lead
 */
export const ranked = ({ values, apart }) =>
  Array.from(values.keys())
    .filter((i) => !apart[i] && Number.isFinite(values[i]))
    .sort((i, j) => values[j] - values[i] || i - j);

/** Return whether the highest value stands out from the mean.
 *
 * @param {ArrayLike<number>} values
 * @param {number[]} order
 */
function standsOut(values, order) {
  const mean = order.reduce((total, i) => total + Math.max(0, values[i]), 0) / order.length;
  return order.length < FEW || values[order[0]] >= FLAT * mean;
}

/** Return the words that the answer rests on: the highest, and others at least half as high. Empty if none stands out.
 *
 * @param {Pick<Lead, "values" | "apart">} lead
 */
export function restsOn(lead) {
  const order = ranked(lead),
    top = lead.values[order[0]];
  if (!(top > 0) || !standsOut(lead.values, order)) return [];
  return order.slice(0, MOST).filter((i) => lead.values[i] >= NEAR * top);
}

/** Return the word that counts most against the answer, if it is at least two fifths as strong as the strongest word.
 *
 * @param {Pick<Lead, "values" | "apart">} lead
 */
export function speaksAgainst(lead) {
  const order = ranked(lead),
    last = order[order.length - 1];
  return order.length && lead.values[last] < -AGAINST * Math.max(0, lead.values[order[0]]) ? [last] : [];
}

/** Return the word that an attention method points to (-1 if it cannot tell words apart), and the token outside the
 * shading that takes the most.
 *
 * @param {Page} page
 * @param {string} name
 */
function pointsTo(page, name) {
  const { data } = page,
    at = page.now(),
    own = page.values(name);
  if (!own) return null;
  const values = own.row,
    apart = apartOf(data, at),
    order = ranked({ values, apart });
  if (!order.length) return null;
  const sum = values.reduce((total, v) => total + v, 0),
    taker = Array.from(values.keys()).reduce((best, i) => (values[i] > values[best] ? i : best), 0);
  const taken = apart[taker] && name !== "flow" ? { token: at.tokens[taker], share: values[taker] / (sum || 1) } : null;
  const equal = order.length > 1 && values[order[order.length - 1]] >= values[order[0]] * (1 - EQUAL);
  const blind = equal || !standsOut(values, order) || (taken?.share ?? 0) >= NEARLY_ALL;
  return { name, word: blind && order.length > 1 ? -1 : order[0], taken };
}

/** @param {string[]} names */
function joined(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
}

/** @param {string} text */
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** Return sentences about the other methods: which ones agree, which point to another word, and which cannot tell words
 * apart. Parts with `word` name a token.
 *
 * @param {Page} page
 * @param {number[]} words
 * @returns {(string | { word: number })[]}
 */
export function disagreement(page, words) {
  const title = (/** @type {string} */ name) => (name === "raw" ? "attention" : page.titleOf(name));
  const all = ATTENTION.flatMap((name) =>
    page.methods.some((method) => method.name === name) ? (pointsTo(page, name) ?? []) : [],
  );
  /** @type {Map<number, string[]>} */
  const byWord = new Map();
  for (const { name, word } of all) byWord.set(word, [...(byWord.get(word) ?? []), title(name)]);
  /** @type {(string | { word: number })[]} */
  const parts = [];
  for (const [word, names] of byWord) {
    if (word < 0) continue;
    const verb = names.length > 1 ? "point" : "points";
    parts.push(`${capital(joined(names))} ${verb} to `, { word }, words.includes(word) ? " too. " : ". ");
  }
  const blind = byWord.get(-1);
  if (blind) {
    const taken = all.find(({ word, taken: own }) => word < 0 && own)?.taken;
    const where = taken ? ` (${percent(taken.share)} on ${plainToken(taken.token)})` : "";
    parts.push(`${capital(joined(blind))} cannot tell words apart here${where}.`);
  }
  return parts;
}
