/** @import { Attributes, Child, Palette } from "./types" */

/** Create an HTML element with attributes, listeners ("on…") and children. Strings become text, never markup.
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

/** Create an SVG element in the same way.
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

/** Flatten nested lists of children for `append`.
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

/** Return the closest ancestor of an event's target that matches a selector.
 *
 * @param {Event} event
 * @param {string} selector
 * @returns {HTMLElement | SVGElement | null}
 */
export function closest(event, selector) {
  return event.target instanceof Element ? event.target.closest(selector) : null;
}

/** Return the 2D context of a canvas.
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

/** Write a share as a percentage: whole from 1 to 99 %, with one digit outside, or with a fixed number of digits. Only an
 * exact 0 or 1 reads "0 %" or "100 %".
 *
 * @param {number} share
 */
export function percent(share, digits = 0) {
  if (!Number.isFinite(share)) return "–";
  const size = 100 * Math.abs(share),
    fine = Math.max(1, digits),
    least = 10 ** -fine;
  if (size > 0 && size < least / 2) return `< ${least} %`;
  if (size < 100 && size > 100 - least / 2) return `> ${100 - least} %`;
  const text = size.toFixed(size < 1 || size >= 99 ? fine : digits);
  return `${share < 0 ? "−" : ""}${digits ? text : Number(text)} %`;
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

/** Characters that are invisible, invalid in XML, or change the direction of a line. */
const UNSEEN = /[\p{Cc}\p{Cs}\ufffe\uffff\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu;

/** Make invisible characters of a text visible; line breaks and tabs stay.
 *
 * @param {string} text
 */
export const readable = (text) => text.replace(UNSEEN, (sign) => (/[\n\t]/.test(sign) ? sign : visible(sign)));

/** Make a token readable: visible white space and control characters, and the tokenizer's mark separate from the text.
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

/** Return a token as nodes with a faint mark, in bdi because scripts run both ways.
 *
 * @param {string} token
 */
export function tokenNodes(token) {
  const { mark, text } = spoken(token);
  return [mark ? el("span", { class: "mark", "aria-hidden": "true" }, mark) : null, el("bdi", {}, text)];
}

/** Return tokens in a line, with spaces between words and a name before each part of the input.
 *
 * @param {{ tokens: string[], joins: boolean[], parts: string[] | null }} text
 * @param {number[]} places the tokens to show
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

/** Return the width of a text in pixels, as exported figures set it.
 *
 * @param {string} text
 */
export function textWidth(text, size = 11, weight = "") {
  measuring ??= brush(document.createElement("canvas"));
  measuring.font = `${weight} ${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

export const FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif";

/** Create the frame of a figure, for the screen and for files.
 *
 * @param {number} width
 * @param {number} height
 * @param {Palette} colours
 * @param {string} title
 * @param {number | null} [y] where to draw the title, if at all
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

/** Create the page's tooltip, which follows the pointer.
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

/** Create a table; heads are strings or cells.
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

/** Create a table row that begins with its name.
 *
 * @param {Child[]} cells
 */
export function rowOf([first, ...cells]) {
  const rest = cells.map((cell) => el("td", {}, cell));
  return el("tr", {}, el("th", { scope: "row" }, first), rest);
}

/** Create a table for screen readers only, as the alternative to a picture.
 *
 * @param {string} caption
 * @param {string[]} heads
 * @param {Child[][]} rows
 */
export function hiddenTable(caption, heads, rows) {
  // in a box, because a table ignores a limited height
  return el("div", { class: "sr" }, tableOf({}, heads, rows.map(rowOf), caption));
}

/** @param {string} text @param {(event: any) => unknown} onclick @param {Attributes} [attributes] */
export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** Create a group of buttons, one of which is pressed.
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
