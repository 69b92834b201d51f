// What the page computes itself, so that changing the layer or query needs no server: rows times matrices.
//
// A graph is an array of steps, lowest first: {rows, cols, values}, with values[query * cols + key]. Level 0 is the input;
// step s goes from level s + 1 (its rows) down to level s (its columns). A query is a row of its step, so in an
// encoder-decoder it counts from the first position of the source.

/** @import { Floats, Matrix, Step } from "./types" */

/** Return (1-r)·W + r·I of each step that has a residual connection.
 *
 * @param {Step[]} steps
 * @param {number} residual
 * @returns {Matrix[]}
 */
export const augmented = (steps, residual) =>
  steps.map((step) => {
    if (!step.residual) return step;
    const values = Float64Array.from(step.values, (weight) => (1 - residual) * weight);
    for (let i = 0; i < Math.min(step.rows, step.cols); i++) values[i * step.cols + i] += residual;
    return { ...step, values };
  });

/** Merge steps into words: A'[Q, K] = mean over q in Q of Σ over k in K of A[q, k].
 *
 * @param {Step[]} steps
 * @param {number[][]} groups
 * @returns {Step[]}
 */
export function merged(steps, groups) {
  const count = groups.length;
  /** @type {number[]} */
  const place = [];
  groups.forEach((group, g) => group.forEach((position) => (place[position] = g)));
  return steps.map((step) => {
    const values = new Float64Array(count * count);
    groups.forEach((group, g) => {
      for (const query of group)
        for (let k = 0; k < step.cols; k++)
          values[g * count + place[k]] += step.values[query * step.cols + k] / group.length;
    });
    return { ...step, rows: count, cols: count, values };
  });
}

/** Multiply a row by the matrix of a step.
 *
 * @param {Floats} row
 * @param {Matrix} step
 */
function timesStep(row, { rows, cols, values }) {
  const below = new Float64Array(cols);
  for (let q = 0; q < rows; q++) if (row[q]) for (let k = 0; k < cols; k++) below[k] += row[q] * values[q * cols + k];
  return below;
}

/** Return the raw attention of one query: the mean of a layer's attentions, propagated through merging steps below it.
 *
 * @param {Step[]} steps
 * @param {number[]} ends
 * @param {number} layer
 * @param {number} query
 */
export function rawRow(steps, ends, layer, query) {
  const own = steps.slice(layer ? ends[layer - 1] + 1 : 0, ends[layer] + 1).filter((step) => step.residual);
  let row = Float64Array.from(
    { length: own[0].cols },
    (_, k) => own.reduce((sum, step) => sum + step.values[query * step.cols + k], 0) / own.length,
  );
  for (let s = ends[layer] - 1; s >= 0; s--)
    if (!steps[s].residual && steps[s].rows === row.length) row = timesStep(row, steps[s]);
  return row;
}

/** Return the rollout of one query at the top of step `end`, by products of a row and a matrix down to the input.
 *
 * @param {Matrix[]} graph
 * @param {number} end
 * @param {number} query
 */
export function rolloutRow(graph, end, query) {
  const { cols, values } = graph[end];
  return graph
    .slice(0, end)
    .reduceRight(timesStep, Float64Array.from(values.subarray(query * cols, (query + 1) * cols)));
}

/**
 * Return the rollout of each single head of a layer (Appendix A.1) for one query: ((1-r)·W_head[q] + r·e_q) · rollout(below).
 *
 * @param {Floats[]} heads the query's row of each head's weights
 * @param {Matrix[]} below the graph of the layers below, empty at the first layer
 * @param {number} query
 * @param {number} residual
 */
export const headRows = (heads, below, query, residual) =>
  heads.map((weights) => {
    const row = Float64Array.from(weights, (weight) => (1 - residual) * weight);
    row[query] += residual;
    return below.reduceRight(timesStep, row);
  });

/** Return ranks from 1; ties, up to nine digits, get their mean rank.
 *
 * @param {number[]} values
 */
function ranks(values) {
  const rounded = values.map((value) => Number(value.toPrecision(9)));
  /** @type {Map<number, [number, number]>} the first and last place of each value */
  const places = new Map();
  [...rounded].sort((a, b) => a - b).forEach((value, i) => places.set(value, [places.get(value)?.[0] ?? i, i]));
  return rounded.map((value) => {
    const [first, last] = places.get(value) ?? [0, 0];
    return (first + last) / 2 + 1;
  });
}

/** Return the rank correlation, or NaN if all values of one side tie.
 *
 * @param {number[]} x
 * @param {number[]} y
 */
export function spearman(x, y) {
  const [a, b] = [ranks(x), ranks(y)],
    mean = (x.length + 1) / 2;
  const product = (/** @type {number[]} */ u, /** @type {number[]} */ v) =>
    u.reduce((sum, own, i) => sum + (own - mean) * (v[i] - mean), 0);
  return product(a, b) / Math.sqrt(product(a, a) * product(b, b));
}
