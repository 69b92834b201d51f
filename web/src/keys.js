import { el, between, closest, number, plainToken } from "./draw.js";

/** @import { Page } from "./types" */

const KEYS = [
  ["← →", "previous or next token"],
  ["↑ ↓", "layer up or down"],
  ["q", "make the selected token the query"],
  ["w", "words or subwords"],
  ["s", "show or hide special tokens"],
  ["o", "open or close Details"],
  ["1 2 3", "graph, flow paths, heads"],
  ["d", "light or dark"],
  ["Tab", "next control; in the graph, arrow keys move between states"],
  ["?", "this list"],
];

/** Handle a page's keyboard shortcuts, and return the dialog that lists them.
 *
 * @param {Page} page
 * @param {HTMLElement} node
 * @param {string} prefix
 * @param {AbortSignal} signal
 */
export function listenToKeys(page, node, prefix, signal) {
  const { data, state } = page;
  const help = el(
    "dialog",
    { class: "help", "aria-label": "keys" },
    el("h2", {}, "Keys"),
    el(
      "dl",
      {},
      KEYS.flatMap(([key, what]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, what)]),
    ),
    el("form", { method: "dialog" }, el("button", {}, "close")),
  );
  document.addEventListener(
    "keydown",
    (event) => {
      // without any focus, the first page gets the keys
      const inside = node.contains(/** @type {Node} */ (event.target));
      if (!inside && (prefix || event.target !== document.body)) return;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (closest(event, "input[type=text], textarea, select, dialog")) return;
      if (closest(event, "input") && event.key.startsWith("Arrow")) return;
      const at = page.now(),
        places = at.inputs,
        place = places.indexOf(at.token);
      /** @param {number} step */
      const token = (step) => state.set({ t: places[between(0, place + step, places.length - 1)] });
      /** @param {number} step */
      const layer = (step) => state.set({ l: data.layers[between(0, at.layer + step, data.layers.length - 1)] + 1 });
      /** @type {Record<string, () => unknown>} */
      const acts = {
        ArrowLeft: () => token(-1),
        ArrowRight: () => token(1),
        ArrowUp: () => layer(1),
        ArrowDown: () => layer(-1),
        q: () =>
          !data.queries && at.token >= data.firstQuery && at.token < at.names.length && state.set({ q: at.token }),
        w: () =>
          data.units.words
            ? page.switchUnit(at.unit === "words" ? "subwords" : "words")
            : page.announce("every token is a word here"),
        s: () => state.set({ s: state.get().s ? 0 : 1 }),
        d: () => page.switchTheme(),
        o: () => state.set({ d: state.get().d ? 0 : 1 }),
        "?": () => help.showModal(),
        1: () => page.openView("graph"),
        2: () => page.openView("paths"),
        3: () => page.openView("heads"),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
      if (event.key.startsWith("Arrow")) {
        const after = page.now(),
          name = page.values("rollout") ? "rollout" : page.methods[0]?.name,
          main = name && page.values(name);
        page.announce(
          `${plainToken(after.tokens[after.token])}, ${after.layerName}${main ? `, ${name} ${number(main.row[after.token])}` : ""}`,
        );
      }
    },
    { signal },
  );

  node.append(help);
  return help;
}
