import { messageOf } from "./draw.js";
import { spanFrom } from "./answer-span.js";

/** @import { AnswerPage, Truth } from "./types" */

export const EFFECT = 0.1; // a smaller fall of log p counts as no effect: the probability changes by less than a tenth
const SHARE = 0.1; // a source with at least this share should have an effect
const LITTLE = 0.1; // a source below this part of the largest share should not have a large effect
const LARGE = 0.5; // an effect above this part of the largest fall is large

/** Return whether a source's effect confirms its share. most: the largest share and fall among the measured sources.
 *
 * @param {number} share
 * @param {number} fall
 * @param {{ share: number, fall: number }} most
 */
export function bearsOut(share, fall, most) {
  if (fall < EFFECT && share >= SHARE) return false;
  return !(share < LITTLE * most.share && fall >= EFFECT && fall > LARGE * most.fall);
}

export const RULE =
  "Is it true? shows how much the answer's log-probability falls when the source is left out. ✓: the fall confirms the share. " +
  "Disagrees: a source with a share of 10 % or more has no effect (a fall below 0.1), or a source with less than a tenth " +
  "of the largest share has more than half of the largest fall.";

/** The effects of leaving sources out: stored in the document, or measured by a server on request.
 *
 * @param {AnswerPage} page
 */
export function truths(page) {
  /** @type {Map<string, Truth>} */
  const answers = new Map();
  /** @type {(() => void)[]} */
  const listeners = [];
  const { state } = page;
  const span = () => spanFrom(state.get().s, page.data);
  /** @param {number} number */
  const keyOf = (number) => `${span().from}-${span().to} ${state.get().u} ${number}`;

  /** @param {number} number @returns {Truth | null} */
  function measured(number) {
    const { verified, isOpening } = page.data;
    if (verified && verified.unit === state.get().u && verified.measured[number] && isOpening(span()))
      return { fall: verified.falls[number] };
    return answers.get(keyOf(number)) ?? null;
  }

  /** Return the units with a share, strongest first: those that the document measured by their effect, the others below.
   *
   * @param {ArrayLike<number>} shares
   */
  function ranked(shares) {
    const { verified, isOpening } = page.data,
      isMeasured = verified && verified.unit === state.get().u && isOpening(span());
    const effect = (/** @type {number} */ i) => (isMeasured && verified.measured[i] ? verified.falls[i] : -Infinity);
    return Array.from(shares, (_, i) => i)
      .filter((i) => shares[i] > 0)
      .sort((a, b) => (effect(a) === effect(b) ? 0 : effect(b) - effect(a)) || shares[b] - shares[a] || a - b);
  }

  /** Return whether a source's effect confirms its share, or null if it was not measured. @param {number} number */
  function agrees(number) {
    const { u, h } = state.get(),
      { units } = page.data.sources(span(), u, h),
      truth = measured(number);
    if (truth?.fall === undefined) return null;
    const most = { share: 0, fall: 0 };
    for (let i = 0; i < units.length; i++) {
      const { fall } = measured(i) ?? {};
      if (fall === undefined) continue;
      most.share = Math.max(most.share, units[i]);
      most.fall = Math.max(most.fall, fall);
    }
    return bearsOut(units[number], truth.fall, most);
  }

  /** Let the server leave a source out. @param {number} number */
  async function ask(number) {
    if (!page.server) return;
    const key = keyOf(number),
      { from, to } = span();
    tell(key, { waiting: true });
    try {
      const { fall } = await page.server.leaveOut({ span: [from, to], unit: state.get().u, number });
      tell(key, { fall });
    } catch (error) {
      tell(key, { failed: messageOf(error) });
    }
  }
  /** @param {string} key @param {Truth} truth */
  function tell(key, truth) {
    answers.set(key, truth);
    listeners.forEach((listener) => listener());
  }
  return {
    /** Whether sources can be left out: the library cannot do that for a prompt with an image. */
    isPossible: () => !page.data.picture,
    measured,
    ranked,
    agrees,
    ask,
    listen: (/** @type {() => void} */ listener) => void listeners.push(listener),
  };
}
