import { plainToken } from "./draw.js";
import { flowBound } from "./notes.js";
import { boundOf, tiesOf } from "./reliability.js";

/** @import { Data, Edge, Flow, Now, Page } from "./types" */

const NAMED = 3; // edges of a bottleneck that a sentence names
const NUMBERS = ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/** Inputs that a view of paths should not open at: special tokens, sinks, the first token of a decoder, the query itself.
 *
 * @param {Data} data
 * @param {Now} at
 */
function isWord(data, at) {
  const sinks = new Set((data.units[at.unit].sinks ?? []).flat());
  return (/** @type {number} */ i) =>
    !at.special[i] && !sinks.has(i) && !(data.causal && i === 0) && (data.queries !== null || i !== at.query);
}

/** The word that the page's own method gives most, and where there is none, rollout or flow.
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

/** Why flow tells no token from another for this query, in a sentence; "" where it does, or where nobody knows.
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
    more = "A lower layer, or answer edges, tell more.";
  const ties = tiesOf(values);
  if (ties) return `Flow cannot tell tokens apart here: ${ties.count} of ${ties.reached} get the same. ${more}`;
  if (!data.exact) return ""; // rounded weights are at no bound exactly
  const { entering, leaving } = flowBound(data, at),
    full = boundOf(
      values,
      content.map((i) => Math.min(entering[i], leaving)),
    );
  return full
    ? `Flow cannot tell tokens apart here: ${full.count} of ${full.reached} get all that ${at.queryName} takes at ${at.layerName}, or all that the first layer takes from them, whatever lies between. ${more}`
    : "";
}

/** What limits a flow, in a sentence.
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
    return `The bottleneck is ${at.queryName} itself: its ${count} edges at ${at.layerName} are full, and all of it could come from ${token}.`;
  if (cut.every((edge) => edge.step === 0 && edge.key === at.token))
    return `The bottleneck is ${token} itself: the first layer takes no more from it, whatever looks at it above.`;
  const named = [...cut].sort((a, b) => b.capacity - a.capacity).slice(0, NAMED),
    rest = cut.length - named.length;
  return `These ${count} edges are the bottleneck: ${named.map(nameOf).join("; ")}${rest ? `; and ${rest} narrower` : ""}.`;
}
