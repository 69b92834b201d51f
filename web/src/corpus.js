import { boot } from "./boot.js";
import { decimals } from "./charts.js";
import { el, between, button, closest, correlation, flattened, percent, plainToken, tokenNodes } from "./draw.js";
import { many, topOf, shortName, panel, pick, switched, checks, showPanels } from "./frame.js";
import { disagreementParts } from "./corpus-cases.js";
import { leadSection } from "./corpus-lead.js";
import { unit, times, atLayer, isWeak, weakly } from "./corpus-charts.js";
import { positionsChart, agreementParts, textsParts } from "./corpus-charts.js";

/** @import { Child, Corpus, CorpusPage, CorpusSummary, TokenType } from "./types" */

const FIRST = 20; // tokens in a list, before "more"

/** @type {Record<string, (corpus: Corpus) => string>} */
const HINTS = {
  tokens: (corpus) =>
    `Lift compares a ${unit(corpus)}'s score with an equal share of its text: at 1×, the thin line, it gets exactly an equal share. Share is its part of all scores in the corpus.`,
  positions: (corpus) =>
    `The mean score by position in the text${corpus.types.special ? ". Positions include special tokens, so the first ordinary token is mostly at 2; scores are shares without special tokens, unless those are shown" : ""}. ${(corpus.positions.start.all.counts.at(-1) ?? 0) < corpus.least ? "" : `${corpus.positions.places + 1}+ is the mean of all later positions. `}The line “all the same” shows the score if all ${unit(corpus)}s of a text had the same. Positions with fewer than ${corpus.least} ${unit(corpus)}s are left out.`,
  agreement: (corpus) =>
    `How similarly two methods rank the ${unit(corpus)}s of a text, as Spearman's rank correlation ρ: 1 is the same order, 0 is unrelated, −1 is the reverse. The table shows its mean over texts, and how often both rank the same ${unit(corpus)} first, with 95 % intervals. Texts with fewer than three ${unit(corpus)}s${corpus.types.special ? " (without special ones, unless those are shown)" : ""}, or with equal scores, have no rank correlation.`,
  disagreement: ({ disagreement: { layer, least, eligible } }) =>
    `The texts with the lowest rank correlation of two methods ${atLayer(layer)}, over tokens that are not special, out of ${many(eligible, "text")} with at least ${least} such tokens. Stronger colours are higher scores, from the lowest to the highest of each row; both are at its end, with their ratio.`,
  texts: ({ errors, predictions, unit: name }) => {
    const answers = predictions.top.length && "what the model predicted",
      failed = errors.length && "which texts failed";
    return `${[`How many ${name}s the texts have`, answers, failed].filter(Boolean).join(", ")}.`;
  },
};

/** Explanations behind “how to read this”. */
/** @type {Record<string, (corpus: Corpus) => string[]>} */
const HOW = {
  tokens: (corpus) => {
    const special = corpus.types.special > 0,
      one = unit(corpus);
    return [
      `The score of a ${one} measures how much of ${explained(corpus)} comes from it.${divided(corpus)}`,
      `Lift is the mean of a ${one}'s scores, each times the number of ${one}s in its text${special && corpus.receptive_field !== "difference" ? " and divided by the sum of their scores. Special tokens are left out of both, unless they are shown" : ""}.`,
      special
        ? "Share is the part of all scores, including those of special tokens, whose total is in a list's heading. If they are shown, they have a list of their own."
        : "",
      `The heading also shows how well a method distinguishes the ${one}s of a text${special ? ", without special ones" : ""}: the largest score divided by the smallest, in the median text.`,
      corpus.types.punctuation ? "Punctuation is left out, unless it is shown." : "",
      `A list contains what occurs at least ${corpus.least} times in the corpus; its longest bar is its highest value. Hover over an entry to highlight it in every list.`,
    ].filter(Boolean);
  },
};

/** Name what the scores explain.
 *
 * @param {Corpus} corpus
 */
function explained({ query, methods, about_answer: about, answers }) {
  if (answers) return "the model's answer";
  if (about.length === methods.length) return "the answer";
  if (query === null) return "the answering position (the class token, or the last token of a decoder)";
  if (query === "all") return "each position of its text (on average)";
  return /^-?\d+$/.test(query) ? `position ${query} of its text (counted from 0)` : `“${query}”`;
}

/** Say how scores were scaled before they were added up.
 *
 * @param {Corpus} corpus
 */
function divided(corpus) {
  const field = corpus.receptive_field,
    signs = corpus.signed.filter((method) => corpus.about_answer.includes(method));
  const against = signs.length
    ? ` Scores by ${listed(signs)} are signed: negative ones count against the answer, and share is the part of the sum of absolute values.`
    : "";
  if (field === "difference")
    return ` Scores of rollout and flow are differences from uniform attention: they may be negative, and share is the part of the sum of absolute values.${against}`;
  const ratio = field === "ratio" ? " Scores of rollout and flow are ratios to uniform attention." : "";
  const sums = corpus.divided.length
    ? ` Scores by ${listed(corpus.divided)} are divided by their sum in a text, so that methods can be compared.`
    : "";
  return ratio + sums + against;
}

/** @param {string[]} names */
const listed = (names) => `${names.slice(0, -1).join(", ")}${names.length > 1 ? " and " : ""}${names.at(-1)}`;

/** Read a corpus, and add the functions that the panels need.
 *
 * @param {CorpusSummary} summary
 */
export function readCorpus(summary) {
  const { fields, rows } = summary.types;
  const types = rows.map((row) => Object.fromEntries(fields.map((name, i) => [name, row[i]])));
  /** @param {string} method @param {string} layer @param {string} special @returns {TokenType[]} */
  const listOf = (method, layer, special) =>
    summary.received[method][layer].map(([type, mean, share, lift, plain]) => {
      return /** @type {TokenType} */ ({ ...types[type], type, mean, share, lift: special ? lift : plain });
    });
  const typeOf = (/** @type {number} */ type) => /** @type {TokenType} */ (types[type]);
  const pairs = summary.disagreement.pairs.map(({ views }) => views.join(" – "));
  const cells = new Map(
    summary.agreement.map((cell) => [`${cell.views.join(" – ")} ${cell.layer} ${cell.special}`, cell]),
  );
  /** @param {string} pair @param {string} layer @param {string} special */
  const cell = (pair, layer, special) =>
    /** @type {import("./types").Agreement} */ (cells.get(`${pair} ${layer} ${Boolean(special)}`));
  return { ...summary, methods: summary.views, listOf, typeOf, pairs, cell };
}

/**
 * @param {CorpusPage} page
 * @param {string} name
 * @param {string} title
 * @param {Child} controls
 * @param {string[]} needs
 * @param {(page: CorpusPage, width: number) => Child} draw
 */
function section(page, name, title, controls, needs, draw) {
  const box = el("div", { class: "body" });
  const how =
    HOW[name] &&
    el(
      "details",
      { class: "how" },
      el("summary", {}, "how to read this"),
      HOW[name](page.corpus).map((text) => el("p", {}, text)),
    );
  return {
    node: panel(name, title, HINTS[name](page.corpus), controls, how, box),
    needs,
    draw: () => box.replaceChildren(...flattened(draw(page, Math.max(280, box.clientWidth)))),
  };
}

/** A number with a bar, and a line at an equal share.
 *
 * @param {string} text
 * @param {number} value
 * @param {number} most
 * @param {number} even
 */
function barred(text, value, most, even) {
  const at = (/** @type {number} */ x) => `${(100 * between(0, x / most, 1)).toFixed(1)}%`;
  return el("td", { class: "bar", style: `--part:${at(value)};--even:${even ? at(even) : "-1px"}` }, text);
}

/** @param {CorpusPage} page */
function tokenTables(page) {
  const { corpus, state } = page,
    { l, s, n } = state.get(),
    o = state.get().o === "share" ? "share" : "lift";
  const lists = corpus.methods.map((method) => corpus.listOf(method, l, s).sort((a, b) => b[o] - a[o]));
  const isListed = (/** @type {TokenType} */ { special, punctuation }) => !special && (Boolean(s) || !punctuation);
  const shown = lists.map((list) => list.filter(isListed).slice(0, n ? 100 : FIRST));
  const marks = lists.map((list) => (s ? list.filter(({ special }) => special) : []));
  const even = o === "lift" ? 1 : 0;
  /** @param {TokenType} one @param {number} place @param {number} most */
  const rowOf = (one, place, most) => {
    const various = one.spellings >= corpus.types.spellings, // a token without a text of its own: words unknown to the tokenizer
      others = one.others.map((text) => `“${text}”`).join(", ");
    const also = various
      ? ", represents many spellings, mostly words that the tokenizer does not know"
      : others && `, also ${others}`;
    const title = `mean score ${decimals(one.mean, 4)}${one.id === null ? "" : `, token id ${one.id}`}${also}`;
    const parts = { lift: `${decimals(one.lift, 2)}×`, share: percent(one.share, 2) };
    const cells = Object.entries(parts).map(([key, text]) =>
      key === o ? barred(text, one[o], most, even) : el("td", {}, text),
    );
    return el(
      "tr",
      { "data-type": one.type, title },
      el("td", { class: "place" }, place ? String(place) : ""),
      el(
        "th",
        { scope: "row" },
        various ? el("em", {}, `${plainToken(one.text)}, ${plainToken(one.others[0])}, …`) : tokenNodes(one.text),
      ),
      cells,
      el("td", { class: "place" }, one.count.toLocaleString("en")),
    );
  };
  const tables = corpus.methods.map((method, v) => {
    const heads = ["", unit(corpus), "lift", "share", "count"];
    const most = Math.max(even, ...[...shown[v], ...marks[v]].map((one) => one[o])) || 1;
    const parts = [marks[v].map((one) => rowOf(one, 0, most)), shown[v].map((one, i) => rowOf(one, i + 1, most))];
    const ratio = corpus.ratio[method][l],
      weak = isWeak(corpus, method, l);
    const facts = [
      corpus.types.special && `${percent(corpus.special_share[method][l], 1)} to special tokens`,
      ratio !== null && !weak && `largest ${times(ratio)}× smallest`,
    ].filter(Boolean);
    const head = el(
      "tr",
      {},
      heads.map((text) => (text ? el("th", { scope: "col", class: text === o && "bar" }, text) : el("td"))),
    );
    return el(
      "div",
      { class: "received", "data-method": method },
      el("h3", {}, method, facts.length ? el("small", {}, ` ${facts.join(" · ")}`) : ""),
      weak ? el("p", { class: "weak" }, `${weakly(corpus, method, l, "here")}.`) : null,
      el(
        "table",
        { "aria-label": `${method}: what receives attention` },
        el("thead", {}, head),
        parts.filter((part) => part.length).map((part) => el("tbody", {}, part)),
      ),
    );
  });
  const box = el("div", { class: "beside" }, tables);
  /** @param {string} [type] */
  const light = (type) => {
    for (const row of box.querySelectorAll("[data-type]"))
      row.classList.toggle("lit", row.getAttribute("data-type") === type);
  };
  box.addEventListener("pointerover", (event) => light(closest(event, "[data-type]")?.dataset.type));
  box.addEventListener("pointerleave", () => light());
  const longest = Math.max(...lists.map((list) => list.filter(isListed).length));
  if (!longest) return [el("p", { class: "empty" }, `Nothing occurs ${corpus.least} times in the corpus.`)];
  const turn = () => {
    state.set({ n: n ? "" : "1" });
    /** @type {HTMLElement | null} */ (document.querySelector(".corpus .more"))?.focus(); // the button was rebuilt
  };
  const more = button(`show the first ${n ? FIRST : Math.min(100, longest)}`, turn, { class: "more" });
  return [box, longest > FIRST ? more : null];
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

/** Say what was read, how much the methods agree, and which columns make no split.
 *
 * @param {Corpus} corpus
 */
function corpusFacts(corpus) {
  const failed = corpus.texts - corpus.scored,
    name = corpus.input?.split(/[\\/]/).findLast(Boolean) ?? corpus.folder;
  const layers = corpus.layers.length > 1 ? `at ${corpus.layers.length} layers` : atLayer(corpus.layers[0]),
    lone = corpus.lone.length < corpus.methods.length ? corpus.lone : [];
  const lines = [
    `${name}: ${many(corpus.scored, "text")} explained by ${corpus.methods.join(", ")} ${layers}`,
    failed
      ? `; ${failed.toLocaleString("en")} of ${corpus.texts.toLocaleString("en")} failed (${corpus.errors.map(({ kind, count }) => `${kind} ${count.toLocaleString("en")}`).join(", ")}).`
      : ".",
    lone.length ? ` ${listed(lone)} ${lone.length > 1 ? "have" : "has"} the same scores at every layer.` : "",
    corpus.edges ? ` Edges: ${corpus.edges}.` : "",
    corpus.truncated ? ` ${many(corpus.truncated, "text")} ${corpus.truncated === 1 ? "was" : "were"} truncated.` : "",
    corpus.several_queries
      ? ` If several positions of a text were explained (${many(corpus.several_queries, "text")}), its scores are their mean.`
      : "",
    corpus.differing.length
      ? ` The rows come from different runs, which differ in ${corpus.differing.join(", ")}; the most frequent values are shown.`
      : "",
  ];
  const last = corpus.layers[corpus.layers.length - 1],
    weak = corpus.methods.filter((method) => isWeak(corpus, method, last)),
    mean = (/** @type {string} */ pair) => corpus.cell(pair, last, "").correlation.mean;
  const agree = corpus.pairs.map((pair) => el("span", {}, `${pair} ${correlation(mean(pair))}`));
  const { revision, dtype } = corpus.provenance,
    made = [revision && `revision ${String(revision).slice(0, 12)}`, dtype].filter(Boolean).join(", "),
    none = corpus.unsplit.map(({ name: column, why }) => `${column} (${why})`).join(", ");
  return [
    el("p", { class: "prediction" }, lines, made && ` Model: ${made}.`),
    none ? el("p", { class: "unsplit" }, `No split: ${none}.`) : "",
    agree.length
      ? el(
          "p",
          { class: "ahead" },
          `How similarly the methods rank the ${unit(corpus)}s of a text ${atLayer(last)}${corpus.types.special ? ", without special ones" : ""} (mean rank correlation; 1 is the same order, 0 is unrelated): `,
          el(
            "strong",
            {},
            agree.flatMap((one, i) => (i ? [", ", one] : [one])),
          ),
          ".",
          weak.map((method) =>
            ` ${weakly(corpus, method, last, "there")}.`.replace(/[a-z]/, (sign) => sign.toUpperCase()),
          ),
        )
      : "",
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

/** The controls of all panels: the layer, and whether special tokens are shown.
 *
 * @param {CorpusPage} page
 */
function corpusPickers(page) {
  const { layers, types, lone, methods } = page.corpus;
  const buttons = () => switched(page, "layer", "l", Object.fromEntries([...layers].reverse().map((l) => [l, l])));
  const shown =
    layers.length > 12 ? pick(page, "layer", "l", layers) : [el("span", { class: "caption" }, "layer"), buttons()];
  return el(
    "div",
    { class: "pickers" },
    lone.length < methods.length ? el("div", { class: "pick-layer" }, shown) : "",
    types.special || types.punctuation
      ? checks(page, "tokens", "s", [["1", "punctuation and special tokens too"]])
      : "",
  );
}

/** @param {CorpusPage} page */
function corpusSections(page) {
  const { pairs, methods, about_answer: about } = page.corpus,
    rest = about.length === methods.length,
    one = unit(page.corpus);
  const order = switched(page, "order", "o", { lift: "by lift", share: "by share" }),
    end = switched(page, "position", "e", { start: "from the start", end: "from the end" });
  const pair = switched(page, "methods", "p", Object.fromEntries(pairs.map((name, i) => [String(i), name])));
  return [
    section(
      page,
      "tokens",
      rest ? `Which ${one}s the answers rest on` : "Which tokens receive attention",
      order,
      ["l", "s", "o", "n"],
      tokenTables,
    ),
    section(
      page,
      "positions",
      `Which positions ${rest ? "the answers rest on" : "receive attention"}`,
      end,
      ["l", "s", "e"],
      positionsChart,
    ),
    ...(pairs.length
      ? [
          section(page, "agreement", "How far the methods agree", [], ["l", "s"], agreementParts),
          section(
            page,
            "disagreement",
            "Where the methods disagree the most",
            pair,
            ["p", "s", "theme"],
            disagreementParts,
          ),
        ]
      : []),
    section(page, "texts", "The texts", [], [], textsParts),
  ];
}

/** Show the page of a corpus in an element.
 *
 * @param {HTMLElement} root
 * @param {CorpusSummary} summary
 */
function showCorpus(root, summary) {
  const corpus = readCorpus(summary);
  const defaults = {
    l: corpus.layers[corpus.layers.length - 1],
    s: "",
    o: "lift",
    n: "",
    e: "start",
    p: "0",
    b: corpus.splits[0]?.predicted ? "0" : "",
    v: corpus.lead.method,
    x: "most",
    w: "",
    open: "",
  };
  const allowed = {
    l: corpus.layers,
    s: ["", "1"],
    o: ["lift", "share"],
    n: ["", "1"],
    e: ["start", "end"],
    p: corpus.pairs.map((_, i) => String(i)),
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
      above: [corpusFacts(corpus), corpusPickers(page)],
      sections: corpusSections(page),
      foot,
    }),
  });
}

boot(showCorpus);
