import { unpacked } from "./data.js";
import { plainToken } from "./draw.js";

/** @import { AnswerDocument, Piece, Sources, Span } from "./types" */

/** Signed parts as shares: cut off at zero, the first token left out where it is to be, divided by their sum.
 *
 * @param {ArrayLike<number>} parts
 * @param {boolean} first whether the first is left out
 */
export function sharesOf(parts, first) {
  const shares = Float64Array.from(parts, (x, i) => (i || !first ? Math.max(0, x) : 0));
  const total = shares.reduce((sum, x) => sum + x, 0);
  return total ? shares.map((x) => x / total) : shares;
}

/** What stands in the prompt when each token of the answer passes on all that it has, by its row: those before it stand
 * in the answer, so that one way from the last to the first is all.
 *
 * @param {Float64Array} start over tokens of the prompt and then of the answer
 * @param {(token: number) => Float64Array} row
 * @param {number} prompt how many tokens it has
 */
export function passedOn(start, row, prompt) {
  const mass = start.slice();
  for (let token = start.length - prompt - 1; token >= 0; token--) {
    const share = mass[prompt + token];
    if (!share) continue;
    mass[prompt + token] = 0;
    row(token).forEach((part, i) => (mass[i] += share * part));
  }
  return mass.subarray(0, prompt);
}

/** The text of each unit: its pieces, with what stands between them, or its name.
 *
 * @param {Piece[]} pieces
 * @param {number[]} of the unit of each token
 * @param {number} count
 */
function textsOf(pieces, of, count) {
  const texts = Array.from({ length: count }, () => "");
  let last = -1,
    between = "";
  for (const [text, ...tokens] of pieces) {
    const unit = tokens.length ? of[tokens[0]] : -1;
    if (tokens.length && unit >= 0) {
      if (unit === last) texts[unit] += between;
      texts[unit] += text;
      last = unit;
    } else if (tokens.length) last = -1;
    between = tokens.length ? "" : text;
  }
  return texts.map((text) => text.trim());
}

/** Tokens by their text; by their names where they have no text of their own.
 *
 * @param {AnswerDocument["prompt"]} prompt
 */
function tokenNames({ pieces, tokens }) {
  const names = tokens.slice();
  for (const [text, ...its] of pieces) if (its.length === 1) names[its[0]] = plainToken(text.trim() || text, Infinity);
  return names;
}

/** A document with what its panels ask of it.
 *
 * @param {AnswerDocument} doc
 */
export async function readAnswer(doc) {
  if (doc.format !== "attnflow-answer" || doc.version > 1)
    throw new Error(`this page cannot read a document of format ${doc.format} ${doc.version ?? ""}`);
  const prompt = doc.prompt.tokens.length,
    count = doc.answer.tokens.length,
    width = prompt + count;
  const values = await unpacked(doc.matrix.values),
    places = doc.matrix.places && (await unpacked(doc.matrix.places));
  const first = "first_token" in doc.evidence;
  const units = Object.fromEntries(
    Object.entries(doc.units).map(([name, unit]) => {
      const texts = unit.names ?? textsOf(doc.prompt.pieces, unit.of, unit.count);
      return [name, { ...unit, texts: name === "token" ? tokenNames(doc.prompt) : texts }];
    }),
  );

  /** The signed parts of one answer token.
   *
   * @param {number} token
   */
  function row(token) {
    const parts = new Float64Array(width),
      kept = values.length / count;
    for (let i = 0; i < kept; i++) {
      const at = token * kept + i;
      parts[places ? places[at] : i] = values[at];
    }
    return parts;
  }

  const whole = { from: 0, to: count - 1 };
  /** Whether the document has the sources of this span, exactly. @param {Span} span */
  const isOpening = ({ from, to }) => from === doc.span[0] && to === doc.span[1];

  /** The rows of a span, added up.
   *
   * @param {Span} span
   */
  function added({ from, to }) {
    const sum = new Float64Array(width);
    for (let token = from; token <= to; token++) row(token).forEach((x, i) => (sum[i] += x));
    return sum;
  }

  /** log p / (1 - p), added up. @param {Span} span */
  function logOddsOf({ from, to }) {
    const logs = doc.answer.logProbabilities.slice(from, to + 1);
    return logs.reduce((sum, log) => sum + log - Math.log(-Math.expm1(log)), 0);
  }

  /** Rows of a span as shares of units, each row alike; with the first token, if it is to count.
   *
   * @param {Span} span
   * @param {number[]} of the unit of each token, -1 for none
   * @param {number} size how many units there are
   * @param {boolean} counted
   */
  function rowShares({ from, to }, of, size, counted) {
    const sum = new Float64Array(size + 1); // the last is what stands in no unit
    for (let token = from; token <= to; token++) {
      const merged = new Float64Array(size + 1),
        parts = row(token);
      for (let i = counted || !first ? 0 : 1; i < prompt; i++) merged[of[i] < 0 ? size : of[i]] += parts[i];
      sharesOf(merged, false).forEach((x, i) => (sum[i] += x));
    }
    return sharesOf(sum, false).subarray(0, size);
  }

  /** The sum over the tokens of each unit.
   *
   * @param {string} unit
   * @param {ArrayLike<number>} tokens
   */
  function byUnits(unit, tokens) {
    const { of, count: size } = units[unit],
      sums = new Float64Array(size);
    of.forEach((number, token) => {
      if (number >= 0) sums[number] += tokens[token];
    });
    return sums;
  }

  /** The last ones asked for: every part of the page asks, and so does every move of the pointer.
   *
   * @type {{ key: string, sources: Sources } | null}
   */
  let last = null;

  /** What a span came from. hops: whether shares on earlier tokens of the answer are passed on.
   *
   * @param {Span} span
   * @param {string} unit
   * @param {boolean} hops
   * @returns {Sources}
   */
  function sources(span, unit, hops) {
    const key = `${span.from} ${span.to} ${unit} ${hops}`;
    if (last?.key !== key) last = { key, sources: computed(span, unit, hops) };
    return last.sources;
  }

  /** @param {Span} span @param {string} unit @param {boolean} hops @returns {Sources} */
  function computed(span, unit, hops) {
    const { of, count: size } = units[unit],
      each = units.token.of,
      opening = isOpening(span);
    const both = opening ? null : added(span);
    const parts = both ? both.subarray(0, prompt) : units.token.parts;
    const direct = opening ? units.token.shares : rowShares(span, each, prompt, false);
    const shares = hops ? throughAnswer(span) : direct;
    const inUnits = hops ? byUnits(unit, shares) : opening ? units[unit].shares : rowShares(span, of, size, false);
    const counted = rowShares(span, each, prompt, true);
    return {
      shares,
      parts,
      units: inUnits,
      signed: byUnits(unit, parts),
      first: first ? counted[0] : NaN,
      marks: counted.reduce((sum, x, i) => sum + (doc.prompt.marks[i] && (i || !first) ? x : 0), 0),
      itself: both ? both.subarray(prompt).reduce((sum, x) => sum + x, 0) : doc.evidence.answer,
      logOdds: both ? logOddsOf(span) : doc.evidence.log_odds,
    };
  }

  /** @param {Span} span */
  function throughAnswer({ from, to }) {
    const rows = Array.from({ length: to + 1 }, (_, token) => sharesOf(row(token), first));
    const start = new Float64Array(width);
    for (let token = from; token <= to; token++) rows[token].forEach((x, i) => (start[i] += x));
    return passedOn(sharesOf(start, false), (token) => rows[token], prompt);
  }

  return { ...doc, units, first, whole, isOpening, sources };
}
