import { address, makeSlot } from "./app-slot.js";
import { mountAnswer } from "./answer.js";
import { boot } from "./boot.js";
import { read } from "./data.js";
import { el, button } from "./draw.js";
import { mount } from "./page.js";

/** @import { Model } from "./app-form.js" */
/** @import { Shown } from "./app-slot.js" */

/** Names in the state that two pages with the same tokens share. */
const SHARED = ["q", "t", "u", "s", "v", "m", "l", "a", "x", "d"];

/** @param {HTMLElement} root @param {Model[]} models */
function application(root, models) {
  /** @type {ReturnType<typeof makeSlot>[]} */
  const slots = [];
  const columns = el("div", { class: "slots" });
  const more = button("compare with another text or model", () => open("b.", slots[0].text()).focus(), {
    class: "more",
  });
  /** @type {Shown[]} */
  let together = [];
  root.removeAttribute("aria-busy");
  root.classList.add("app");
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.replaceChildren(
    el(
      "div",
      { class: "app-top" },
      el("h1", {}, "attnflow"),
      el("span", { class: "hint" }, "runs on this machine; no data leaves it"),
      more,
    ),
    columns,
  );

  /** @param {string} prefix @param {string | null} [text] */
  function open(prefix, text = null) {
    const slot = makeSlot(prefix, models, text, {
      close: prefix ? close : null,
      shown: (shown, fresh) => arrived(slot, shown, fresh),
      beside: prefix ? null : beside,
    });
    slots.push(slot);
    columns.append(slot.node);
    arrange();
    return slot;
  }

  /** Show another text in the second slot. @param {string} model @param {string} text */
  function beside(model, text) {
    const slot = slots[1] ?? open("b.", text);
    slot.load((name) => ({ model, text, as: address().get("as") })[name] ?? null);
    slot.run();
    slot.node.scrollIntoView({ block: "nearest" });
  }

  function close() {
    slots.pop()?.close();
    arrange();
    link();
    more.focus();
  }

  function arrange() {
    columns.classList.toggle("two", slots.length > 1);
    more.hidden = slots.length > 1;
  }

  /** Use one theme for both pages and the app around them. @param {Shown} shown */
  function dress({ box }) {
    if (slots.some((slot) => slot.shown()?.box === box)) root.dataset.theme = box.dataset.theme;
  }

  /** @type {WeakSet<Element>} */
  const watched = new WeakSet();

  /** @param {typeof slots[0]} slot @param {Shown} shown @param {boolean} fresh */
  function arrived(slot, shown, fresh) {
    const other = slots.find((one) => one !== slot)?.shown();
    if (!watched.has(shown.box)) {
      watched.add(shown.box);
      new MutationObserver(() => dress(shown)).observe(shown.box, { attributeFilter: ["data-theme"] });
    }
    dress(shown);
    shown.state.listen((/** @type {Set<string>} */ changed) => {
      if (changed.has("theme"))
        for (const one of slots) if (one !== slot) one.shown()?.state.set({ theme: shown.state.get().theme });
    });
    if (other) shown.state.set({ theme: other.state.get().theme });
    link();
    if (fresh && other && together.length) follow(shown, other, SHARED);
  }

  /** Let two pages with the same tokens share their selection. */
  function link() {
    const [a, b] = slots.map((slot) => slot.shown());
    const unitsOf = (/** @type {Shown} */ { page }) => JSON.stringify(page?.page.data.units);
    const both = (together = a?.page && b?.page && unitsOf(a) === unitsOf(b) ? [a, b] : []);
    for (const one of both)
      one.state.listen((/** @type {Set<string>} */ changed) => {
        const other = both.find((candidate) => candidate !== one);
        if (together === both && other) follow(other, one, [...changed]);
      });
  }

  /** @param {Shown} shown @param {Shown} leader @param {string[]} names */
  function follow(shown, leader, names) {
    const s = leader.state.get();
    const fits = (/** @type {string} */ name) =>
      SHARED.includes(name) && (name !== "l" || shown.page?.page.data.layers.includes(s.l - 1));
    shown.state.set(Object.fromEntries(Object.entries(s).filter(([name]) => names.includes(name) && fits(name))));
  }

  const second = () => address().has("b.model") || address().has("b.text");
  open("").start();
  if (second()) open("b.").start();
  // a link to another text that is opened while the app is open
  addEventListener("hashchange", () => {
    if (slots.length > 1 && !second()) close();
    for (const slot of slots) slot.start();
    if (slots.length < 2 && second()) open("b.").start();
  });
}

/** Show the app, or a page that was saved from it.
 *
 * @param {HTMLElement} root
 * @param {any} content
 */
async function show(root, content) {
  if (content.format === "attnflow-answer") await mountAnswer(root, content);
  else if (content.format === "attnflow-page") mount(root, await read(content));
  else application(root, content.models);
}

boot(show);
