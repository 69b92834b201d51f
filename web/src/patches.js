import { shade } from "./colour.js";
import { el, brush, svg, figure, label, textWidth } from "./draw.js";

/** @import { Data, Now, Page, Palette, ValuedRow } from "./types" */

/** Return how many rows and columns of patches an image has.
 *
 * @param {Data} data
 */
export const patchesOf = ({ patches }) => patches ?? [0, 0];

/** Return the input positions of an image's patches, row by row: the last ones, unless the image is within a text.
 *
 * @param {Data} data
 */
export function placesOf(data) {
  if (data.picture) return data.picture;
  const [rows, columns] = patchesOf(data),
    first = data.units.subwords.tokens.length - rows * columns;
  return { rows, columns, places: Array.from({ length: rows * columns }, (_, i) => first + i) };
}

/** Draw the image that the model saw.
 *
 * @param {NonNullable<Data["image"]>} image
 */
export function imageCanvas({ shape: [height, width], pixels }) {
  const canvas = el("canvas", { width, height }),
    context = brush(canvas),
    image = context.createImageData(width, height);
  for (let i = 0; i < width * height; i++) {
    image.data.set(pixels.subarray(3 * i, 3 * i + 3), 4 * i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

/** Draw the patches over the image.
 *
 * @param {Page} page
 * @param {HTMLCanvasElement} canvas
 * @param {ValuedRow} method
 * @param {Now} at
 * @param {Palette} colours
 */
export function paintPatches(page, canvas, method, at, colours) {
  const { data, state } = page;
  const [rows, columns] = patchesOf(data),
    first = at.tokens.length - rows * columns;
  const side = 168,
    wide = Math.round((side * columns) / rows);
  canvas.width = wide * 2;
  canvas.height = side * 2;
  canvas.style.width = `${wide}px`;
  canvas.style.height = `${side}px`;
  const context = brush(canvas);
  if (page.picture) {
    context.filter = "grayscale(1)"; // so that every colour means a value
    context.drawImage(page.picture, 0, 0, canvas.width, canvas.height);
    context.filter = "none";
  }
  const cell = { w: canvas.width / columns, h: canvas.height / rows };
  context.globalAlpha = data.image ? 0.62 : 1;
  const shareOf = new Map(at.inputs.map((i, place) => [i, method.shares[place]]));
  for (let i = 0; i < rows * columns; i++) {
    context.fillStyle = shade(colours, shareOf.get(first + i) ?? 0);
    context.fillRect(
      Math.floor((i % columns) * cell.w),
      Math.floor(Math.floor(i / columns) * cell.h),
      Math.ceil(cell.w),
      Math.ceil(cell.h),
    );
  }
  context.globalAlpha = 1;
  const chosen = state.get().t - first;
  if (chosen >= 0) {
    context.strokeStyle = colours.accent;
    context.lineWidth = 4;
    context.strokeRect((chosen % columns) * cell.w, Math.floor(chosen / columns) * cell.h, cell.w, cell.h);
  }
  return { shareOf, first, wide, side };
}

/** Draw the image with the shades of a method, for export.
 *
 * @param {Page} page
 * @param {ValuedRow} method
 * @param {string} title
 * @param {Palette} colours
 */
export function patchFigure(page, method, title, colours) {
  const canvas = el("canvas"),
    { wide, side } = paintPatches(page, canvas, method, page.now(), colours);
  const drawing = figure(Math.max(textWidth(title, 12, "600"), wide + 16), side + 48, colours, title, 12);
  drawing.append(
    label(0, 34, method.title, { "font-size": 12 }),
    svg("image", { x: 0, y: 46, width: wide, height: side, href: canvas.toDataURL() }),
  );
  return drawing;
}
