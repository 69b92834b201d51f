import { spoken } from "./draw.js";

/** @import { Now } from "./types" */

const NEAR = 64; // characters that may lie between two tokens of a text: what a tokenizer left out

/** The text of a document in pieces: what stands before each token, and the token as it is written there. A token that is not
 * found in the text, as special ones are not, stands for itself.
 *
 * @param {string} text
 * @param {Pick<Now, "tokens" | "special" | "joins">} labels
 * @returns {{ before: string, text: string, found: boolean }[]}
 */
export function running(text, { tokens, special, joins }) {
  const lower = text.toLowerCase(),
    same = lower.length === text.length; // some capitals have two small letters
  let end = 0;
  return tokens.map((token, i) => {
    const { text: own } = spoken(token);
    const at = special[i] || !own.trim() ? -1 : (same ? lower : text).indexOf(same ? own.toLowerCase() : own, end);
    if (at < 0 || at - end > NEAR || (same && own.toLowerCase().length !== own.length))
      return { before: i && !joins[i] ? " " : "", text: own, found: false };
    const before = text.slice(end, at);
    end = at + own.length;
    return { before, text: text.slice(at, end), found: true };
  });
}
