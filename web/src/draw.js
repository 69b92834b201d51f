/** @import { Attributes, Child, Palette } from "./types" */

/** An HTML element: attributes, listeners under "on…", and children; texts are always text.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function el(tag, attributes = {}, ...children) {
  return built(document.createElement(tag), attributes, children);
}

/** The same in SVG.
 *
 * @template {keyof SVGElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Attributes} [attributes]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[Tag]}
 */
export function svg(tag, attributes = {}, ...children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** Children as `append` takes them, out of lists within lists.
 *
 * @param {Child} children
 */
export function flattened(children) {
  const nodes = /** @type {any[]} */ ([children]).flat(Infinity);
  return nodes.filter((child) => child !== null && child !== undefined && child !== false);
}

/** @template {Element} Node @param {Node} node @param {Attributes} attributes @param {Child[]} children */
function built(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...flattened(children));
  return node;
}

/** What an event happened in, by a selector.
 *
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | SVGElement | null}
 */
export function closest(event, selector) {
  return event.target instanceof Element ? event.target.closest(selector) : null;
}

/** The 2D context of a canvas, which every canvas that has no other one gives.
 *
 * @param {HTMLCanvasElement} canvas
 */
export function brush(canvas) {
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
}

/** @param {number} low @param {number} x @param {number} high */
export const between = (low, x, high) => Math.min(high, Math.max(low, x));

/** @param {unknown} error */
export const messageOf = (error) => (error instanceof Error ? error.message : String(error));

/** @param {number} x */
export function number(x, digits = 3) {
  if (x === Infinity) return "∞";
  if (!Number.isFinite(x)) return "–";
  if (x !== 0 && Math.abs(x) < 0.5 * 10 ** -digits) return x.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  return x.toFixed(digits).replace("-", "−");
}

/** @param {number | null} x */
export function correlation(x) {
  return x !== null && Number.isFinite(x)
    ? x
        .toFixed(2)
        .replace(/^-(?=0\.00$)/, "")
        .replace("-", "−")
        .replace(/^(−?)0\./, "$1.")
    : "–";
}

/** Controls, what XML cannot hold, and half a character have no look of their own; what turns a line round has only effects. */
const UNSEEN = /[\p{Cc}\p{Cs}\ufffe\uffff\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

/** Running text for people: lines and tabs stay, and what has no look of its own is made visible.
 *
 * @param {string} text
 */
export const readable = (text) => text.replace(UNSEEN, (sign) => (/[\n\t]/.test(sign) ? sign : visible(sign)));

/** A token for people: white space and controls made visible, the tokenizer's marks apart from the text.
 *
 * @param {string} token
 */
export function spoken(token) {
  const mark = token.match(/^(##|Ġ|▁)(?=.)/u)?.[0] ?? "";
  const rest = token.slice(mark.length).replace(UNSEEN, visible);
  if (/[^\s\p{Cf}\p{Z}]/u.test(rest)) return { mark, text: rest };
  return { mark, text: rest.replace(/./gsu, visible) || "∅" };
}

/** @type {Record<string, string>} */
const SIGNS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };

/** @param {string} sign */
function visible(sign) {
  return SIGNS[sign] ?? `\\u${(sign.codePointAt(0) ?? 0).toString(16).padStart(4, "0")}`;
}

/** A token as content of an element: its mark faint. bdi, because scripts run both ways.
 *
 * @param {string} token
 */
export function tokenNodes(token) {
  const { mark, text } = spoken(token);
  return [mark ? el("span", { class: "mark", "aria-hidden": "true" }, mark) : null, el("bdi", {}, text)];
}

/** Tokens in a line: a space between words, and before each part of the input its name.
 *
 * @param {{ tokens: string[], joins: boolean[], parts: string[] | null }} text
 * @param {number[]} places those of its tokens that are there
 * @param {(i: number, place: number) => Attributes} attributes of the element of token i
 */
export function tokenLine({ tokens, joins, parts }, places, attributes) {
  let part = "";
  return places.flatMap((i, place) => {
    const joined = place > 0 && joins[i] && places[place - 1] === i - 1,
      named = parts?.[i] && parts[i] !== part;
    part = parts?.[i] ?? "";
    return [
      named ? el("span", { class: "part" }, part) : null,
      place && !joined ? " " : null,
      el("span", { class: joined ? "tok joined" : "tok", ...attributes(i, place) }, tokenNodes(tokens[i])),
    ];
  });
}

/** @param {string} token */
export function plainToken(token, most = 24) {
  const { mark, text } = spoken(token);
  const whole = [...(mark + text)];
  return whole.length > most ? whole.slice(0, most - 1).join("") + "…" : whole.join("");
}

/** @type {CanvasRenderingContext2D | null} */
let measuring = null;

/** The width of a text in pixels, as the exported figures set it.
 *
 * @param {string} text
 */
export function textWidth(text, size = 11, weight = "") {
  measuring ??= brush(document.createElement("canvas"));
  measuring.font = `${weight} ${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

export const FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif";

/** The frame of a figure, on screen and in a file alike.
 *
 * @param {number} width
 * @param {number} height
 * @param {Palette} colours
 * @param {string} title
 * @param {number | null} [y] where the title stands, if it does
 */
export function figure(width, height, colours, title, y = null) {
  const style = `font-family:${FONT};font-variant-numeric:tabular-nums`;
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": title,
      "font-size": 11,
      fill: colours.ink,
      style,
    },
    svg("rect", { width, height, fill: colours.paper }),
    y !== null && label(0, y, title, { "font-size": 12, "font-weight": 600 }),
  );
}

/** @param {number} x @param {number} y @param {string} text @param {Attributes} [attributes] */
export function label(x, y, text, attributes = {}) {
  return svg("text", { x, y, "dominant-baseline": "central", ...attributes }, text);
}

/** One box that follows the pointer, per page.
 *
 * @param {HTMLElement} root
 */
export function makeTip(root) {
  const box = el("div", { class: "tip", role: "status", hidden: true });
  root.append(box);
  return {
    /** @param {{ clientX: number, clientY: number }} event @param {(string | false | null)[]} lines */
    show(event, lines) {
      box.replaceChildren(...lines.filter(Boolean).map((line) => el("div", {}, line)));
      box.hidden = false;
      const { clientX: x, clientY: y } = event;
      const wide = box.offsetWidth,
        high = box.offsetHeight;
      box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - wide - 6))}px`;
      box.style.top = `${y + 18 + high > innerHeight ? Math.max(4, y - high - 10) : y + 18}px`;
    },
    hide() {
      box.hidden = true;
    },
  };
}

/** A table of rows under heads, which are texts or cells.
 *
 * @param {Attributes} attributes
 * @param {(string | HTMLElement)[]} heads
 * @param {HTMLElement[]} rows
 * @param {string} [caption]
 */
export function tableOf(attributes, heads, rows, caption) {
  const cells = heads.map((head) => (typeof head === "string" ? el("th", { scope: "col" }, head) : head));
  const parts = [el("thead", {}, el("tr", {}, cells)), el("tbody", {}, rows)];
  return el("table", attributes, caption && el("caption", {}, caption), parts);
}

/** A row of a table with its name at the head.
 *
 * @param {Child[]} cells
 */
export function rowOf([first, ...cells]) {
  const rest = cells.map((cell) => el("td", {}, cell));
  return el("tr", {}, el("th", { scope: "row" }, first), rest);
}

/** A table that only screen readers see, behind a picture.
 *
 * @param {string} caption
 * @param {string[]} heads
 * @param {Child[][]} rows
 */
export function hiddenTable(caption, heads, rows) {
  // in a box, because a table grows beyond the height it is given
  return el("div", { class: "sr" }, tableOf({}, heads, rows.map(rowOf), caption));
}

/** @param {string} text @param {(event: any) => unknown} onclick @param {Attributes} [attributes] */
export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** A group of buttons of which one is pressed.
 *
 * @param {string} name
 * @param {Record<string, string>} options the text of each by its value
 * @param {string} chosen
 * @param {(value: string) => void} onchoose
 */
export function choice(name, options, chosen, onchoose) {
  return el(
    "div",
    { class: "choice", role: "group", "aria-label": name },
    Object.entries(options).map(([value, text]) =>
      button(text, () => onchoose(value), { "aria-pressed": String(value === chosen), "data-value": value }),
    ),
  );
}

/** @param {HTMLElement} group @param {string} chosen */
export function press(group, chosen) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.getAttribute("data-value") === chosen));
}
