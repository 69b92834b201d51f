import { PALETTES, shade, inkOn } from "./colour.js";
import { el, brush, button, figure, label, messageOf, svg, textWidth, plainToken, correlation } from "./draw.js";

/** @import { Cells, Exported, MethodRow, Palette } from "./types" */

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
 * @param {((colours: Palette) => SVGElement | null) | null} make null if there is no figure; returns null if there is nothing to draw
 * @param {() => Cells[]} rows
 * @returns {Record<string, () => void | Promise<void>>}
 */
export function exportsOf(page, name, make, rows) {
  const paper = () => make?.(PALETTES.light) ?? figure(200, 40, PALETTES.light, "not available");
  return {
    ...(make && {
      SVG: () => download(`attnflow-${name}.svg`, svgText(paper()), "image/svg+xml"),
      PNG: async () => download(`attnflow-${name}.png`, await png(paper())),
    }),
    CSV: () => download(`attnflow-${name}.csv`, csv(rows()), "text/csv"),
    JSON: () => download(`attnflow-${name}.json`, JSON.stringify(asObjects(rows(), page), null, 1), "application/json"),
  };
}

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

/** The export menu of a panel.
 *
 * @param {Exported} page
 * @param {string} name
 * @param {((colours: Palette) => SVGElement | null) | null} make
 * @param {() => Cells[]} rows
 */
export function exportMenu(page, name, make, rows) {
  const summary = el("summary", { "aria-label": `export ${name}` }, "export");
  const buttons = savingButtons(exportsOf(page, name, make, rows), name, page.announce);
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

/** Draw the comparison as a figure: the shaded text of each method, with its correlations.
 *
 * @param {object} parts
 * @param {string[]} parts.tokens
 * @param {boolean[]} parts.joins
 * @param {(MethodRow & { reason?: string })[]} parts.methods
 * @param {string} parts.title
 * @param {string} parts.foot
 * @param {Palette} parts.colours
 * @param {number} [parts.width]
 */
export function compareFigure({ tokens, joins, methods, title, foot, colours, width = 640 }) {
  const size = 12,
    small = 10.5,
    gap = 3,
    high = 20;
  const against = methods.find((method) => method.correlations)?.correlations?.map((c) => `ρ ${c.name}`) ?? [];
  const columns = against.map((name) => textWidth(name, small) + 16),
    right = columns.reduce((sum, own) => sum + own, 0);
  const left = Math.max(...methods.map((method) => textWidth(method.title, size))) + 12;
  /** @type {{ text: string, left: number, line: number, own: number }[]} */
  const place = [];
  let x = left,
    line = 0,
    wide = left + 60;
  tokens.forEach((token, i) => {
    const text = plainToken(token, 40),
      own = textWidth(text, size) + 8;
    if (x + own > width - right && x > left) {
      x = left;
      line++;
    } else if (i && !joins[i]) x += gap;
    place.push({ text, left: x, line, own });
    x += own;
    wide = Math.max(wide, x);
  });
  const block = (line + 1) * (high + 3) + 7,
    top = 44,
    end = Math.ceil(Math.max(wide + right, textWidth(title, size, "600")) + 8);
  const drawing = figure(
    Math.max(end, Math.ceil(textWidth(foot, small)) + 4),
    top + methods.length * block + 22,
    colours,
    title,
    12,
  );
  drawing.append(label(2, top + methods.length * block + 10, foot, { "font-size": small, fill: colours.faint }));
  const column = (/** @type {number} */ i) => wide + columns.slice(0, i + 1).reduce((sum, own) => sum + own, 0);
  against.forEach((name, i) =>
    drawing.append(label(column(i), 32, name, { "text-anchor": "end", "font-size": small, fill: colours.faint })),
  );
  methods.forEach((method, m) => {
    const y = top + m * block;
    drawing.append(label(0, y + high / 2, method.title, { "font-size": size }));
    const { shares } = method;
    if (!shares)
      drawing.append(label(left, y + high / 2, method.reason ?? "", { fill: colours.faint, "font-size": small }));
    else
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
      });
    (method.correlations ?? []).forEach((c, i) =>
      drawing.append(label(column(i), y + high / 2, correlation(c.value), { "text-anchor": "end", "font-size": size })),
    );
  });
  return drawing;
}
