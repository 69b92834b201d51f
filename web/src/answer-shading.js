import { spanFrom } from "./answer-span.js";

/** @import { AnswerPage } from "./types" */

export const SMALL = ["token", "word"];

/** Return the shades on a scale whose maximum is 1: units of the prompt and, if selected, the tokens that are usually not
 * shaded: the first token, chat marks, and tokens of the answer (`inside`).
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
