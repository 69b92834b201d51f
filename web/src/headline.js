import { isAnswerEdges } from "./data.js";
import { plainToken } from "./draw.js";
import { rowNotes } from "./reliability.js";

/** @import { Data, Lead, Now, Page } from "./types" */

const MOST = 3; // words that a headline names
const NEAR = 0.5; // of the strongest: others that are named beside it
const AGAINST = 0.4; // of the strongest: a word that speaks against the answer so much is named
const FEW = 5; // words: of fewer, the highest is named in any case
const FLAT = 1.5; // times the mean word: below it a method tells no word from another
const ATTENTION = ["raw", "rollout", "flow"];

/** @param {number} share */
export const percent = (share) => {
  if (!Number.isFinite(share)) return "–";
  const x = 100 * share;
  const text = x >= 99.95 && share < 1 ? "99.9" : x >= 99 || x < 1 ? String(Number(x.toFixed(1))) : x.toFixed(0);
  return `${text.replace("-", "−")} %`;
};

/** Inputs that take no part in the shading, because they would take all of it: special tokens, the first token of a decoder,
 * where attention goes that has nowhere to go, and the position that is explained.
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

/** The method that the first screen leads with: answer edges, where there are any.
 *
 * @param {Page} page
 */
export function recommended({ methods }) {
  return (
    methods.find(({ name }) => isAnswerEdges(name)) ?? methods.find(({ name }) => name === "rollout") ?? methods[0]
  );
}

/** What the first screen shows: values of one method, and what they are shaded by.
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
  // what was left out of the shares of an answer beforehand has its share beside them
  const aside = data.importance.find(({ name }) => name === method.name)?.aside ?? {};
  const shareOf = (/** @type {number} */ i) =>
    at.unit in aside && i in aside[at.unit] ? aside[at.unit][i] : values[i] / sum;
  return { method, values, apart, shades: Array.from(shaded, (v) => v / most), shareOf };
}

/** Inputs that are not apart, from the highest value down.
 *
 * @param {Pick<Lead, "values" | "apart">} lead
 */
export const ranked = ({ values, apart }) =>
  Array.from(values.keys())
    .filter((i) => !apart[i] && Number.isFinite(values[i]))
    .sort((i, j) => values[j] - values[i] || i - j);

/** Whether the highest of several words stands out from the mean of them.
 *
 * @param {ArrayLike<number>} values
 * @param {number[]} order
 */
function standsOut(values, order) {
  const mean = order.reduce((total, i) => total + Math.max(0, values[i]), 0) / order.length;
  return order.length < FEW || values[order[0]] >= FLAT * mean;
}

/** The words that an answer rests on: the highest, and others at least half as high; none where none stands out.
 *
 * @param {Pick<Lead, "values" | "apart">} lead
 */
export function restsOn(lead) {
  const order = ranked(lead),
    top = lead.values[order[0]];
  if (!(top > 0) || !standsOut(lead.values, order)) return [];
  return order.slice(0, MOST).filter((i) => lead.values[i] >= NEAR * top);
}

/** The word that speaks against an answer most, if it says as much as two fifths of the strongest.
 *
 * @param {Pick<Lead, "values" | "apart">} lead
 */
export function speaksAgainst(lead) {
  const order = ranked(lead),
    last = order[order.length - 1];
  return order.length && lead.values[last] < -AGAINST * Math.max(0, lead.values[order[0]]) ? [last] : [];
}

/** What a method of attention points to among the words; null where it tells none from another, with what stays elsewhere.
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
  const labels = { ...at, sinks: [], causal: data.causal, method: name, layer: at.layerName, own: null, bound: null };
  const blind = !standsOut(values, order) || rowNotes(values, labels).length > 0;
  const taken = apart[taker] && name !== "flow" ? { token: at.tokens[taker], share: values[taker] / (sum || 1) } : null;
  return { name, word: blind && order.length > 1 ? -1 : order[0], taken };
}

/** @param {string[]} names */
function joined(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}`;
}

/** @param {string} text */
const capital = (text) => text[0].toUpperCase() + text.slice(1);

/** What other views say, beside the words that the answer rests on: a sentence for those that agree, those that point to
 * another word, and those that tell no word from another. Parts with `word` name a token.
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
