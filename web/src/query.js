import { el, between, closest, flattened, tokenLine } from "./draw.js";
import { patchesOf } from "./patches.js";

/** @import { Now, Page } from "./types" */

/** The strip that selects which state to explain: the tokens in a line, or the patches of an image.
 *
 * @param {Page} page
 * @param {string} prefix
 */
export function queryStrip(page, prefix) {
  const { data, state } = page;
  const strip = el("div", { class: "query", role: "listbox", "aria-label": "query token", tabindex: "0" });

  function build() {
    const at = page.now();
    strip.replaceChildren();
    const box = Boolean(data.patches) && !data.queries;
    strip.classList.toggle("long", at.names.length > 200 && !box);
    strip.classList.toggle("pictured", box);
    if (box) {
      const [rows, columns] = patchesOf(data),
        before = at.names.length - rows * columns;
      strip.append(
        ...at.names
          .slice(0, before)
          .map((name, i) => el("span", { role: "option", class: "tok", "data-q": i, id: `${prefix}q${i}` }, name)),
      );
      const map = el(
        "div",
        { class: "patches", style: `grid-template-columns:repeat(${columns},1fr);aspect-ratio:${columns}/${rows}` },
        Array.from({ length: rows * columns }, (_, i) =>
          el("span", {
            role: "option",
            "data-q": before + i,
            id: `${prefix}q${before + i}`,
            "aria-label": at.names[before + i],
            title: at.names[before + i],
          }),
        ),
      );
      if (page.picture) map.style.backgroundImage = `url(${page.picture.toDataURL()})`;
      strip.append(map);
      return;
    }
    const places = at.names.map((_, i) => i).slice(data.firstQuery);
    const option = (/** @type {number} */ i) => ({ role: "option", "data-q": i, id: `${prefix}q${i}` });
    strip.append(...flattened(tokenLine({ ...at, tokens: at.names }, places, option)));
  }

  /** @param {Now} at */
  function paint(at) {
    strip.querySelector('[aria-selected="true"]')?.removeAttribute("aria-selected");
    strip.querySelector(`[data-q="${at.query}"]`)?.setAttribute("aria-selected", "true");
    const chosen = strip.querySelector('[aria-selected="true"]');
    if (chosen && strip.scrollHeight > strip.clientHeight) {
      const box = strip.getBoundingClientRect(),
        own = chosen.getBoundingClientRect();
      if (own.top < box.top || own.bottom > box.bottom) strip.scrollTop += own.top - box.top - strip.clientHeight / 2;
    }
    strip.setAttribute("aria-activedescendant", `${prefix}q${at.query}`);
  }

  strip.addEventListener("click", (event) => {
    const option = closest(event, "[data-q]");
    if (option) state.set({ q: Number(option.dataset.q) });
  });
  strip.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    const step = steps[/** @type {keyof typeof steps} */ (event.key)];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = page.now();
    state.set({ q: between(data.firstQuery, at.query + step, at.names.length - 1) });
    page.announce(`query ${page.now().queryName}`);
  });
  return { node: strip, build, paint };
}
