import { readable } from "./draw.js";

/** @import { Piece, Span } from "./types" */

/** Read a span from the state; an empty text means the whole answer.
 *
 * @param {string} text
 * @param {{ whole: Span }} data
 * @returns {Span}
 */
export function spanFrom(text, { whole }) {
  if (!text) return whole;
  const [from, to = from] = text.split("-").map(Number);
  return { from: Math.min(from, to), to: Math.min(Math.max(from, to), whole.to) };
}

/** Write a span as the state stores it.
 *
 * @param {Span} span
 * @param {{ whole: Span }} data
 */
export function spanText({ from, to }, { whole }) {
  if (from === 0 && to === whole.to) return "";
  return from === to ? String(from) : `${from}-${to}`;
}

/** Split a text into leading white space, text and trailing white space. @param {string} text */
export function trimmed(text) {
  const [, before, core, after] = /** @type {string[]} */ (/^(\s*)([^]*?)(\s*)$/.exec(text));
  return { before, core, after };
}

/** Return the text of a span of the answer.
 *
 * @param {Piece[]} pieces
 * @param {Span} span
 */
export function spanWords(pieces, { from, to }) {
  const inside = pieces.map(([, ...its]) => its.some((token) => token >= from && token <= to));
  const texts = pieces.slice(inside.indexOf(true), inside.lastIndexOf(true) + 1).map(([text]) => text);
  return readable(texts.join("")).replace(/\s+/g, " ").trim();
}
