import { button, el, plainToken } from "./draw.js";
import { graphPanel } from "./graph.js";
import { headsPanel } from "./heads.js";
import { pathsPanel } from "./paths.js";

/** @import { Changed, Page, Panel } from "./types" */

/** @type {Record<string, { title: string, make: (page: Page) => Panel }>} */
const VIEWS = {
  graph: { title: "Graph", make: graphPanel },
  paths: { title: "Flow paths", make: pathsPanel },
  heads: { title: "Heads", make: headsPanel },
};

export const VIEW_NAMES = Object.keys(VIEWS);

/** The views of the graph as tabs, each built when first opened.
 *
 * @param {Page} page
 * @param {string} prefix
 */
export function viewTabs(page, prefix) {
  const { state } = page;
  const tabs = el(
    "div",
    { class: "tabs", role: "tablist", "aria-label": "views of the graph" },
    Object.entries(VIEWS).map(([name, { title }]) =>
      el(
        "button",
        {
          type: "button",
          role: "tab",
          id: `${prefix}tab-${name}`,
          "data-view": name,
          "aria-controls": `${prefix}view`,
          onclick: () => state.set({ v: name }),
        },
        title,
      ),
    ),
  );
  const viewBox = el("div", { class: "viewbox", role: "tabpanel", id: `${prefix}view` });
  tabs.addEventListener("keydown", (event) => {
    const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0,
      names = VIEW_NAMES;
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const next = names[(names.indexOf(state.get().v) + step + names.length) % names.length];
    state.set({ v: next });
    /** @type {HTMLElement | null} */ (tabs.querySelector(`[data-view=${next}]`))?.focus();
  });

  function paint() {
    const s = state.get();
    for (const tab of tabs.querySelectorAll("button")) {
      const on = tab.dataset.view === s.v;
      tab.setAttribute("aria-selected", String(on));
      tab.tabIndex = on ? 0 : -1;
      if (on) viewBox.setAttribute("aria-labelledby", tab.id);
    }
  }

  /** @type {Record<string, Panel>} */
  const opened = {};

  /** @param {Changed} changed */
  function showView(changed) {
    const name = state.get().v,
      at = page.now();
    if (!page.data.levels.length) return;
    if (page.data.isPool(at.unit, at.query)) {
      viewBox.replaceChildren(
        el(
          "p",
          { class: "hint" },
          "The graph, flow paths and heads show one token's state. ",
          button(`show ${plainToken(at.tokens[at.token])}`, () => state.set({ q: at.token }), { class: "quiet" }),
        ),
      );
      return;
    }
    const fresh = !opened[name];
    const view = (opened[name] ??= VIEWS[name].make(page));
    const away = viewBox.firstChild !== view.node;
    if (away) viewBox.replaceChildren(view.node);
    view.update(fresh || away || changed?.has("v") ? null : changed);
  }

  const section = el("section", { class: "panel", "data-panel": "views" }, tabs, viewBox);
  return { node: viewBox, section, paint, update: showView };
}
