import { ANSWER_ROWS } from "./data.js";
import { plainToken } from "./draw.js";

/** @import { Data, MethodRow, Now, Page } from "./types" */

/** @type {Record<string, string>} */
const FIELD_NOTES = {
  ratio: "Ratio: 1 is what uniform attention under the same mask would give.",
  difference: "Difference: 0 is what uniform attention under the same mask would give.",
  layer: "Every layer's weights were divided by what uniform attention sends to each token.",
};

/** What a reader must know of these numbers, where they stand.
 *
 * @param {Page} page
 * @param {MethodRow[]} table
 */
export function readerNotes(page, table) {
  const { data } = page,
    at = page.now();
  const lines = [],
    edges = data.importance.find(({ name }) => name === ANSWER_ROWS),
    worth = data.importance.filter((one) => one !== edges),
    [first] = worth;
  if (edges?.answer)
    lines.push(
      `answer edges: what the answer (${plainToken(edges.answer.name, 30)}) takes from each token, as a share of all that speaks for it${data.causal ? "; the first token, where attention goes that has nowhere to go, is left out" : ""}.`,
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
      `${worth.map(({ name }) => name).join(" and ")}: how much the answer (${plainToken(first.answer.name, 30)}) moves with a token, up or down${by && `; ${by}`}.`,
    );
  }
  if (at.unit === "words")
    lines.push(
      "A word has the sum of what its pieces get, in attention and importance alike: long words rank high by themselves, and ρ with them.",
    );
  const flow = table.find((method) => method.name === "flow" && method.exact)?.values;
  if (flow && data.exact && data.levels.length && !at.field) {
    const most = flowBounds(data, at),
      bound = at.inputs.filter((i, place) => flow[place] >= most[i] * (1 - 1e-9)).length;
    if (bound > at.inputs.length / 2)
      lines.push(
        `Flow: ${bound} of ${at.inputs.length} tokens are at their bound (all that leaves the query, or all that the first layer takes from the token), which says nothing of what is between. Lower layers tell more.`,
      );
  }
  lines.push(...(data.model.notes ?? []), ...sinkNotes(data, at, table));
  if (data.causal)
    lines.push(
      at.field
        ? FIELD_NOTES[at.field]
        : "In a decoder rollout and flow mostly tell the position: early tokens are reached along more paths. The receptive field, above, corrects for the mask, not for more.",
    );
  return lines;
}

/** A sentence for each of rollout and flow of which one sink takes more than nine tenths.
 *
 * @param {Data} data
 * @param {Now} at
 * @param {MethodRow[]} table
 */
function sinkNotes(data, at, table) {
  if (at.field) return [];
  const sinks = data.units[at.unit].sinks ?? [];
  return table
    .filter(({ name }) => name === "rollout" || name === "flow")
    .flatMap(({ name, values }) => {
      const place = at.inputs.findIndex((i, nth) => sinks.includes(i) && values && values[nth] > 0.9);
      if (!values || place < 0) return [];
      const taken = name === "flow" ? "of what leaves the query can flow" : "of this rollout goes";
      const token = plainToken(at.tokens[at.inputs[place]], 30);
      return `${Math.round(100 * values[place])} % ${taken} to ${token}, a sink whose value carries next to nothing: the edges “answer” show what the answer rests on.`;
    });
}

/** What flow cannot exceed: what leaves the query, and what enters the token.
 *
 * @param {Data} data
 * @param {Now} at
 */
function flowBounds(data, at) {
  const graph = data.graph(at.unit),
    { rows, cols, values } = graph[0],
    end = graph[data.ends[data.layers[at.layer]]];
  const into = new Float64Array(cols);
  for (let q = 0, e = 0; q < rows; q++)
    for (let k = 0; k < cols; k++, e++)
      into[k] += graph[0].carried[0] <= k && k < graph[0].carried[1] && q === k ? Infinity : values[e];
  let out = 0;
  for (let k = 0; k < end.cols; k++) out += end.values[at.query * end.cols + k];
  return into.map((most) => Math.min(most, out));
}
