import { el, svg, choice, closest, figure, hiddenTable, label, number, plainToken, press, tokenLine } from "./draw.js";
import { shade, shadeStyle, extent, shares, cellCanvas } from "./colour.js";
import { headRows } from "./maths.js";
import { exportMenu } from "./keep.js";
import { touched } from "./state.js";
import { heatMap, scaleBar } from "./layers.js";

/** @import { Cells, Changed, Now, Page, Palette } from "./types" */

/** Appendix A.1: all single heads of all layers, then one of them in detail.
 *
 * @param {Page} page
 */
export function headsPanel(page) {
  const { data, state } = page;
  const holder = el("div", { class: "scroll" }),
    detail = el("div", { class: "detail" });
  const single = data.hasWeights && !data.units.subwords.parts.length && data.levels.length === data.ends.length;
  const raw = { raw: "raw attention of one head" };
  const kinds = single ? { rollout: "rollout of one head (A.1)", ...raw } : raw;
  const pick = choice("method of the heads", kinds, "", (k) => state.set({ k }));
  const node = el(
    "section",
    { class: "view", "data-view": "heads" },
    el(
      "header",
      {},
      pick,
      el("p", { class: "hint" }, "one row per layer, one column per head; each strip is the text"),
      exportMenu(page, "heads", csvRows),
    ),
    holder,
    detail,
  );

  /** @type {{ key: string, rows: Float64Array[][] }} */
  let rolled = { key: "", rows: [] };

  /** [layer][head] → row over all inputs. */
  function gathered() {
    const at = page.now(),
      own = data.heads(at.unit, at.query);
    if (!own) return null;
    if (!single || state.get().k === "raw") return own;
    const key = `${at.unit} ${at.query}`;
    if (rolled.key !== key) {
      const graph = data.graph(at.unit);
      rolled = {
        key,
        rows: own.map((heads, l) =>
          headRows(heads, graph.slice(0, data.ends[data.layers[l]]), at.query, data.residual),
        ),
      };
    }
    return rolled.rows;
  }

  function chosen() {
    const [layer, head] = (state.get().h || "").split(".").map(Number);
    const l = data.layers.indexOf(layer - 1),
      own = data.heads(page.now().unit, page.now().query);
    return own && l >= 0 && head >= 1 && head <= own[l].length ? { l, h: head - 1 } : { l: page.now().layer, h: 0 };
  }

  /** @param {Palette} colours */
  function draw(colours) {
    const rows = gathered(),
      at = page.now();
    if (!rows) return null;
    const most = Math.max(...rows.map((heads) => heads.length)),
      left = 34,
      top = 40,
      gap = 6;
    const strip = Math.max(40, Math.min(140, (page.width() - 60 - left) / most - gap)),
      high = data.layers.length > 14 ? 14 : 20;
    const title = `${state.get().k === "raw" || !single ? "raw attention" : "rollout"} of single heads · ${at.queryName}`;
    const [wide, tall] = [Math.ceil(left + most * (strip + gap)), top + rows.length * (high + gap) + 4];
    const drawing = figure(wide, tall, colours, title, 10);
    const cut = (/** @type {Float64Array} */ row) => at.inputs.map((i) => row[i]);
    const [lowest, highest] = extent(rows.flat().map(cut), false);
    const now = chosen();
    for (let h = 0; h < most; h++)
      drawing.append(
        label(left + h * (strip + gap) + strip / 2, 30, String(h + 1), {
          "text-anchor": "middle",
          "font-size": 10,
          fill: colours.faint,
        }),
      );
    rows.forEach((heads, l) => {
      const y = top + (rows.length - 1 - l) * (high + gap);
      drawing.append(label(0, y + high / 2, at.layerNames[l], { "font-size": 10, fill: colours.faint }));
      const many = rows.length * most * at.inputs.length > 4000;
      if (many) {
        // one image per layer, with transparent pixels between heads
        const clear = Array(Math.round((at.inputs.length * gap) / strip)).fill(NaN);
        const line = heads.flatMap((row) => [...shares(cut(row), lowest, highest), ...clear]);
        const reach =
          (heads.length * (strip + gap) * line.length) /
          (heads.length * (at.inputs.length + (at.inputs.length * gap) / strip));
        drawing.append(
          svg("image", {
            x: left,
            y,
            width: reach,
            height: high,
            preserveAspectRatio: "none",
            href: cellCanvas([line], (value) => value, colours).toDataURL(),
            style: "image-rendering:pixelated",
          }),
        );
      }
      heads.forEach((row, h) => {
        const x = left + h * (strip + gap);
        const box = svg("g", { "data-head": `${data.layers[l] + 1}.${h + 1}`, class: "head" });
        const cells = many ? [] : shares(cut(row), lowest, highest);
        cells.forEach((share, c) =>
          box.append(
            svg("rect", {
              x: (x + (c * strip) / cells.length).toFixed(2),
              y,
              width: (strip / cells.length + 0.3).toFixed(2),
              height: high,
              fill: shade(colours, share),
            }),
          ),
        );
        const is = now.l === l && now.h === h;
        box.append(
          svg("rect", {
            x,
            y,
            width: strip,
            height: high,
            fill: "transparent",
            stroke: is ? colours.accent : colours.line,
            "stroke-width": is ? 2 : 0.7,
          }),
        );
        drawing.append(box);
      });
    });
    return drawing;
  }

  function paint() {
    const colours = page.colours(),
      at = page.now();
    press(pick, single ? state.get().k : "raw");
    const picture = draw(colours),
      rows = gathered();
    if (!picture || !rows) {
      holder.replaceChildren(el("p", { class: "why" }, page.whyNoHeads()));
      detail.replaceChildren();
      return;
    }
    picture.addEventListener("click", (event) => {
      const name = closest(event, "[data-head]")?.dataset.head;
      if (name) state.set({ h: name });
    });
    picture.addEventListener("pointermove", (event) => {
      const name = closest(event, "[data-head]")?.dataset.head;
      if (!name) {
        page.tip.hide();
        return;
      }
      const [layer, head] = name.split(".").map(Number),
        row = rows[data.layers.indexOf(layer - 1)][head - 1];
      const best = [...at.inputs].sort((a, b) => row[b] - row[a]).slice(0, 4);
      page.tip.show(event, [
        `L${layer} head ${head}`,
        ...best.map((i) => `${plainToken(at.tokens[i])} ${number(row[i])}`),
      ]);
    });
    picture.addEventListener("pointerleave", () => page.tip.hide());
    holder.replaceChildren(
      picture,
      hiddenTable(
        "The strongest token of each head",
        ["head", "token", "value"],
        rows.flatMap((heads, l) =>
          heads.map((row, h) => {
            const best = at.inputs.reduce((most, i) => (row[i] > row[most] ? i : most), at.inputs[0]);
            return [`${at.layerNames[l]} head ${h + 1}`, plainToken(at.tokens[best]), number(row[best])];
          }),
        ),
      ),
    );
    paintOne(rows, at, colours);
  }

  /** @param {Float64Array[][]} rows @param {Now} at @param {Palette} colours */
  function paintOne(rows, at, colours) {
    const { l, h } = chosen(),
      own = data.heads(at.unit, at.query)?.[l][h] ?? rows[l][h];
    /** @param {string} title @param {Float64Array} values */
    const line = (title, values) => {
      const cut = at.inputs.map((i) => values[i]),
        [low, high] = extent([cut], false),
        levels = shares(cut, low, high);
      return el(
        "div",
        { class: "row" },
        el("div", { class: "name" }, title),
        el(
          "div",
          { class: "text" },
          tokenLine({ ...at, parts: null }, at.inputs, (i, place) => ({
            title: `${plainToken(at.tokens[i])} ${cut[place]}`,
            style: shadeStyle(colours, levels[place]),
          })),
        ),
      );
    };
    const whole = at.tokens.length <= 160 ? data.headMap(at.unit, l, h) : null;
    const map =
      whole &&
      heatMap({
        rows: whole,
        columns: at.inputs,
        rowNames: at.names.slice(data.firstQuery),
        columnNames: at.inputs.map((i) => at.tokens[i]),
        title: `attention of ${at.layerNames[l]} head ${h + 1}: rows are queries, columns are inputs`,
        colours,
        down: true,
        width: Math.min(560, page.width() - 40),
        cell: 20,
        chosenRow: at.query - data.firstQuery,
      });
    detail.replaceChildren(
      el("h3", {}, `${at.layerNames[l]} head ${h + 1}`),
      line("raw", own),
      single && state.get().k !== "raw" ? line("rollout", rows[l][h]) : "",
      map ? el("figure", {}, map.shown, scaleBar(map.scale, colours)) : "",
    );
  }

  /** @returns {Cells[]} */
  function csvRows() {
    const rows = gathered() ?? [],
      at = page.now();
    return [
      ["layer", "head", "query", "position", "token", single ? state.get().k : "raw"],
      ...rows.flatMap((heads, l) =>
        heads.flatMap((row, h) => at.inputs.map((i) => [at.layerNames[l], h + 1, at.query, i, at.tokens[i], row[i]])),
      ),
    ];
  }

  /** Select another head. */
  function move() {
    const rows = gathered(),
      colours = page.colours(),
      { l, h } = chosen();
    if (!rows) return;
    for (const box of holder.querySelectorAll("[data-head]")) {
      const is = box.getAttribute("data-head") === `${data.layers[l] + 1}.${h + 1}`;
      box.lastElementChild?.setAttribute("stroke", is ? colours.accent : colours.line);
      box.lastElementChild?.setAttribute("stroke-width", is ? "2" : "0.7");
    }
    paintOne(rows, page.now(), colours);
  }

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "q", "u", "s", "k", "v", "theme", "rows", "width")) paint();
      else if (touched(changed, "h") || (touched(changed, "l") && !state.get().h)) move();
    },
  };
}
