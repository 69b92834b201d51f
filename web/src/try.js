// Flow in the browser: docs/try.md runs the library's own solver, which `make wasm` compiles to WebAssembly.

/** @import { Matrix, Step } from "./types" */
import { button, el, messageOf, number } from "./draw.js";
import { augmented, rolloutRow } from "./maths.js";

const MOST = { layers: 48, positions: 128 };

/** The attention of the embedded model, averaged over its heads: [layer][query][key]. */
const EXAMPLE = {
  tokens: "[CLS] the key to the cabinets [EOS]",
  weights: `[[[0.25395, 0.04134, 0.05665, 0.02781, 0.00842, 0.48751, 0.12432],
  [0.54555, 0.10294, 0.20528, 0.00916, 0.02912, 0.05171, 0.05624],
  [0.06805, 0.25432, 0.13207, 0.36745, 0.04409, 0.03945, 0.09457],
  [0.30479, 0.00448, 0.16789, 0.08135, 0.25424, 0.06004, 0.12721],
  [0.39316, 0.02176, 0.02798, 0.19578, 0.1062, 0.23908, 0.01603],
  [0.00298, 0.00583, 0.0637, 0.19856, 0.13865, 0.30801, 0.28227],
  [0.04852, 0.00961, 0.07398, 0.02064, 0.01738, 0.68023, 0.14963]],
 [[0.06243, 0.02101, 0.47936, 0.03827, 0.02554, 0.26719, 0.10619],
  [0.07925, 0.25585, 0.1495, 0.10518, 0.11432, 0.19259, 0.10331],
  [0.08133, 0.01895, 0.22214, 0.19061, 0.01789, 0.35624, 0.11283],
  [0.08809, 0.18924, 0.30873, 0.16038, 0.08962, 0.07752, 0.08642],
  [0.10507, 0.14959, 0.22371, 0.12984, 0.11059, 0.18398, 0.09721],
  [0.11009, 0.0358, 0.28962, 0.14674, 0.12334, 0.14483, 0.14958],
  [0.07438, 0.05202, 0.42103, 0.07374, 0.03935, 0.23954, 0.09994]],
 [[0.06146, 0.03459, 0.3087, 0.05985, 0.15296, 0.29966, 0.08278],
  [0.07448, 0.14384, 0.29752, 0.15268, 0.01791, 0.24502, 0.06856],
  [0.05863, 0.29384, 0.0231, 0.20612, 0.05573, 0.29355, 0.06903],
  [0.03455, 0.18076, 0.32732, 0.08548, 0.1754, 0.16999, 0.0265],
  [0.05972, 0.18301, 0.2374, 0.21339, 0.09143, 0.15237, 0.06268],
  [0.15448, 0.04229, 0.0187, 0.04821, 0.32331, 0.19127, 0.22175],
  [0.08584, 0.10071, 0.21624, 0.07011, 0.1555, 0.24707, 0.12451]],
 [[0.04843, 0.03729, 0.41307, 0.12453, 0.01017, 0.10045, 0.26606],
  [0.0918, 0.1392, 0.09849, 0.10209, 0.19202, 0.32161, 0.05479],
  [0.07284, 0.23012, 0.1264, 0.20815, 0.0385, 0.19115, 0.13285],
  [0.07413, 0.21052, 0.14793, 0.08122, 0.27933, 0.14112, 0.06575],
  [0.08443, 0.07238, 0.04701, 0.093, 0.22693, 0.40972, 0.06653],
  [0.08961, 0.05526, 0.23624, 0.16511, 0.11374, 0.24069, 0.09935],
  [0.0486, 0.07653, 0.42883, 0.18119, 0.0399, 0.03415, 0.19081]],
 [[0.00801, 0.11029, 0.73156, 0.03094, 0.00701, 0.09959, 0.0126],
  [0.0295, 0.22409, 0.19235, 0.15959, 0.17983, 0.18392, 0.03072],
  [0.1508, 0.12626, 0.3373, 0.05126, 0.11193, 0.07397, 0.14847],
  [0.10076, 0.07696, 0.03317, 0.14438, 0.2207, 0.35724, 0.06679],
  [0.09682, 0.11859, 0.03698, 0.16583, 0.25002, 0.2511, 0.08065],
  [0.15849, 0.12815, 0.1268, 0.07254, 0.14311, 0.21831, 0.15258],
  [0.01421, 0.14805, 0.6347, 0.08193, 0.01422, 0.08629, 0.0206]],
 [[0.15282, 0.11161, 0.24402, 0.03126, 0.02989, 0.14678, 0.28361],
  [0.08787, 0.29063, 0.08317, 0.19236, 0.10919, 0.14242, 0.09437],
  [0.04925, 0.14061, 0.43078, 0.12014, 0.13694, 0.06635, 0.05593],
  [0.06236, 0.19052, 0.05118, 0.31767, 0.15497, 0.15614, 0.06716],
  [0.06904, 0.16039, 0.14702, 0.27872, 0.16633, 0.126, 0.0525],
  [0.11265, 0.14081, 0.19048, 0.11874, 0.11629, 0.14078, 0.18025],
  [0.15017, 0.14557, 0.15774, 0.04445, 0.0482, 0.18054, 0.27335]]]`,
};

/** @typedef {{ memory: WebAssembly.Memory, _initialize: () => void, malloc: (bytes: number) => number,
 *   free: (place: number) => void, flow_row: (...places: number[]) => void }} Solver */

/** Start the solver. It asks its host for next to nothing: it reads no files, no clock and no environment.
 *
 * @param {string} base64
 * @returns {Promise<Solver>}
 */
async function start(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const module = await WebAssembly.compile(bytes);
  /** @type {WebAssembly.Imports} */
  const imports = {};
  for (const { module: room, name } of WebAssembly.Module.imports(module))
    (imports[room] ??= {})[name] = () => {
      if (name === "proc_exit") throw new Error("the solver stopped");
      return 0;
    };
  const solver = /** @type {Solver} */ (
    /** @type {unknown} */ ((await WebAssembly.instantiate(module, imports)).exports)
  );
  solver._initialize();
  return solver;
}

/** Flow from one query after the last of these layers to every input token.
 *
 * @param {Solver} solver
 * @param {Matrix<Float64Array>[]} graph
 * @param {number} query
 */
function flowRow(solver, graph, query) {
  const width = graph[0].cols,
    size = width * width;
  const capacities = solver.malloc(8 * size * graph.length),
    row = solver.malloc(8 * width);
  const view = new Float64Array(solver.memory.buffer, capacities, size * graph.length);
  graph.forEach((step, k) => view.set(step.values, k * size));
  solver.flow_row(capacities, graph.length, width, query, row);
  const values = new Float64Array(solver.memory.buffer, row, width).slice(); // memory may have grown, and moved
  solver.free(capacities);
  solver.free(row);
  return values;
}

/** Read weights [layer][query][key] or [layer][head][query][key]; average the heads.
 *
 * @param {string} text
 * @returns {Step[]}
 */
function readWeights(text) {
  /** @type {unknown} */
  let weights;
  try {
    weights = JSON.parse(text);
  } catch (error) {
    throw new Error(`The weights are not JSON (${messageOf(error)}). Expected nested lists of numbers.`);
  }
  const layers = list(weights, "The weights are");
  if (layers.length > MOST.layers)
    throw new Error(`There are ${layers.length} layers. This page takes ${MOST.layers}.`);
  const steps = layers.map((layer, k) => {
    const rows = list(layer, `L${k + 1} is`);
    const heads = Array.isArray(rows[0]) && Array.isArray(rows[0][0]) ? rows : [rows];
    const matrices = heads.map((head) => matrix(head, k));
    const values = matrices[0].map((_, e) => matrices.reduce((sum, head) => sum + head[e], 0) / matrices.length);
    const width = Math.sqrt(values.length);
    return { rows: width, cols: width, values, carried: /** @type {[number, number]} */ ([0, 0]), residual: true };
  });
  const other = steps.findIndex((step) => step.rows !== steps[0].rows);
  if (other > 0)
    throw new Error(
      `L${other + 1} has ${steps[other].rows} positions, and L1 has ${steps[0].rows}. Expected the same.`,
    );
  return steps;
}

/** A square matrix of weights, row by row.
 *
 * @param {unknown} head
 * @param {number} k
 */
function matrix(head, k) {
  const rows = list(head, `L${k + 1} is`).map((row) => list(row, `A row of L${k + 1} is`));
  const width = rows.length;
  if (width > MOST.positions) throw new Error(`There are ${width} positions. This page takes ${MOST.positions}.`);
  const odd = rows.findIndex((row) => row.length !== width);
  if (odd >= 0)
    throw new Error(
      `Row ${odd} of L${k + 1} has ${rows[odd].length} weights. Expected ${width}, one for each position.`,
    );
  return new Float64Array(
    rows.flat().map((weight) => {
      if (typeof weight !== "number" || !(weight >= 0) || weight === Infinity)
        throw new Error(`L${k + 1} has the weight ${JSON.stringify(weight)}. Expected numbers from 0 on.`);
      return weight;
    }),
  );
}

/** @param {unknown} value @param {string} what @returns {any[]} */
function list(value, what) {
  if (!Array.isArray(value) || !value.length) throw new Error(`${what} no list, or an empty one. Expected a list.`);
  return value;
}

/** @param {HTMLElement} root @param {Solver} solver */
function mount(root, solver) {
  const weights = el("textarea", { rows: "10", spellcheck: "false", "aria-label": "attention weights" });
  const tokens = el("input", { "aria-label": "tokens, separated by spaces" });
  const residual = el("input", { type: "number", min: "0", max: "1", step: "0.1", value: "0.5" });
  const layer = el("select"),
    query = el("select"),
    output = el("div", { "aria-live": "polite" });

  function update() {
    try {
      const steps = readWeights(weights.value);
      const own = Number(residual.value);
      if (residual.value === "" || !(own >= 0 && own <= 1))
        throw new Error(`The residual weight is ${residual.value || "empty"}. Expected a number from 0 to 1.`);
      const names = tokens.value.trim().split(/\s+/);
      const width = steps[0].rows;
      const labels = Array.from({ length: width }, (_, i) => (names.length === width ? names[i] : String(i)));
      offer(layer, steps.map((_, k) => `L${k + 1}`), steps.length - 1); // prettier-ignore
      offer(query, labels, 0);
      const end = Number(layer.value),
        chosen = Number(query.value);
      const graph = augmented(steps, own).slice(0, end + 1);
      const raw = steps[end].values.slice(chosen * width, (chosen + 1) * width);
      show(output, labels, [raw, rolloutRow(graph, end, chosen), flowRow(solver, graph, chosen)]);
    } catch (error) {
      output.replaceChildren(el("p", { class: "try-error" }, messageOf(error)));
    }
  }

  const example = button("example", () => {
    [weights.value, tokens.value] = [EXAMPLE.weights, EXAMPLE.tokens];
    update();
  });
  const fields = [
    el("label", {}, "layer ", layer),
    el("label", {}, "query ", query),
    el("label", {}, "residual weight ", residual),
  ];
  root.replaceChildren(
    el("label", {}, "attention weights: [layer][query][key] or [layer][head][query][key]", weights),
    el("label", {}, "tokens (optional)", tokens),
    el("p", { class: "try-fields" }, ...fields, example),
    output,
  );
  for (const field of [weights, tokens, residual, layer, query]) field.addEventListener("input", update);
  example.click();
}

/** Offer these choices, and keep the chosen one where it still exists.
 *
 * @param {HTMLSelectElement} select
 * @param {string[]} labels
 * @param {number} first
 */
function offer(select, labels, first) {
  const chosen = select.value !== "" && Number(select.value) < labels.length ? select.value : String(first);
  select.replaceChildren(...labels.map((text, i) => el("option", { value: String(i) }, text)));
  select.value = chosen;
}

/** @param {HTMLElement} output @param {string[]} labels @param {ArrayLike<number>[]} columns */
function show(output, labels, columns) {
  const rows = labels.map(
    (text, i) =>
    el("tr", {}, el("th", { scope: "row" }, text),
      ...columns.map((column) => el("td", { "data-value": String(column[i]) },
        el("span", { class: "try-bar", style: `width:${4 * column[i]}em` }), number(column[i])))), // prettier-ignore
  );
  const heads = ["token", "raw", "rollout", "flow"].map((head) => el("th", { scope: "col" }, head));
  output.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, ...heads)), el("tbody", {}, ...rows)));
}

const root = document.querySelector("#try");
if (root instanceof HTMLElement)
  start(/** @type {any} */ (globalThis).attnflowSolver).then(
    (solver) => mount(root, solver),
    (error) => (root.textContent = `This browser cannot run the solver: ${messageOf(error)}`),
  );
