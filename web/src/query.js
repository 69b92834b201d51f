import { el, tokenNodes } from "./draw.js";

/** Whose state is explained: the tokens in a line, or the patches of an image in their places. */
export function queryStrip(page, prefix) {
  const { data, state } = page;
  const strip = el("div", { class: "query", role: "listbox", "aria-label": "query token", tabindex: "0" });

  function build() {
    const at = page.now();
    strip.replaceChildren();
    const box = data.grid && !data.queries;
    strip.classList.toggle("long", at.names.length > 200 && !box);
    strip.classList.toggle("pictured", !!box);
    if (box) {
      const [rows, columns] = data.grid,
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
    let part = "";
    at.names.forEach((name, i) => {
      if (i < data.firstQuery) return;
      if (at.parts[i] && at.parts[i] !== part) {
        part = at.parts[i];
        strip.append(el("span", { class: "part" }, part));
      }
      if (strip.children.length && !at.joins[i]) strip.append(" ");
      strip.append(
        el(
          "span",
          { role: "option", class: at.joins[i] ? "tok joined" : "tok", "data-q": i, id: `${prefix}q${i}` },
          tokenNodes(name),
        ),
      );
    });
  }

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
    const option = event.target.closest("[data-q]");
    if (option) state.set({ q: Number(option.dataset.q) });
  });
  strip.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (!step) return;
    event.preventDefault();
    event.stopPropagation();
    const at = page.now();
    state.set({ q: Math.min(at.names.length - 1, Math.max(data.firstQuery, at.query + step)) });
    page.announce(`query ${page.now().queryName}`);
  });
  return { node: strip, build, paint };
}
