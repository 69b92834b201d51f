import { PALETTES } from "./colour.js";
import { figure, label, plainToken } from "./draw.js";
import { leadOf } from "./headline.js";
import { textFigure } from "./keep.js";
import { answerName, originFigure } from "./origin.js";
import { patchFigure } from "./patches.js";

/** @import { Cells, Page, Palette, ValuedRow } from "./types" */

const WIDTH = 640;

/** Draw the first screen as a figure: headline, shaded text, and where the answer came from.
 *
 * @param {Page} page
 * @param {string} title what the headline says
 * @param {Palette} colours
 */
export function leadFigure(page, title, colours = PALETTES.light) {
  const lead = leadOf(page),
    at = page.now(),
    { data } = page;
  if (!lead) return null;
  const places = at.tokens.map((_, i) => i).filter((i) => !at.special[i]),
    chosen = data.patches ? at.inputs : places.length ? places : at.tokens.map((_, i) => i);
  const row = {
    ...lead.method,
    values: chosen.map((i) => lead.values[i]),
    shares: chosen.map((i) => lead.shades[i] || 0),
  };
  if (data.patches) return patchFigure(page, /** @type {ValuedRow} */ (row), title, colours);
  const text = textFigure({
    tokens: chosen.map((i) => at.tokens[i]),
    joins: chosen.map((i, place) => place > 0 && at.joins[i]),
    method: row.title,
    shares: row.shares,
    title: plainToken(title, 110),
    foot: `${page.modelName}; colours by the size of each value${row.values.some((v) => v < 0) ? ", orange counts against" : ""}`,
    colours,
    width: WIDTH,
  });
  const origin = data.origin?.[at.unit];
  if (!origin?.edges.length) return text;
  const { node: picture } = originFigure(page, origin, answerName(page), colours, WIDTH);
  const [wide, high] = sizeOf(text),
    [, below] = sizeOf(picture);
  const both = figure(Math.max(wide, WIDTH), high + below + 26, colours, title);
  text.setAttribute("y", "0");
  picture.setAttribute("y", String(high + 22));
  both.append(text, label(0, high + 8, "Where it came from", { "font-size": 11, fill: colours.faint }), picture);
  return both;
}

/** @param {SVGElement} drawing */
const sizeOf = (drawing) => ["width", "height"].map((name) => Number(drawing.getAttribute(name)));

/** Return a table of every token with its value by every method.
 *
 * @param {Page} page
 * @returns {Cells[]}
 */
export function leadRows(page) {
  const at = page.now(),
    { tokens } = page.data.units[at.unit];
  const values = page.methods.flatMap(({ name }) => {
    const own = page.values(name);
    return own ? [{ name, row: own.row }] : [];
  });
  return [
    ["position", "token", "special", "query", "layer", ...values.map(({ name }) => name)],
    ...tokens.map((token, i) => [i, token, at.special[i], at.query, at.layerName, ...values.map(({ row }) => row[i])]),
  ];
}
