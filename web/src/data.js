import { augmented, merged, uniform, layerwise, relative, rawRow, rolloutRows, product } from "./maths.js";

/** A document as the page uses it: labels as they are, arrays unpacked, and rows that are computed when first asked for. */
export async function read(held) {
  if (held.format !== "attnflow-page" || held.version > 1) {
    throw new Error(`this page cannot read a document of format ${held.format} ${held.version ?? ""}`);
  }
  const weights = held.weights && (await unpackedWeights(held));
  const image = held.image && { shape: held.image.shape, pixels: await unpacked(held.image) };
  const views = {};
  for (const unit of Object.keys(held.units)) {
    views[unit] = {};
    for (const [method, table] of Object.entries(held.views[unit])) views[unit][method] = await readTable(table);
  }
  const kept = held.heads && { ...held.heads, values: await unpacked(held.heads.weights) };
  const depth = held.layers.length;
  const cache = new Map();

  function once(key, make) {
    if (!cache.has(key)) cache.set(key, make());
    return cache.get(key);
  }

  /** Weights of a unit as steps: as the model has them, over words, or as uniform attention under the same mask. */
  function steps(unit, kind = "") {
    return once(`steps ${unit} ${kind}`, () => {
      if (kind === "uniform") return uniform(steps(unit));
      if (kind === "layer") return layerwise(steps(unit));
      return held.units[unit].groups ? merged(weights, held.units[unit].groups) : weights;
    });
  }

  function graph(unit, kind = "") {
    return once(`graph ${unit} ${kind}`, () => augmented(steps(unit, kind), held.residual));
  }

  function computed(method, unit, query, kind) {
    if (method === "raw") return held.layers.map((layer) => rawRow(steps(unit), held.ends, layer, query));
    return rolloutRows(
      graph(unit, kind),
      held.layers.map((layer) => held.ends[layer]),
      query,
    );
  }

  /** Rows of a query at every layer, [layer][input], and whether they are exact; null where the document has no way to them. */
  function rows(method, unit, query, field = "") {
    if (method === "raw") field = "";
    return once(`rows ${method} ${unit} ${query} ${field}`, () => {
      const table = views[unit][method];
      const at = table ? table.queries.indexOf(query) : -1;
      const pick = (kind) => tableRows(table[kind], at, depth, table.queries.length);
      if (at >= 0 && (!field || table.uniform)) {
        if (!field) return { rows: pick("values"), exact: true };
        if (field === "layer") return { rows: pick("layer"), exact: true };
        const under = pick("uniform");
        return { rows: pick("values").map((row, l) => relative(field, row, under[l])), exact: true };
      }
      if (!weights || (method !== "raw" && method !== "rollout")) return null;
      if (!field) return { rows: computed(method, unit, query, ""), exact: held.exact };
      if (field === "layer") return { rows: computed(method, unit, query, "layer"), exact: held.exact };
      const under = computed(method, unit, query, "uniform");
      return {
        rows: computed(method, unit, query, "").map((row, l) => relative(field, row, under[l])),
        exact: held.exact,
      };
    });
  }

  /** What tokens are worth; over words, the sum over their subwords. */
  function worth(unit) {
    return once(`worth ${unit}`, () =>
      held.importance.map((one) => ({
        ...one,
        values: summed(Float64Array.from(one.values), held.units[unit].groups),
      })),
    );
  }

  /** The weights of every head for a query, [layer][head] → row; null where they are not held. */
  function heads(unit, query) {
    if (!kept) return null;
    return once(`heads ${unit} ${query}`, () => {
      const groups = held.units[unit].groups;
      const members = groups ? groups[query] : [query];
      const places = members.map((position) => kept.queries.indexOf(position));
      if (places.includes(-1)) return null;
      const n = held.units.subwords.tokens.length,
        asked = kept.queries.length;
      let start = 0;
      return kept.counts.map((count) =>
        Array.from({ length: count }, () => {
          const row = new Float64Array(n);
          for (const place of places)
            for (let k = 0; k < n; k++) row[k] += kept.values[start + place * n + k] / places.length;
          start += asked * n;
          return summed(row, groups);
        }),
      );
    });
  }

  /** One head as a whole [query, key], where heads of all queries are held. */
  function headMap(unit, layer, head) {
    const n = held.units[unit].tokens.length,
      first = held.firstQuery;
    const found = Array.from({ length: n - first }, (_, q) => heads(unit, first + q));
    return found.some((row) => !row) ? null : found.map((row) => row[layer][head]);
  }

  /** Rollout of every query at the top of a step: one product of matrices more than at the step below. */
  function rolled(unit, kind, step) {
    return once(`rolled ${unit} ${kind} ${step}`, () =>
      step ? product(graph(unit, kind)[step], rolled(unit, kind, step - 1)) : graph(unit, kind)[0],
    );
  }

  function rolloutMap(unit, kind, layer) {
    const { rows: count, cols, values } = rolled(unit, kind, held.ends[held.layers[layer]]);
    return Array.from({ length: count - held.firstQuery }, (_, q) =>
      values.subarray((held.firstQuery + q) * cols, (held.firstQuery + q + 1) * cols),
    );
  }

  /** The rows of all queries at one layer, or null. */
  function map(method, unit, layer, field = "") {
    const count = queryNames(held, unit).length,
      first = held.firstQuery;
    if (method === "rollout" && weights) {
      if (count ** 3 * held.steps.length > 4e8) return null;
      if (!field || field === "layer") return rolloutMap(unit, field, layer);
      const under = rolloutMap(unit, "uniform", layer);
      return rolloutMap(unit, "", layer).map((row, q) => relative(field, row, under[q]));
    }
    const found = [];
    for (let q = first; q < count; q++) {
      const row = rows(method, unit, q, field);
      if (!row) return null;
      found.push(row.rows[layer]);
    }
    return found;
  }

  /** Rows that somebody else has computed. */
  async function add(answer) {
    for (const [method, table] of Object.entries(answer.views)) {
      const found = await readTable(table);
      if (!found) continue;
      for (const field of ["", "ratio", "difference", "layer"]) {
        cache.delete(`rows ${method} ${answer.unit} ${answer.query} ${field}`);
      }
      const before = views[answer.unit][method];
      views[answer.unit][method] = joined(before, found, depth);
    }
  }

  return {
    ...held,
    image,
    views,
    steps,
    graph,
    rows,
    worth,
    heads,
    headMap,
    map,
    add,
    widths: held.steps.map((step) => step.rows),
    hasWeights: !!weights,
    holdsHeads: kept?.queries ?? null,
  };
}

/** Names of the positions that can be asked about: the tokens, unless the model merges its positions. */
export function queryNames(held, unit) {
  return held.queries ?? held.units[unit].tokens;
}

function summed(row, groups) {
  return groups ? Float64Array.from(groups, (group) => group.reduce((sum, i) => sum + row[i], 0)) : row;
}

async function readTable(table) {
  if (!table) return null;
  const found = { queries: table.queries };
  for (const kind of ["values", "uniform", "layer"]) if (table[kind]) found[kind] = await unpacked(table[kind]);
  return found;
}

function tableRows(values, at, depth, queries) {
  const n = values.length / depth / queries;
  return Array.from({ length: depth }, (_, l) =>
    Float64Array.from(values.subarray((l * queries + at) * n, (l * queries + at + 1) * n)),
  );
}

function joined(before, more, depth) {
  if (!before) return more;
  const found = { queries: [...before.queries, ...more.queries] };
  for (const kind of ["values", "uniform", "layer"]) {
    if (!before[kind] || !more[kind]) continue;
    const a = before[kind].length / depth,
      b = more[kind].length / depth;
    found[kind] = new Float64Array((a + b) * depth);
    for (let l = 0; l < depth; l++) {
      found[kind].set(before[kind].subarray(l * a, (l + 1) * a), l * (a + b));
      found[kind].set(more[kind].subarray(l * b, (l + 1) * b), l * (a + b) + a);
    }
  }
  return found;
}

async function unpackedWeights(held) {
  const { weights } = held;
  const flat = weights.type === "rounded" ? await unrounded(weights, held.steps) : await unpacked(weights);
  let at = 0;
  return held.steps.map((step) => ({ ...step, values: flat.subarray(at, (at += step.rows * step.cols)) }));
}

async function unrounded(weights, steps) {
  const codes = await inflated(weights.data),
    scales = await unpacked(weights.scales);
  const value = Float64Array.from({ length: 256 }, (_, code) => (code ? Math.exp((code - 255) / weights.steps) : 0));
  const found = new Float32Array(codes.length);
  let at = 0,
    row = 0;
  for (const { rows, cols } of steps) {
    for (let r = 0; r < rows; r++, row++)
      for (let c = 0; c < cols; c++, at++) found[at] = value[codes[at]] * scales[row];
  }
  return found;
}

async function unpacked(array) {
  const bytes = await inflated(array.data);
  if (array.type === "u1") return bytes;
  const size = array.type === "f8" ? 8 : 4,
    count = bytes.length / size;
  const found = size === 8 ? new Float64Array(count) : new Float32Array(count),
    raw = new Uint8Array(found.buffer);
  for (let plane = 0; plane < size; plane++)
    for (let i = 0; i < count; i++) raw[size * i + plane] = bytes[plane * count + i];
  return found;
}

async function inflated(text) {
  const binary = atob(text),
    bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
