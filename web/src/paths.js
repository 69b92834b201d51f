import { el, svg, messageOf, number, percent, plainToken, tableOf } from "./draw.js";
import { exportMenu } from "./keep.js";
import { touched } from "./state.js";
import { layered, curve } from "./graph.js";

/** @import { Cells, Changed, Edge, Flow, Now, Page, Palette } from "./types" */

/** The maximum flow between a state and an input with its proof: the widest paths, the edges that limit it, and rollout along the
 * same paths. The document has it for the strongest words of the query that the page opens with; the app computes others.
 *
 * @param {Page} page
 */
export function pathsPanel(page) {
  const { data, state, server } = page;
  const holder = el("div", { class: "scroll" }),
    limit = el("p", { class: "bottleneck" }),
    say = el("p", { class: "summary", "aria-live": "polite" }),
    lists = el("div", { class: "columns" });
  const tokenPick = el("select", {
    "aria-label": "input token",
    onchange: (event) => state.set({ t: Number(event.target.value) }),
  });
  const sentence = el("p", { class: "pair" });
  const node = el(
    "section",
    { class: "view", "data-view": "paths" },
    el("header", {}, sentence, el("label", {}, "and the input ", tokenPick), exportMenu(page, "flow", csvRows)),
    limit,
    say,
    holder,
    lists,
  );
  /** @type {Map<string, Flow>} */
  const flows = new Map(data.flows.map((flow) => [keyOf(flow.unit, flow), flow]));
  let asked = "";
  /** @type {Flow | null} */
  let solved = null;

  /** @param {string} unit @param {Pick<Flow, "query" | "layer" | "token">} pair */
  function keyOf(unit, { query, layer, token }) {
    return `${unit} ${query} ${layer} ${token}`;
  }

  /** Return the tokens that the document has for this state, the strongest first. @param {Now} at */
  const known = (at) =>
    data.flows
      .filter(({ unit, query, layer }) => unit === at.unit && query === at.query && layer === data.layers[at.layer])
      .map(({ token }) => token);

  /** Return the selection; the default token is the strongest word. @returns {Now} */
  function current() {
    const at = page.now();
    return state.get().t >= 0 ? at : { ...at, token: known(at)[0] ?? at.token };
  }

  /** @param {number} level @param {number} position */
  const stateAt = (level, position) =>
    `${page.stateName(level, position, 14)}${level ? ` at ${data.levels[level - 1]}` : ""}`;
  /** @param {Edge} edge */
  const edgeName = ({ step, query, key }) => `${stateAt(step + 1, query)} → ${stateAt(step, key)}`;

  /** @param {Palette} colours @param {Flow} flow */
  function draw(colours, flow) {
    const at = page.now(),
      end = data.ends[flow.layer];
    /** @type {Map<string, Edge & { amount: number, isFull: boolean }>} */
    const edges = new Map();
    for (const [amount, , ...positions] of flow.paths)
      positions.slice(1).forEach((key, i) => {
        const [step, query] = [end - i, positions[i]],
          name = `${step} ${query} ${key}`;
        edges.set(name, { step, query, key, amount: amount + (edges.get(name)?.amount ?? 0), isFull: false });
      });
    for (const [step, query, key] of flow.cut) {
      const edge = edges.get(`${step} ${query} ${key}`);
      if (edge) edge.isFull = true;
    }
    const columns = new Set([flow.query, flow.token, ...[...edges.values()].flatMap(({ query, key }) => [query, key])]);
    const title = `maximum flow between ${at.names[flow.query]} at L${flow.layer + 1} and ${plainToken(at.tokens[flow.token])}: ${number(flow.value)}`;
    const frame = layered(
      [...columns].sort((a, b) => a - b),
      end + 2,
      at.tokens,
      data.levels,
      colours,
      { title, width: page.width() - 40 },
    );
    const scale = Math.min(20, frame.gap * 0.7) / (Number.isFinite(flow.value) && flow.value > 0 ? flow.value : 1);
    for (const edge of [...edges.values()].sort((a, b) => b.amount - a.amount))
      frame.node.append(
        svg(
          "path",
          {
            d: curve(frame.x(edge.query), frame.y(edge.step + 1), frame.x(edge.key), frame.y(edge.step)),
            fill: "none",
            stroke: edge.isFull ? colours.accent : colours.css[170],
            "stroke-opacity": edge.isFull ? 0.9 : 0.55,
            "stroke-width": Math.max(0.8, edge.amount * scale).toFixed(2),
            "data-cut": edge.isFull ? "1" : null,
            "data-edge": `${edge.step} ${edge.query} ${edge.key}`,
          },
          svg("title", {}, `${edgeName(edge)}: ${edge.amount}${edge.isFull ? " · full, in the minimum cut" : ""}`),
        ),
      );
    const dots = new Set([`${end + 1} ${flow.query}`, `0 ${flow.token}`]);
    for (const { step, query, key } of edges.values()) dots.add(`${step + 1} ${query}`).add(`${step} ${key}`);
    [...dots].forEach((name, i) => {
      const [level, position] = name.split(" ").map(Number);
      frame.node.append(
        svg("circle", {
          cx: frame.x(position).toFixed(1),
          cy: frame.y(level).toFixed(1),
          r: i < 2 ? 6 : 3.2,
          fill: i < 2 ? colours.accent : colours.paper,
          stroke: i < 2 ? colours.accent : colours.faint,
        }),
      );
    });
    return frame.node;
  }

  /** Describe a path; a run of layers at one position is named once, with its first and last layer.
   *
   * @param {number[]} positions
   */
  function pathName(positions) {
    /** @type {{ position: number, from: number, to: number }[]} */
    const stays = [];
    const last = positions.length - 1,
      levelName = (/** @type {number} */ i) => (i < last ? data.levels[last - i - 1] : "input");
    positions.forEach((position, i) => {
      const before = stays.at(-1);
      if (before?.position === position) before.to = i;
      else stays.push({ position, from: i, to: i });
    });
    return stays
      .map(({ position, from, to }) => {
        const name = page.stateName(last - from, position, 14);
        if (from === to) return from === last ? name : `${name}@${levelName(from)}`;
        return `${name}@${levelName(from)}–${levelName(to)}`;
      })
      .join(" → ");
  }

  /** @param {string} name @param {string} caption @param {string[]} heads @param {[string, ...number[]][]} rows */
  function listOf(name, caption, [first, ...heads], rows) {
    const body = rows.map(([way, ...amounts]) =>
      el(
        "tr",
        {},
        el("td", { class: "way" }, way),
        amounts.map((amount) => el("td", {}, number(amount, 4))),
      ),
    );
    const table = tableOf({}, [el("th", { scope: "col", class: "way" }, first), ...heads], body, caption);
    return el("div", { class: name }, table);
  }

  /** @param {Flow} flow */
  function fillLists({ paths, cut, edges, capacity, value }) {
    const sum = (/** @type {number[]} */ numbers) => numbers.reduce((total, x) => total + x, 0),
      rest = capacity - sum(cut.map(([, , , width]) => width));
    /** @type {[string, number][]} */
    const limiting = cut.map(([step, query, key, width]) => [edgeName({ step, query, key }), width]);
    if (edges > cut.length) limiting.push([`and ${edges - cut.length} narrower`, rest]);
    lists.replaceChildren(
      listOf(
        "paths",
        `The widest paths carry ${percent(sum(paths.map(([amount]) => amount)) / (value || 1))} of the flow`,
        ["path", "flow", "rollout"],
        paths.map(([amount, rollout, ...positions]) => [pathName(positions), amount, rollout]),
      ),
      cut.length
        ? listOf("cuts", "The minimum cut: every path crosses one of these full edges", ["edge", "capacity"], limiting)
        : "",
    );
  }

  /** @param {Now} at @returns {Promise<Flow | null>} null if the page does not have it */
  async function solve(at) {
    const pair = { unit: at.unit, query: at.query, layer: data.layers[at.layer], token: at.token },
      key = keyOf(at.unit, pair);
    const flow = flows.get(key) ?? (server ? await server.paths(pair) : null);
    if (flow) flows.set(key, flow);
    return flow;
  }

  async function paint() {
    const at = current(),
      isKnown = known(at),
      key = keyOf(at.unit, at);
    const choices = server || !isKnown.length ? at.tokens.map((_, i) => i) : [...new Set([...isKnown, at.token])];
    tokenPick.replaceChildren(
      ...choices.sort((a, b) => a - b).map((i) => el("option", { value: i }, `${i} ${plainToken(at.tokens[i])}`)),
    );
    tokenPick.value = String(at.token);
    sentence.textContent = `between ${at.queryName} at ${at.layerName}`;
    asked = key;
    node.setAttribute("aria-busy", "true");
    /** @type {Flow | null} */
    let flow = null,
      problem = "";
    try {
      flow = await solve(at);
    } catch (error) {
      problem = `The flow could not be computed: ${messageOf(error)}`;
    }
    if (asked !== key) return;
    node.removeAttribute("aria-busy");
    solved = flow;
    holder.hidden = !flow;
    if (flow) show(at, flow);
    else showRow(at, problem);
  }

  /** @param {Now} at @param {Flow} flow */
  function show(at, flow) {
    const sent = page.values("rollout")?.rows[at.layer][at.token],
      { query = -1, notes = {} } = data.reliability[at.unit] ?? {};
    limit.textContent = [...(query === at.query ? (notes.flow?.[at.layer] ?? []) : []), flow.limit].join(" ");
    say.replaceChildren(
      el(
        "strong",
        {
          class: "value",
          "data-value": flow.value,
          title: `${flow.value}; the capacity of the cut differs by ${flow.gap}`,
        },
        number(flow.value),
      ),
      ` is the most that ${at.queryName} at ${at.layerName} can get from ${plainToken(at.tokens[at.token])}. Each value is between 0 and 1 on its own; a row does not sum to 1.`,
      sent === undefined
        ? ""
        : el("span", { class: "beside", "data-rollout": sent }, ` Rollout gives it ${number(sent)}.`),
    );
    holder.replaceChildren(
      draw(page.colours(), flow),
      el(
        "p",
        { class: "hint" },
        "The width of a ribbon is the flow it carries; the accent colour marks the minimum cut.",
      ),
    );
    fillLists(flow);
  }

  /** Without a certificate, list the row's values, strongest first.
   *
   * @param {Now} at
   * @param {string} problem
   */
  function showRow(at, problem) {
    const opening = data.flows.find(({ unit }) => unit === at.unit);
    limit.textContent =
      problem ||
      (opening
        ? `This page carries the paths of flow only for the strongest words of ${plainToken(at.names[opening.query])}, the query that it opened with: attnflow serve computes others, or make the page with another query.`
        : "This page carries no paths of flow: attnflow serve computes them.");
    const columns = ["flow", "rollout"].flatMap((name) => {
      const row = page.values(name)?.row;
      return row ? [{ name, row }] : [];
    });
    say.textContent = columns.length ? `What ${at.queryName} at ${at.layerName} takes from each token:` : "";
    const order = columns.length
      ? [...at.inputs].sort((a, b) => columns[0].row[b] - columns[0].row[a]).slice(0, 12)
      : [];
    lists.replaceChildren(
      columns.length
        ? listOf(
            "paths",
            "The strongest tokens",
            ["token", ...columns.map(({ name }) => name)],
            order.map((i) => [plainToken(at.tokens[i]), ...columns.map(({ row }) => row[i])]),
          )
        : "",
    );
  }

  /** @returns {Cells[]} */
  function csvRows() {
    const name = (/** @type {number[]} */ positions) =>
      positions
        .map((position, i) => {
          const level = positions.length - 1 - i;
          return `${page.stateName(level, position, 1e9)}@${level}`;
        })
        .join(" > ");
    return [
      ["path", "flow", "rollout"],
      ...(solved?.paths ?? []).map(([amount, rollout, ...positions]) => [name(positions), amount, rollout]),
    ];
  }

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "q", "l", "t", "u", "v", "theme", "rows", "width")) paint();
    },
  };
}
