import { spoken } from "./draw.js";

/** @import { Now } from "./types" */

const NEAR = 64; // most characters between two tokens of a text that a tokenizer may have dropped

/** Split the text of a document into pieces: the text before each token, and the token as the text spells it. Tokens that are
 * not in the text, such as special tokens, are shown by name.
 *
 * @param {string} text
 * @param {Pick<Now, "tokens" | "special" | "joins">} labels
 * @returns {{ before: string, text: string, found: boolean }[]}
 */
export function running(text, { tokens, special, joins }) {
  const lower = text.toLowerCase(),
    same = lower.length === text.length; // some capitals have two lower-case letters
  let end = 0,
    lost = false; // whether a token since the last match was not found in the text
  return tokens.map((token, i) => {
    const { text: own } = spoken(token);
    const at = special[i] || !own.trim() ? -1 : (same ? lower : text).indexOf(same ? own.toLowerCase() : own, end);
    const between = i && !joins[i] ? " " : "";
    if (at < 0 || at - end > NEAR || (same && own.toLowerCase().length !== own.length)) {
      lost ||= !special[i];
      return { before: between, text: own, found: false };
    }
    const before = lost ? between : text.slice(end, at); // the text of a lost token is already shown by its name
    lost = false;
    end = at + own.length;
    return { before, text: text.slice(at, end), found: true };
  });
}
