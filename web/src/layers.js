import { el, svg, figure, label, number, plainToken, hiddenTable, choice, press, textWidth } from "./draw.js";
import { shade, inkOn, extent, cellCanvas } from "./colour.js";
import { exportMenu } from "./keep.js";
import { touched } from "./state.js";

/** @import { Cells, Page, Palette, Panel } from "./types" */
/** @typedef {ReturnType<typeof heatMap>} HeatMap */

const CELLS = 900;
const NAMED = 72;

/** Draw a matrix as cells with names: rows from the bottom up unless `down`.
 *
 * @param {object} parts
 * @param {(Float64Array | number[])[]} parts.rows
 * @param {string[]} parts.rowNames
 * @param {string[]} parts.columnNames
 * @param {string} parts.title
 * @param {Palette} parts.colours
 * @param {boolean} [parts.down]
 * @param {number} [parts.width]
 * @param {number} [parts.cell] height of a row
 * @param {number} [parts.chosenRow]
 * @param {number} [parts.chosenColumn]
 * @param {number[] | null} [parts.columns] the columns to show
 */
export function heatMap({
  rows,
  rowNames,
  columnNames,
  title,
  colours,
  down = false,
  width = 340,
  cell = 16,
  chosenRow = -1,
  chosenColumn = -1,
  columns = null,
}) {
  const some = columns && columns.length < rows[0].length ? columns : null;
  const values = some ? rows.map((row) => some.map((i) => row[i])) : rows;
  const n = values[0].length,
    count = values.length;
  const lengths = n <= NAMED ? columnNames.map((name) => textWidth(plainToken(name, 14), 10, "700")) : [];
  let left =
    8 +
    Math.max(
      ...(count <= NAMED ? rowNames : [rowNames[0], rowNames[count - 1], rowNames[chosenRow] ?? ""]).map((name) =>
        textWidth(plainToken(name, 12), 10, "700"),
      ),
    );
  let w = Math.max(0.5, Math.min(cell * 3, (width - left - 18) / n));
  // the slanted names of the first columns extend to the left
  if (w >= 11) left = Math.max(left, ...lengths.map((long, c) => 0.58 * long + 6 - (c + 0.5) * w));
  w = Math.max(0.5, Math.min(w, (width - left - 18) / n));
  const named = n <= NAMED && w >= 11;
  const h = down ? Math.max(0.5, Math.min(cell, w)) : cell;
  const top = 22,
    foot = named ? 14 + 0.82 * Math.max(...lengths) : 18;
  const wide = Math.max(left + n * w + 16, textWidth(title, 12) + 8),
    high = top + count * h + foot;
  const drawing = figure(Math.ceil(wide), Math.ceil(high), colours, title, 9);
  const scale = extent(values, false),
    [least, most] = scale;
  /** @param {number} value */
  const shareOf = (value) => {
    if (least < 0) return value / (Math.max(-least, most) || 1);
    return most > least ? (value - least) / (most - least) : value > 0 ? 0.5 : 0;
  };
  /** @type {HTMLCanvasElement | null} */
  let under = null;
  const y = (/** @type {number} */ r) => top + (down ? r : count - 1 - r) * h;
  if (n * count <= CELLS) {
    values.forEach((row, r) =>
      row.forEach((value, c) => {
        drawing.append(
          svg("rect", {
            x: left + c * w,
            y: y(r),
            width: w,
            height: h,
            fill: shade(colours, shareOf(value)),
            stroke: colours.paper,
            "stroke-width": 0.6,
          }),
        );
        if (w > 27)
          drawing.append(
            label(left + (c + 0.5) * w, y(r) + h / 2 + 0.5, value.toFixed(2), {
              "text-anchor": "middle",
              "font-size": 9.5,
              fill: inkOn(colours, shareOf(value)),
            }),
          );
      }),
    );
  } else {
    const order = down ? values : [...values].reverse();
    // behind the lines and names: painting a canvas is much faster than encoding it as an image
    under = cellCanvas(order, shareOf, colours);
    under.style.cssText = `left:${left}px;top:${top}px;width:${n * w}px;height:${count * h}px`;
    under.setAttribute("aria-hidden", "true");
    drawing.firstChild?.remove();
  }
  rowNames.forEach((name, r) => {
    if ((count > NAMED || h < 9.5) && r !== 0 && r !== count - 1 && r !== chosenRow) return;
    drawing.append(
      label(left - 4, y(r) + h / 2 + 0.5, plainToken(name, 12), {
        "text-anchor": "end",
        "font-size": 10,
        fill: r === chosenRow ? colours.accent : colours.faint,
        "font-weight": r === chosenRow ? 700 : 400,
      }),
    );
  });
  columnNames.forEach((name, c) => {
    if (!named && c !== chosenColumn) return;
    const x = left + (c + 0.5) * w;
    drawing.append(
      label(x, top + count * h + 6, plainToken(name, 14), {
        "text-anchor": named ? "end" : "middle",
        "font-size": 10,
        fill: c === chosenColumn ? colours.accent : colours.ink,
        "font-weight": c === chosenColumn ? 700 : 400,
        ...(named ? { transform: `rotate(-55 ${x} ${top + count * h + 6})` } : {}),
      }),
    );
  });
  if (chosenRow >= 0)
    drawing.append(
      svg("rect", {
        x: left,
        y: y(chosenRow),
        width: n * w,
        height: h,
        fill: "none",
        stroke: colours.accent,
        "stroke-width": 1.2,
      }),
    );
  if (chosenColumn >= 0)
    drawing.append(
      svg("rect", {
        x: left + chosenColumn * w,
        y: top,
        width: w,
        height: count * h,
        fill: "none",
        stroke: colours.accent,
        "stroke-width": 1.2,
      }),
    );
  return {
    node: drawing,
    shown: under ? el("div", { class: "map" }, under, drawing) : drawing,
    scale,
    /** @param {MouseEvent} event */
    cellAt(event) {
      const box = drawing.getBoundingClientRect(),
        k = box.width / wide;
      const c = Math.floor(((event.clientX - box.left) / k - left) / w),
        v = Math.floor(((event.clientY - box.top) / k - top) / h);
      const r = down ? v : count - 1 - v;
      return c >= 0 && c < n && r >= 0 && r < count ? { row: r, column: c } : null;
    },
  };
}

/** Draw the scale of a map, from light to dark.
 *
 * @param {[number, number]} limits
 * @param {Palette} colours
 */
export function scaleBar(limits, colours) {
  const drawing = figure(160, 24, colours, `scale from ${number(limits[0], 3)} to ${number(limits[1], 3)}`);
  for (let i = 0; i < 40; i++) {
    const share =
      limits[0] < 0 ? (limits[0] + ((limits[1] - limits[0]) * i) / 39) / Math.max(-limits[0], limits[1]) : i / 39;
    drawing.append(svg("rect", { x: i * 4, y: 2, width: 4.2, height: 7, fill: shade(colours, share) }));
  }
  drawing.append(
    label(0, 17, number(limits[0], 2), { "font-size": 9.5, fill: colours.faint }),
    label(160, 17, number(limits[1], 2), { "font-size": 9.5, fill: colours.faint, "text-anchor": "end" }),
  );
  return drawing;
}

/** Layer × token for the selected query, one map per method; and one layer as a whole, n × n.
 *
 * @param {Page} page
 */
export function layersPanel(page) {
  const { data, state } = page;
  const small = el("div", { class: "maps" }),
    whole = el("div", { class: "maps whole" }),
    note = el("p", { class: "hint" });
  const methods = () => page.methods.filter((method) => !method.importance);
  const pick = choice("method of the map", Object.fromEntries(methods().map((m) => [m.name, m.title])), "", (name) =>
    state.set({ m: name }),
  );
  const node = el(
    "section",
    { class: "panel", "data-panel": "layers", tabindex: "-1" },
    el(
      "header",
      {},
      el("h2", {}, "Layers"),
      el("p", { class: "hint" }, "one row per layer, one column per token; click a cell to select both"),
      exportMenu(page, "layers", csvRows),
    ),
    small,
    el(
      "header",
      { class: "second" },
      el("h3", {}, "One layer, every query"),
      pick,
      note,
      exportMenu(page, "map", mapRows),
    ),
    whole,
  );

  /** Collect the rows of each method that has values for the selection. */
  const present = () =>
    methods().flatMap((method) => {
      const all = page.values(method.name);
      return all ? [{ method, all }] : [];
    });

  /** @param {Palette} colours */
  function drawn(colours) {
    const at = page.now();
    const shown = present();
    const room = Math.max(240, (page.width() - 36 - 48) / Math.max(1, Math.min(3, shown.length)));
    return shown.map(({ method, all }) => ({
      method,
      all,
      map: heatMap({
        rows: all.rows,
        columns: at.inputs,
        rowNames: at.layerNames,
        columnNames: at.inputs.map((i) => at.tokens[i]),
        title: method.title + (all.exact ? "" : " ≈"),
        colours,
        width: room,
        cell: data.layers.length > 16 ? 11 : 17,
        chosenRow: at.layer,
        chosenColumn: at.inputs.indexOf(at.token),
      }),
    }));
  }

  function wholeRows() {
    const at = page.now(),
      { m } = state.get();
    return page.data.map(m, at.unit, at.layer);
  }

  /** @param {Palette} colours */
  function drawWhole(colours) {
    const at = page.now(),
      rows = wholeRows();
    if (!rows) return null;
    const first = data.firstQuery,
      names = at.names.slice(first, first + rows.length); // without the sentence embedding, which is their mean
    return heatMap({
      rows,
      columns: at.inputs,
      rowNames: names,
      columnNames: at.inputs.map((i) => at.tokens[i]),
      title: `${page.titleOf(state.get().m)} at ${at.layerName}: rows are queries, columns are inputs`,
      colours,
      down: true,
      width: Math.min(page.width() - 40, 640),
      cell: 22,
      chosenRow: data.isPool(at.unit, at.query) ? -1 : at.query - first,
      chosenColumn: at.inputs.indexOf(at.token),
    });
  }

  /** Show the number under the pointer; a click selects its row and column.
   *
   * @param {HeatMap} map
   * @param {(cell: { row: number, column: number }) => string[]} lines
   * @param {(cell: { row: number, column: number }) => void} choose
   */
  function pointed(map, lines, choose) {
    map.node.addEventListener("pointermove", (event) => {
      const cell = map.cellAt(event);
      if (cell) page.tip.show(event, lines(cell));
      else page.tip.hide();
    });
    map.node.addEventListener("pointerleave", () => page.tip.hide());
    map.node.addEventListener("click", (event) => {
      const cell = map.cellAt(event);
      if (cell) choose(cell);
    });
  }

  function paint() {
    const colours = page.colours(),
      at = page.now();
    small.replaceChildren(
      ...drawn(colours).map(({ method, all, map }) => {
        pointed(
          map,
          ({ row, column }) => [
            `${plainToken(at.tokens[at.inputs[column]])} · ${at.layerNames[row]}`,
            `${method.title} ${all.rows[row][at.inputs[column]]}`,
          ],
          ({ row, column }) => state.set({ l: data.layers[row] + 1, t: at.inputs[column] }),
        );
        const order = at.inputs.slice(0, 64);
        const holder = el("figure", { "data-method": method.name }, map.shown, scaleBar(map.scale, colours));
        page.soon(`table ${method.name}`, () =>
          holder.append(
            hiddenTable(
              `${method.title} by layer${at.inputs.length > 64 ? ", the first 64 tokens" : ""}`,
              ["layer", ...order.map((i) => at.tokens[i])],
              all.rows.map((row, l) => [at.layerNames[l], ...order.map((i) => number(row[i]))]),
            ),
          ),
        );
        return holder;
      }),
    );
  }

  function paintWhole() {
    const colours = page.colours(),
      at = page.now();
    press(pick, state.get().m);
    const map = drawWhole(colours),
      rows = wholeRows();
    note.textContent = "";
    if (!map || !rows) {
      whole.replaceChildren(
        el(
          "p",
          { class: "why" },
          data.hasWeights
            ? `With ${at.tokens.length} tokens, ${page.titleOf(state.get().m)} of every query takes too long to compute here: choose raw attention, or one query above.`
            : "The map of a layer needs the weights, which this page does not include.",
        ),
      );
      return;
    }
    pointed(
      map,
      ({ row, column }) => [
        `from ${plainToken(at.names[data.firstQuery + row])} to ${plainToken(at.tokens[at.inputs[column]])}`,
        `${rows[row][at.inputs[column]]}`,
      ],
      ({ row, column }) => state.set({ q: data.firstQuery + row, t: at.inputs[column] }),
    );
    const holder = el("figure", {}, map.shown, scaleBar(map.scale, colours));
    whole.replaceChildren(holder);
    const most = 32;
    page.soon("table of the map", () =>
      holder.append(
        hiddenTable(
          `${page.titleOf(state.get().m)} at ${at.layerName}${rows.length > most ? `, the first ${most} queries and inputs` : ""}`,
          ["query", ...at.inputs.slice(0, most).map((i) => at.tokens[i])],
          rows
            .slice(0, most)
            .map((row, q) => [at.names[data.firstQuery + q], ...at.inputs.slice(0, most).map((i) => number(row[i]))]),
        ),
      ),
    );
  }

  /** @returns {Cells[]} */
  function csvRows() {
    const at = page.now(),
      shown = present();
    return [
      ["layer", "query", "position", "token", ...shown.map(({ method }) => method.name)],
      ...at.layerNames.flatMap((name, l) =>
        at.inputs.map((i) => [name, at.query, i, at.tokens[i], ...shown.map(({ all }) => all.rows[l][i])]),
      ),
    ];
  }

  /** @returns {Cells[]} */
  function mapRows() {
    const at = page.now(),
      rows = wholeRows() ?? [];
    return [
      ["layer", "query", "query_token", "position", "token", state.get().m],
      ...rows.flatMap((row, q) =>
        at.inputs.map((i) => [
          at.layerName,
          data.firstQuery + q,
          at.names[data.firstQuery + q],
          i,
          at.tokens[i],
          row[i],
        ]),
      ),
    ];
  }

  const both = ["q", "l", "t", "u", "s", "theme", "rows", "width"];
  return {
    node,
    /** @type {Panel[]} */
    parts: [
      { node: small, update: (changed) => touched(changed, ...both) && paint() },
      { node: whole, update: (changed) => touched(changed, ...both, "m") && paintWhole() },
    ],
  };
}
