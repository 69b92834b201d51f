import { brush } from "./draw.js";

/** @import { Palette } from "./types" */

/** One scale for all values, of one hue and with even steps in lightness (OKLCH), readable in print and for colour-blind people. */
const STOPS = 256;

/** @param {number} x */
function linear(x) {
  return x <= 0.0031308 ? 12.92 * x : 1.055 * x ** (1 / 2.4) - 0.055;
}

/** @param {number} lightness @param {number} chroma @param {number} hue */
function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180),
    b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => Math.round(255 * Math.min(1, Math.max(0, linear(Math.max(0, x))))));
}

/** @param {number} from @param {number} to @param {number} hue @param {number} most */
function ramp(from, to, hue, most) {
  return Array.from({ length: STOPS }, (_, i) => {
    const x = i / (STOPS - 1);
    // no chroma at the empty end, most in the middle, where screens can show it
    return oklch(from + (to - from) * x, most * Math.min(1, 2.2 * x) * (1 - 0.35 * x), hue);
  });
}

/** @typedef {{ paper: string, ink: string, faint: string, line: string, accent: string, negativeScale: number[][] }} Plain */

/** @param {string} name @param {Plain} plain @param {number[][]} scale */
function palette(name, plain, scale) {
  const css = scale.map(([r, g, b]) => `rgb(${r} ${g} ${b})`);
  /** @param {number[][]} colours */
  const inks = (colours) => colours.map((colour) => (luminance(colour) > 0.179 ? "#000" : "#fff"));
  /** Pack colours as pixels. @param {number[][]} colours */
  const packed = (colours) => Uint32Array.from(colours, ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0);
  return {
    name,
    ...plain,
    scale,
    css,
    negative: plain.negativeScale.map(([r, g, b]) => `rgb(${r} ${g} ${b})`),
    packed: packed(scale),
    packedNegative: packed(plain.negativeScale),
    inks: inks(scale),
    negativeInk: inks(plain.negativeScale),
  };
}

/** The colours of a theme. `paper` is for exports and always white. */
export const PALETTES = {
  light: palette(
    "light",
    {
      paper: "#ffffff",
      ink: "#1c2430",
      faint: "#6b7684",
      line: "#d9dee5",
      accent: "#c2410c",
      negativeScale: ramp(0.985, 0.42, 75, 0.13),
    },
    ramp(0.985, 0.36, 258, 0.17),
  ),
  dark: palette(
    "dark",
    {
      paper: "#14181f",
      ink: "#e7ebf0",
      faint: "#98a3b1",
      line: "#2f3742",
      accent: "#ff9d5c",
      negativeScale: ramp(0.235, 0.8, 75, 0.12),
    },
    ramp(0.235, 0.9, 245, 0.13),
  ),
};

/** Return the colour of a share from 0 to 1; shares from -1 to 0 have the other hue.
 *
 * @param {Palette} colours
 * @param {number} share
 */
export function shade(colours, share) {
  if (!Number.isFinite(share)) return colours.paper;
  const i = Math.round(Math.min(1, Math.abs(share)) * (STOPS - 1));
  return share < 0 ? colours.negative[i] : colours.css[i];
}

/** Return the text colour on that shade: black or white, with a contrast of at least 4.5 to 1.
 *
 * @param {Palette} colours
 * @param {number} share
 */
export function inkOn(colours, share) {
  const i = Math.round(Math.min(1, Math.abs(share)) * (STOPS - 1)) || 0;
  return (share < 0 ? colours.negativeInk : colours.inks)[i];
}

/** Return the style of a cell: background and text colour.
 *
 * @param {Palette} colours
 * @param {number} share
 */
export const shadeStyle = (colours, share) => `background:${shade(colours, share)};color:${inkOn(colours, share)}`;

/** @param {number[]} colour */
function luminance(colour) {
  const [r, g, b] = colour.map((x) => x / 255).map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Scale values from `low` and `high` to shares; if some are negative, divide by the largest size and keep the sign.
 *
 * @param {ArrayLike<number>} values
 * @param {number} low
 * @param {number} high
 */
export function shares(values, low, high) {
  if (low < 0) {
    const most = Math.max(-low, high) || 1;
    return Array.from(values, (v) => v / most);
  }
  const width = high - low;
  return Array.from(values, (v) => (width > 0 ? (v - low) / width : v > 0 ? 0.5 : 0));
}

/** Return the lowest and highest value of several rows; the lowest is 0 unless `stretch`, or unless a value is negative.
 *
 * @param {Iterable<Iterable<number>>} rows
 * @param {boolean} stretch
 * @returns {[number, number]}
 */
export function extent(rows, stretch) {
  let low = Infinity,
    high = -Infinity;
  for (const row of rows)
    for (const v of row)
      if (Number.isFinite(v)) {
        if (v < low) low = v;
        if (v > high) high = v;
      }
  if (low > high) return [0, 1];
  return [stretch || low < 0 ? low : 0, high];
}

/** Draw a matrix with one pixel per cell, for maps too large for SVG elements. NaN stays transparent.
 *
 * @template {ArrayLike<number>} Row
 * @param {Row[]} rows
 * @param {(value: number, row: number) => number} shareOf
 * @param {Palette} colours
 */
export function cellCanvas(rows, shareOf, colours) {
  const canvas = document.createElement("canvas");
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = brush(canvas),
    pixels = context.createImageData(canvas.width, canvas.height);
  let at = 0;
  const words = new Uint32Array(pixels.data.buffer),
    { packed, packedNegative } = colours;
  rows.forEach((row, r) => {
    for (let c = 0; c < row.length; c++, at++) {
      const share = shareOf(row[c], r),
        i = ((share < 0 ? -share : share) * (STOPS - 1) + 0.5) | 0;
      if (share === share) words[at] = (share < 0 ? packedNegative : packed)[i < STOPS ? i : STOPS - 1];
    }
  });
  context.putImageData(pixels, 0, 0);
  return canvas;
}
