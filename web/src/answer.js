// The page of an answer: what it rests on in words, the answer, the prompt shaded by its sources, a list of the sources,
// and everything else under Details.
import { readAnswer } from "./answer-data.js";
import { details } from "./answer-details.js";
import { apartLine, headline, hopSlider } from "./answer-lead.js";
import { answerLine } from "./answer-line.js";
import { sourceList } from "./answer-list.js";
import { answerPicture } from "./answer-picture.js";
import { promptText } from "./answer-prompt.js";
import { spanText } from "./answer-span.js";
import { truths } from "./answer-truth.js";
import { el } from "./draw.js";
import { shortName, showPanels, switched, topOf } from "./frame.js";

/** @import { AnswerData, AnswerDocument, AnswerPage, AnswerServer, ShownAnswer } from "./types" */

/** The selection. s: span, u: unit, h: hops, a: shade unshaded tokens too, n: all units in the table, d: Details are open.
 *
 * @param {AnswerData} data
 */
const defaultsOf = (data) => ({
  s: spanText({ from: data.span[0], to: data.span[1] }, data),
  u: data.unit,
  h: "",
  a: "",
  n: "",
  d: "",
});

/** Show the page of an answer in an element.
 *
 * @param {HTMLElement} root
 * @param {AnswerDocument} doc
 * @param {string} [prefix] of the names in the address
 * @param {AnswerServer | null} [server] what can leave a source out, where there is one
 * @returns {Promise<ShownAnswer>}
 */
export async function mountAnswer(root, doc, prefix = "", server = null) {
  const shown = show(root, await readAnswer(doc), prefix, server);
  return { state: shown.page.state, close: () => shown.close() };
}

/** @param {HTMLElement} root @param {AnswerData} data @param {string} prefix @param {AnswerServer | null} server */
function show(root, data, prefix, server) {
  const isSpan = (/** @type {string} */ text) =>
    !text || (/^\d+(-\d+)?$/.test(text) && Math.max(...text.split("-").map(Number)) <= data.whole.to);
  const isHops = (/** @type {string} */ text) => !text || text === "all" || /^\d{1,4}$/.test(text);
  const binary = ["", "1"];
  return showPanels(root, {
    prefix,
    kind: "answer",
    source: () => data.source,
    subject: /** @type {Pick<AnswerPage, "data" | "server" | "truth" | "open" | "point">} */ ({ data, server }),
    defaults: defaultsOf(data),
    allowed: {
      s: { includes: isSpan },
      u: Object.keys(data.units),
      h: { includes: isHops },
      a: binary,
      n: binary,
      d: binary,
    },
    head: (theme) => topOf([shortName(data.provenance.model)], data.provenance.model ?? null, theme),
    fill: (page) => {
      page.truth = truths(page);
      const lead = headline(page),
        line = answerLine(page),
        apart = apartLine(page),
        hops = hopSlider(page),
        prompt = promptText(page),
        picture = answerPicture(page),
        list = sourceList(page),
        more = details(page);
      let pointed = -1;
      page.point = (unit, into = false) => {
        if (unit === pointed && !into) return;
        pointed = unit;
        prompt.point(unit, into);
        line.point(unit);
        list.point(unit);
      };
      page.open = () => {
        page.state.set({ d: "1" });
        more.node.scrollIntoView({ behavior: "smooth" });
      };
      const names = Object.fromEntries(Object.keys(data.units).map((name) => [name, `${name}s`]));
      const controls = el("div", { class: "pickers" }, switched(page, "units", "u", names), hops.node);
      const said = el("section", { class: "answered" }, line.node, line.note);
      const read = el("div", { class: "reading" }, apart.node, prompt.node);
      const beside = el("div", { class: "beside" }, read, list.node);
      const shown = el("div", data.picture ? { class: "with-picture" } : {}, picture.node, beside);
      const top = el("section", {}, said, lead.node, controls); // a headline above the answer would move it during a drag
      /** @param {{ draw(): void }[]} parts */
      const drawn = (parts) => () => {
        pointed = -1;
        parts.forEach((part) => part.draw());
      };
      const needs = ["s", "u", "h", "a", "theme"];
      const sections = [
        { node: top, needs, draw: drawn([lead, line, hops]) },
        { node: shown, needs, draw: drawn([picture, apart, prompt, list]) },
        { node: more.node, needs: [...needs, "n", "d"], draw: more.draw },
      ];
      return { sections, foot: "" };
    },
  });
}
