import { spanFrom } from "./answer-span.js";

/** @import { AnswerPage } from "./types" */

export const SMALL = ["token", "word"];

/** What is shaded, on one scale on which the largest is 1: units of the prompt and, where they are to take part, the tokens
 * that stand apart: the first token, marks of a chat, and tokens of the answer (`inside`).
 *
 * @param {Pick<AnswerPage, "data" | "state">} page
 */
export function shadingOf({ data, state }) {
  const { s, u, h, a } = state.get(),
    span = spanFrom(s, data),
    size = data.prompt.size,
    { units } = data.sources(span, u, h),
    all = a ? data.everything(span) : null;
  /** @param {number} token */
  const isApart = (token) => Boolean(data.marks[token]) || (data.first && token === 0);
  let apart = 0,
    most = 0;
  all?.forEach((share, token) => {
    if (token >= size || isApart(token)) apart += share;
    if (token >= size || isApart(token) || u === "token") most = Math.max(most, share);
  });
  if (!all || u !== "token") for (const share of units) most = Math.max(most, share * (1 - apart));
  const scale = 1 / (most || 1);
  return {
    isApart,
    unit: (/** @type {number} */ number) => scale * (all && u === "token" ? all[number] : units[number] * (1 - apart)),
    alone: (/** @type {number} */ token) => (all ? all[token] * scale : 0),
    inside: all?.subarray(size).map((share) => share * scale) ?? null,
  };
}
