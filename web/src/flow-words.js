import { plainToken } from "./draw.js";
import { flowBound } from "./notes.js";
import { boundOf, tiesOf } from "./reliability.js";

/** @import { Data, Edge, Flow, Now, Page } from "./types" */

const NAMED = 3; // most edges of a bottleneck that a sentence names
const NUMBERS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/** Return which inputs the flow paths should not open at: special tokens, sinks, a decoder's first token, the query itself.
 *
 * @param {Data} data
 * @param {Now} at
 */
function isWord(data, at) {
  const sinks = new Set((data.units[at.unit].sinks ?? []).flat());
  return (/** @type {number} */ i) =>
    !at.special[i] && !sinks.has(i) && !(data.causal && i === 0) && (data.queries !== null || i !== at.query);
}

/** Return the strongest word by the page's own method or, if it has no values, by rollout or flow.
 *
 * @param {Page} page
 * @param {Now} at
 */
export function strongestWord(page, at) {
  const { data } = page,
    words = at.tokens.map((_, i) => i).filter(isWord(data, at));
  const names = [...page.methods.filter(({ importance }) => importance).map(({ name }) => name), "rollout", "flow"];
  for (const name of names) {
    const row = page.values(name)?.row;
    const known = row ? words.filter((i) => Number.isFinite(row[i])) : [];
    if (row && known.length) return known.reduce((best, i) => (row[i] > row[best] ? i : best), known[0]);
  }
  return words[0] ?? at.token;
}

/** Return a sentence on why flow cannot tell tokens apart for this query, or "" if it can or this is unknown.
 *
 * @param {Page} page
 * @param {Now} at
 */
export function cannotTell(page, at) {
  const { data } = page,
    row = page.values("flow")?.row;
  if (at.field || !row || !data.hasWeights) return "";
  const content = Array.from(row.keys()).filter((i) => !at.special[i]),
    values = content.map((i) => row[i]),
    more = "Choose a lower layer, or answer edges.";
  const ties = tiesOf(values);
  if (ties) return `Flow cannot tell tokens apart here: ${ties.count} of ${ties.reached} have the same value. ${more}`;
  if (!data.exact) return ""; // rounded weights never reach a bound exactly
  const { entering, leaving } = flowBound(data, at),
    full = boundOf(
      values,
      content.map((i) => Math.min(entering[i], leaving)),
    );
  return full
    ? `Flow cannot tell tokens apart here: ${full.count} of ${full.reached} are at their upper bound (all that ${at.queryName} takes at ${at.layerName}, or all that the first layer takes from them). ${more}`
    : "";
}

/** Return a sentence on what limits a flow.
 *
 * @param {Pick<Flow, "cut" | "value"> & { end: number, at: Now }} flow
 * @param {(edge: Edge) => string} nameOf
 */
export function bottleneck({ cut, value, end, at }, nameOf) {
  const token = plainToken(at.tokens[at.token]),
    count = NUMBERS[cut.length] ?? String(cut.length);
  if (!cut.length) return value === 0 ? `No path leads from ${token} to ${at.queryName}.` : "Nothing limits it.";
  if (cut.length === 1) return `This one edge is the bottleneck: ${nameOf(cut[0])}.`;
  if (cut.every((edge) => edge.step === end && edge.query === at.query))
    return `The bottleneck is ${at.queryName} itself: its ${count} edges at ${at.layerName} are full, so all of it could come from ${token}.`;
  if (cut.every((edge) => edge.step === 0 && edge.key === at.token))
    return `The bottleneck is ${token} itself: the first layer takes no more from it, whatever higher layers do.`;
  const named = [...cut].sort((a, b) => b.capacity - a.capacity).slice(0, NAMED),
    rest = cut.length - named.length;
  return `These ${count} edges are the bottleneck: ${named.map(nameOf).join("; ")}${rest ? `; and ${rest} narrower` : ""}.`;
}
