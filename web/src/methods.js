import { isAnswerEdges } from "./data.js";

/** @import { Data, Method } from "./types" */

/** @type {Record<string, Omit<Method, "name" | "importance">>} */
const WHAT = {
  answer_rows: {
    title: "answer edges",
    short: "answer edges",
    what: "what the position that answers reads from each token at all layers: its log-odds, split over the edges of attention",
    asks: "The model’s score, split over the words that it read.",
  },
  answer_inputs: {
    title: "answer edges",
    short: "answer edges",
    what: "what the answer owes to each token the whole way down through all layers; what is below 0 speaks against it",
    asks: "The model’s score, split over the words it came from.",
  },
  raw: {
    title: "raw attention",
    short: "raw",
    what: "the weights of this layer alone, heads averaged",
    asks: "Where does this layer look? Its states are mixtures of words already.",
  },
  rollout: {
    title: "rollout",
    short: "rollout",
    what: "weights multiplied along all paths down to the input",
    asks: "Which words could reach it, along all paths of attention?",
  },
  flow: {
    title: "flow",
    short: "flow",
    what: "the most that could come through, weights as the widths of pipes",
    asks: "How much could come through at most, if attention were pipes?",
  },
  gradient: {
    title: "gradient",
    short: "gradient",
    what: "how much the answer's probability changes with the token's embedding: the length of its derivative",
    asks: "Which word would move the answer most, if it changed a little?",
  },
  "blank-out": {
    title: "blank-out",
    short: "blank-out",
    what: "how much the answer's probability changes, up or down, without the token",
    asks: "How far does the answer’s probability move without the word?",
  },
};

/** @type {Record<string, string>} */
export const FIELDS = {
  "": "as it is",
  ratio: "ratio to uniform",
  difference: "difference from uniform",
  layer: "layer by layer",
};

const ORDER = ["raw", "rollout", "flow"];

/** The names of the methods that have a row for each query and layer.
 *
 * @param {Data} data
 */
export function rowMethods(data) {
  const { subwords } = data.methods;
  return [
    ...new Set([
      ...(data.levels.length ? ["raw", "rollout"] : []),
      ...Object.keys(subwords).filter((name) => subwords[name] || data.hasWeights),
    ]),
  ];
}

/** All methods of a document as people read of them: answer edges, then those of attention, then importance.
 *
 * @param {Data} data
 */
export function methodsOf(data) {
  /** @param {boolean} importance @returns {(name: string) => Method} */
  const described = (importance) => (name) => ({
    name,
    ...(WHAT[name] ?? { title: name, short: name, what: "", asks: "" }),
    importance,
  });
  const importances = data.importance.map(({ name }) => name);
  return [
    ...importances.filter(isAnswerEdges).map(described(true)),
    ...rowMethods(data)
      .sort((a, b) => ORDER.indexOf(a) - ORDER.indexOf(b))
      .map(described(false)),
    ...importances.filter((name) => !isAnswerEdges(name)).map(described(true)),
  ];
}
