import { PALETTES } from "./colour.js";
import { el, makeTip, button, choice, press } from "./draw.js";
import { makeState } from "./state.js";
import { listed } from "./plots.js";

export const many = (n, name) => `${n.toLocaleString("en")} ${name}${n === 1 ? "" : "s"}`;

/** Who made the page, of which model, and the button of themes. */
export function topOf({ model, revision, dtype }, theme) {
  const name = model?.split(/[\\/]/).slice(-2).join("/"); // the end of a path is enough to know it by
  const told = [name, revision?.replace(/^([0-9a-f]{12})[0-9a-f]+$/, "$1"), dtype].filter(Boolean).join(" · ");
  const title = model === name ? null : model;
  const brand = el(
    "div",
    { class: "brand" },
    el("h1", {}, "attnflow"),
    el("span", { class: "told-model", title }, told),
  );
  return el("header", { class: "top" }, brand, el("div", { class: "controls" }, theme));
}

export function panel(name, title, told, controls, ...body) {
  const top = el("header", {}, el("h2", {}, title), controls);
  return el("section", { class: "panel", "data-panel": name }, top, el("p", { class: "hint" }, told), body);
}

/** What may be wider than its place; `tellMore` says at its edges that there is more. */
export const sideways = (box) => el("div", { class: "sideways" }, box);

/** A table that may be. */
export const wideTable = (name, table) =>
  sideways(el("div", { class: "scroll wide", tabindex: 0, role: "region", "aria-label": name }, table));

function tellMore(box) {
  const beyond = box.scrollWidth - box.clientWidth - box.scrollLeft;
  box.parentNode.classList.toggle("more-left", box.scrollLeft > 1);
  box.parentNode.classList.toggle("more-right", beyond > 1);
}

/** One of some texts: the same choice in every panel that has it. */
export function pick(page, name, key, options) {
  const onchange = () => page.state.set({ [key]: select.value });
  const entries = options.map((value) => el("option", { value }, value));
  const select = el("select", { "data-pick": key, onchange }, entries);
  page.follow(() => (select.value = page.state.get()[key]));
  return options.length > 1 ? el("label", {}, `${name} `, select) : "";
}

/** The same as buttons. options: the text of each by its value. */
export function switched(page, name, key, options) {
  const group = choice(name, options, "", (value) => page.state.set({ [key]: value }));
  page.follow(() => press(group, page.state.get()[key]));
  return group;
}

/** Any of some: their values with commas between. */
export function checks(page, name, key, entries) {
  const onchange = () => page.state.set({ [key]: boxes.flatMap((box) => (box.checked ? [box.value] : [])).join() });
  const boxes = entries.map(([value]) => el("input", { type: "checkbox", value, onchange }));
  page.follow(() => boxes.forEach((box) => (box.checked = listed(page.state.get()[key]).includes(box.value))));
  const labels = entries.map(([, text], i) => el("label", {}, boxes[i], ` ${text}`));
  return el("div", { class: "checks", role: "group", "aria-label": name }, labels);
}

/** Puts a page of panels into an element, which draws those again that depend on what has changed.
 *
 * kind: its classes. held: what the panels are of. defaults, allowed: the state, but for the theme. head: the nodes above, of
 * the button of themes. fill: of the page, { above, sections, foot }: nodes before the panels, the panels as { node, needs,
 * draw } with the names in the state that each depends on, and the last line.
 */
export function showPanels(root, { kind, held, defaults, allowed, head, fill }) {
  const dark = matchMedia("(prefers-color-scheme: dark)"),
    { signal } = new AbortController();
  const themes = ["", "light", "dark"];
  const state = makeState({ ...defaults, theme: "" }, { ...allowed, theme: themes }, "", signal);
  let printing = false;
  const isDark = () => !printing && (state.get().theme === "dark" || (state.get().theme !== "light" && dark.matches));
  const theme = button("", () => state.set({ theme: isDark() ? "light" : "dark" }), { class: "theme" });
  const node = el("article", { class: `attnflow ${kind}` }, head(theme));
  root.replaceChildren(node);
  const followers = [],
    follow = (follower) => followers.push(follower);
  const page = { ...held, state, follow, tip: makeTip(root), colours: () => PALETTES[isDark() ? "dark" : "light"] };
  const { above = [], sections, foot } = fill(page);
  node.append(...above, ...sections.map((section) => section.node), el("footer", {}, foot));
  function update(changed) {
    root.dataset.theme = isDark() ? "dark" : "light";
    theme.textContent = isDark() ? "☀" : "☾";
    theme.setAttribute("aria-label", isDark() ? "light theme" : "dark theme");
    page.tip.hide();
    followers.forEach((follower) => follower());
    for (const { needs, draw } of sections) if (!changed || needs.some((name) => changed.has(name))) draw();
    node.querySelectorAll(".scroll").forEach(tellMore);
    node.dataset.settled = node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
  }
  state.listen(update);
  const onscroll = ({ target }) => target.classList.contains("scroll") && tellMore(target);
  node.addEventListener("scroll", onscroll, { capture: true, passive: true }); // does not bubble
  dark.addEventListener("change", () => update());
  for (const [name, flag] of Object.entries({ beforeprint: true, afterprint: false }))
    addEventListener(name, () => {
      printing = flag; // paper is white
      update();
    });
  let width = node.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(node.clientWidth - width) < 8) return;
    width = node.clientWidth;
    update();
  }).observe(node);
  root.removeAttribute("aria-busy");
  update();
}
