import { PALETTES, shade, inkOn } from "./colour.js";
import { el, brush, button, figure, label, messageOf, svg, textWidth, plainToken } from "./draw.js";

/** @import { Cells, Exported, Palette } from "./types" */

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
  const paper = () => make(PALETTES.light) ?? figure(200, 40, PALETTES.light, "not available");
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

/** Draw the text, shaded by one method, as a figure.
 *
 * @param {object} parts
 * @param {string[]} parts.tokens
 * @param {boolean[]} parts.joins
 * @param {string} parts.method its title
 * @param {number[]} parts.shares
 * @param {string} parts.title
 * @param {string} parts.foot
 * @param {Palette} parts.colours
 * @param {number} parts.width
 */
export function textFigure({ tokens, joins, method, shares, title, foot, colours, width }) {
  const size = 12,
    small = 10.5,
    gap = 3,
    high = 20,
    top = 44,
    left = textWidth(method, size) + 12;
  /** @type {SVGElement[]} */
  const nodes = [];
  let x = left,
    y = top,
    wide = left + 60;
  tokens.forEach((token, i) => {
    const text = plainToken(token, 40),
      own = textWidth(text, size) + 8;
    if (x + own > width && x > left) {
      x = left;
      y += high + 3;
    } else if (i && !joins[i]) x += gap;
    const fill = shade(colours, shares[i]);
    nodes.push(
      svg("rect", { x, y, width: own, height: high, fill, stroke: colours.line, "stroke-width": 0.5 }),
      label(x + own / 2, y + high / 2 + 0.5, text, {
        "text-anchor": "middle",
        "font-size": size,
        fill: inkOn(colours, shares[i]),
        direction: "ltr",
      }),
    );
    x += own;
    wide = Math.max(wide, x);
  });
  const below = y + high + 10,
    end = Math.ceil(Math.max(wide, textWidth(title, size, "600")) + 8);
  const drawing = figure(Math.max(end, Math.ceil(textWidth(foot, small)) + 4), below + 12, colours, title, 12);
  drawing.append(
    label(0, top + high / 2, method, { "font-size": size }),
    ...nodes,
    label(2, below, foot, { "font-size": small, fill: colours.faint }),
  );
  return drawing;
}
