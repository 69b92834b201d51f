import {el, button, figure, label, svg, textWidth, plainToken, correlation} from "./draw.js";
import {PALETTES, shade, inkOn} from "./colour.js";

export function download(name, content, type) {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], {type}));
  const link = el("a", {href: url, download: name});
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

export function svgText(node) {
  const copy = node.cloneNode(true);
  for (const one of copy.querySelectorAll("[class], [tabindex]")) {
    one.removeAttribute("class");
    one.removeAttribute("tabindex");
  }
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

/** The figure at three pixels to a point, for slides. */
export async function png(node, scale = 3) {
  const text = svgText(node).replace(/^<\?xml[^>]*>\n/, "");
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const most = Math.min(scale, 16000 / Math.max(image.width, image.height));
  const canvas = el("canvas", {width: Math.round(image.width * most), height: Math.round(image.height * most)});
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  return new Promise(resolve => canvas.toBlob(resolve));
}

export function csv(rows) {
  const cell = value => {
    // a spreadsheet would run a text that begins like a formula
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map(row => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** The menu of a panel. `make` gives its figure in a palette, `rows` its numbers. */
export function exportMenu(name, make, rows, data, announce) {
  const save = (kind, work) => button(kind, async event => {
    const menu = event.target.closest("details");
    menu.open = false;
    menu.firstChild.focus();
    try {
      await work();
      announce(`saved ${name}.${kind.toLowerCase()}`);
    } catch (error) {
      announce(`${kind} could not be made: ${error.message}`);
    }
  }, {"data-kind": kind.toLowerCase()});
  const paper = () => make(PALETTES.light);
  return el("details", {class: "export", "data-name": name}, el("summary", {"aria-label": `export ${name}`}, "export"), el("div", {},
    save("SVG", () => download(`attnflow-${name}.svg`, svgText(paper()), "image/svg+xml")),
    save("PNG", async () => download(`attnflow-${name}.png`, await png(paper()))),
    save("CSV", () => download(`attnflow-${name}.csv`, csv(rows()), "text/csv")),
    save("JSON", () => download(`attnflow-${name}.json`, JSON.stringify(asObjects(rows(), data), null, 1), "application/json"))));
}

function asObjects([head, ...rows], data) {
  return {
    text: data.text, model: data.model, prediction: data.prediction,
    rows: rows.map(row => Object.fromEntries(head.map((name, i) => [name, Number.isNaN(row[i]) ? null : row[i] ?? null]))),
  };
}

/** Compare as a figure: one shaded sentence a method, set line by line. */
export function compareFigure({tokens, joins, methods, title, colours, width = 640}) {
  const size = 12, left = 84, right = 118, gap = 3, high = 20, size2 = 10.5;
  const place = [];
  let x = left, line = 0;
  tokens.forEach((token, i) => {
    const text = plainToken(token, 40), wide = textWidth(text, size) + 7;
    if (x + wide > width - right && x > left) { x = left; line++; }
    else if (i && !joins[i]) x += gap;
    place.push({text, x, line, wide});
    x += wide;
  });
  const block = (line + 1) * (high + 3) + 7, top = 44;
  const found = figure(width, top + methods.length * block + 8, colours, title);
  found.append(label(0, 12, title, {"font-size": 12, "font-weight": 600}));
  const against = methods.find(m => m.correlations)?.correlations.map(c => c.name) ?? [];
  against.forEach((name, i) => found.append(label(width - right + 62 + 56 * i, 32, `ρ ${name}`, {"text-anchor": "end", "font-size": size2, fill: colours.faint})));
  methods.forEach((method, m) => {
    const y = top + m * block;
    found.append(label(0, y + high / 2, method.title, {"font-size": size}));
    if (!method.shares) found.append(label(left, y + high / 2, method.reason ?? "", {fill: colours.faint, "font-size": size2}));
    place.forEach(({text, x, line, wide}, i) => {
      if (!method.shares) return;
      const at = y + line * (high + 3);
      found.append(svg("rect", {x, y: at, width: wide, height: high, fill: shade(colours, method.shares[i]), stroke: colours.line, "stroke-width": 0.5}));
      found.append(label(x + wide / 2, at + high / 2 + 0.5, text, {"text-anchor": "middle", "font-size": size, fill: inkOn(colours, method.shares[i]), direction: "ltr"}));
    });
    (method.correlations ?? []).forEach((c, i) => found.append(
      label(width - right + 62 + 56 * i, y + high / 2, correlation(c.value), {"text-anchor": "end", "font-size": size})));
  });
  return found;
}
