import { isAnswerEdges } from "./data.js";
import { plainToken } from "./draw.js";
import { apartOf } from "./headline.js";

/** @import { Data, Pair, PairColumn, PairSide } from "./types" */

// The same costs as attnflow.texts.alignment; a test compares them.
const GAP = 2,
  OTHER = 3,
  ALIKE = 1,
  APART = 2 * GAP + 1,
  CELLS = 2e6;

/** Align two texts word by word at the least cost. Return pairs of positions, with -1 for a word that one text lacks.
 *
 * @param {string[]} first
 * @param {string[]} second
 * @param {boolean[]} specialFirst
 * @param {boolean[]} specialSecond
 * @returns {Pair[]}
 */
export function align(first, second, specialFirst, specialSecond) {
  const key = (/** @type {string} */ word) => (word.replace(/^[Ġ▁#]+/u, "") || word).toLowerCase();
  const a = first.map((word, i) => ({ special: Boolean(specialFirst[i]), text: key(word) })),
    b = second.map((word, i) => ({ special: Boolean(specialSecond[i]), text: key(word) }));
  /** @param {number} i @param {number} j */
  const cost = (i, j) => {
    if (a[i].special !== b[j].special) return APART;
    if (a[i].text === b[j].text) return 0;
    return a[i].special || areForms(a[i].text, b[j].text) ? ALIKE : OTHER;
  };
  const least = Math.min(a.length, b.length);
  let start = 0,
    end = 0;
  while (start < least && !cost(start, start)) start++;
  while (end < least - start && !cost(a.length - 1 - end, b.length - 1 - end)) end++;
  const rows = a.length - start - end,
    columns = b.length - start - end;
  /** @type {Pair[]} */
  let middle;
  if (rows * columns > CELLS)
    middle = [
      ...a.slice(start, start + rows).map((_, i) => /** @type {Pair} */ ([start + i, -1])),
      ...b.slice(start, start + columns).map((_, j) => /** @type {Pair} */ ([-1, start + j])),
    ];
  else {
    const table = [Int32Array.from({ length: columns + 1 }, (_, j) => GAP * j)];
    for (let i = 1; i <= rows; i++) {
      const above = table[i - 1],
        row = new Int32Array(columns + 1);
      row[0] = GAP * i;
      for (let j = 1; j <= columns; j++)
        row[j] = Math.min(above[j - 1] + cost(start + i - 1, start + j - 1), above[j] + GAP, row[j - 1] + GAP);
      table.push(row);
    }
    middle = [];
    let i = rows,
      j = columns;
    while (i || j) {
      if (i && j && table[i][j] === table[i - 1][j - 1] + cost(start + i - 1, start + j - 1))
        middle.push([start + --i, start + --j]);
      else if (j && table[i][j] === table[i][j - 1] + GAP) middle.push([-1, start + --j]);
      else middle.push([start + --i, -1]);
    }
    middle.reverse();
  }
  return [
    ...Array.from({ length: start }, (_, i) => /** @type {Pair} */ ([i, i])),
    ...middle,
    ...Array.from({ length: end }, (_, i) => /** @type {Pair} */ ([a.length - end + i, b.length - end + i])),
  ];
}

/** Return whether two words share a prefix of at least three letters and half of the longer word.
 *
 * @param {string} one
 * @param {string} other
 */
function areForms(one, other) {
  const [a, b] = [[...one], [...other]];
  let same = 0;
  while (same < Math.min(a.length, b.length) && a[same] === b[same]) same++;
  return same >= 3 && 2 * same >= Math.max(a.length, b.length);
}

/** Return the name of a unit in a document; if every token is a word, words are stored as subwords.
 *
 * @param {Data} data
 * @param {string} unit
 */
export const unitIn = (data, unit) => (data.units[unit] ? unit : "subwords");

/** @param {string} name */
export const titleOf = (name) => (isAnswerEdges(name) ? "answer edges" : name === "raw" ? "raw attention" : name);

/** Return the methods that a document has values for, in the page's order.
 *
 * @param {Data} data
 */
export function methodsOf(data) {
  const worth = data.importance.map(({ name }) => name),
    graph = data.levels.length ? ["raw", "rollout", "flow"] : Object.keys(data.methods.subwords);
  const there = graph.filter(
    (name) => data.layers.length && data.rows(name, "subwords", openingQuery(data, "subwords")),
  );
  return [...worth.filter(isAnswerEdges), ...there, ...worth.filter((name) => !isAnswerEdges(name))];
}

/** Return the query that a page opens with, in a unit.
 *
 * @param {Data} data
 * @param {string} unit
 */
function openingQuery(data, unit) {
  const { query = 0, unit: own = "subwords" } = data.state,
    groups = data.units.words?.groups ?? [];
  if (own === unit) return query;
  if (data.isPool(own, query)) return data.units[unit].tokens.length;
  return unit === "words" ? groups.findIndex((group) => group.includes(query)) : (groups[query]?.[0] ?? 0);
}

/** Return a method's values for the tokens of a unit: for the answer, or for the opening query at the last layer.
 *
 * @param {Data} data
 * @param {string} method
 * @param {string} unit
 * @returns {Float64Array | null}
 */
export function valuesOf(data, method, unit) {
  const at = data.importance.findIndex(({ name }) => name === method);
  if (at >= 0) return data.worth(unit)[at].values;
  return data.rows(method, unit, openingQuery(data, unit))?.rows.at(-1) ?? null;
}

/** Return whether two texts have opposite answers to one question: support for one then counts exactly against the other.
 *
 * @param {Data} first
 * @param {Data} second
 */
export function areOpposite(first, second) {
  const [a, b] = [first, second].map(({ prediction }) => (prediction?.kind === "class" ? prediction.top : []));
  const labels = new Set([...a, ...b].map(([label]) => label));
  return a.length === 2 && b.length === 2 && labels.size === 2 && a[0][0] !== b[0][0];
}

/** Return one side of a pair: its tokens and a method's values. `shared`: as shares of the sum over words.
 *
 * @param {Data} data
 * @param {string} method
 * @param {string} unit
 * @param {boolean} shared
 * @param {boolean} [turned] show support for its answer as counting against the other
 * @returns {PairSide}
 */
export function sideOf(data, method, unit, shared, turned = false) {
  const name = unitIn(data, unit),
    { tokens, special } = data.units[name];
  const own = valuesOf(data, method, name) ?? new Float64Array(tokens.length),
    values = Array.from(own, (value) => (turned ? -value : value)), // still shares of the support for its own answer
    apart = apartOf(data, { tokens, special, query: openingQuery(data, name) });
  return { tokens, special, values: shared ? sharesOf(values, apart) : values, apart };
}

/** Return values as shares of the sum over words, so that methods on different scales can be compared.
 *
 * @param {ArrayLike<number>} values
 * @param {boolean[]} apart
 */
export function sharesOf(values, apart) {
  const all = Array.from(values),
    whole = all.reduce((sum, value, i) => sum + (apart[i] ? 0 : Math.abs(value) || 0), 0) || 1;
  return all.map((value) => value / whole);
}

/** Return aligned words with both values and their difference; a word that one text lacks counts as 0 there.
 *
 * @param {PairSide} first
 * @param {PairSide} second
 * @param {Pair[]} pairs
 * @returns {PairColumn[]}
 */
export function columnsOf(first, second, pairs) {
  return pairs.map(([i, j]) => {
    const a = i < 0 ? null : first.values[i],
      b = j < 0 ? null : second.values[j];
    const words = [i < 0 ? "" : first.tokens[i], j < 0 ? "" : second.tokens[j]];
    const same = plainToken(words[0]).toLowerCase() === plainToken(words[1]).toLowerCase();
    return {
      i,
      j,
      words,
      a,
      b,
      difference: (b ?? 0) - (a ?? 0),
      apart: (i < 0 || first.apart[i]) && (j < 0 || second.apart[j]),
      kind: i < 0 ? "new" : j < 0 ? "gone" : same ? "same" : "replaced",
    };
  });
}

/** Return the columns, largest difference first.
 *
 * @param {PairColumn[]} columns
 */
export function byDifference(columns) {
  return columns
    .filter(({ apart, difference }) => !apart && Number.isFinite(difference))
    .sort((x, y) => Math.abs(y.difference) - Math.abs(x.difference) || x.i - y.i);
}
