import { isAnswerEdges } from "./data.js";

/** @import { Data, Method } from "./types" */

/** @type {Record<string, Omit<Method, "name" | "importance">>} */
const WHAT = {
  answer_rows: {
    title: "answer edges",
    short: "answer edges",
    what: "the answer's log-odds, split over the tokens that the answering position reads at all layers",
    asks: "The model’s score, split over the words it read.",
  },
  answer_inputs: {
    title: "answer edges",
    short: "answer edges",
    what: "what each token contributes to the answer, followed through all layers; values below 0 count against it",
    asks: "The model’s score, split over the words it came from.",
  },
  raw: {
    title: "raw attention",
    short: "raw",
    what: "the attention weights of this layer alone, averaged over heads",
    asks: "Where does this layer look? Its states already mix words.",
  },
  rollout: {
    title: "rollout",
    short: "rollout",
    what: "attention weights multiplied along all paths down to the input",
    asks: "Which words could reach it along all paths of attention?",
  },
  flow: {
    title: "flow",
    short: "flow",
    what: "the most that could come through if attention weights were the widths of pipes",
    asks: "How much could come through at most if attention weights were pipes?",
  },
  gradient: {
    title: "gradient",
    short: "gradient",
    what: "how much the answer's probability changes with the token's embedding: the length of the derivative",
    asks: "Which word would change the answer most if it changed a little?",
  },
  "blank-out": {
    title: "blank-out",
    short: "blank-out",
    what: "how much the answer's probability changes, up or down, without the token",
    asks: "How much does the answer’s probability change without the word?",
  },
};

const ORDER = ["raw", "rollout", "flow"];

/** Return the names of the methods that have a row for each query and layer.
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

/** Return all methods of a document in display order: answer edges, then attention, then importance.
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
