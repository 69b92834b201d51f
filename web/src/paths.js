import { button, el, svg, messageOf, number, percent, plainToken, tableOf } from "./draw.js";
import { maxFlow, flowPaths, alongPaths } from "./maths.js";
import { exportMenu } from "./keep.js";
import { touched } from "./state.js";
import { layered, curve } from "./graph.js";
import { bottleneck, cannotTell, strongestWord } from "./flow-words.js";

/** @import { Cells, Changed, Edge, Flow, Now, Page, Palette } from "./types" */
/** @typedef {Flow & { exact: boolean, end: number, at: Now }} Solved */

const DRAWN = 40; // paths drawn when all are shown
const SOUGHT = 400;
const LISTED = 5; // paths listed at first
const CUT = 12; // edges of the cut that are listed

/** The maximum flow between a state and an input as paths, the edges that limit it, and rollout along the same paths.
 *
 * @param {Page} page
 */
export function pathsPanel(page) {
  const { data, state } = page;
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
  let all = false, // show all paths, not only the widest
    anyway = false; // show paths although flow cannot tell tokens apart
  /** @type {Map<string, Solved>} */
  const flows = new Map();
  let asked = "";
  /** @type {Solved | null} */
  let solved = null;

  /** @param {Now} at */
  const keyOf = (at) => `${at.unit} ${at.query} ${at.layer} ${at.token} ${at.field}`;

  /** @param {Now} at @returns {Promise<Solved | null>} null if the page has no weights */
  async function solve(at) {
    const key = keyOf(at),
      known = flows.get(key);
    if (known) return known;
    const end = data.ends[data.layers[at.layer]];
    /** @type {Solved} */
    let solution;
    if (page.server && !data.exact) {
      const { unit, query, token } = at;
      const flow = await page.server.paths({ unit, query, layer: data.layers[at.layer], token });
      solution = { ...flow, exact: true, end, at };
    } else {
      if (!data.hasWeights) return null;
      const graph = data.graph(at.unit, at.field === "layer" ? "layer" : "");
      const pause = async () => {
        await new Promise((resolve) => setTimeout(resolve));
        if (asked !== key) throw new Error("superseded");
      };
      const flow = await maxFlow(graph, end, at.query, at.token, pause);
      solution = {
        value: flow.value,
        gap: flow.gap,
        cut: flow.cut,
        exact: data.exact,
        end,
        at,
        paths: flowPaths(flow, at.query, at.token, SOUGHT).map((path) => ({
          ...path,
          rollout: alongPaths(graph, end, path.positions),
        })),
      };
    }
    flows.set(key, solution);
    if (flows.size > 60) flows.delete([...flows.keys()][0]);
    return solution;
  }

  /** @param {Edge} edge */
  function edgeName({ step, query, key }) {
    return `${page.stateName(step + 1, query, 14)} at ${data.levels[step]} → ${page.stateName(step, key, 14)}${step ? ` at ${data.levels[step - 1]}` : ""}`;
  }

  /** Return the selection; the default token is the strongest word. @returns {Now} */
  function current() {
    const at = page.now();
    return state.get().t >= 0 ? at : { ...at, token: strongestWord(page, at) };
  }

  /** @param {Palette} colours @param {Solved} solution */
  function draw(colours, solution) {
    const { at, end, cut, value } = solution;
    const shown = solution.paths.slice(0, all ? DRAWN : LISTED);
    /** @type {Map<string, Edge & { amount: number }>} */
    const amounts = new Map();
    /** @param {number} step @param {number} query @param {number} key @param {number} amount */
    const add = (step, query, key, amount) => {
      const name = `${step} ${query} ${key}`;
      const edge = amounts.get(name) ?? { step, query, key, amount: 0 };
      edge.amount += amount;
      amounts.set(name, edge);
    };
    for (const { positions, amount } of shown)
      positions.slice(1).forEach((key, i) => add(end - i, positions[i], key, amount));
    const limiting = new Set(cut.map(({ step, query, key }) => `${step} ${query} ${key}`));
    const columns = new Set([at.query, at.token]);
    for (const edge of amounts.values()) {
      columns.add(edge.query);
      columns.add(edge.key);
    }
    const title = `maximum flow between ${at.queryName} at ${at.layerName} and ${plainToken(at.tokens[at.token])}: ${number(value)}`;
    const frame = layered(
      [...columns].sort((a, b) => a - b),
      end + 2,
      at.tokens,
      data.levels,
      colours,
      { title, width: page.width() - 40 },
    );
    const widest = Math.min(20, frame.gap * 0.7),
      scale = widest / (Number.isFinite(value) && value > 0 ? value : 1);
    for (const edge of [...amounts.values()].sort((a, b) => b.amount - a.amount)) {
      const full = limiting.has(`${edge.step} ${edge.query} ${edge.key}`);
      const path = svg(
        "path",
        {
          d: curve(frame.x(edge.query), frame.y(edge.step + 1), frame.x(edge.key), frame.y(edge.step)),
          fill: "none",
          stroke: full ? colours.accent : colours.css[170],
          "stroke-opacity": full ? 0.9 : 0.55,
          "stroke-width": Math.max(0.8, edge.amount * scale).toFixed(2),
          "data-cut": full ? "1" : null,
          "data-edge": `${edge.step} ${edge.query} ${edge.key}`,
        },
        svg("title", {}, `${edgeName(edge)}: ${edge.amount}${full ? " · full, in the minimum cut" : ""}`),
      );
      frame.node.append(path);
    }
    for (const edge of cut) {
      if (amounts.has(`${edge.step} ${edge.query} ${edge.key}`) || !columns.has(edge.query) || !columns.has(edge.key))
        continue;
      frame.node.append(
        svg(
          "path",
          {
            d: curve(frame.x(edge.query), frame.y(edge.step + 1), frame.x(edge.key), frame.y(edge.step)),
            fill: "none",
            stroke: colours.accent,
            "stroke-width": Math.max(0.8, edge.capacity * scale).toFixed(2),
            "stroke-opacity": 0.5,
            "stroke-dasharray": "3 2",
            "data-cut": "1",
          },
          svg("title", {}, `${edgeName(edge)}: ${edge.capacity} · in the minimum cut`),
        ),
      );
    }
    /** @param {number} level @param {number} position @param {boolean} chosen */
    const dot = (level, position, chosen) =>
      frame.node.append(
        svg("circle", {
          cx: frame.x(position).toFixed(1),
          cy: frame.y(level).toFixed(1),
          r: chosen ? 6 : 3.2,
          fill: chosen ? colours.accent : colours.paper,
          stroke: chosen ? colours.accent : colours.faint,
        }),
      );
    const dots = new Set();
    for (const edge of amounts.values()) {
      dots.add(`${edge.step + 1} ${edge.query}`);
      dots.add(`${edge.step} ${edge.key}`);
    }
    for (const name of dots) {
      const [level, position] = name.split(" ").map(Number);
      dot(level, position, false);
    }
    dot(end + 1, at.query, true);
    dot(0, at.token, true);
    return frame.node;
  }

  /** @param {Solved} solution */
  function fillLists(solution) {
    /** @param {string} name @param {string} caption @param {string[]} heads @param {HTMLElement[]} rows */
    const table = (name, caption, [first, ...heads], rows) => {
      const way = el("th", { scope: "col", class: "way" }, first);
      return el("div", { class: name }, tableOf({}, [way, ...heads], rows, caption));
    };
    /** @param {import("./types").Attributes} attributes @param {string} way @param {...number} amounts */
    const row = (attributes, way, ...amounts) =>
      el(
        "tr",
        {},
        el("td", { class: "way", ...attributes }, way),
        amounts.map((amount) => el("td", {}, number(amount, 4))),
      );
    const way = (/** @type {number[]} */ positions) =>
      positions.map((position, i) => {
        const level = solution.end + 1 - i;
        return `${page.stateName(level, position, 14)}${level ? `@${data.levels[level - 1]}` : ""}`;
      });
    /** Describe a path; a run of layers at one position is named once, with its first and last layer.
     *
     * @param {number[]} positions
     */
    const short = (positions) => {
      /** @type {{ position: number, from: number, to: number }[]} */
      const stays = [];
      const level = (/** @type {number} */ i) => (solution.end + 1 - i ? data.levels[solution.end - i] : "input");
      positions.forEach((position, i) => {
        const last = stays.at(-1);
        if (last?.position === position) last.to = i;
        else stays.push({ position, from: i, to: i });
      });
      return stays
        .map(({ position, from, to }) => {
          const name = page.stateName(solution.end + 1 - from, position, 14);
          return from === to
            ? level(from) === "input"
              ? name
              : `${name}@${level(from)}`
            : `${name}@${level(from)}–${level(to)}`;
        })
        .join(" → ");
    };
    const { paths, cut } = solution,
      listed = all ? paths : paths.slice(0, LISTED),
      hidden = paths.length - listed.length,
      total = listed.reduce((sum, path) => sum + path.amount, 0);
    const widest = table(
      "paths",
      `The widest paths carry ${percent(total / (solution.value || 1))} of the flow`,
      ["path", "flow", "rollout"],
      listed.map(({ positions, amount, rollout }) =>
        row({ title: way(positions).join(" → ") }, short(positions), amount, rollout),
      ),
    );
    if (hidden > 0 || all)
      widest.append(
        button(
          all ? "only the widest" : `${hidden}${paths.length === SOUGHT ? " or more" : ""} more`,
          () => {
            all = !all;
            paint();
          },
          { class: "more" },
        ),
      );
    lists.replaceChildren(widest);
    if (!cut.length) return;
    const limiting = cut.slice(0, CUT).map((edge) => row({}, edgeName(edge), edge.capacity)),
      rest = cut.slice(CUT);
    limiting.forEach((edge) => edge.classList.add("cut"));
    if (rest.length)
      limiting.push(
        row(
          {},
          `and ${rest.length} narrower`,
          rest.reduce((sum, edge) => sum + edge.capacity, 0),
        ),
      );
    lists.append(
      table("cuts", "The minimum cut: every path crosses one of these full edges", ["edge", "capacity"], limiting),
    );
  }

  async function paint() {
    const at = current();
    if (tokenPick.dataset.unit !== at.unit) {
      tokenPick.dataset.unit = at.unit;
      tokenPick.replaceChildren(
        ...at.tokens.map((token, i) => el("option", { value: i }, `${i} ${plainToken(token)}`)),
      );
    }
    tokenPick.value = String(at.token);
    sentence.textContent = `between ${at.queryName} at ${at.layerName}`;
    const key = keyOf(at);
    asked = key;
    node.setAttribute("aria-busy", "true");
    if (!flows.has(key)) say.textContent = "Solving …";
    let solution;
    try {
      solution = await solve(at);
    } catch (error) {
      if (asked !== key) return;
      say.textContent = `The flow could not be computed: ${messageOf(error)}`;
      node.removeAttribute("aria-busy");
      return;
    }
    if (asked !== key) return;
    node.removeAttribute("aria-busy");
    solved = solution;
    if (!solution) {
      showRow(at);
      return;
    }
    const exact = page.values("flow"),
      sent = page.values("rollout")?.rows[at.layer][at.token];
    const value = exact?.exact && !at.field ? exact.rows[at.layer][at.token] : solution.value;
    say.replaceChildren(
      el(
        "strong",
        {
          class: "value",
          "data-value": solution.value,
          title: `${solution.value}${solution.gap !== undefined ? `; the capacity of the cut differs by ${solution.gap}` : ""}`,
        },
        `${solution.exact ? "" : "≈ "}${number(value)}`,
      ),
      ` is the most that ${at.queryName} at ${at.layerName} can get from ${plainToken(at.tokens[at.token])}. Each value is between 0 and 1 on its own; a row does not sum to 1. `,
      sent === undefined
        ? ""
        : el(
            "span",
            { class: "beside", "data-rollout": sent },
            at.field && at.field !== "layer"
              ? ""
              : `Rollout gives it ${number(sent)}, of which ${number(solution.paths.reduce((sum, path) => sum + path.rollout, 0))} comes along the paths below.`,
          ),
    );
    const blind = cannotTell(page, at);
    limit.replaceChildren(
      blind || bottleneck(solution, edgeName),
      blind
        ? button(anyway ? "hide the paths" : "show the paths", () => {
            anyway = !anyway;
            paint();
          })
        : "",
    );
    limit.classList.toggle("blind", Boolean(blind));
    holder.hidden = lists.hidden = Boolean(blind) && !anyway;
    if (holder.hidden) return;
    const colours = page.colours();
    const left = solution.paths.length - (all ? DRAWN : LISTED);
    holder.replaceChildren(
      draw(colours, solution),
      el(
        "p",
        { class: "hint" },
        `The width of a ribbon is the flow it carries; the accent colour marks the minimum cut.${left > 0 ? ` Shown: the ${all ? DRAWN : LISTED} widest of ${solution.paths.length} paths.` : ""}`,
      ),
    );
    fillLists(solution);
  }

  /** Without the weights there are no paths: list the row's values instead, strongest first.
   *
   * @param {Now} at
   */
  function showRow(at) {
    holder.hidden = lists.hidden = false;
    limit.replaceChildren();
    const columns = ["flow", "rollout"].flatMap((name) => {
      const row = page.values(name)?.row;
      return row ? [{ name, row }] : [];
    });
    const [first] = columns;
    say.textContent = `Flow paths need the weights, which this page does not include.${first ? ` What ${at.queryName} at ${at.layerName} takes from each token, by ${columns.map(({ name }) => name).join(" and ")}:` : ""}`;
    holder.replaceChildren();
    if (!first) {
      lists.replaceChildren();
      return;
    }
    const order = [...at.inputs].sort((a, b) => first.row[b] - first.row[a]),
      shown = all ? order : order.slice(0, LISTED),
      left = order.length - shown.length;
    const rows = shown.map((i) =>
      el(
        "tr",
        {},
        el("td", { class: "way" }, plainToken(at.tokens[i])),
        columns.map(({ row }) => el("td", {}, number(row[i], 4))),
      ),
    );
    lists.replaceChildren(
      el(
        "div",
        { class: "paths" },
        tableOf({}, [el("th", { scope: "col", class: "way" }, "token"), ...columns.map(({ name }) => name)], rows),
        left > 0 || all
          ? button(
              all ? "only the strongest" : `${left} more`,
              () => {
                all = !all;
                paint();
              },
              { class: "more" },
            )
          : "",
      ),
    );
  }

  /** @returns {Cells[]} */
  function csvRows() {
    if (!solved) return [["path", "flow", "rollout"]];
    const { end, paths } = solved;
    return [
      ["path", "flow", "rollout"],
      ...paths.map((path) => [
        path.positions.map((position, i) => `${page.stateName(end + 1 - i, position, 1e9)}@${end + 1 - i}`).join(" > "),
        path.amount,
        path.rollout,
      ]),
    ];
  }

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "q", "l", "t", "u", "f", "v", "theme", "rows", "width")) paint();
    },
  };
}
