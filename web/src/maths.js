// What the page computes itself, so that changing the layer or query needs no server.
//
// A graph is an array of steps, lowest first: {rows, cols, values, carried}, with values[query * cols + key]. Level 0 is
// the input; step s goes from level s + 1 (its rows) down to level s (its columns). carried = [from, to) are the
// positions that only pass through. Before the residual connection is added, steps also have `residual` (whether they
// get one), and their values are a Float32Array as captured, or a Float64Array once merged into words. A query is a row
// of its step, so in an encoder-decoder it counts from the first position of the source.

/** @import { Floats, GraphStep, Matrix, Path, Step } from "./types" */

/** Return (1-r)·W + r·I with the library's rounding: single precision stays single, for 1-r and r too.
 *
 * @param {Step[]} steps
 * @param {number} residual
 * @returns {GraphStep[]}
 */
export function augmented(steps, residual) {
  return steps.map(({ rows, cols, values, carried, residual: joined }) => {
    if (!joined || residual === 0) return { rows, cols, values: new Float64Array(values), carried };
    const sum = values.slice(); // the same type, which rounds stored values
    const [factor, own] =
      values instanceof Float32Array ? [1 - residual, residual].map(Math.fround) : [1 - residual, residual];
    for (let e = 0; e < sum.length; e++) sum[e] *= factor;
    for (let i = 0; i < Math.min(rows, cols); i++) sum[i * cols + i] += own;
    return { rows, cols, values: new Float64Array(sum), carried };
  });
}

/** Merge steps into words: A'[Q, K] = mean over q in Q of Σ over k in K of A[q, k]. In double precision, as in the library.
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
        for (let k = 0; k < step.cols; k++) values[g * count + place[k]] += step.values[query * step.cols + k];
      for (let e = g * count; e < (g + 1) * count; e++) values[e] /= group.length;
    });
    const passing = place.slice(...step.carried);
    /** @type {[number, number]} */
    const carried = passing.length ? [Math.min(...passing), Math.max(...passing) + 1] : [0, 0];
    return { ...step, rows: count, cols: count, values, carried };
  });
}

/** Return uniform attention under the same mask.
 *
 * @param {Step[]} steps
 * @returns {Step[]}
 */
export function uniform(steps) {
  return steps.map((step) => {
    const { rows, cols } = step;
    const values = step.values.slice();
    for (let q = 0; q < rows; q++) {
      let count = 0;
      for (let e = q * cols; e < (q + 1) * cols; e++) if (step.values[e] > 0) count++;
      for (let e = q * cols; e < (q + 1) * cols; e++) values[e] = step.values[e] > 0 ? 1 / count : 0;
    }
    return { ...step, values };
  });
}

/** Divide each key's weight by what uniform attention sends to that key, and restore the sums of rows.
 *
 * @param {Step[]} steps
 * @returns {Step[]}
 */
export function layerwise(steps) {
  const even = uniform(steps);
  return steps.map((step, s) => {
    const { rows, cols } = step;
    const received = new Float64Array(cols);
    for (let q = 0; q < rows; q++) for (let k = 0; k < cols; k++) received[k] += even[s].values[q * cols + k];
    const values = step.values.slice();
    for (let q = 0; q < rows; q++) {
      let before = 0;
      let after = 0;
      for (let k = 0, e = q * cols; k < cols; k++, e++) {
        before += values[e];
        values[e] /= received[k] || 1;
        after += values[e];
      }
      for (let e = q * cols; e < (q + 1) * cols; e++) values[e] *= before / (after || 1);
    }
    return { ...step, values };
  });
}

/** Compare token attention with that of uniform attention: "ratio" (0 if the mask blocks everything) or "difference".
 *
 * @param {string} mode
 * @param {Float64Array} values
 * @param {ArrayLike<number>} field
 */
export function relative(mode, values, field) {
  if (mode === "difference") return values.map((value, i) => value - field[i]);
  if (mode === "ratio") return values.map((value, i) => (field[i] > 0 ? value / field[i] : 0));
  throw new Error(`mode is ${mode}: expected "ratio" or "difference"`);
}

/** Multiply a row by the matrix of a step, four rows of the matrix at a time, which is more than twice as fast.
 *
 * @param {Floats} row
 * @param {Matrix} step
 */
function timesStep(row, { rows, cols, values }) {
  const below = new Float64Array(cols);
  let q = 0;
  for (; q + 3 < rows; q += 4) {
    const a = row[q];
    const b = row[q + 1];
    const c = row[q + 2];
    const d = row[q + 3];
    if (a === 0 && b === 0 && c === 0 && d === 0) continue;
    for (let k = 0, e = q * cols; k < cols; k++, e++)
      below[k] += a * values[e] + b * values[e + cols] + c * values[e + 2 * cols] + d * values[e + 3 * cols];
  }
  for (; q < rows; q++) for (let k = 0; k < cols; k++) below[k] += row[q] * values[q * cols + k];
  return below;
}

/** Propagate a row from the top of a graph down to its input.
 *
 * @param {Float64Array} row
 * @param {Matrix[]} graph
 */
function throughSteps(row, graph) {
  return graph.reduceRight((below, step) => timesStep(below, step), row);
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
  const mean = own[0].values.slice(0, own[0].cols);
  for (let k = 0; k < mean.length; k++)
    mean[k] = own.reduce((sum, step) => sum + step.values[query * step.cols + k], 0) / own.length;
  let row = new Float64Array(mean);
  for (let s = ends[layer] - 1; s >= 0; s--)
    if (!steps[s].residual && steps[s].rows === row.length) row = timesStep(row, steps[s]);
  return row;
}

/** Multiply a step by the product of the steps below it.
 *
 * @param {Matrix} step
 * @param {Matrix} below
 * @returns {Matrix<Float64Array>}
 */
export function product(step, below) {
  const { rows, cols } = step;
  const values = new Float64Array(rows * below.cols);
  for (let q = 0; q < rows; q++) {
    const row = values.subarray(q * below.cols, (q + 1) * below.cols);
    for (let k = 0; k < cols; k++) {
      const weight = step.values[q * cols + k];
      if (weight === 0) continue;
      for (let t = 0, e = k * below.cols; t < below.cols; t++, e++) row[t] += weight * below.values[e];
    }
  }
  return { rows, cols: below.cols, values };
}

/** Return the rollout of one query at the top of step `end`, by vector-matrix products down to the input.
 *
 * @param {Matrix<Float64Array>[]} graph
 * @param {number} end
 * @param {number} query
 */
export function rolloutRow(graph, end, query) {
  const { cols, values } = graph[end];
  return throughSteps(values.slice(query * cols, (query + 1) * cols), graph.slice(0, end));
}

/** Return the rollout of one query at every layer; null at layers whose size differs from that of the last.
 *
 * @param {Matrix<Float64Array>[]} graph
 * @param {number[]} ends
 * @param {number} query
 */
export function rolloutRows(graph, ends, query) {
  const size = graph[ends[ends.length - 1]].rows;
  return ends.map((end) => (graph[end].rows === size ? rolloutRow(graph, end, query) : null));
}

/**
 * Return the rollout of each single head of a layer (Appendix A.1) for one query: ((1-r)·W_head[q] + r·e_q) · rollout(below).
 * headWeights: the query's row of each head's weights. below: the graph of the layers below, empty at the first layer.
 *
 * @param {Floats[]} headWeights
 * @param {Matrix[]} below
 * @param {number} query
 * @param {number} residual
 */
export function headRows(headWeights, below, query, residual) {
  return headWeights.map((weights) => {
    const row = Float64Array.from(weights, (weight) => (1 - residual) * weight);
    row[query] += residual;
    return throughSteps(row, below);
  });
}

/** Return ranks from 1; ties get their mean rank. Values that agree to nine digits tie, because equal flows may be summed
 * in different orders.
 *
 * @param {ArrayLike<number>} values
 */
export function ranks(values) {
  const rounded = Float64Array.from(values);
  const bits = new BigUint64Array(rounded.buffer); // rounds to 30 binary digits, half to even, as the library does
  for (let i = 0; i < bits.length; i++) bits[i] = (bits[i] + 0x3fffffn + ((bits[i] >> 23n) & 1n)) & ~0x7fffffn;
  const order = Array.from(rounded.keys()).sort(
    (a, b) => Number(Number.isNaN(rounded[a])) - Number(Number.isNaN(rounded[b])) || rounded[a] - rounded[b],
  );
  const places = new Float64Array(order.length);
  for (let first = 0, last = 0; first < order.length; first = last) {
    while (last < order.length && (last === first || rounded[order[last]] === rounded[order[first]])) last++;
    for (let i = first; i < last; i++) places[order[i]] = (first + last + 1) / 2;
  }
  return places;
}

/** Return the rank correlation, or NaN if all values tie.
 *
 * @param {number[] | Float64Array} x
 * @param {number[] | Float64Array} y
 */
export function spearman(x, y) {
  const n = x.length;
  if (n !== y.length)
    throw new Error(`rank correlation of ${n} with ${y.length} values: expected the same number of both`);
  if (n < 2 || !x.every(Number.isFinite) || !y.every(Number.isFinite)) return NaN;
  const [a, b] = [ranks(x), ranks(y)];
  const mean = (n + 1) / 2;
  let [both, left, right] = [0, 0, 0];
  for (let i = 0; i < n; i++) {
    both += (a[i] - mean) * (b[i] - mean);
    left += (a[i] - mean) ** 2;
    right += (b[i] - mean) ** 2;
  }
  return left && right ? both / Math.sqrt(left * right) : NaN;
}

/**
 * Return the maximum flow from `query`, at the top of step `end`, to input `token`, with its proof.
 *
 * value: the size of the flow. capacity: that of the minimum cut, which no flow exceeds. gap: their difference.
 * edges: the flow on the edges of each step, laid out like its values. cut: the full edges of the cut, widest first.
 * reached: a Uint8Array for each level, 1 for nodes on the token's side of the cut, with capacity left all the way to the
 * token. A flow of infinite value has no cut and no flow on its edges.
 *
 * Carried positions have infinite capacity. `pause`, if given, is awaited about every 12 ms of work; it may throw to cancel.
 *
 * @param {GraphStep[]} graph
 * @param {number} end
 * @param {number} query
 * @param {number} token
 * @param {() => Promise<void>} [pause]
 */
export async function maxFlow(graph, end, query, token, pause) {
  const rest = pauses(pause);
  const net = flowNetwork(graph.slice(0, end + 1), query, token);
  if (infinitePath(net)) return flowProof(net, Infinity);
  let value = 0;
  while (labelDistances(net)) {
    if (rest.due()) await rest.taken();
    value += await blockingFlow(net, rest);
  }
  if (rest.due()) await rest.taken();
  return flowProof(net, value);
}

/**
 * Build the network: capacities, the flow so far, and `nodes`, the nodes of each level on a path from the query to the
 * token. `path` is the current path of the search.
 *
 * @param {GraphStep[]} steps
 * @param {number} query
 * @param {number} token
 */
function flowNetwork(steps, query, token) {
  const sizes = [steps[0].cols, ...steps.map((step) => step.rows)];
  const longest = sizes.reduce((sum, size) => sum + size);
  const net = {
    sizes,
    query,
    token,
    top: steps.length,
    capacity: steps.map(openedCapacities),
    flow: steps.map((step) => new Float64Array(step.rows * step.cols)),
    distance: sizes.map((size) => new Int32Array(size).fill(-1)),
    next: sizes.map((size) => new Int32Array(size)),
    path: {
      levels: new Int32Array(longest),
      places: new Int32Array(longest),
      room: new Float64Array(longest),
      length: 0,
    },
  };
  const nodes = nodesBelow(net, 0);
  nodes[0] = nodes[0].filter((j) => j === token);
  for (let s = 0; s < net.top; s++)
    nodes[s + 1] = nodes[s + 1].filter((i) => nodes[s].some((j) => net.capacity[s][i * sizes[s] + j] > 0));
  return { ...net, nodes };
}

/** @typedef {ReturnType<typeof flowNetwork>} Network */
/** @typedef {ReturnType<typeof pauses>} Pauses */

/** @param {GraphStep} step */
function openedCapacities({ cols, values, carried: [from, to] }) {
  if (from >= to) return values;
  const opened = new Float64Array(values);
  for (let i = from; i < to; i++) opened[i * cols + i] = Infinity;
  return opened;
}

/** Return the nodes of each level that can be reached from the query along edges wider than `width`.
 *
 * @param {Pick<Network, "sizes" | "capacity" | "query" | "top">} net
 * @param {number} width
 */
function nodesBelow({ sizes, capacity, query, top }, width) {
  /** @type {number[][]} */
  const nodes = sizes.map(() => []);
  nodes[top] = [query];
  for (let s = top - 1; s >= 0; s--) {
    const cols = sizes[s];
    const values = capacity[s];
    const seen = new Uint8Array(cols);
    let unseen = cols;
    // From the last: under a causal mask it sees everything, so the others can be skipped.
    for (let n = nodes[s + 1].length - 1; n >= 0 && unseen; n--)
      for (let j = 0, e = nodes[s + 1][n] * cols; j < cols; j++, e++)
        if (!seen[j] && values[e] > width) {
          seen[j] = 1;
          unseen--;
        }
    for (let j = 0; j < cols; j++) if (seen[j]) nodes[s].push(j);
  }
  return nodes;
}

/** @param {Network} net */
function infinitePath(net) {
  return nodesBelow(net, Number.MAX_VALUE)[0].includes(net.token);
}

/** Return a clock that says when `pause` is due.
 *
 * @param {(() => Promise<void>) | undefined} pause
 */
function pauses(pause) {
  let since = performance.now();
  return {
    due: () => Boolean(pause) && performance.now() - since > 12,
    taken: async () => {
      await pause?.();
      since = performance.now();
    },
  };
}

/**
 * Label nodes with their distance to the token along edges with capacity left, breadth first from the token. Return false
 * once the query is cut off; the labelled nodes are then the proof. Each level keeps a list of unlabelled nodes, so that
 * a dense graph costs little more than its nodes.
 *
 * @param {Network} net
 */
function labelDistances({ sizes, capacity, flow, distance, next, nodes, query, token, top }) {
  for (let k = 0; k <= top; k++) {
    distance[k].fill(-1);
    next[k].fill(0);
  }
  const waiting = nodes.map((level) => level.slice());
  /** @type {number[]} */
  const levels = [];
  /** @type {number[]} */
  const places = [];
  /** @param {number} k @param {number} i @param {number} d */
  const label = (k, i, d) => {
    distance[k][i] = d;
    levels.push(k);
    places.push(i);
  };
  label(0, token, 0);
  for (let head = 0; head < levels.length && distance[top][query] < 0; head++) {
    const k = levels[head];
    const v = places[head];
    const d = distance[k][v] + 1;
    if (k < top) {
      const above = waiting[k + 1];
      const cols = sizes[k];
      const c = capacity[k];
      const f = flow[k];
      let left = 0;
      for (const i of above)
        if (c[i * cols + v] - f[i * cols + v] > 0) label(k + 1, i, d);
        else above[left++] = i;
      above.length = left;
    }
    if (k > 1) {
      const below = waiting[k - 1];
      const row = v * sizes[k - 1];
      const f = flow[k - 1];
      let left = 0;
      for (const j of below)
        if (f[row + j] > 0) label(k - 1, j, d);
        else below[left++] = j;
      below.length = left;
    }
  }
  return distance[top][query] >= 0;
}

/** Search depth first from the query, always one step nearer to the token; `next` stores where each node's search resumes.
 *
 * @param {Network} net
 * @param {Pauses} rest
 */
async function blockingFlow(net, rest) {
  const { distance, path } = net;
  let total = 0;
  extendPath(path, net.top, net.query);
  for (let turn = 1; path.length; turn++) {
    if (turn % 256 === 0 && rest.due()) await rest.taken();
    const k = path.levels[path.length - 1];
    const i = path.places[path.length - 1];
    if (k === 0) total += augmentPath(net);
    else if (!advancePath(net, k, i)) {
      distance[k][i] = -2; // a dead end in this phase
      path.length--;
    }
  }
  return total;
}

/** @param {Network["path"]} path @param {number} level @param {number} place */
function extendPath(path, level, place) {
  path.levels[path.length] = level;
  path.places[path.length] = place;
  path.length++;
}

/** Take one step from node i of level k: down along an edge with capacity left, or up by taking flow back.
 *
 * @param {Network} net
 * @param {number} k
 * @param {number} i
 */
function advancePath({ sizes, capacity, flow, distance, next, nodes, path, top }, k, i) {
  const d = distance[k][i] - 1;
  const below = nodes[k - 1];
  const above = k < top ? nodes[k + 1] : [];
  const row = i * sizes[k - 1];
  let a = next[k][i];
  for (const near = distance[k - 1], c = capacity[k - 1], f = flow[k - 1]; a < below.length; a++) {
    const j = below[a];
    if (near[j] === d && c[row + j] - f[row + j] > 0) break;
  }
  if (a >= below.length)
    for (; a < below.length + above.length; a++) {
      const h = above[a - below.length];
      if (distance[k + 1][h] === d && flow[k][h * sizes[k] + i] > 0) break;
    }
  next[k][i] = a;
  if (a === below.length + above.length) return false;
  if (a < below.length) extendPath(path, k - 1, below[a]);
  else extendPath(path, k + 1, above[a - below.length]);
  return true;
}

/** Send as much as the path allows, and cut it back to the first edge that is now full, exactly.
 *
 * @param {Network} net
 */
function augmentPath({ sizes, capacity, flow, path }) {
  const { levels, places, room } = path;
  const last = path.length - 1;
  let least = Infinity;
  for (let p = 0; p < last; p++) {
    const s = Math.min(levels[p], levels[p + 1]); // the step between the two levels
    const down = levels[p] > s;
    const edge = down ? places[p] * sizes[s] + places[p + 1] : places[p + 1] * sizes[s] + places[p];
    room[p] = down ? capacity[s][edge] - flow[s][edge] : flow[s][edge];
    if (room[p] < least) least = room[p];
  }
  for (let p = last - 1; p >= 0; p--) {
    const s = Math.min(levels[p], levels[p + 1]);
    const full = room[p] === least;
    if (levels[p] > s) {
      const edge = places[p] * sizes[s] + places[p + 1];
      flow[s][edge] = full ? capacity[s][edge] : flow[s][edge] + least;
    } else {
      const edge = places[p + 1] * sizes[s] + places[p];
      flow[s][edge] = full ? 0 : flow[s][edge] - least;
    }
    if (full) path.length = p + 1;
  }
  return least;
}

/** Return the proof after the last labelling: the full edges from unlabelled to labelled nodes are the cut.
 *
 * @param {Network} net
 * @param {number} value
 */
function flowProof({ sizes, capacity, flow, distance, nodes, top }, value) {
  const reached = distance.map((level) => Uint8Array.from(level, (d) => (value < Infinity && d >= 0 ? 1 : 0)));
  const cut = [];
  for (let s = 0; s < top; s++)
    for (const i of nodes[s + 1])
      if (!reached[s + 1][i])
        for (const j of nodes[s]) {
          const width = capacity[s][i * sizes[s] + j];
          if (reached[s][j] && width > 0) cut.push({ step: s, query: i, key: j, capacity: width });
        }
  const capacityOfCut = value < Infinity ? cut.reduce((sum, edge) => sum + edge.capacity, 0) : Infinity;
  cut.sort((a, b) => b.capacity - a.capacity);
  const gap = value < Infinity ? Math.abs(capacityOfCut - value) : 0;
  return { value, capacity: capacityOfCut, gap, edges: flow, cut, reached };
}

/** Split a flow of `maxFlow` into paths that add up to its value: always the widest one left, at most `limit`.
 *
 * @param {{ reached: Uint8Array[], edges: Float64Array[] }} flow
 * @param {number} query
 * @param {number} token
 */
export function flowPaths(flow, query, token, limit = Infinity) {
  const sizes = flow.reached.map((level) => level.length);
  const layers = flow.edges.map((edges, s) => usedEdges(edges, sizes[s]));
  /** @type {Path[]} */
  const paths = [];
  while (paths.length < limit) {
    const path = widestPath(layers, sizes, query, token);
    if (!path) break;
    paths.push(path);
  }
  return paths;
}

/** @typedef {{ queries: number[], keys: number[], amounts: number[] }} Used */

/** Return the few edges that carry flow.
 *
 * @param {Float64Array} edges
 * @param {number} cols
 */
function usedEdges(edges, cols) {
  /** @type {Used} */
  const used = { queries: [], keys: [], amounts: [] };
  for (let e = 0; e < edges.length; e++) {
    if (!(edges[e] > 0)) continue;
    used.queries.push(Math.floor(e / cols));
    used.keys.push(e % cols);
    used.amounts.push(edges[e]);
  }
  return used;
}

/** Take the path with the largest bottleneck out of `layers`; null if nothing flows any more.
 *
 * @param {Used[]} layers
 * @param {number[]} sizes
 * @param {number} query
 * @param {number} token
 */
function widestPath(layers, sizes, query, token) {
  let width = new Float64Array(sizes[0]);
  width[token] = Infinity;
  const choice = layers.map(({ queries, keys, amounts }, s) => {
    const best = new Int32Array(sizes[s + 1]).fill(-1);
    const wider = new Float64Array(sizes[s + 1]);
    for (let e = 0; e < amounts.length; e++) {
      const through = Math.min(amounts[e], width[keys[e]]);
      if (through < wider[queries[e]]) continue;
      wider[queries[e]] = through;
      best[queries[e]] = e;
    }
    width = wider;
    return best;
  });
  const amount = width[query];
  if (!(amount > 0)) return null;
  const positions = [query];
  for (let s = layers.length - 1; s >= 0; s--) {
    const edge = choice[s][positions[positions.length - 1]];
    layers[s].amounts[edge] -= amount;
    positions.push(layers[s].keys[edge]);
  }
  return { positions, amount };
}

/** Return the product of the weights along a path from the top of step `end` down: what rollout sends along it.
 *
 * @param {Matrix[]} graph
 * @param {number} end
 * @param {number[]} positions
 */
export function alongPaths(graph, end, positions) {
  let share = 1;
  for (let i = 0; i <= end; i++) {
    const { cols, values } = graph[end - i];
    share *= values[positions[i] * cols + positions[i + 1]];
  }
  return share;
}
