import { boot } from "./boot.js";
import { el, button } from "./draw.js";
import { many, topOf, shortName, panel, showPanels } from "./frame.js";
import { leadSection } from "./corpus-lead.js";

/** @import { Corpus, CorpusPage, CorpusSummary, TokenType } from "./types" */

/** @param {string[]} names */
const listed = (names) => `${names.slice(0, -1).join(", ")}${names.length > 1 ? " and " : ""}${names.at(-1)}`;

/** Read a corpus, and add what the first screen needs.
 *
 * @param {CorpusSummary} summary
 */
export function readCorpus(summary) {
  const { fields, rows } = summary.types;
  const types = rows.map((row) => Object.fromEntries(fields.map((name, i) => [name, row[i]])));
  const typeOf = (/** @type {number} */ type) => /** @type {TokenType} */ (types[type]);
  return { ...summary, methods: summary.views, typeOf };
}

/** Open the list of failed texts and scroll to it.
 *
 * @param {CorpusPage} page
 */
function showFailures(page) {
  page.state.set({ open: "1" });
  /** @type {NodeListOf<HTMLDetailsElement>} */
  const kinds = document.querySelectorAll(".corpus .failures details");
  kinds.forEach((one) => (one.open = true));
  kinds[0].querySelector("summary")?.focus();
  kinds[0].scrollIntoView({ block: "center" });
}

/** Say what was read, and which columns make no split.
 *
 * @param {Corpus} corpus
 */
function corpusFacts(corpus) {
  const failed = corpus.texts - corpus.scored,
    name = corpus.input?.split(/[\\/]/).findLast(Boolean) ?? corpus.folder,
    { layer } = corpus.lead;
  const lines = [
    `${name}: ${many(corpus.scored, "text")} explained by ${listed(corpus.methods)}${/^L\d+$/.test(layer) ? ` at ${layer}` : ""}`,
    failed
      ? `; ${failed.toLocaleString("en")} of ${corpus.texts.toLocaleString("en")} failed (${corpus.errors.map(({ kind, count }) => `${kind} ${count.toLocaleString("en")}`).join(", ")}).`
      : ".",
    corpus.edges ? ` Edges: ${corpus.edges}.` : "",
    corpus.truncated ? ` ${many(corpus.truncated, "text")} ${corpus.truncated === 1 ? "was" : "were"} truncated.` : "",
    corpus.several_queries
      ? ` If several positions of a text were explained (${many(corpus.several_queries, "text")}), its scores are their mean.`
      : "",
    corpus.differing.length
      ? ` The rows come from different runs, which differ in ${corpus.differing.join(", ")}; the most frequent values are shown.`
      : "",
  ];
  const { revision, dtype } = corpus.provenance,
    made = [revision && `revision ${String(revision).slice(0, 12)}`, dtype].filter(Boolean).join(", "),
    none = corpus.unsplit.map(({ name: column, why }) => `${column} (${why})`).join(", ");
  return [
    el("p", { class: "prediction" }, lines, made && ` Model: ${made}.`),
    none ? el("p", { class: "unsplit" }, `No split: ${none}.`) : "",
  ];
}

/** Warnings on the first screen: failed texts, an unfinished job, unreadable columns.
 *
 * @param {CorpusPage} page
 */
function corpusNotice(page) {
  const { corpus } = page,
    failed = corpus.texts - corpus.scored;
  return [
    failed
      ? button(
          `${failed.toLocaleString("en")} of ${corpus.texts.toLocaleString("en")} failed`,
          () => showFailures(page),
          {
            class: "lead",
          },
        )
      : null,
    corpus.finished
      ? null
      : el(
          "p",
          { class: "missing" },
          `The job is not finished: this page covers the ${many(corpus.parts, "part")} that ${corpus.parts === 1 ? "is" : "are"} done.`,
        ),
    corpus.no_columns ? el("p", { class: "missing" }, corpus.no_columns) : null,
  ];
}

/** The texts that failed, by kind of error, with examples.
 *
 * @param {Corpus} corpus
 */
function failures({ errors }) {
  const lists = errors.map(({ kind, count, examples }) =>
    el(
      "details",
      { "data-kind": kind },
      el("summary", {}, `${kind}: ${many(count, "text")}`),
      el(
        "ul",
        {},
        examples.map(({ id, message }) => el("li", {}, el("strong", {}, id), ` ${message ?? ""}`)),
        count > examples.length ? el("li", {}, "…") : null,
      ),
    ),
  );
  const hint = "The column message of each row says why.";
  return panel("failures", "Texts that failed", hint, [], el("div", { class: "failures" }, lists));
}

/** Show the page of a corpus in an element.
 *
 * @param {HTMLElement} root
 * @param {CorpusSummary} summary
 */
function showCorpus(root, summary) {
  const corpus = readCorpus(summary);
  const defaults = {
    s: "",
    b: corpus.splits[0]?.predicted ? "0" : "",
    v: corpus.lead.method,
    x: "most",
    w: "",
    open: "",
  };
  const allowed = {
    s: ["", "1"],
    b: ["", ...corpus.splits.map((_, i) => String(i))],
    v: corpus.methods,
    x: ["most", "differs"],
    w: { includes: (/** @type {string} */ text) => /^(\d+\.\d+)?:\d+$/.test(text) },
    open: ["", "1"],
  };
  const isAttention = corpus.about_answer.length < corpus.methods.length;
  const foot = !isAttention
    ? "Every score is in the Parquet files."
    : "Attention-based scores only approximate how much a token matters to the answer; the page of a single text compares them with gradients and blank-out. Every score is in the Parquet files.";
  showPanels(root, {
    kind: "corpus",
    subject: { corpus },
    defaults,
    allowed,
    head: (theme) => {
      const { model } = corpus.provenance;
      return topOf([shortName(model)], model && model !== shortName(model) ? model : null, theme);
    },
    fill: (page) => ({
      lead: [leadSection(page, corpusNotice(page))],
      above: corpusFacts(corpus),
      sections: corpus.errors.length ? [{ node: failures(corpus), needs: [], draw: () => {} }] : [],
      foot,
    }),
  });
}

boot(showCorpus);
