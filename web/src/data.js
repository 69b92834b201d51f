import { augmented, merged, rawRow, rolloutRow } from "./maths.js";

/** @import { Floats, Matrix, Packed, Rounded, Rows, ServedRows, Step, StepShape, Table, TextDocument } from "./types" */
/** @typedef {Table<Floats>} Unpacked */

/** Return whether a method is answer edges, which documents store among the importances and pages show first.
 *
 * @param {string} name
 */
export const isAnswerEdges = (name) => name === "answer_rows" || name === "answer_inputs";

/** Read a document for the page: labels as they are, unpacked arrays, and rows that are computed on first use.
 *
 * @param {TextDocument} doc
 */
export async function read(doc) {
  if (doc.format !== "attnflow-page" || doc.version > 1) {
    throw new Error(`this page cannot read a document of format ${doc.format} ${doc.version ?? ""}`);
  }
  // unpack large arrays after the first frame, which does not need them
  const { weights: held } = doc;
  let weights = held && doc.exact ? await unpackedWeights(doc, held) : null;
  const unpack = held && !doc.exact ? async () => (weights = await unpackedWeights(doc, held)) : null;
  const captured = () => {
    if (!weights) throw new Error("this page does not include the weights");
    return weights;
  };
  const image = doc.image && { shape: doc.image.shape, pixels: await inflated(doc.image.data) };
  /** @type {Record<string, Record<string, Unpacked | null>>} */
  const methods = {};
  for (const unit of Object.keys(doc.units)) {
    methods[unit] = {};
    for (const [method, table] of Object.entries(doc.methods[unit])) methods[unit][method] = await readTable(table);
  }
  const single = doc.heads && { ...doc.heads, values: await unpacked(doc.heads.weights) };
  const depth = doc.layers.length;
  /** @type {Map<string, any>} */
  const cache = new Map();

  /** @template Value @param {string} key @param {() => Value} make @returns {Value} */
  function once(key, make) {
    if (!cache.has(key)) cache.set(key, make());
    return cache.get(key);
  }

  /** Return the weights of a unit as steps: the model's own, or over words.
   *
   * @param {string} unit
   * @returns {Step[]}
   */
  const steps = (unit) =>
    once(`steps ${unit}`, () => (doc.units[unit].groups ? merged(captured(), doc.units[unit].groups) : captured()));

  /** @param {string} unit @returns {Matrix[]} */
  const graph = (unit) => once(`graph ${unit}`, () => augmented(steps(unit), doc.residual));

  /** Return whether a query is the sentence embedding, whose number follows those of the text.
   *
   * @param {string} unit
   * @param {number} query
   */
  const isPool = (unit, query) => Boolean(doc.pooled) && query === doc.units[unit].tokens.length;

  /** Return the rows of a query at every layer, [layer][input], and whether they are exact; null if they are not available.
   *
   * @param {string} method
   * @param {string} unit
   * @param {number} query
   * @returns {Rows | null}
   */
  const rows = (method, unit, query) => once(`rows ${method} ${unit} ${query}`, () => rowsOf(method, unit, query));

  /** @param {string} method @param {string} unit @param {number} query @returns {Rows | null} */
  function rowsOf(method, unit, query) {
    const table = methods[unit][method],
      at = table ? table.queries.indexOf(query) : -1;
    if (table && at >= 0) return { rows: tableRows(table.values, at, depth, table.queries.length), exact: true };
    if (isPool(unit, query)) return mixed((q) => rows(method, unit, q), doc.pooled?.weights[unit] ?? []);
    if (!weights || (method !== "raw" && method !== "rollout")) return null;
    const row = (/** @type {number} */ layer) =>
      method === "raw" ? rawRow(steps(unit), doc.ends, layer, query) : rolloutRow(graph(unit), doc.ends[layer], query);
    return { rows: doc.layers.map(row), exact: doc.exact };
  }

  /** Return the importances of tokens; a word has the sum of its subwords.
   *
   * @param {string} unit
   */
  function worth(unit) {
    return once(`worth ${unit}`, () =>
      doc.importance.map((one) => ({
        ...one,
        // values that were not computed are NaN, and so are words that contain them
        values: summed(
          Float64Array.from(one.values, (v) => v ?? NaN),
          doc.units[unit].groups,
        ),
      })),
    );
  }

  /** Return the weights of every head for a query, [layer][head] → row, or null if they are not included.
   *
   * @param {string} unit
   * @param {number} query
   */
  function heads(unit, query) {
    if (!single || isPool(unit, query)) return null;
    return once(`heads ${unit} ${query}`, () => {
      const groups = doc.units[unit].groups;
      const members = groups ? groups[query] : [query];
      const places = members.map((position) => single.queries.indexOf(position));
      if (places.includes(-1)) return null;
      const n = doc.units.subwords.tokens.length,
        count = single.queries.length;
      let start = 0;
      return single.counts.map((number) =>
        Array.from({ length: number }, () => {
          const row = new Float64Array(n);
          for (const place of places)
            for (let k = 0; k < n; k++) row[k] += single.values[start + place * n + k] / places.length;
          start += count * n;
          return summed(row, groups);
        }),
      );
    });
  }

  /** Return one whole head [query, key], if the document includes the heads of all queries.
   *
   * @param {string} unit
   * @param {number} layer
   * @param {number} head
   */
  function headMap(unit, layer, head) {
    const n = doc.units[unit].tokens.length,
      first = doc.firstQuery;
    const all = Array.from({ length: n - first }, (_, q) => heads(unit, first + q)).filter((one) => one !== null);
    return all.length < n - first ? null : all.map((one) => one[layer][head]);
  }

  /** Return the rows of all queries at one layer, or null.
   *
   * @param {string} method
   * @param {string} unit
   * @param {number} layer
   */
  function map(method, unit, layer) {
    const count = doc.queries?.length ?? doc.units[unit].tokens.length,
      first = doc.firstQuery;
    if (method === "rollout" && weights && count ** 3 * doc.steps.length > 4e8) return null;
    /** @type {Float64Array[]} */
    const all = [];
    for (let q = first; q < count; q++) {
      const row =
        method === "rollout" && weights
          ? rolloutRow(graph(unit), doc.ends[doc.layers[layer]], q)
          : rows(method, unit, q)?.rows[layer];
      if (!row) return null;
      all.push(row);
    }
    return all;
  }

  /** Add rows that the server has computed.
   *
   * @param {ServedRows} answer
   */
  async function add(answer) {
    for (const [method, table] of Object.entries(answer.methods)) {
      const more = await readTable(table);
      if (!more) continue;
      cache.delete(`rows ${method} ${answer.unit} ${answer.query}`);
      methods[answer.unit][method] = joined(methods[answer.unit][method], more, depth);
    }
  }

  return {
    ...doc,
    source: doc,
    image,
    methods,
    steps,
    graph,
    rows,
    worth,
    heads,
    headMap,
    map,
    add,
    isPool,
    widths: doc.steps.map((step) => step.rows),
    hasWeights: !!doc.weights,
    unpack,
    headQueries: single?.queries ?? null,
  };
}

/** Return the weighted mean of the rows of several queries, or null if one of them is not available.
 *
 * @param {(query: number) => Rows | null} rowsAt
 * @param {number[]} weights
 * @returns {Rows | null}
 */
function mixed(rowsAt, weights) {
  /** @type {Float64Array[]} */
  let sums = [],
    exact = true;
  for (const [query, weight] of weights.entries()) {
    if (!weight) continue;
    const own = rowsAt(query);
    if (!own) return null;
    exact &&= own.exact;
    sums = own.rows.map((row, l) => row.map((value, i) => (sums[l]?.[i] ?? 0) + weight * value));
  }
  return { rows: sums, exact };
}

/** Return the names of all queries: the tokens, or positions if the model merges them; then the sentence embedding, if any.
 *
 * @param {Pick<TextDocument, "queries" | "units" | "pooled">} doc
 * @param {string} unit
 */
export function queryNames(doc, unit) {
  return doc.queries ?? [...doc.units[unit].tokens, ...(doc.pooled ? [doc.pooled.name] : [])];
}

/** @param {Float64Array} row @param {number[][] | null} groups */
function summed(row, groups) {
  return groups ? Float64Array.from(groups, (group) => group.reduce((sum, i) => sum + row[i], 0)) : row;
}

/** @param {Table<Packed> | null} table @returns {Promise<Unpacked | null>} */
const readTable = async (table) => table && { queries: table.queries, values: await unpacked(table.values) };

/** @param {Floats} values @param {number} at @param {number} depth @param {number} queries */
function tableRows(values, at, depth, queries) {
  const n = values.length / depth / queries;
  return Array.from({ length: depth }, (_, l) =>
    Float64Array.from(values.subarray((l * queries + at) * n, (l * queries + at + 1) * n)),
  );
}

/** @param {Unpacked | null | undefined} before @param {Unpacked} more @param {number} depth @returns {Unpacked} */
function joined(before, more, depth) {
  if (!before) return more;
  const [a, b] = [before.values.length / depth, more.values.length / depth],
    values = new Float64Array((a + b) * depth);
  for (let l = 0; l < depth; l++) {
    values.set(before.values.subarray(l * a, (l + 1) * a), l * (a + b));
    values.set(more.values.subarray(l * b, (l + 1) * b), l * (a + b) + a);
  }
  return { queries: [...before.queries, ...more.queries], values };
}

/** @param {TextDocument} doc @param {Packed | Rounded} weights @returns {Promise<Step[]>} */
async function unpackedWeights(doc, weights) {
  const flat = weights.type === "rounded" ? await unrounded(weights, doc.steps) : await unpacked(weights);
  let at = 0;
  return doc.steps.map((step) => ({ ...step, values: flat.subarray(at, (at += step.rows * step.cols)) }));
}

/** @param {Rounded} weights @param {StepShape[]} steps */
async function unrounded(weights, steps) {
  const codes = await inflated(weights.data),
    scales = await unpacked(weights.scales);
  const value = Float64Array.from({ length: 256 }, (_, code) => (code ? Math.exp((code - 255) / weights.steps) : 0));
  const values = new Float32Array(codes.length);
  let at = 0,
    row = 0;
  for (const { rows, cols } of steps) {
    for (let r = 0; r < rows; r++, row++)
      for (let c = 0; c < cols; c++, at++) values[at] = value[codes[at]] * scales[row];
  }
  return values;
}

/** @param {Packed} array @returns {Promise<Floats>} */
export async function unpacked(array) {
  const bytes = await inflated(array.data);
  const size = array.type === "f8" ? 8 : 4,
    count = bytes.length / size;
  const values = size === 8 ? new Float64Array(count) : new Float32Array(count),
    raw = new Uint8Array(values.buffer);
  for (let plane = 0; plane < size; plane++)
    for (let i = 0; i < count; i++) raw[size * i + plane] = bytes[plane * count + i];
  return values;
}

/** @param {string} text */
export async function inflated(text) {
  const binary = atob(text),
    bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
