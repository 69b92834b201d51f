/** An HTML element: attributes, listeners under "on…", and children; texts are always text. */
export function el(tag, attributes = {}, ...children) {
  return built(document.createElement(tag), attributes, children);
}

/** The same in SVG. */
export function svg(tag, attributes = {}, ...children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function built(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function number(x, digits = 3) {
  if (x === Infinity) return "∞";
  if (!Number.isFinite(x)) return "–";
  if (x !== 0 && Math.abs(x) < 0.5 * 10 ** -digits) return x.toExponential(1).replace("e-", "e−").replace(/^-/, "−");
  return x.toFixed(digits).replace("-", "−");
}

export function correlation(x) {
  return Number.isFinite(x)
    ? x
        .toFixed(2)
        .replace(/^-(?=0\.00$)/, "")
        .replace("-", "−")
        .replace(/^(−?)0\./, "$1.")
    : "–";
}

/** A token for people: white space and controls made visible, the tokenizer's marks apart from the text. */
export function spoken(token) {
  const mark = token.match(/^(##|Ġ|▁)(?=.)/u)?.[0] ?? "";
  // controls, what XML cannot hold, and half a character have no look of their own; what turns a line round has only effects
  const rest = token
    .slice(mark.length)
    .replace(/[\p{Cc}\p{Cs}\ufffe\uffff\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]/gu, visible);
  if (/[^\s\p{Cf}\p{Z}]/u.test(rest)) return { mark, text: rest };
  return { mark, text: rest.replace(/./gsu, visible) || "∅" };
}

function visible(sign) {
  return (
    { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" }[sign] ?? `\\u${sign.codePointAt(0).toString(16).padStart(4, "0")}`
  );
}

/** A token as content of an element: its mark faint. bdi, because scripts run both ways. */
export function tokenNodes(token) {
  const { mark, text } = spoken(token);
  return [mark && el("span", { class: "mark", "aria-hidden": "true" }, mark), el("bdi", {}, text)].filter(Boolean);
}

export function plainToken(token, most = 24) {
  const { mark, text } = spoken(token);
  const whole = [...(mark + text)];
  return whole.length > most ? whole.slice(0, most - 1).join("") + "…" : whole.join("");
}

let measuring = null;

/** The width of a text in pixels, as the exported figures set it. */
export function textWidth(text, size = 11, weight = "") {
  measuring ??= document.createElement("canvas").getContext("2d");
  measuring.font = `${weight} ${size}px ${FONT}`;
  return measuring.measureText(text).width;
}

export const FONT = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Noto Sans', sans-serif";

/** The frame of a figure, on screen and in a file alike. */
export function figure(width, height, colours, title) {
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
  );
}

export function label(x, y, text, attributes = {}) {
  return svg("text", { x, y, "dominant-baseline": "central", ...attributes }, text);
}

/** One box that follows the pointer, per page. */
export function makeTip(root) {
  const box = el("div", { class: "tip", role: "status", hidden: true });
  root.append(box);
  return {
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

/** A table with a name at the head of each row and column. */
export function tableOf(attributes, heads, rows) {
  const head = heads.map((text) => el("th", { scope: "col" }, text));
  const body = rows.map(([first, ...cells]) => {
    const rest = cells.map((text) => el("td", {}, text));
    return el("tr", {}, el("th", { scope: "row" }, first), rest);
  });
  return el("table", attributes, el("thead", {}, el("tr", {}, head)), el("tbody", {}, body));
}

/** A table that only screen readers see, behind a picture. */
export function hiddenTable(caption, heads, rows) {
  const table = tableOf({}, heads, rows);
  table.prepend(el("caption", {}, caption));
  return el("div", { class: "sr" }, table); // in a box, because a table grows beyond the height it is given
}

export function button(text, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, text);
}

/** A group of buttons of which one is pressed. */
export function choice(name, options, chosen, onchoose) {
  return el(
    "div",
    { class: "choice", role: "group", "aria-label": name },
    Object.entries(options).map(([value, text]) =>
      button(text, () => onchoose(value), { "aria-pressed": String(value === chosen), "data-value": value }),
    ),
  );
}

export function press(group, chosen) {
  for (const one of group.children) one.setAttribute("aria-pressed", String(one.dataset.value === chosen));
}
