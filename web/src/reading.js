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
  let end = 0,
    lost = false; // whether a token since the last one that was found is not in the text as it is named
  return tokens.map((token, i) => {
    const { text: own } = spoken(token);
    const at = special[i] || !own.trim() ? -1 : (same ? lower : text).indexOf(same ? own.toLowerCase() : own, end);
    const between = i && !joins[i] ? " " : "";
    if (at < 0 || at - end > NEAR || (same && own.toLowerCase().length !== own.length)) {
      lost ||= !special[i];
      return { before: between, text: own, found: false };
    }
    const before = lost ? between : text.slice(end, at); // what it stands for lies between, and is shown already
    lost = false;
    end = at + own.length;
    return { before, text: text.slice(at, end), found: true };
  });
}
