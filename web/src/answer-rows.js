import { unpacked } from "./data.js";

/** @import { Kept, KeptMatrix, Span } from "./types" */

const FADED = 0.5; // weight of fading relative to what was read; the same as attnflow.answer_rows.FADED

/** Read a matrix of a document: all of it, or the largest entries of each row with their places.
 *
 * @param {Kept} kept
 * @returns {Promise<KeptMatrix>}
 */
export async function readKept({ values: packed, places: packedPlaces, width, covered }) {
  const values = await unpacked(packed),
    places = packedPlaces && (await unpacked(packedPlaces)),
    each = places ? packed.shape[1] : width;

  /** @param {number} row @param {(place: number, value: number) => void} visit */
  function visitRow(row, visit) {
    for (let i = row * each; i < (row + 1) * each; i++) visit(places ? places[i] : i - row * each, values[i]);
  }
  /** Return one entry, or 0 if the row does not store it. @param {number} row @param {number} place */
  function at(row, place) {
    if (!places) return values[row * each + place];
    let low = row * each,
      high = (row + 1) * each;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (places[middle] < place) low = middle + 1;
      else high = middle;
    }
    return low < (row + 1) * each && places[low] === place ? values[low] : 0;
  }
  return { width, covered, visitRow, at };
}

/** Return signed values as shares: clipped at zero and divided by their sum.
 *
 * @param {Float64Array} values
 */
export function sharesOf(values) {
  const total = values.reduce((sum, x) => sum + Math.max(0, x), 0);
  return values.map((x) => (total ? Math.max(0, x) / total : 0));
}

/** Return the shares of units, averaged over the rows that have any. `totals`: the total support of each row.
 *
 * @param {KeptMatrix} rows
 * @param {number[]} totals
 * @param {Span} span
 */
export function meanShares(rows, totals, { from, to }) {
  const sums = new Float64Array(rows.width);
  let count = 0;
  for (let row = from; row <= to; row++) {
    if (!(totals[row] > 0)) continue;
    count++;
    rows.visitRow(row, (place, value) => {
      if (value > 0) sums[place] += value / totals[row];
    });
  }
  return count ? sums.map((x) => x / count) : sums;
}

/** Return the sum of some rows of a matrix.
 *
 * @param {KeptMatrix} matrix
 * @param {Iterable<number>} rows
 */
export function added(matrix, rows) {
  const sums = new Float64Array(matrix.width);
  for (const row of rows) matrix.visitRow(row, (place, value) => (sums[place] += value));
  return sums;
}

/** Return the root mean square over units, without the last entry (what is in no unit). @param {Float64Array} values */
function sizeOf(values) {
  const units = values.length - 1;
  let sum = 0;
  for (let i = 0; i < units; i++) sum += values[i] ** 2;
  return Math.sqrt(sum / units) || 1;
}

/** Add, on one scale and signed, what was read from each unit and how fast the answer falls as attention to it fades.
 *
 * @param {Float64Array} read
 * @param {Float64Array} faded
 */
export function combined(read, faded) {
  const reads = sizeOf(read),
    fades = sizeOf(faded);
  return read.map((x, i) => x / reads + (FADED * faded[i]) / fades);
}

/** Pass shares on answer tokens back to earlier tokens `hops` times. Return the weight of each answer token's row, and the
 * shares that remain on answer tokens.
 *
 * @param {KeptMatrix} inside shares of answer tokens, for each answer token
 * @param {boolean[]} filled whether the row of a token has any share
 * @param {Span} span
 * @param {number} hops Infinity for all
 */
export function passedOn(inside, filled, { from, to }, hops) {
  const count = inside.width,
    rows = Array.from({ length: to - from + 1 }, (_, i) => from + i).filter((row) => filled[row]),
    start = new Float64Array(count);
  for (const row of rows) start[row] = 1 / rows.length;
  /** @param {Float64Array} mass */
  const passed = (mass) => {
    const next = new Float64Array(count);
    mass.forEach((share, row) => {
      if (share) inside.visitRow(row, (place, value) => (next[place] += share * value));
    });
    return next;
  };
  const weights = start.slice();
  if (hops === Infinity) {
    for (let row = count - 1; row >= 0; row--)
      if (weights[row]) inside.visitRow(row, (place, value) => (weights[place] += weights[row] * value));
    return { weights, left: new Float64Array(count) };
  }
  let left = passed(start);
  for (let hop = 0; hop < Math.min(hops, count); hop++) {
    left.forEach((x, i) => (weights[i] += x));
    left = passed(left);
  }
  return { weights, left };
}

/** Return the weighted sum of rows.
 *
 * @param {KeptMatrix} rows
 * @param {Float64Array} weights
 * @param {(row: number, value: number) => number} [share] of a value in its row
 */
export function weighted(rows, weights, share = (_, value) => value) {
  const sums = new Float64Array(rows.width);
  weights.forEach((weight, row) => {
    if (weight) rows.visitRow(row, (place, value) => (sums[place] += weight * share(row, value)));
  });
  return sums;
}

/** Return the indices of the parts (first and last token) that make up a span, or null if none do.
 *
 * @param {[number, number][]} parts
 * @param {Span} span
 */
export function partsOf(parts, { from, to }) {
  const whole = parts.findIndex(([first, last]) => first === from && last === to);
  if (whole >= 0) return [whole];
  const numbers = [];
  for (let at = from; at <= to;) {
    const fitting = parts.flatMap(([first, last], i) => (first === at && last <= to ? [i] : []));
    if (!fitting.length) return null;
    const shortest = fitting.reduce((a, b) => (parts[b][1] < parts[a][1] ? b : a));
    numbers.push(shortest);
    at = parts[shortest][1] + 1;
  }
  return numbers;
}
