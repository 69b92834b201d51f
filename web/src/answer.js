// The page of an answer: the answer, its prompt shaded by what a part of it came from, and the units that gave most.
import { readAnswer } from "./answer-data.js";
import { answerLine, spanFrom, spanText } from "./answer-line.js";
import { promptText } from "./answer-prompt.js";
import { sourceTable } from "./answer-table.js";
import { button, el } from "./draw.js";
import { evidenceNotes } from "./reliability.js";
import { panelsTop, showPanels, switched } from "./frame.js";

/** @import { AnswerData, AnswerDocument, AnswerPage, AnswerServer, ShownAnswer, Span } from "./types" */

const VERIFY = 4; // units that the line to copy leaves out

/** Whether a page shows what was measured, which it has for the span and the unit that it opens with.
 *
 * @param {Pick<AnswerPage, "data" | "state">} page
 */
function isVerified({ data, state }) {
  const { v, u } = state.get();
  return Boolean(v && u === data.verified?.unit && data.isOpening(spanOf({ data, state })));
}

/** @param {Pick<AnswerPage, "data" | "state">} page @returns {Span} */
const spanOf = ({ data, state }) => spanFrom(state.get().s, data);

/** @param {number} p */
const probability = (p) => (p >= 0.001 ? p.toFixed(3) : p.toExponential(1).replace("e-", "e−"));

/** @param {number} x */
const oneDigit = (x) =>
  x
    .toFixed(1)
    .replace(/^-(?=0\.0$)/, "")
    .replace("-", "−");

/** How likely the answer is, whose it is, and that parts of it can be chosen.
 *
 * @param {AnswerData} data
 */
function likely({ answer }) {
  const sum = answer.logProbabilities.reduce((a, b) => a + b, 0),
    each = Math.exp(sum / answer.tokens.length);
  const whose = answer.written ? "The model wrote this" : "This answer was given, the model did not write it here";
  const tokens = answer.tokens.length > 1 ? `, ${probability(each)} a token` : "";
  const choose = answer.tokens.length > 1 ? " Click or drag over it to explain a part." : "";
  return `${whose}: probability ${probability(Math.exp(sum))}${tokens}.${choose}`;
}

/** What the log-odds are made of, and what is not shaded.
 *
 * @param {AnswerPage} page
 */
function factsOf(page) {
  const { data, state } = page,
    span = spanOf(page);
  const { parts, first, marks, itself, logOdds } = data.sources(span, state.get().u, Boolean(state.get().h));
  const all = Array.from(parts).reduce((a, b) => a + b, 0),
    sink = data.first ? parts[0] : 0;
  const addends = [
    `prompt ${oneDigit(all - sink)}`,
    data.first && `first token ${oneDigit(sink)}`,
    `the answer itself ${oneDigit(itself)}`,
    Number.isFinite(logOdds) && `constants ${oneDigit(logOdds - all - itself)}`,
  ];
  const percent = (/** @type {number} */ x) => `${Math.round(100 * x)} %`;
  const unshaded = [
    data.first && `first token ${percent(first)}`,
    data.prompt.marks.some((mark, i) => mark && (i || !data.first)) &&
      `special tokens and chat marks ${percent(marks)}`,
  ].filter(Boolean);
  const odds = Number.isFinite(logOdds) ? `Log-odds ${oneDigit(logOdds)}: ` : "";
  return [
    el("p", { class: "odds" }, `${odds}${addends.filter(Boolean).join(", ")}.`),
    unshaded.length
      ? el("p", { class: "unshaded" }, `Not shaded, of all that speaks for it: ${unshaded.join(", ")}.`)
      : "",
    ...evidenceNotes(
      data.sizes.slice(span.from, span.to + 1),
      data.answer.logProbabilities.slice(span.from, span.to + 1),
      data.evidence.gap,
    ).map((note) => el("p", { class: "reliability" }, note)),
  ];
}

/** @param {AnswerPage} page */
function factsSection(page) {
  const node = el("section", { class: "facts" });
  return { node, needs: ["s", "h", "u"], draw: () => node.replaceChildren(...factsOf(page)) };
}

/** Shows the values of units that were left out, or says how they are made: a saved file cannot run the model.
 *
 * @param {AnswerPage} page
 */
function verifyPart(page) {
  const { data, state } = page,
    { verified } = data,
    opening = spanText({ from: data.span[0], to: data.span[1] }, data);
  const note = el("div", { class: "verify-note", role: "status", hidden: true });
  const node = button("", () => (verified ? toggle() : tell()), { class: "verify" });
  node.textContent = verified ? `verified (${verified.count} left out)` : "verify …";

  function toggle() {
    state.set(isVerified(page) ? { v: "" } : { v: "1", u: verified?.unit ?? "", s: opening, h: "" });
  }
  function tell() {
    note.hidden = !note.hidden;
    node.setAttribute("aria-expanded", String(!note.hidden));
  }
  page.follow(() => {
    const { u } = state.get();
    if (verified) node.setAttribute("aria-pressed", String(isVerified(page)));
    else
      note.replaceChildren(
        el("p", {}, "Leaving units out needs the model. Save this page again, by either line:"),
        el("code", {}, `answer.save("answer.html", unit="${u}", verify=${VERIFY})`),
        el("code", {}, `attnflow answer PROMPT -m MODEL --unit ${u} --verify ${VERIFY} -o answer.html`),
      );
  });
  if (!verified) node.setAttribute("aria-expanded", "false");
  return { node, note };
}

/** @param {AnswerPage} page */
function controlsOf(page) {
  const { data } = page;
  const names = Object.fromEntries(Object.keys(data.units).map((name) => [name, `${name}s`]));
  const ways = { "": "direct", all: "through the answer" };
  const verify = verifyPart(page);
  const way = switched(page, "way", "h", ways);
  if (data.answer.tokens.length < 2) way.hidden = true;
  const node = el("div", { class: "pickers" }, switched(page, "units", "u", names), way, verify.node);
  return [node, verify.note];
}

/** What the numbers mean, for whoever asks.
 *
 * @param {AnswerData} data
 */
function howToRead({ matrix }) {
  const lines = [
    "A share is a part of all that the prompt gave: what the position that decides an answer token reads from a unit, in log-odds, cut off at zero; each chosen token counts alike. What speaks against it has a negative part.",
    "Direct: what these positions read from the prompt themselves. Through the answer: what they read from earlier answer tokens is passed on by those tokens' rows, until all of it stands in the prompt.",
    "Verified: the unit was really left out, and the answer's log-probability fell by so much. Estimated: a share, scaled to those that were.",
    matrix.places &&
      `The text is long: of each answer token the page holds the largest parts, at least ${Math.floor(100 * matrix.covered)} % of their size.`,
  ];
  return el(
    "details",
    { class: "how" },
    el("summary", {}, "how to read this"),
    lines.filter(Boolean).map((line) => el("p", {}, line)),
  );
}

/** Puts the page of an answer into an element.
 *
 * @param {HTMLElement} root
 * @param {AnswerDocument} doc
 * @param {string} [prefix] of the names in the address
 * @param {AnswerServer | null} [server] what can leave a source out, where there is one
 * @returns {Promise<ShownAnswer>}
 */
export async function mountAnswer(root, doc, prefix = "", server = null) {
  let shown = show(root, await readAnswer(doc), prefix, server);
  return {
    get state() {
      return shown.page.state;
    },
    async update(longer) {
      const data = await readAnswer(longer),
        choices = shown.page.state.get();
      shown.close();
      shown = show(root, data, prefix, server);
      shown.page.state.set(choices);
    },
    close: () => shown.close(),
  };
}

/** @param {HTMLElement} root @param {AnswerData} data @param {string} prefix @param {AnswerServer | null} server */
function show(root, data, prefix, server) {
  const count = data.answer.tokens.length;
  const isSpan = (/** @type {string} */ text) =>
    !text || (/^\d+(-\d+)?$/.test(text) && spanFrom(text, data).to < count);
  const shown = showPanels(root, {
    prefix,
    kind: "answer",
    subject: { data, server },
    defaults: {
      s: spanText({ from: data.span[0], to: data.span[1] }, data),
      u: data.unit,
      h: "",
      v: data.verified ? "1" : "",
      n: "",
    },
    allowed: { s: { includes: isSpan }, u: Object.keys(data.units), h: ["", "all"], v: ["", "1"], n: ["", "1"] },
    head: (theme) => panelsTop(data.provenance, theme),
    fill: (page) => {
      const line = answerLine(page),
        prompt = promptText(page),
        table = sourceTable(page, prompt.point, () => isVerified(page));
      const said = el("p", { class: "hint likely" }, likely(data));
      const head = el("section", {}, line.node, said, controlsOf(page));
      const beside = el("div", { class: "beside" }, prompt.node, table.node);
      const drawBoth = () => [prompt, table].forEach((part) => part.draw());
      const sections = [
        { ...line, node: head },
        { node: beside, needs: table.needs, draw: drawBoth },
        factsSection(page),
      ];
      return { sections, foot: "" };
    },
  });
  root.querySelector("footer")?.replaceChildren(howToRead(data));
  return shown;
}
