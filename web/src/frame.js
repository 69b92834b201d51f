import { el, flattened, makeTip, choice, press } from "./draw.js";
import { keepControls } from "./share.js";
import { makeState } from "./state.js";
import { makeTheme } from "./theme.js";

/** @import { Child, Choices, PanelsPage, Section } from "./types" */

/** @param {number} n @param {string} name */
export const many = (n, name) => `${n.toLocaleString("en")} ${name}${n === 1 ? "" : "s"}`;

/** @param {string} text */
const listed = (text) => (text ? text.split(",") : []);

/** Return the short name of a model: for a path, its last two parts.
 *
 * @param {unknown} model
 */
export const shortName = (model) =>
  String(model ?? "")
    .split(/[\\/]/)
    .slice(-2)
    .join("/");

/** The top bar: attnflow, the model, and the controls.
 *
 * @param {Child[]} facts
 * @param {string | null} title
 * @param {...Child} controls
 */
export function topOf(facts, title, ...controls) {
  const model = el("span", { class: "model-name", title }, facts.filter(Boolean).join(" · "));
  const brand = el("div", { class: "brand" }, el("h1", {}, "attnflow"), model);
  return el("header", { class: "top" }, brand, el("div", { class: "controls" }, controls));
}

/** @param {string} name @param {string} title @param {string} hint @param {Child} controls @param {...Child} body */
export function panel(name, title, hint, controls, ...body) {
  const top = el("header", {}, el("h2", {}, title), controls);
  return el("section", { class: "panel", "data-panel": name }, top, el("p", { class: "hint" }, hint), body);
}

/** A menu for one name of the state, the same in every panel that has it.
 *
 * @param {PanelsPage} page
 * @param {string} name
 * @param {string} key
 * @param {string[]} options
 */
export function pick(page, name, key, options) {
  const entries = options.map((value) => el("option", { value }, value));
  const select = el("select", { "data-pick": key }, entries);
  select.addEventListener("change", () => page.state.set({ [key]: select.value }));
  page.follow(() => (select.value = page.state.get()[key]));
  return options.length > 1 ? el("label", {}, `${name} `, select) : "";
}

/** The same choice as buttons.
 *
 * @param {PanelsPage} page
 * @param {string} name
 * @param {string} key
 * @param {Record<string, string>} options the text of each by its value
 */
export function switched(page, name, key, options) {
  const group = choice(name, options, "", (value) => page.state.set({ [key]: value }));
  page.follow(() => press(group, page.state.get()[key]));
  return group;
}

/** Checkboxes: the state stores the checked values, separated by commas.
 *
 * @param {PanelsPage} page
 * @param {string} name
 * @param {string} key
 * @param {string[][]} entries value and text of each
 */
export function checks(page, name, key, entries) {
  const boxes = entries.map(([value]) => el("input", { type: "checkbox", value }));
  const values = () => boxes.flatMap((box) => (box.checked ? [box.value] : []));
  page.follow(() => boxes.forEach((box) => (box.checked = listed(page.state.get()[key]).includes(box.value))));
  const labels = entries.map(([, text], i) => el("label", {}, boxes[i], ` ${text}`));
  const group = el("div", { class: "checks", role: "group", "aria-label": name }, labels);
  group.addEventListener("change", () => page.state.set({ [key]: values().join() }));
  return group;
}

/** Details: everything below the first screen, closed at first. The address stores whether they are open.
 *
 * @param {PanelsPage} page
 */
function everythingElse(page) {
  const node = el("details", { class: "everything" }, el("summary", {}, "Details"));
  node.addEventListener("toggle", () => page.state.set({ open: node.open ? "1" : "" }));
  page.follow(() => (node.open = page.state.get().open === "1"));
  return node;
}

/** Show a page of panels in an element. Each panel is redrawn when something it depends on changes.
 *
 * @template Subject
 * @param {HTMLElement} root
 * @param {object} parts
 * @param {string} parts.kind the page's classes
 * @param {Subject} parts.subject the data of the panels, added to the page object
 * @param {Choices} parts.defaults the state, but for the theme
 * @param {Record<string, { includes(text: string): boolean }>} parts.allowed valid values in the address
 * @param {(theme: HTMLElement) => Child} parts.head the top bar, given the theme button
 * @param {(page: PanelsPage & Subject) => { lead?: Section[], above?: Child[], sections: Section[], foot: string }}
 *   parts.fill nodes before the panels, the panels with the names in the state that each needs, and the last line. With a
 *   `lead`, these panels are the first screen and all others are in Details; the state then needs `open`, and closed
 *   panels are not drawn
 * @param {string} [parts.prefix] of the names in the address
 * @param {() => object} [parts.source] the document, if it is not the one in this file
 */
export function showPanels(root, { kind, subject, defaults, allowed, head, fill, prefix = "", source }) {
  const ended = new AbortController(),
    { signal } = ended;
  const themes = ["", "light", "dark"];
  const opening = root.dataset.view ?? "";
  const state = makeState({ ...defaults, theme: "" }, { ...allowed, theme: themes }, prefix, signal, opening);
  const theme = makeTheme(root, state, signal, () => update());
  const node = el("article", { class: `attnflow ${kind}` }, head(theme.node));
  root.replaceChildren(node);
  const live = el("p", { class: "sr", "aria-live": "polite" });
  const announce = (/** @type {string} */ text) => void (live.textContent = text);
  node
    .querySelector(".top .controls")
    ?.prepend(...keepControls({ state, name: kind.split(" ").at(-1) ?? kind, announce, source }));
  /** @type {(() => void)[]} */
  const followers = [];
  const page = {
    ...subject,
    state: /** @type {import("./types").State<Choices>} */ (state),
    tip: makeTip(root),
    colours: theme.colours,
    signal,
    follow: (/** @type {() => void} */ follower) => void followers.push(follower),
  };
  const { lead, above = [], sections, foot } = fill(page);
  const rest = flattened([above, sections.map((section) => section.node), el("footer", {}, foot)]);
  if (lead) {
    const closed = everythingElse(page);
    closed.append(...rest);
    node.append(...lead.map((section) => section.node), closed);
  } else node.append(...rest);
  node.append(live);

  /** @param {Set<string>} [changed] */
  function update(changed) {
    theme.paint();
    page.tip.hide();
    followers.forEach((follower) => follower());
    const isTouched = (/** @type {Section} */ { needs }) => !changed || needs.some((name) => changed.has(name));
    for (const section of lead ?? []) if (isTouched(section)) section.draw();
    if (!lead || page.state.get().open)
      for (const section of sections) if (isTouched(section) || (lead && changed?.has("open"))) section.draw();
    node.dataset.settled = node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
  }
  state.listen(update);
  let width = node.clientWidth;
  const resized = new ResizeObserver(() => {
    if (Math.abs(node.clientWidth - width) < 8) return;
    width = node.clientWidth;
    update();
  });
  resized.observe(node);
  root.removeAttribute("aria-busy");
  update();

  function close() {
    ended.abort();
    resized.disconnect();
    root.replaceChildren();
  }
  return { page, close };
}
