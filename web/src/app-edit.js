// Delete or replace one word of a text, and compare what answer edges predict with what the model does.
import { button, el, messageOf, percent, plainToken } from "./draw.js";

/** @import { Data } from "./types" */
/** @typedef {{ word: string, text: string, kind: string, answer: string, before: Odds, after: Odds, predicted: number | null,
 *   true: number, own: { answer: string, probability: number } }} Change */
/** @typedef {{ probability: number, logOdds: number | null }} Odds */

/** Return the words of a document in order, as the server counts them. @param {Data} data */
function wordsOf(data) {
  const { tokens, special } = data.units.words ?? data.units.subwords;
  return tokens.filter((_, i) => !special[i]).map((token) => plainToken(token));
}

/** Return the number of the word at a position of a unit, or -1. @param {Data} data @param {string} unit @param {number} token */
function wordAt(data, unit, token) {
  const { words, subwords } = data.units,
    { special } = words ?? subwords;
  const place = unit === "subwords" && words?.groups ? words.groups.findIndex((group) => group.includes(token)) : token;
  if (place < 0 || place >= special.length || special[place]) return -1;
  return special.slice(0, place).filter((mark) => !mark).length;
}

/** @param {number | null} x */
const signed = (x) => (x === null ? "–" : `${x < 0 ? "−" : "+"}${Math.abs(x).toFixed(2)}`);

/**
 * @param {Data} data
 * @param {object} does
 * @param {(edit: { word: number, replacement?: string }) => Promise<Change>} does.edit
 * @param {(text: string) => void} does.explain replaces this text by the new one
 * @param {(text: string) => void} does.beside
 */
export function editRow(data, { edit, explain, beside }) {
  const words = wordsOf(data);
  const word = el(
    "select",
    { "aria-label": "word" },
    words.map((text, i) => el("option", { value: i }, text)),
  );
  const by = el("input", { type: "text", "aria-label": "another word", placeholder: "another word", size: 14 });
  const leave = button("Delete", () => change({}), {}),
    replace = el("button", { type: "submit" }, "Replace");
  const outcome = el("div", { class: "outcome", role: "status" });
  const node = el(
    "form",
    {
      class: "edit",
      "aria-label": "change a word",
      onsubmit: (event) => {
        event.preventDefault();
        if (by.value.trim()) change({ replacement: by.value.trim() });
        else by.focus();
      },
    },
    el("label", { class: "hint" }, "What if a word were not there? ", word),
    leave,
    by,
    replace,
    outcome,
  );
  let latest = 0;

  /** @param {{ replacement?: string }} how */
  async function change(how) {
    const mine = ++latest;
    outcome.textContent = "running the model …";
    node.setAttribute("aria-busy", "true");
    try {
      const done = await edit({ word: Number(word.value), ...how });
      if (mine === latest) outcome.replaceChildren(...told(done, how.replacement));
    } catch (error) {
      if (mine === latest) outcome.replaceChildren(el("p", { class: "bad" }, messageOf(error)));
    }
    if (mine === latest) node.removeAttribute("aria-busy");
  }

  /** @param {Change} done @param {string} [replacement] */
  function told({ word: gone, text, kind, answer, before, after, predicted, own, true: real }, replacement) {
    const amount = (/** @type {number} */ p) => (kind === "score" ? p.toFixed(3) : percent(p, 1));
    const how = replacement ? `“${replacement}” for “${gone}”` : `Without “${gone}”`;
    const name = plainToken(answer),
      unit = kind === "score" ? "score" : "log-odds";
    const guess =
      predicted === null
        ? "no prediction (this model has no answer edges)"
        : `predicted ${signed(predicted)}${replacement ? " (for deleting the word; it ignores the new one)" : ""}`;
    return [
      el(
        "p",
        {},
        `${how}: `,
        el("b", {}, `${name} ${amount(before.probability)} → ${amount(after.probability)}`),
        own.answer === answer ? "" : `. The model now says ${plainToken(own.answer)} ${amount(own.probability)}`,
        `. Change in ${unit}: ${guess}, `,
        el("b", {}, `actual ${signed(real)}`),
        ".",
      ),
      el(
        "p",
        { class: "next" },
        button("explain this text", () => explain(text)),
        button("compare with the original", () => beside(text)),
      ),
    ];
  }

  return {
    node,
    /** Select the word of the token that is selected on the page. @param {string} unit @param {number} token */
    choose: (unit, token) => {
      const number = wordAt(data, unit, token);
      if (number >= 0) word.value = String(number);
    },
  };
}
