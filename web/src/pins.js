import { button, closest, el, number, plainToken, tableOf, tokenNodes } from "./draw.js";

/** @import { Data, Page, Panel, Pin, View } from "./types" */

const LONGEST = 40; // characters of a name
const MOST = 200; // pins

/** Clean a name: one short line without the characters that separate pins in an address.
 *
 * @param {string} text
 */
export const nameOf = (text) => [...text.replace(/[\p{C}\p{Z};:]+/gu, " ").trim()].slice(0, LONGEST).join("").trim();

/** Parse pins from an address, such as "3;5:name;7::group" (positions of subwords); null if the text is invalid.
 *
 * @param {string} text
 * @param {number} count of tokens
 * @returns {Pin[] | null}
 */
export function pinsIn(text, count) {
  if (!text) return [];
  const pins = text.split(";").map((part) => {
    const [position, name = "", group = "", ...rest] = part.split(":");
    const isPin = /^(0|[1-9]\d{0,8})$/.test(position) && Number(position) < count && !rest.length;
    return isPin && nameOf(name) === name && nameOf(group) === group
      ? { position: Number(position), name, group }
      : null;
  });
  if (pins.length > MOST || pins.some((pin) => !pin)) return null;
  const all = /** @type {Pin[]} */ (pins);
  return all.every((pin, i) => !i || all[i - 1].position < pin.position) ? all : null;
}

/** @param {Pin[]} pins */
export const pinText = (pins) =>
  [...pins]
    .sort((a, b) => a.position - b.position)
    .map(({ position, name, group }) => [position, name, group].join(":").replace(/:+$/, ""))
    .join(";");

/** Return the subwords of a token of a unit.
 *
 * @param {Data} data
 * @param {string} unit
 * @param {number} i
 */
const membersOf = (data, unit, i) => data.units[unit].groups?.[i] ?? [i];

/** Return the pinned tokens of a unit, with their names and groups.
 *
 * @param {Data} data
 * @param {string} unit
 * @param {string} text
 * @returns {(Pin & { i: number })[]}
 */
export function pinned(data, unit, text) {
  const pins = new Map((pinsIn(text, data.units.subwords.tokens.length) ?? []).map((pin) => [pin.position, pin]));
  if (!pins.size) return [];
  return data.units[unit].tokens.flatMap((_, i) => {
    const own = membersOf(data, unit, i).flatMap((member) => pins.get(member) ?? []);
    if (!own.length) return [];
    const first = (/** @type {"name" | "group"} */ key) => own.find((pin) => pin[key])?.[key] ?? "";
    return [{ i, position: own[0].position, name: first("name"), group: first("group") }];
  });
}

/** Return the tokens, with the names that the reader gave to pinned ones.
 *
 * @param {Data} data
 * @param {string} unit
 * @param {string} text
 */
export function namedTokens(data, unit, text) {
  const { tokens } = data.units[unit],
    named = pinned(data, unit, text).filter(({ name }) => name);
  if (!named.length) return tokens;
  const copy = [...tokens];
  for (const { i, name } of named) copy[i] = name;
  return copy;
}

/** Return the view of a page for files: the selection, and the pins in words.
 *
 * @param {Pick<Page, "data" | "state">} page
 * @returns {View}
 */
export function viewOf({ data, state }) {
  const { tokens } = data.units.subwords,
    pins = pinsIn(state.get().p, tokens.length) ?? [];
  const names = [...new Set(pins.map(({ group }) => group))].filter(Boolean);
  return {
    fragment: state.text(),
    selection: { ...state.get() },
    pins: pins.map((pin) => ({ ...pin, token: tokens[pin.position] })),
    groups: names.map((name) => ({
      name,
      positions: pins.filter(({ group }) => group === name).map(({ position }) => position),
    })),
  };
}

let scopes = 0;

/** The table of pinned tokens: their values by every method, names, and groups with their sums.
 *
 * @param {Page} page
 * @param {HTMLElement} around the page, whose tokens are marked and can be Shift-clicked
 * @returns {Panel & { toggle(i: number): void }}
 */
export function pinsPanel(page, around) {
  const { data, state } = page,
    scope = `s${++scopes}`;
  around.dataset.pins = scope;
  const marks = el("style", {}),
    groups = el("datalist", { id: `groups-${scope}` });
  const pin = button("", () => toggle(page.now().token), { class: "pin" });
  const box = el("div", { class: "scroll wide" });
  const node = el("section", { class: "pins", "aria-label": "pinned tokens" }, marks, pin, box, groups);
  around.querySelector(".lead .spring")?.before(pin); // next to the text, if there is one
  let drawn = "";

  const current = () => pinsIn(state.get().p, data.units.subwords.tokens.length) ?? [];
  const rows = () => pinned(data, page.now().unit, state.get().p);

  /** @param {number} i */
  function toggle(i) {
    const { unit } = page.now(),
      members = membersOf(data, unit, i),
      pins = current();
    const others = pins.filter(({ position }) => !members.includes(position)),
      isNew = others.length === pins.length;
    const added = isNew ? members.map((position) => ({ position, name: "", group: "" })) : [];
    if (others.length + added.length > MOST) {
      page.announce(`at most ${MOST} tokens can be pinned: unpin one first`);
      return;
    }
    state.set({ p: pinText([...others, ...added]) });
    page.announce(`${isNew ? "pinned" : "unpinned"} ${plainToken(data.units[unit].tokens[i])}`);
  }

  /** Set the name of a word's first piece, or the group of all its pieces.
   *
   * @param {number} i
   * @param {Partial<Pin>} label
   */
  function relabel(i, label) {
    const members = membersOf(data, page.now().unit, i);
    const pins = current().map((one) => {
      if (!members.includes(one.position)) return one;
      const named = label.name !== undefined ? { name: one.position === members[0] ? label.name : "" } : {};
      return { ...one, ...named, ...(label.group !== undefined && { group: label.group }) };
    });
    state.set({ p: pinText(pins) });
  }

  /** @param {number} i @param {"name" | "group"} key */
  const field = (i, key) =>
    el("input", {
      type: "text",
      "data-key": `${key}${i}`,
      maxlength: LONGEST,
      size: 9,
      "aria-label": `${key} of ${plainToken(data.units[page.now().unit].tokens[i])}`,
      placeholder: key,
      list: key === "group" ? groups.id : null,
      onchange: (event) => {
        event.target.value = nameOf(event.target.value);
        relabel(i, { [key]: event.target.value });
      },
    });

  /** @param {number[]} places */
  function build(places) {
    const { unit } = page.now();
    const body = places.map((i) => {
      const word = plainToken(data.units[unit].tokens[i]);
      const drop = button("×", () => toggle(i), { "aria-label": `unpin ${word}`, class: "drop" });
      const cells = page.methods.map(({ name }) => el("td", { "data-value": name }));
      return el(
        "tr",
        { "data-pin": i },
        el("th", { scope: "row" }, tokenNodes(data.units[unit].tokens[i])),
        cells,
        el("td", {}, field(i, "name")),
        el("td", {}, field(i, "group")),
        el("td", {}, drop),
      );
    });
    const heads = ["pinned", ...page.methods.map(({ short }) => short), el("td"), el("td"), el("td")];
    const table = tableOf({}, heads, body);
    table.append(el("tbody", { class: "sums" }));
    box.replaceChildren(table);
  }

  /** Update the cells in place, so that an input keeps its focus. */
  function paint() {
    const at = page.now(),
      own = rows(),
      chosen = state.get().t;
    const key = JSON.stringify([at.unit, own.map(({ i }) => i)]);
    if (key !== drawn) build(own.map(({ i }) => i));
    drawn = key;
    box.hidden = !own.length;
    pin.hidden = chosen < 0 || chosen >= at.tokens.length;
    node.hidden = box.hidden && (pin.hidden || !node.contains(pin));
    const isPinned = own.some(({ i }) => i === chosen);
    pin.textContent = `${isPinned ? "unpin" : "pin"} “${plainToken(at.tokens[at.token])}”`;
    const values = page.methods.map(({ name }) => page.values(name)?.row ?? null);
    for (const { i, name, group } of own) {
      const row = box.querySelector(`[data-pin="${i}"]`);
      row?.querySelectorAll("[data-value]").forEach((cell, m) => {
        const value = values[m]?.[i];
        cell.textContent = value === undefined ? "–" : number(value);
      });
      for (const [kind, text] of Object.entries({ name, group })) {
        const input = /** @type {HTMLInputElement | null} */ (row?.querySelector(`[data-key="${kind}${i}"]`));
        if (input && input !== document.activeElement) input.value = text;
      }
    }
    const names = [...new Set(own.map(({ group }) => group))].filter(Boolean);
    groups.replaceChildren(...names.map((value) => el("option", { value })));
    box.querySelector(".sums")?.replaceChildren(
      ...names.map((name) => {
        const members = own.filter(({ group }) => group === name);
        const cells = values.map((row) =>
          el("td", {}, row ? number(members.reduce((sum, { i }) => sum + row[i], 0)) : "–"),
        );
        const title = [el("bdi", {}, name), el("span", { class: "hint" }, ` sum of ${members.length}`)];
        return el("tr", { "data-group": name }, el("th", { scope: "row" }, title), cells, el("td", { colspan: 3 }));
      }),
    );
    const places = own.map(
      ({ i }) => `[data-pins="${scope}"] :is(.tok, .word):is([data-i="${i}"], [data-position="${i}"])`,
    );
    marks.textContent = places.length
      ? `${places.join(",\n")} { box-shadow: inset 0 -3px 0 var(--accent); text-decoration: underline var(--accent) 2px; text-underline-offset: 0.22em; }`
      : "";
  }

  // Shift-click pins a token anywhere on the page, without selecting text
  const spotOf = (/** @type {Event} */ event) => closest(event, ".tok[data-i]");
  around.addEventListener("mousedown", (event) => event.shiftKey && spotOf(event) && event.preventDefault(), true);
  around.addEventListener(
    "click",
    (event) => {
      const spot = event.shiftKey && spotOf(event);
      if (!spot) return;
      event.preventDefault();
      event.stopPropagation();
      toggle(Number(spot.dataset.i));
    },
    true,
  );

  return { node, update: paint, toggle };
}
