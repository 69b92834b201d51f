import { isAnswerEdges } from "./data.js";
import { number, plainToken } from "./draw.js";
import { mixedNotes, rowNotes, witnesses } from "./reliability.js";

/** @import { Data, MethodRow, Now, Page } from "./types" */

/** @type {Record<string, string>} */
const FIELD_NOTES = {
  ratio: "Ratio: 1 is what uniform attention under the same mask would give.",
  difference: "Difference: 0 is what uniform attention under the same mask would give.",
  layer: "Every layer's weights were divided by what uniform attention sends to each token.",
};

/** Return notes that explain the numbers on the page.
 *
 * @param {Page} page
 */
export function readerNotes(page) {
  const { data } = page,
    at = page.now();
  const lines = [],
    edges = data.importance.find(({ name }) => isAnswerEdges(name)),
    worth = data.importance.filter((one) => one !== edges),
    [first] = worth;
  if (edges?.answer)
    lines.push(
      `answer edges: what each token contributes to the answer (${plainToken(edges.answer.name, 30)}), as a share of its total support${edges.values.some((v) => (v ?? 0) < 0) ? "; values below 0 count against it" : ""}${data.causal ? "; the first token, where models park unused attention, is left out" : ""}.`,
    );
  if (first?.answer) {
    const by = worth
      .map(({ name, settings }) =>
        name === "blank-out" && settings.by
          ? `blank-out puts ${settings.by === "remove" ? "nothing" : `the ${settings.by} token`} in its place`
          : name === "gradient"
            ? "gradient is the length of the derivative"
            : "",
      )
      .filter(Boolean)
      .join("; ");
    lines.push(
      `${worth.map(({ name }) => name).join(" and ")}: how much the answer (${plainToken(first.answer.name, 30)}) changes with a token, up or down${by && `; ${by}`}.`,
    );
  }
  const { sentences } = data;
  if (sentences) {
    const known = sentences.values.flatMap((value, i) => (value === null ? [] : { value, text: sentences.texts[i] }));
    const most = known.reduce((best, one) => (Math.abs(one.value) > Math.abs(best.value) ? one : best), known[0]);
    if (most)
      lines.push(
        `The sentence that matters most to the answer (${plainToken(sentences.answer.name, 30)}) is “${plainToken(most.text, 60)}”: without it, the ${sentences.of} changes by ${number(-most.value)}.`,
      );
  }
  if (at.unit === "words")
    lines.push(
      "A word gets the sum of its pieces, in attention and in importance: long words rank high for that reason alone, and that raises ρ.",
    );
  if (data.causal)
    lines.push(
      at.field
        ? FIELD_NOTES[at.field]
        : "In a decoder, rollout and flow mostly show the position: more paths lead to early tokens. The receptive field, above, corrects only for the mask.",
    );
  return lines;
}

/** Return cautions about these rows. If the document has a graph, the rules are applied to the selected row; otherwise they
 * are the library's own notes on the highest layer.
 *
 * @param {Page} page
 * @param {MethodRow[]} table
 */
export function reliabilityOf(page, table) {
  const { data } = page,
    at = page.now();
  const worth = data.importance.flatMap(({ reliability }) => reliability ?? []);
  if (!data.levels.length) return [...worth, ...(at.layer === data.layers.length - 1 ? data.reliability : [])];
  if (at.field) return worth;
  const named = !data.queries && !at.parts.length,
    before = data.units[at.unit].sinks ?? [],
    depth = data.layers[at.layer];
  const notes = table.flatMap(({ name, importance, values }) => {
    const row = page.values(name)?.row;
    if (importance || !values || !row) return [];
    const labels = {
      tokens: at.tokens,
      special: at.special,
      sinks: (name === "raw" ? before.slice(depth, depth + 1) : before.slice(0, depth + 1)).flat(),
      causal: data.causal,
      method: name,
      layer: `L${depth + 1}`,
      own: data.queries || data.isPool(at.unit, at.query) ? null : at.query,
      bound: name === "flow" && data.exact ? flowBound(data, at) : null,
    };
    const own = rowNotes(row, labels);
    if (name !== "rollout" || !named || data.causal || !data.exact) return own;
    const others = witnesses(at.tokens.length, at.query).map((q) => data.rows("rollout", at.unit, q));
    return [
      ...own,
      ...mixedNotes(
        row,
        others.flatMap((other) => (other ? [other.rows[at.layer]] : [])),
      ),
    ];
  });
  return [...worth, ...notes];
}

/** Return the upper bounds of flow: what leaves the query, and what enters each token.
 *
 * @param {Data} data
 * @param {Now} at
 */
export function flowBound(data, at) {
  const graph = data.graph(at.unit),
    { rows, cols, values } = graph[0],
    end = graph[data.ends[data.layers[at.layer]]];
  const entering = new Float64Array(cols);
  for (let q = 0, e = 0; q < rows; q++)
    for (let k = 0; k < cols; k++, e++)
      entering[k] += graph[0].carried[0] <= k && k < graph[0].carried[1] && q === k ? Infinity : values[e];
  const shares = data.isPool(at.unit, at.query) ? (data.pooled?.weights[at.unit] ?? []) : null;
  let leaving = 0;
  for (const [q, share] of shares ? shares.entries() : [[at.query, 1]])
    for (let k = 0; k < end.cols; k++) leaving += share * end.values[q * end.cols + k];
  return { leaving, entering };
}
