import {
  el,
  between,
  button,
  closest,
  correlation,
  flattened,
  number,
  plainToken,
  tableOf,
  tokenLine,
  tokenNodes,
} from "./draw.js";
import { shadeStyle, shares, extent } from "./colour.js";
import { isAnswerEdges } from "./data.js";
import { spearman } from "./maths.js";
import { exportMenu } from "./keep.js";
import { touched } from "./state.js";
import { paintPatches, patchesOf } from "./patches.js";

/** @import { Cells, Changed, Method, MethodRow, Now, Page, Palette, ValuedRow } from "./types" */

/** Return the rank correlation of absolute values (importance is unsigned) over the tokens that have both values.
 *
 * @param {number[]} one
 * @param {number[]} other
 */
function agreement(one, other) {
  const both = one.map((_, i) => i).filter((i) => Number.isFinite(one[i]) && Number.isFinite(other[i]));
  const sizes = (/** @type {number[]} */ values) => both.map((i) => Math.abs(values[i]));
  return spearman(sizes(one), sizes(other));
}

/** Compare for descending order; missing values come last. @param {number} a @param {number} b */
const descending = (a, b) => (Number.isNaN(a) ? 1 : 0) - (Number.isNaN(b) ? 1 : 0) || b - a || 0;

/** Return whether the other methods are compared with this one. @param {Method} method */
const isMeasure = ({ name, importance }) => importance && !isAnswerEdges(name);

const LONG = 96;
const TABLE = 100;

/** The text shaded by every method, the numbers, and how much the methods agree.
 *
 * @param {Page} page
 */
export function comparePanel(page) {
  const { data, state } = page;
  /** @type {MethodRow[]} */
  let table = [];
  /** @type {Map<string, HTMLElement[]>} the token elements of each method */
  const spans = new Map();
  const rowsBox = el("div", { class: "rows" });
  const more = button(
    "",
    () => {
      all = !all;
      drawTable();
    },
    { class: "more" },
  );
  const tableBox = el("div", { class: "numbers" });
  let all = false;
  const legend = el("p", { class: "legend" }),
    notes = el("ul", { class: "notes" }),
    hint = el("p", { class: "hint" });
  const node = el(
    "section",
    { class: "panel", "data-panel": "compare", tabindex: "-1" },
    el("header", {}, el("h2", {}, "Compare"), hint, exportMenu(page, "compare", csvRows)),
    rowsBox,
    legend,
    notes,
    tableBox,
    more,
  );

  const valued = () => /** @type {ValuedRow[]} */ (table.filter((method) => method.values));

  /** Collect the values of every method for the visible inputs. */
  function gather() {
    const at = page.now();
    table = page.methods.map((method) => {
      const own = page.values(method.name);
      if (!own) return { ...method, values: null };
      const cut = (/** @type {Float64Array} */ row) => at.inputs.map((i) => row[i]);
      // scale an image's patches without the class token, whose own value would leave them all pale
      const [height, width] = patchesOf(data),
        first = data.patches ? at.tokens.length - height * width : 0;
      const scaled = (/** @type {Float64Array} */ row) => cut(row).filter((_, place) => at.inputs[place] >= first);
      const [low, high] = extent([scaled(own.row)], true);
      const values = cut(own.row);
      return { ...method, values, shares: shares(values, low, high), exact: own.exact };
    });
    const worth = valued().filter(isMeasure);
    for (const method of valued()) {
      if (!isMeasure(method))
        method.correlations = worth.map((w) => ({
          name: w.name,
          value: agreement(method.values, w.values),
        }));
    }
  }

  function build() {
    const at = page.now();
    rowsBox.classList.toggle("long", at.inputs.length > LONG && !data.patches);
    const against = page.methods.filter(isMeasure).map((method) => method.name);
    rowsBox.replaceChildren(
      against.length && page.methods.some((method) => !isMeasure(method))
        ? el(
            "div",
            { class: "row heads" },
            el("div"),
            el("div"),
            el(
              "div",
              { class: "rho" },
              against.map((name) => el("span", { title: `Spearman's rank correlation with ${name}` }, `ρ ${name}`)),
            ),
          )
        : "",
      ...page.methods.map((method) => {
        const body = data.patches ? imageCell() : textCell(at);
        return el(
          "div",
          { class: "row", "data-method": method.name },
          el("div", { class: "name" }, el("span", { title: method.what }, method.title), el("small", {})),
          body,
          el("div", { class: "rho" }),
        );
      }),
    );
    for (const { name } of page.methods) spans.set(name, tokensOf(name));
    rowsBox.classList.toggle("images", Boolean(data.patches));
  }

  /** @param {string} name @returns {HTMLElement | null} */
  const rowOf = (name) => rowsBox.querySelector(`[data-method="${CSS.escape(name)}"]`);

  /** @param {string} name @returns {HTMLElement[]} */
  const tokensOf = (name) =>
    [.../** @type {HTMLElement} */ (rowOf(name)).querySelectorAll(".text .tok")].map(
      (tok) => /** @type {HTMLElement} */ (tok),
    );

  /** @param {Now} at */
  function textCell(at) {
    return el(
      "div",
      { class: "strip" },
      el(
        "div",
        { class: "text" },
        tokenLine(at, at.inputs, (i) => ({ "data-i": i })),
      ),
      el("p", { class: "why", hidden: true }),
    );
  }

  function imageCell() {
    return el(
      "div",
      { class: "strip" },
      el("canvas", { class: "over", role: "img" }),
      el("div", { class: "text" }),
      el("p", { class: "why", hidden: true }),
    );
  }

  function paint() {
    const at = page.now(),
      colours = page.colours();
    gather();
    hint.textContent =
      data.levels.length || data.layers.length > 1 ? `what ${at.queryName} at ${at.layerName} comes from` : "";
    for (const method of table) paintRow(method, at, colours);
    const against = valued().some(({ importance, values }) => importance && values.some((v) => v < 0));
    legend.textContent = `Stronger colours are higher values, from the lowest to the highest of each row.${against ? " Brown values are below 0 and count against the answer." : ""}`;
    notes.replaceChildren(
      ...(data.notes[at.unit] ?? []).map((line) => el("li", {}, line)),
      ...cautions(at).map((line) => el("li", { class: "reliability" }, line)),
    );
    drawTable();
  }

  /** Return why these values should not be read as they are: the library's notes on the importances, and on the rows of the
   * query that the page opens with. @param {Now} at */
  function cautions(at) {
    const own = data.reliability[at.unit],
      isNoted = own && (own.query === null || own.query === at.query);
    return [
      ...data.importance.flatMap(({ reliability }) => reliability ?? []),
      ...(isNoted ? Object.values(own.notes).flatMap((layers) => layers[at.layer]) : []),
    ];
  }

  /** @param {MethodRow} method @param {Now} at @param {Palette} colours */
  function paintRow(method, at, colours) {
    const row = rowOf(method.name);
    if (!row) return;
    const part = (/** @type {string} */ selector) => /** @type {HTMLElement} */ (row.querySelector(selector));
    row.classList.toggle("absent", !method.values);
    part(".why").hidden = Boolean(method.values);
    part("small").textContent = method.values && !method.exact ? "≈" : "";
    part("small").title = "computed from weights rounded to eight bits";
    part(".rho").replaceChildren(
      ...(method.correlations ?? []).map(({ name, value }) =>
        el(
          "span",
          { title: `Spearman's rank correlation of ${method.title} with ${name}: ${value}` },
          correlation(value),
        ),
      ),
    );
    if (!method.values) {
      part(".why").replaceChildren(...flattened(page.whyNot(method.name)));
      return;
    }
    const shown = /** @type {ValuedRow} */ (method),
      { t } = state.get();
    part(".text").setAttribute("aria-label", spokenRow(shown, at));
    if (data.patches) {
      paintImage(row, shown, at, colours);
      return;
    }
    spans.get(method.name)?.forEach((tok, place) => {
      tok.style.cssText = shadeStyle(colours, shown.shares[place]);
      tok.classList.toggle("chosen", at.inputs[place] === t);
    });
  }

  /** @param {HTMLElement} row @param {ValuedRow} method @param {Now} at @param {Palette} colours */
  function paintImage(row, method, at, colours) {
    const canvas = row.querySelector("canvas");
    if (!canvas) return;
    const { shareOf, first } = paintPatches(page, canvas, method, at, colours);
    canvas.setAttribute("aria-label", spokenRow(method, at));
    const specials = at.inputs.filter((i) => i < first);
    row.querySelector(".text")?.replaceChildren(
      ...flattened(
        specials.map((i) => {
          const style = shadeStyle(colours, shareOf.get(i) ?? 0);
          return [el("span", { class: "tok", "data-i": i, style }, at.tokens[i]), " "];
        }),
      ),
    );
  }

  /** @param {ValuedRow} method @param {Now} at */
  function spokenRow({ title, values }, at) {
    const order = values.map((_, i) => i).sort((a, b) => descending(values[a], values[b]));
    const highest = order.slice(0, 3).map((i) => `${plainToken(at.tokens[at.inputs[i]])} ${number(values[i])}`);
    return `${title}: highest ${highest.join(", ")}`;
  }

  function drawTable() {
    const at = page.now(),
      { o } = state.get();
    const there = valued();
    const [key, direction] = o ? o.split(".") : ["text", "up"];
    const column = there.find((method) => method.name === key);
    const order = at.inputs.map((_, place) => place);
    if (column) {
      const sign = direction === "up" ? -1 : 1,
        valueOf = (/** @type {number} */ i) => sign * column.values[i];
      order.sort((a, b) => descending(valueOf(a), valueOf(b)) || a - b);
    } else if (direction === "down") order.reverse();
    const shown = all ? order : order.slice(0, TABLE);
    /** @param {string} name @param {string} title */
    const head = (name, title) => {
      const [first, second] = name === "text" ? ["up", "down"] : ["down", "up"];
      const sort = () => state.set({ o: `${name}.${name === key && direction === first ? second : first}` });
      const sorted = name === key ? (direction === "up" ? "ascending" : "descending") : "none";
      return el("th", { scope: "col", "aria-sort": sorted }, button(title, sort, { "data-sort": name }));
    };
    const body = shown.map((place) =>
      el(
        "tr",
        { "data-i": at.inputs[place], class: at.inputs[place] === state.get().t ? "chosen" : null },
        el("td", { class: "place" }, at.inputs[place]),
        el("th", { scope: "row" }, tokenNodes(at.tokens[at.inputs[place]])),
        there.map((method) => el("td", {}, number(method.values[place]))),
      ),
    );
    const focused = tableBox.contains(document.activeElement) && document.activeElement?.getAttribute("data-sort");
    const heads = ["#", head("text", "token"), ...there.map((method) => head(method.name, method.title))],
      caption = `Values of ${at.queryName} at ${at.layerName}; click a heading to sort`;
    tableBox.replaceChildren(tableOf({}, heads, body, caption));
    if (focused) /** @type {HTMLElement | null} */ (tableBox.querySelector(`[data-sort="${focused}"]`))?.focus();
    more.hidden = order.length <= TABLE;
    more.textContent = all ? `show only the first ${TABLE}` : `show all ${order.length} (now ${TABLE})`;
  }

  /** @returns {Cells[]} */
  function csvRows() {
    const at = page.now(),
      there = valued();
    return [
      ["position", "token", "special", "query", "layer", ...there.map((method) => method.name)],
      ...at.inputs.map((i, place) => [
        i,
        at.tokens[i],
        at.special[i],
        at.query,
        at.layerName,
        ...there.map(({ values }) => values[place]),
      ]),
    ];
  }

  /** @param {MouseEvent} event */
  function pointed(event) {
    const spot = closest(event, "[data-i]");
    if (spot && node.contains(spot)) return Number(spot.dataset.i);
    const canvas = closest(event, "canvas.over");
    if (!canvas) return null;
    const box = canvas.getBoundingClientRect(),
      [rows, columns] = patchesOf(data);
    const c = Math.floor(((event.clientX - box.left) / box.width) * columns),
      r = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return page.now().tokens.length - rows * columns + between(0, r, rows - 1) * columns + between(0, c, columns - 1);
  }

  /** @param {PointerEvent} event */
  function hover(event) {
    const i = pointed(event);
    for (const lit of rowsBox.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (i === null) {
      page.tip.hide();
      return;
    }
    for (const tok of rowsBox.querySelectorAll(`[data-i="${i}"]`)) tok.classList.add("lit");
    const at = page.now(),
      place = at.inputs.indexOf(i);
    if (place < 0) return;
    const own = closest(event, ".row")?.dataset.method;
    page.tip.show(event, [
      `${plainToken(at.tokens[i])} · position ${i}`,
      ...valued().map(({ name, title, values }) => {
        if (Number.isNaN(values[place])) return `${title}: not computed`;
        const above = values.filter((v) => v > values[place]).length;
        return `${name === own ? "▸ " : ""}${title} ${values[place]} · rank ${above + 1} of ${values.length}`;
      }),
    ]);
  }

  rowsBox.addEventListener("pointermove", hover);
  rowsBox.addEventListener("pointerleave", () => {
    page.tip.hide();
    for (const lit of rowsBox.querySelectorAll(".lit")) lit.classList.remove("lit");
  });
  node.addEventListener("click", (event) => {
    const i = pointed(event);
    if (i !== null) state.set({ t: i });
  });
  // long rows scroll together
  rowsBox.addEventListener(
    "scroll",
    ({ target }) => {
      if (!(target instanceof Element) || !target.classList.contains("text")) return;
      for (const text of rowsBox.querySelectorAll(".text")) if (text !== target) text.scrollTop = target.scrollTop;
    },
    true,
  );

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      if (touched(changed, "u", "s")) build();
      if (touched(changed, "u", "s", "q", "l", "t", "theme", "rows")) paint();
      else if (touched(changed, "o")) drawTable();
    },
  };
}
