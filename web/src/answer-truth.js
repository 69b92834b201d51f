import { messageOf } from "./draw.js";
import { spanFrom } from "./answer-span.js";

/** @import { AnswerPage, Truth } from "./types" */

const EFFECT = 0.1; // a fall of log p below this is none: the probability changes by less than a tenth
const SHARE = 0.1; // a source with such a share should have an effect
const LITTLE = 0.1; // of the largest share: a source with less should not have a large effect
const LARGE = 0.5; // of the largest fall

/** Whether what happened without a source bears its share out. most: the largest share and fall of those left out.
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
  "Is it true: by how much the answer's log-probability really falls without the source. ✓: share and fall tell the same. " +
  "Disagrees: a source with a share of a tenth or more has no effect (a fall below 0.1), or one with less than a tenth " +
  "of the largest share has more than half of the largest fall.";

/** What was measured by leaving sources out: in the document, or by a server when it is asked for.
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

  /** Whether a source's share is borne out; null where it was not measured. @param {number} number */
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

  /** Asks the server. @param {number} number */
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
    measured,
    agrees,
    ask,
    /** An answer that has grown is another one. */
    forget: () => answers.clear(),
    listen: (/** @type {() => void} */ listener) => void listeners.push(listener),
  };
}
