import { el } from "./draw.js";
import { apartOf, leadOf } from "./headline.js";
import { sharesOf } from "./pair-data.js";
import { pairView } from "./pair-view.js";
import { touched } from "./state.js";

/** @import { Changed, Page, PairSide, Panel } from "./types" */

/** Compare the method of the first screen with another one, word by word, below the text.
 *
 * @param {Page} page
 * @param {HTMLElement} lead the first screen
 * @param {string} prefix
 * @returns {Panel & { close(): void }}
 */
export function twoMethods(page, lead, prefix) {
  const { data, state } = page;
  const node = el("div", { class: "two-methods", hidden: true });
  const pick = el(
    "select",
    { "aria-label": "compare with", onchange: (event) => state.set({ c: event.target.value }) },
    el("option", { value: "" }, "compare with …"),
    page.methods.map(({ name, title }) => el("option", { value: name }, title)),
  );
  lead.querySelector('.bar select[aria-label="method"]')?.after(pick);
  lead.querySelector(".asks")?.after(node);
  const chosen = () => [leadOf(page)?.method.name ?? "", state.get().c];
  /** @param {string} name @returns {PairSide} */
  const sideOf = (name) => {
    const at = page.now(),
      apart = apartOf(data, at);
    const values = page.values(name)?.row ?? new Float64Array(at.tokens.length).fill(NaN);
    return { tokens: at.tokens, special: at.special, values: sharesOf(values, apart), apart };
  };
  /** @type {ReturnType<typeof pairView> | null} */
  let view = null;

  /** @param {Changed} changed */
  function update(changed) {
    if (!touched(changed, "c", "a", "u", "q", "l", "f", "rows", "theme")) return;
    const [own, other] = chosen();
    pick.value = other;
    pick.hidden = page.methods.length < 2 || Boolean(data.patches);
    for (const option of pick.options) option.disabled = Boolean(option.value) && option.value === own;
    node.hidden = !other || other === own || pick.hidden;
    if (node.hidden) return;
    if (view) view.paint();
    else {
      const [names, sides] = [() => chosen().map(page.titleOf), () => chosen().map(sideOf)];
      view = pairView(data, data, {
        prefix: `${prefix}c.`,
        led: { names, sides: /** @type {() => [PairSide, PairSide]} */ (sides) },
      });
      node.append(view.node);
    }
  }
  return { node, update, close: () => view?.close() };
}
