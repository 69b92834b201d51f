import { brush, between, closest, el, number, percent, plainToken } from "./draw.js";
import { placesOf } from "./patches.js";
import { touched } from "./state.js";

/** @import { Changed, Lead, Page, Panel } from "./types" */

/** What an overlay needs to know about the method on the first screen. */
/** @typedef {Pick<Lead, "method" | "values" | "shades" | "shareOf">} Shown */

// Warm colours support the answer, blue counts against it: both stand out on a grey image, in either theme.
const WARM = [
  [255, 196, 64],
  [222, 48, 16],
];
const COOL = [
  [120, 190, 255],
  [24, 78, 200],
];
const MOST = 0.7; // the overlay's largest opacity, so that the image stays visible
const PLAIN = 0.03; // weaker patches get no overlay
const LARGE = 1024; // pixels of the longer side

let figures = 0;

/** @param {number} share from -1 to 1 */
export function overlayColour(share) {
  const size = Math.min(1, Math.abs(share));
  if (!(size >= PLAIN)) return "transparent";
  const [from, to] = share < 0 ? COOL : WARM;
  const [r, g, b] = from.map((low, i) => Math.round(low + (to[i] - low) * size));
  return `rgb(${r} ${g} ${b} / ${(MOST * size ** 0.7).toFixed(3)})`;
}

/** The image in grey, overlaid with the value of each patch, and a line of text about one patch.
 *
 * @param {Page} page
 * @param {() => Shown | null} lead the method selected on the first screen
 * @returns {Panel}
 */
export function imageLead(page, lead) {
  const { data, state, picture } = page;
  const { rows, columns, places } = placesOf(data),
    name = `picture${figures++}`;
  const [high, wide] = data.image?.shape ?? [rows, columns];
  const cells = places.map((i) => el("span", { role: "option", "data-i": i, id: `${name}-${i}` }));
  const grid = el(
    "div",
    {
      class: "cells",
      role: "listbox",
      tabindex: 0,
      "aria-label": `the image in ${rows} rows and ${columns} columns of patches; use the arrow keys`,
      style: `grid-template-columns:repeat(${columns},1fr);grid-template-rows:repeat(${rows},1fr)`,
    },
    cells,
  );
  const says = el("p", { class: "patch", "aria-live": "polite" });
  const scale = el("p", { class: "scale" });
  const node = el(
    "figure",
    { class: "image-lead", style: `--ratio:${(wide / high).toFixed(4)}` },
    el("div", { class: "frame" }, picture && greyed(picture), grid),
    el("figcaption", {}, says, scale),
  );
  /** @type {Shown | null} */
  let shown = null;

  /** @param {number} place */
  const named = (place) => `row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;
  const about = () => data.importance.find((one) => one.name === shown?.method.name)?.answer?.name;

  /** @param {number} i */
  function worth(i) {
    if (!shown) return "";
    const { method, values } = shown,
      answer = about();
    if (method.name === "flow") return `${number(values[i])} by flow`;
    const share = percent(Math.abs(shown.shareOf(i)));
    if (!answer) return `${share} by ${method.title}`;
    return values[i] < 0 ? `${share} against ${plainToken(answer, 40)}` : `${share} for ${plainToken(answer, 40)}`;
  }

  const strongest = () =>
    places.reduce((best, i, p) => ((shown?.values[i] ?? 0) > (shown?.values[places[best]] ?? 0) ? p : best), 0);
  const chosen = () => places.indexOf(state.get().t);

  /** @param {number} [place] that is pointed at */
  function say(place) {
    const one = place ?? (chosen() >= 0 ? chosen() : strongest());
    const before = place === undefined && chosen() < 0 ? "Strongest: " : "";
    says.textContent = shown ? `${before}${named(one)} · ${worth(places[one])}` : "";
  }

  function paint() {
    shown = lead();
    cells.forEach((cell, place) => {
      cell.style.background = overlayColour(shown?.shades[places[place]] ?? 0);
      cell.setAttribute("aria-label", `${named(place)}: ${worth(places[place])}`);
    });
    const answer = about(),
      against = places.some((i) => (shown?.shades[i] ?? 0) <= -PLAIN);
    /** @param {string} text @param {number} sign */
    const key = (text, sign) => [
      el("span", {
        class: "ramp",
        style: `background-image:linear-gradient(to right,${[0.1, 0.4, 0.7, 1].map((x) => overlayColour(sign * x)).join(",")})`,
      }),
      ` ${text} `,
    ];
    const total = places.reduce((sum, i) => sum + Math.max(0, shown?.shareOf(i) ?? 0), 0);
    scale.replaceChildren(
      data.picture && shown && shown.method.name !== "flow" ? `${percent(total)} from the image ` : "",
      ...key(answer ? `for ${plainToken(answer, 40)}` : "more", 1),
      ...(against ? key(answer ? "against" : "below zero", -1) : []),
    );
    mark();
  }

  function mark() {
    const one = chosen();
    for (const cell of grid.querySelectorAll('[aria-selected="true"]')) cell.removeAttribute("aria-selected");
    grid.removeAttribute("aria-activedescendant");
    if (one >= 0) {
      cells[one].setAttribute("aria-selected", "true");
      grid.setAttribute("aria-activedescendant", cells[one].id);
    }
    say();
  }

  /** @param {Event} event */
  const placeOf = (event) => {
    const cell = closest(event, "[data-i]");
    return cell ? places.indexOf(Number(cell.dataset.i)) : -1;
  };
  grid.addEventListener("pointermove", (event) => {
    const place = placeOf(event);
    if (place < 0) return;
    event.stopPropagation(); // the surrounding panel would name the patch by its number
    say(place);
    page.tip.show(event, [named(place), worth(places[place])]);
  });
  grid.addEventListener("pointerleave", () => {
    page.tip.hide();
    say();
  });
  grid.addEventListener("click", (event) => {
    const place = placeOf(event);
    if (place < 0) return;
    event.stopPropagation();
    state.set({ t: state.get().t === places[place] ? -1 : places[place] });
  });
  grid.addEventListener("keydown", (event) => {
    const at = chosen() >= 0 ? chosen() : strongest(),
      row = Math.floor(at / columns),
      column = at % columns;
    /** @type {Record<string, [number, number]>} */
    const moves = {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      Home: [row, 0],
      End: [row, columns - 1],
      Enter: [row, column],
    };
    if (event.key === "Escape" && chosen() >= 0) state.set({ t: -1 });
    else if (event.key in moves) {
      // the first key press shows the current patch
      const [r, c] = chosen() >= 0 ? moves[event.key] : [row, column];
      state.set({ t: places[between(0, r, rows - 1) * columns + between(0, c, columns - 1)] });
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "q", "l", "a", "x", "rows", "theme")) paint();
      else if (touched(changed, "t")) mark();
    },
  };
}

/** Return the image in grey, so that every colour means a value.
 *
 * @param {HTMLCanvasElement} picture
 */
export function greyed(picture) {
  const larger = Math.max(1, Math.min(4, LARGE / Math.max(picture.width, picture.height)));
  const canvas = el("canvas", {
    class: "photo",
    "aria-hidden": "true",
    width: Math.round(picture.width * larger),
    height: Math.round(picture.height * larger),
  });
  const context = brush(canvas);
  context.imageSmoothingQuality = "high";
  context.filter = "grayscale(1) contrast(0.9) brightness(1.05)";
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas;
}
