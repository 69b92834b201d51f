import { el, svg, label, number, plainToken } from "./draw.js";
import { maxFlow, flowPaths, alongPaths } from "./maths.js";
import { exportMenu } from "./keep.js";
import { grid, curve } from "./graph.js";

const DRAWN = 40;
const FOUND = 400;
const LISTED = 12;

/** The maximum flow between a state and an input as paths, with the edges that limit it, and rollout along the same paths. */
export function pathsPanel(page) {
  const { data, state } = page;
  const holder = el("div", { class: "scroll" }),
    say = el("p", { class: "told", "aria-live": "polite" }),
    lists = el("div", { class: "columns" });
  const tokenPick = el("select", {
    "aria-label": "input token",
    onchange: (event) => state.set({ t: Number(event.target.value) }),
  });
  const sentence = el("p", { class: "pair" });
  const node = el(
    "section",
    { class: "view", "data-view": "paths" },
    el(
      "header",
      {},
      sentence,
      el("label", {}, "and the input ", tokenPick),
      exportMenu(
        "flow",
        (colours) =>
          solved ? draw(colours, solved) : grid([0], 1, ["–"], [], colours, { title: "no flow", width: 200 }).node,
        csvRows,
        data,
        page.announce,
      ),
    ),
    say,
    holder,
    lists,
  );
  const known = new Map();
  let asked = "",
    solved = null;

  async function solve(at) {
    const key = `${at.unit} ${at.query} ${at.layer} ${at.token} ${at.field}`;
    if (known.has(key)) return known.get(key);
    const end = data.ends[data.layers[at.layer]];
    let found;
    if (page.asks && !data.exact) {
      found = {
        ...(await page.asks.paths({ unit: at.unit, query: at.query, layer: data.layers[at.layer], token: at.token })),
        exact: true,
      };
    } else {
      if (!data.hasWeights) return null;
      const graph = data.graph(at.unit, at.field === "layer" ? "layer" : "");
      const pause = async () => {
        await new Promise((resolve) => setTimeout(resolve));
        if (asked !== key) throw new Error("superseded");
      };
      const flow = await maxFlow(graph, end, at.query, at.token, pause);
      found = {
        value: flow.value,
        gap: flow.gap,
        cut: flow.cut,
        exact: data.exact,
        paths: flowPaths(flow, at.query, at.token, FOUND).map((path) => ({
          ...path,
          rollout: alongPaths(graph, end, path.positions),
        })),
      };
    }
    found = { ...found, end, at };
    known.set(key, found);
    if (known.size > 60) known.delete(known.keys().next().value);
    return found;
  }

  function edgeName({ step, query, key }) {
    return `${page.stateName(step + 1, query, 14)} at ${data.levels[step]} → ${page.stateName(step, key, 14)}${step ? ` at ${data.levels[step - 1]}` : ""}`;
  }

  function limits(found) {
    const { cut, end, at } = found;
    if (!cut.length) return found.value === 0 ? "Nothing can: no path leads there." : "Nothing limits it.";
    if (cut.every((edge) => edge.step === end && edge.query === at.query))
      return `What limits it is the query's own edges (${cut.length}): all that leaves it could come from this token.`;
    if (cut.every((edge) => edge.step === 0 && edge.key === at.token))
      return `What limits it is the edges at the token (${cut.length}): no more of it is looked at in the first layer, whatever the query.`;
    return `${cut.length === 1 ? "This one edge limits" : `These ${cut.length} edges limit`} it to ${number(found.value)}.`;
  }

  function draw(colours, found) {
    const { at, end, cut, value } = found;
    const shown = found.paths.slice(0, DRAWN);
    const amounts = new Map();
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
    const frame = grid(
      [...columns].sort((a, b) => a - b),
      end + 2,
      at.tokens,
      data.levels,
      colours,
      { title, width: page.width() - 40 },
    );
    frame.node.append(label(0, 10, title, { "font-size": 12, "font-weight": 600 }));
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
      if (
        amounts.has(`${edge.step} ${edge.query} ${edge.key}`) ||
        frame.x(edge.query) === undefined ||
        frame.x(edge.key) === undefined
      )
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

  function fillLists(found) {
    const table = (caption, head, rows, name) =>
      el(
        "div",
        { class: name },
        el(
          "table",
          {},
          el("caption", {}, caption),
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              head.map((text, i) => el("th", { scope: "col", class: i ? null : "way" }, text)),
            ),
          ),
          el("tbody", {}, rows),
        ),
      );
    const way = (positions) =>
      positions.map((position, i) => {
        const level = found.end + 1 - i;
        return `${page.stateName(level, position, 14)}${level ? `@${data.levels[level - 1]}` : ""}`;
      });
    /** a state that stays where it is from layer to layer is told once, with both ends of its stay */
    const short = (positions) => {
      const stays = [],
        level = (i) => (found.end + 1 - i ? data.levels[found.end - i] : "input");
      positions.forEach((position, i) =>
        positions[i - 1] === position ? (stays.at(-1).to = i) : stays.push({ position, from: i, to: i }),
      );
      return stays
        .map(({ position, from, to }) => {
          const name = page.stateName(found.end + 1 - from, position, 14);
          return from === to
            ? level(from) === "input"
              ? name
              : `${name}@${level(from)}`
            : `${name}@${level(from)}–${level(to)}`;
        })
        .join(" → ");
    };
    const total = found.paths.slice(0, LISTED).reduce((sum, path) => sum + path.amount, 0);
    const most = found.paths.length;
    lists.replaceChildren(
      table(
        `The widest paths: ${Math.min(LISTED, most)} of ${most}${most === FOUND ? " or more" : ""}, ${((100 * total) / (found.value || 1)).toFixed(0)} % of the flow`,
        ["path", "flow", "rollout"],
        found.paths
          .slice(0, LISTED)
          .map((path) =>
            el(
              "tr",
              {},
              el("td", { class: "way", title: way(path.positions).join(" → ") }, short(path.positions)),
              el("td", {}, number(path.amount, 4)),
              el("td", {}, number(path.rollout, 4)),
            ),
          ),
        "paths",
      ),
      found.cut.length
        ? table(
            "The minimum cut: every path crosses one of these, and all are full",
            ["edge", "capacity"],
            found.cut
              .slice(0, LISTED)
              .map((edge) =>
                el(
                  "tr",
                  { class: "cut" },
                  el("td", { class: "way" }, edgeName(edge)),
                  el("td", {}, number(edge.capacity, 4)),
                ),
              )
              .concat(
                found.cut.length > LISTED
                  ? [
                      el(
                        "tr",
                        {},
                        el("td", { class: "way" }, `and ${found.cut.length - LISTED} narrower`),
                        el(
                          "td",
                          {},
                          number(
                            found.cut.slice(LISTED).reduce((sum, edge) => sum + edge.capacity, 0),
                            4,
                          ),
                        ),
                      ),
                    ]
                  : [],
              ),
            "cuts",
          )
        : "",
    );
  }

  async function paint() {
    const at = page.now();
    if (tokenPick.dataset.unit !== at.unit) {
      tokenPick.dataset.unit = at.unit;
      tokenPick.replaceChildren(
        ...at.tokens.map((token, i) => el("option", { value: i }, `${i} ${plainToken(token)}`)),
      );
    }
    tokenPick.value = String(at.token);
    sentence.textContent = `between ${at.queryName} at ${at.layerName}`;
    const key = `${at.unit} ${at.query} ${at.layer} ${at.token} ${at.field}`;
    asked = key;
    node.setAttribute("aria-busy", "true");
    if (!known.has(key)) say.textContent = "Solving …";
    let found;
    try {
      found = await solve(at);
    } catch (error) {
      if (error.message === "superseded" || asked !== key) return;
      say.textContent = `The flow could not be computed: ${error.message}`;
      node.removeAttribute("aria-busy");
      return;
    }
    if (asked !== key) return;
    node.removeAttribute("aria-busy");
    solved = found;
    if (!found) {
      say.textContent = "Flow paths need the weights, which this page does not hold.";
      holder.replaceChildren();
      lists.replaceChildren();
      return;
    }
    const held = page.values("flow"),
      sent = page.values("rollout")?.rows[at.layer][at.token];
    const value = held?.exact && !at.field ? held.rows[at.layer][at.token] : found.value;
    say.replaceChildren(
      el(
        "strong",
        {
          class: "value",
          "data-value": found.value,
          title: `${found.value}${found.gap !== undefined ? `; the cut differs from it by ${found.gap}` : ""}`,
        },
        `${found.exact ? "" : "≈ "}${number(value)}`,
      ),
      ` is the most that ${at.queryName} at ${at.layerName} can get from ${plainToken(at.tokens[at.token])}. ${limits(found)} Every token is asked by itself, out of 1: these values are no shares. `,
      sent === undefined
        ? ""
        : el(
            "span",
            { class: "beside", "data-rollout": sent },
            at.field && at.field !== "layer"
              ? ""
              : `Rollout sends ${number(sent)} from it, ${number(found.paths.reduce((sum, path) => sum + path.rollout, 0))} of that along the paths found here.`,
          ),
    );
    const colours = page.colours();
    const left = found.paths.length - DRAWN;
    holder.replaceChildren(
      draw(colours, found),
      el(
        "p",
        { class: "hint" },
        `Ribbons are as wide as what they carry; the minimum cut is in the accent colour.${left > 0 ? ` The ${DRAWN} widest of ${found.paths.length} paths are drawn.` : ""}`,
      ),
    );
    fillLists(found);
  }

  function csvRows() {
    if (!solved) return [["path", "flow", "rollout"]];
    return [
      ["path", "flow", "rollout"],
      ...solved.paths.map((path) => [
        path.positions
          .map((position, i) => `${page.stateName(solved.end + 1 - i, position, 1e9)}@${solved.end + 1 - i}`)
          .join(" > "),
        path.amount,
        path.rollout,
      ]),
    ];
  }

  return {
    node,
    update(changed) {
      if (!changed || ["q", "l", "t", "u", "f", "v", "theme", "rows", "width"].some((name) => changed.has(name)))
        paint();
    },
  };
}
