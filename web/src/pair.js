// Two texts, or one text by two models, compared word by word, with both pages below; or the similarity of two texts.
import { boot } from "./boot.js";
import { read } from "./data.js";
import { el } from "./draw.js";
import { shortName, topOf } from "./frame.js";
import { mount } from "./page.js";
import { pairView } from "./pair-view.js";
import { keepControls } from "./share.js";
import { showSimilarity } from "./similarity.js";
import { makeState } from "./state.js";
import { makeTheme } from "./theme.js";

/** @import { PairDocument } from "./types" */

/** @param {HTMLElement} root @param {any} doc of a pair, or of one of its pages that was saved separately */
async function showFile(root, doc) {
  if (doc.format === "attnflow-page") mount(root, await read(doc));
  else if (doc.format === "attnflow-similarity") showSimilarity(root, doc);
  else await showPair(root, doc);
}

/** @param {HTMLElement} root @param {PairDocument} doc */
async function showPair(root, doc) {
  if (doc.format !== "attnflow-pair" || doc.version > 1)
    throw new Error(`this page cannot read a document of format ${doc.format} ${doc.version ?? ""}`);
  const [first, second] = await Promise.all(doc.pages.map(read));
  const { signal } = new AbortController(),
    opening = root.dataset.view ?? "";
  const dress = makeState({ theme: "" }, { theme: ["", "light", "dark"] }, "", signal, opening);
  const theme = makeTheme(root, dress, signal, () => theme.paint());
  dress.listen(() => theme.paint());
  theme.paint();
  const view = pairView(first, second, { prefix: "", alignments: doc.alignments, opening, hasMenu: false });
  const live = el("p", { class: "sr", "aria-live": "polite" }),
    announce = (/** @type {string} */ text) => void (live.textContent = text);
  // one selection: the pair's own, and the theme of the whole page
  const text = () => `${view.state.text()}&theme=${dress.get().theme}`;
  const state = { ...view.state, text, fragment: () => withTheme(view.state.fragment(), dress.get().theme) };
  const models = [...new Set([first, second].map((data) => shortName(data.model.model)))];
  const pages = el("div", { class: "pair-pages" });
  const both = el("details", { class: "both" }, el("summary", {}, "Both pages"), pages);
  both.addEventListener("toggle", () => {
    if (!both.open || pages.children.length) return;
    [first, second].forEach((data, i) => {
      const box = el("div", {});
      pages.append(box);
      const shown = mount(box, data, ["a.", "b."][i]);
      const follow = () => shown.state.set({ theme: root.dataset.theme ?? "" });
      new MutationObserver(follow).observe(root, { attributeFilter: ["data-theme"] });
      follow();
    });
  });
  const node = el(
    "article",
    { class: "attnflow pair-page", lang: "en" },
    topOf([models.join(" and ")], null, keepControls({ state, name: "pair", announce, works: view.works }), theme.node),
    view.node,
    both,
    live,
  );
  root.replaceChildren(node);
  root.removeAttribute("aria-busy");
  view.paint();
  node.dataset.settled = node.dataset.updated = "1";
}

/** @param {string} fragment @param {string} theme */
function withTheme(fragment, theme) {
  const parameters = new URLSearchParams(fragment.slice(1));
  if (theme) parameters.set("theme", theme);
  else parameters.delete("theme");
  return `#${parameters}`;
}

boot(showFile);
