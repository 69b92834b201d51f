import { PALETTES, shade, inkOn } from "./colour.js";
import { el, brush, button, figure, label, messageOf, svg, textWidth, plainToken } from "./draw.js";

/** @import { Cells, Exported, MethodRow, Palette, View } from "./types" */

/** @param {string} name @param {Blob | string} content @param {string} [type] */
export function download(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** @param {SVGElement} node */
function svgText(node) {
  const copy = /** @type {SVGElement} */ (node.cloneNode(true));
  for (const one of copy.querySelectorAll("[class], [tabindex]")) {
    one.removeAttribute("class");
    one.removeAttribute("tabindex");
  }
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/** Render the figure at three pixels per point, for slides.
 *
 * @param {SVGElement} node
 * @returns {Promise<Blob>}
 */
async function png(node, scale = 3) {
  const text = svgText(node).replace(/^<\?xml[^>]*>\n/, "");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const most = Math.min(scale, 16000 / Math.max(image.width, image.height));
  const canvas = el("canvas", { width: Math.round(image.width * most), height: Math.round(image.height * most) });
  brush(canvas).drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the figure is too large")))),
  );
}

/** Write CSV; NaN (not computed) becomes an empty cell. @param {Cells[]} rows */
function csv(rows) {
  const cell = (/** @type {Cells[0]} */ value) => {
    // a spreadsheet would run text that looks like a formula
    const text =
      typeof value === "string" && /^[=+\-@\t\r]/.test(value)
        ? `'${value}`
        : Number.isNaN(value)
          ? ""
          : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** Return functions that save a figure and its numbers, by file type. `make` draws the figure, `rows` returns the numbers.
 *
 * @param {Exported} page
 * @param {string} name
 * @param {(colours: Palette) => SVGElement | null} make returns null if there is nothing to draw
 * @param {() => Cells[]} rows
 * @returns {Record<string, () => void | Promise<void>>}
 */
export function exportsOf(page, name, make, rows) {
  const paper = () => {
    const drawing = make(PALETTES.light) ?? figure(200, 40, PALETTES.light, "not available");
    return page.view ? withView(drawing, page, page.view()) : drawing;
  };
  return {
    SVG: () => download(`attnflow-${name}.svg`, svgText(paper()), "image/svg+xml"),
    PNG: async () => download(`attnflow-${name}.png`, await png(paper())),
    ...dataOf(page, name, rows),
  };
}

/** Return functions that save numbers, by file type. @param {Exported} page @param {string} name @param {() => Cells[]} rows */
const dataOf = (page, name, rows) => ({
  CSV: () => download(`attnflow-${name}.csv`, csv(rows()), "text/csv"),
  JSON: () => download(`attnflow-${name}.json`, JSON.stringify(asObjects(rows(), page), null, 1), "application/json"),
});

/** The buttons of a menu, which report success or failure.
 *
 * @param {Record<string, () => void | Promise<void>>} works by file type
 * @param {string} name
 * @param {(text: string) => void} announce
 */
export function savingButtons(works, name, announce) {
  return Object.entries(works).map(([kind, work]) =>
    button(
      kind,
      async (event) => {
        const menu = event.target.closest("details");
        menu.open = false;
        menu.firstChild.focus();
        try {
          await work();
          announce(`saved ${name}.${kind.toLowerCase()}`);
        } catch (error) {
          announce(`could not save ${kind}: ${messageOf(error)}`);
        }
      },
      { "data-kind": kind.toLowerCase() },
    ),
  );
}

/** The export menu of a panel: its numbers. @param {Exported} page @param {string} name @param {() => Cells[]} rows */
export function exportMenu(page, name, rows) {
  const summary = el("summary", { "aria-label": `export ${name}` }, "export");
  const buttons = savingButtons(dataOf(page, name, rows), name, page.announce);
  return el("details", { class: "export", "data-name": name }, summary, el("div", {}, buttons));
}

/** Add the view to a figure: as metadata, and the pins as a line below.
 *
 * @param {SVGElement} drawing
 * @param {Exported} page
 * @param {View} view
 */
function withView(drawing, { data }, view) {
  const lines = pinnedLines(view),
    [, , width, height] = (drawing.getAttribute("viewBox") ?? "0 0 200 40").split(" ").map(Number);
  const wide = Math.ceil(Math.max(width, ...lines.map((line) => textWidth(line, 10.5) + 4))),
    high = height + 16 * lines.length;
  if (lines.length) {
    for (const node of [drawing, drawing.querySelector("rect")]) {
      node?.setAttribute("width", String(wide));
      node?.setAttribute("height", String(high));
    }
    drawing.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    lines.forEach((line, i) =>
      drawing.append(label(2, height + 16 * i + 6, line, { "font-size": 10.5, fill: PALETTES.light.faint })),
    );
  }
  drawing.prepend(svg("metadata", {}, printable(JSON.stringify({ text: data.text, model: data.model, view }))));
  return drawing;
}

/** Write JSON without the two characters that XML does not allow.
 *
 * @param {string} json
 */
const printable = (json) => json.replace(/[\ufffe\uffff]/g, (sign) => (sign === "\ufffe" ? "\\ufffe" : "\\uffff"));

/** Describe the pins: tokens with their names, and groups.
 *
 * @param {View} view
 */
export function pinnedLines({ pins = [], groups = [] }) {
  const named = pins.map(({ token, name }) => (name ? `${name} (${plainToken(token)})` : plainToken(token)));
  const members = (/** @type {number[]} */ positions) =>
    pins.flatMap((pin, i) => (positions.includes(pin.position) ? named[i] : [])).join(", ");
  return [
    ...(pins.length ? [`pinned: ${named.join(", ")}`] : []),
    ...groups.map(({ name, positions }) => `${name}: ${members(positions)}`),
  ];
}

/** @param {Cells[]} table @param {Exported} page */
function asObjects([head, ...rows], { data, view }) {
  return {
    text: data.text,
    model: data.model,
    prediction: data.prediction,
    ...(view && { view: view() }),
    rows: rows.map((row) =>
      Object.fromEntries(head.map((name, i) => [String(name), Number.isNaN(row[i]) ? null : (row[i] ?? null)])),
    ),
  };
}

/** Draw the shaded text of each method.
 *
 * @param {object} parts
 * @param {string[]} parts.tokens
 * @param {boolean[]} parts.joins
 * @param {MethodRow[]} parts.methods
 * @param {string} parts.title
 * @param {string} parts.foot
 * @param {Palette} parts.colours
 * @param {number} [parts.width]
 * @param {boolean[]} [parts.pinned] tokens that are marked
 */
export function compareFigure({ tokens, joins, methods, title, foot, colours, width = 640, pinned = [] }) {
  const size = 12,
    small = 10.5,
    gap = 3,
    high = 20;
  const left = Math.max(...methods.map((method) => textWidth(method.title, size))) + 12;
  /** @type {{ text: string, left: number, line: number, own: number }[]} */
  const place = [];
  let x = left,
    line = 0,
    wide = left + 60;
  tokens.forEach((token, i) => {
    const text = plainToken(token, 40),
      own = textWidth(text, size) + 8;
    if (x + own > width && x > left) {
      x = left;
      line++;
    } else if (i && !joins[i]) x += gap;
    place.push({ text, left: x, line, own });
    x += own;
    wide = Math.max(wide, x);
  });
  const block = (line + 1) * (high + 3) + 7,
    top = 44,
    end = Math.ceil(Math.max(wide, textWidth(title, size, "600")) + 8);
  const drawing = figure(
    Math.max(end, Math.ceil(textWidth(foot, small)) + 4),
    top + methods.length * block + 22,
    colours,
    title,
    12,
  );
  drawing.append(label(2, top + methods.length * block + 10, foot, { "font-size": small, fill: colours.faint }));
  methods.forEach((method, m) => {
    const y = top + m * block;
    drawing.append(label(0, y + high / 2, method.title, { "font-size": size }));
    const { shares } = method;
    if (shares)
      place.forEach((token, i) => {
        const at = y + token.line * (high + 3);
        drawing.append(
          svg("rect", {
            x: token.left,
            y: at,
            width: token.own,
            height: high,
            fill: shade(colours, shares[i]),
            stroke: colours.line,
            "stroke-width": 0.5,
          }),
        );
        drawing.append(
          label(token.left + token.own / 2, at + high / 2 + 0.5, token.text, {
            "text-anchor": "middle",
            "font-size": size,
            fill: inkOn(colours, shares[i]),
            direction: "ltr",
          }),
        );
        if (pinned[i])
          drawing.append(
            svg("rect", { x: token.left, y: at + high - 2, width: token.own, height: 2, fill: colours.accent }),
          );
      });
  });
  return drawing;
}
