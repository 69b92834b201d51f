import { unpacked } from "./data.js";

/** @import { Kept, KeptMatrix, Span } from "./types" */

const FADED = 0.5; // what fading weighs beside what was read: attnflow.answer_rows.FADED

/** A matrix of a document: all of it, or the largest entries of each row with their places.
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
  /** One entry, 0 where the row does not have it. @param {number} row @param {number} place */
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

/** Signed values as shares: cut off at zero and divided by their sum.
 *
 * @param {Float64Array} values
 */
export function sharesOf(values) {
  const total = values.reduce((sum, x) => sum + Math.max(0, x), 0);
  return values.map((x) => (total ? Math.max(0, x) / total : 0));
}

/** The mean over rows of the shares of units: each row that has any counts alike. `totals`: what speaks for each row.
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

/** Some rows of a matrix, added up.
 *
 * @param {KeptMatrix} matrix
 * @param {Iterable<number>} rows
 */
export function added(matrix, rows) {
  const sums = new Float64Array(matrix.width);
  for (const row of rows) matrix.visitRow(row, (place, value) => (sums[place] += value));
  return sums;
}

/** Root mean square over units; the last entry is what stands in none. @param {Float64Array} values */
function sizeOf(values) {
  const units = values.length - 1;
  let sum = 0;
  for (let i = 0; i < units; i++) sum += values[i] ** 2;
  return Math.sqrt(sum / units) || 1;
}

/** What was read from each unit and how fast the answer falls as attention to it fades, on one scale, signed.
 *
 * @param {Float64Array} read
 * @param {Float64Array} faded
 */
export function combined(read, faded) {
  const reads = sizeOf(read),
    fades = sizeOf(faded);
  return read.map((x, i) => x / reads + (FADED * faded[i]) / fades);
}

/** How much weight the row of each answer token has when what stands on answer tokens is passed on so many times, and what
 * is left on them then. Tokens give to those before them.
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

/** Rows added up, each with its weight.
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

/** The numbers of the parts, each from its first to its last token, that make up a span; null where none do.
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
