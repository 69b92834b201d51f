import { plainToken } from "./draw.js";
import { added, combined, meanShares, partsOf, passedOn, readKept, sharesOf, weighted } from "./answer-rows.js";
import { inflated, unpacked } from "./data.js";

/** @import { AnswerDocument, AnswerUnit, AnswerUnitDocument, Piece, Sources, Span } from "./types" */

/** Return the text of each unit: its pieces, and the text between them.
 *
 * @param {Piece[]} pieces
 * @param {Int32Array} of the unit of each token
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

/** Return the text of each token, or its name if it has no text of its own.
 *
 * @param {AnswerDocument["prompt"]} prompt
 */
function tokenNames({ pieces, size, names: others }) {
  const names = Array.from({ length: size }, (_, i) => others[i] ?? "");
  for (const [text, ...its] of pieces) if (its.length === 1) names[its[0]] = plainToken(text.trim() || text, Infinity);
  return names;
}

/** @param {AnswerUnitDocument} unit @param {string} name @param {AnswerDocument["prompt"]} prompt @returns {Promise<AnswerUnit>} */
async function readUnit(unit, name, prompt) {
  const of = unit.of ? Int32Array.from(await unpacked(unit.of)) : new Int32Array(prompt.size).map((_, i) => i),
    { opening } = unit;
  /** @type {string[] | null} */
  let texts = null;
  return {
    count: unit.count,
    exact: unit.exact,
    of,
    rows: unit.rows && { ...(await readKept(unit.rows)), totals: unit.rows.totals },
    passed: unit.passed && (await readKept(unit.passed)),
    faded: unit.faded && (await readKept(unit.faded)),
    opening: opening && { shares: await unpacked(opening.shares), parts: await unpacked(opening.parts) },
    /** Computed on first use: a long prompt has many. */
    get texts() {
      texts ??= unit.names ?? (name === "token" ? tokenNames(prompt) : textsOf(prompt.pieces, of, unit.count));
      return texts;
    },
  };
}

/** Append the value of what is in no unit to the values of units. @param {ArrayLike<number>} values @param {number} rest */
function withRest(values, rest) {
  const all = new Float64Array(values.length + 1);
  all.set(values);
  all[values.length] = rest;
  return all;
}

/** Read a document, and add the functions that the panels need.
 *
 * @param {AnswerDocument} doc
 */
export async function readAnswer(doc) {
  if (doc.format !== "attnflow-answer" || doc.version !== 2)
    throw new Error(`this page cannot read a document of format ${doc.format} ${doc.version ?? ""}`);
  const prompt = doc.prompt.size,
    count = doc.answer.tokens.length;
  const matrix = await readKept(doc.matrix),
    inside = await readKept(doc.matrix.inside),
    { totals, sums } = doc.matrix;
  const first = "first_token" in doc.evidence;
  const marks = new Uint8Array(prompt);
  for (const token of doc.prompt.marks) marks[token] = 1;
  /** @type {Record<string, AnswerUnit>} */
  const units = {};
  for (const [name, unit] of Object.entries(doc.units)) units[name] = await readUnit(unit, name, doc.prompt);

  const whole = { from: 0, to: count - 1 };
  /** Return whether the page opens with this span. @param {Span} span */
  const isOpening = ({ from, to }) => from === doc.span[0] && to === doc.span[1];
  const ofPrompt = totals.map(([inPrompt]) => inPrompt),
    ofBoth = totals.map(([, inBoth]) => inBoth),
    filled = ofBoth.map((total) => total > 0);
  /** Return how much the first token of the prompt supports an answer token. @param {number} token */
  const atFirst = (token) => Math.max(0, sums[token][2]);

  /** Return the parts of the answer whose fading adds up to that of a span, or null if the page has none for it.
   *
   * @param {Span} span
   * @param {string} unit
   */
  const fadingOf = (span, unit) => (doc.fading && units[unit].faded ? partsOf(doc.fading.spans, span) : null);

  /** Return the shares of units, by the method that agrees best with leaving the units out. The last share is what is in no
   * unit.
   *
   * @param {Span} span
   * @param {string} unit
   */
  function direct(span, unit) {
    const { rows, faded, opening } = units[unit],
      parts = fadingOf(span, unit);
    if (opening && isOpening(span)) {
      const sum = Array.from(opening.shares).reduce((total, x) => total + x, 0);
      return withRest(opening.shares, sum ? Math.max(0, 1 - sum) : 0);
    }
    if (parts && faded && rows) {
      const tokens = Array.from({ length: span.to - span.from + 1 }, (_, i) => span.from + i);
      return sharesOf(combined(added(rows, tokens), added(faded, parts)));
    }
    if (rows) return meanShares(rows, rows.totals, span);
    const shares = meanShares(matrix, ofPrompt, span);
    if (first) shares[0] = 0;
    return withRest(shares.subarray(0, prompt), 0);
  }

  /** Return the same shares, after passing shares on earlier answer tokens back the given number of times.
   *
   * @param {Span} span
   * @param {string} unit
   * @param {number} hops
   */
  function through(span, unit, hops) {
    const { weights, left } = passedOn(inside, filled, span, hops),
      { passed } = units[unit];
    if (passed) return { shares: weighted(passed, weights), weights, left };
    const shares = weighted(matrix, weights, (row, value) => Math.max(0, value) / ofBoth[row]);
    if (first) shares[0] = 0;
    return { shares: withRest(shares.subarray(0, prompt), 0), weights, left };
  }

  /** Return the sum of log p / (1 - p). @param {Span} span */
  function logOddsOf({ from, to }) {
    const logs = doc.answer.logProbabilities.slice(from, to + 1);
    return logs.reduce((sum, log) => sum + log - Math.log(-Math.expm1(log)), 0);
  }

  /** Return the signed parts of units. @param {Span} span @param {string} unit */
  function signedOf(span, unit) {
    const { rows, of, opening, count: size } = units[unit];
    if (opening && isOpening(span)) return Float64Array.from(opening.parts);
    const tokens = Array.from({ length: span.to - span.from + 1 }, (_, i) => span.from + i);
    if (!rows) return added(matrix, tokens).subarray(0, prompt);
    const parts = added(rows, tokens).subarray(0, size);
    if (first && of[0] >= 0) for (const token of tokens) parts[of[0]] += sums[token][2];
    return parts;
  }

  /** The latest results: every panel asks for them, and so does every move of the pointer.
   *
   * @type {Map<string, Sources>}
   */
  const last = new Map();

  /** Return the sources of a span. hops: "" for what it read itself, or how often shares on earlier tokens are passed back.
   *
   * @param {Span} span
   * @param {string} unit
   * @param {string} hops
   * @returns {Sources}
   */
  function sources(span, unit, hops) {
    const key = `${span.from} ${span.to} ${unit} ${hops}`;
    let kept = last.get(key);
    if (!kept) {
      kept = computed(span, unit, hops);
      if (last.size > 4) last.clear();
      last.set(key, kept);
    }
    return kept;
  }

  /** @param {string} hops */
  const hopCount = (hops) => (hops === "all" ? Infinity : Number(hops || 0));

  /** @param {Span} span @param {string} unit @param {string} hops @returns {Sources} */
  function computed(span, unit, hops) {
    const way = hops ? through(span, unit, hopCount(hops)) : null,
      shares = way ? way.shares : direct(span, unit),
      size = units[unit].count,
      tokens = Array.from({ length: span.to - span.from + 1 }, (_, i) => span.from + i);
    const { weights, left } = way ?? passedOn(inside, filled, span, 0);
    const opening = isOpening(span);
    /** @param {number} i */
    const sum = (i) => tokens.reduce((total, token) => total + sums[token][i], 0);
    return {
      method: hops ? "hops" : fadingOf(span, unit) ? "combined" : doc.picture ? "answer_inputs" : "answer_rows",
      units: shares.subarray(0, size),
      outside: shares[size],
      left,
      first: first ? mean(tokens.filter((token) => ofBoth[token] + atFirst(token) > 0).map(firstShare)) : NaN,
      marks: weights.reduce((total, weight, row) => total + weight * doc.matrix.marks[row], 0),
      itself: left.reduce((total, x) => total + x, 0),
      odds: opening
        ? { log: doc.evidence.log_odds, prompt: doc.evidence.prompt, answer: doc.evidence.answer }
        : { log: logOddsOf(span), prompt: sum(0), answer: sum(1) },
      atFirst: sum(2),
    };
  }
  /** @param {number} token */
  const firstShare = (token) => atFirst(token) / (ofBoth[token] + atFirst(token));
  /** @param {number[]} values */
  const mean = (values) => (values.length ? values.reduce((sum, x) => sum + x, 0) / values.length : 0);

  /** Return the shares of all tokens of prompt and answer, including the first token. @param {Span} span */
  function everything(span) {
    const all = ofBoth.map((total, token) => total + atFirst(token));
    return meanShares(matrix, all, span);
  }

  /** Return which share of each answer token comes from one unit. @param {string} unit @param {number} number */
  function fed(unit, number, hops = "") {
    return Float64Array.from({ length: count }, (_, token) => {
      const span = { from: token, to: token },
        { rows } = units[unit];
      if (hops || fadingOf(span, unit)) return (perToken(unit, hops)[token] ??= single(span, unit, hops))[number];
      const total = rows ? rows.totals[token] : ofPrompt[token];
      if (!(total > 0) || (!rows && first && !number)) return 0;
      return Math.max(0, (rows ?? matrix).at(token, number)) / total;
    });
  }
  /** @param {Span} span @param {string} unit @param {string} hops */
  const single = (span, unit, hops) => (hops ? through(span, unit, hopCount(hops)).shares : direct(span, unit));
  /** @type {{ key: string, shares: Float64Array[] }} */
  let singles = { key: "", shares: [] };
  /** @param {string} unit @param {string} hops */
  function perToken(unit, hops) {
    if (singles.key !== `${unit} ${hops}`) singles = { key: `${unit} ${hops}`, shares: [] };
    return singles.shares;
  }

  const picture = doc.picture && {
    ...doc.picture,
    maps: Float64Array.from(await unpacked(doc.picture.maps)),
    image: doc.picture.image && { shape: doc.picture.image.shape, pixels: await inflated(doc.picture.image.data) },
  };
  return {
    ...doc,
    picture,
    source: doc,
    units,
    marks,
    first,
    whole,
    isOpening,
    sources,
    signedOf,
    everything,
    fed,
    fadingOf,
  };
}
