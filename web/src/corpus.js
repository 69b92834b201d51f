import { boot } from "./boot.js";
import { shade, inkOn, shares, extent } from "./colour.js";
import { el, button, correlation, tokenNodes, plainToken } from "./draw.js";
import { between, decimals } from "./plots.js";
import { many, topOf, panel, pick, switched, checks, showPanels } from "./frame.js";
import { percent, unit, times, isWeak, weakly, positionsChart, agreementParts, textsParts } from "./charts.js";

const FIRST = 20; // tokens in a list, unless all are asked for

const TOLD = {
  tokens: (held) =>
    `Lift is how many times the even share of its text a ${unit(held)} has: 1×, the thin line, where all have the same. Share is its part of all score in the corpus.`,
  positions: (held) =>
    `The mean score by position in the text${held.types.special ? ", at which special tokens count too: the first other one mostly stands at 2. Unless they are asked for, scores are parts of what the others have" : ""}. ${held.positions.start.all.counts.at(-1) < held.least ? "" : `${held.positions.places + 1}+ is the mean of all positions from there on. `}The line “all the same” is what a ${unit(held)} would have if all of its text had the same score. Positions at which fewer than ${held.least} ${unit(held)}s stand are left out.`,
  agreement: (held) =>
    `How alike two views order the ${unit(held)}s of a text by their scores, as Spearman's rank correlation ρ: 1 is the same order, 0 unrelated, −1 the reverse. The table has its mean over texts, and in how many of them both have the same ${unit(held)} first, with 95 % intervals. Texts with fewer than three ${unit(held)}s${held.types.special ? ", special ones not counted unless they are asked for," : ""} have no rank correlation, nor have those whose scores are all the same.`,
  disagreement: ({ disagreement: { layer, least, eligible } }) =>
    `The texts with the lowest rank correlation of two views at ${layer}, over tokens that are not special, of the ${many(eligible, "text")} with at least ${least} such tokens. The stronger the colour, the higher the score: from the lowest to the highest of each row, which stand at its end with their ratio.`,
  texts: ({ errors, predictions, words }) => {
    const said = predictions.top.length && "what the model said of them",
      failed = errors.length && "which could not be explained";
    return `${[`How many ${words ? "words" : "tokens"} the texts have`, said, failed].filter(Boolean).join(", ")}.`;
  },
};

/** What need not be known at first. */
const HOW = {
  tokens: (held) => {
    const special = held.types.special > 0,
      one = unit(held);
    return [
      `The score of a ${one} says how much of it a view finds in ${explained(held)}.${divided(held)}`,
      `Lift is the mean of a ${one}'s scores, each times the number of ${one}s in its text${special && held.receptive_field !== "difference" ? " and divided by the sum of theirs. Special tokens neither count in that nor have a part, unless they are asked for" : ""}.`,
      special
        ? "Share is the part of all score, with what special tokens have, which the head of a list tells. They stand apart, where they are asked for."
        : "",
      `The head of a list also tells by how much a view tells the ${one}s of a text apart${special ? ", special ones aside" : ""}: the largest score by the smallest, in the median text.`,
      `Bars reach to the highest of a list, which holds what stands at least ${held.least} times in the corpus. The one pointed at lights up in every list.`,
    ].filter(Boolean);
  },
};

/** The position that the scores are of. */
function explained({ query }) {
  if (query === null)
    return "the position that the model answers from, which is the class token, or the last one of a decoder";
  if (query === "all") return "each position of its text, on average";
  return /^-?\d+$/.test(query) ? `position ${query} of its text, counted from 0` : `“${query}”`;
}

/** What was done to scores before they were added up. */
function divided(held) {
  const field = held.receptive_field;
  if (field === "difference")
    return " Scores of rollout and flow are differences from what attention without preferences would give: they may be negative, and share is then the part of the sum of their sizes.";
  const ratio =
    field === "ratio" ? " Rollout and flow are ratios to what attention without preferences would give." : "";
  const names = (ratio ? ["rollout", "flow"] : ["flow"]).filter((view) => held.views.includes(view));
  const told = names.length
    ? ` Scores by ${names.join(" and ")} are divided by their sum in a text, so that views can be compared.`
    : "";
  return ratio + told;
}

/** The corpus with what its panels ask of it. */
function readCorpus(held) {
  const types = held.types.rows.map((row) => Object.fromEntries(held.types.fields.map((name, i) => [name, row[i]])));
  const listOf = (view, layer, special) =>
    held.received[view][layer].map(([type, mean, share, lift, plain]) => {
      return { ...types[type], type, mean, share, lift: special ? lift : plain };
    });
  const pairs = held.disagreement.pairs.map(({ views }) => views.join(" – "));
  const cell = (pair, layer, special) =>
    held.agreement.find((one) => one.views.join(" – ") === pair && one.layer === layer && one.special === !!special);
  return { ...held, listOf, pairs, cell };
}

function section(page, name, title, controls, needs, draw) {
  const box = el("div", { class: "body" });
  const how =
    HOW[name] &&
    el(
      "details",
      { class: "how" },
      el("summary", {}, "how to read this"),
      HOW[name](page.held).map((text) => el("p", {}, text)),
    );
  return {
    node: panel(name, title, TOLD[name](page.held), controls, ...[how, box].filter(Boolean)),
    needs,
    draw: () => box.replaceChildren(...draw(page, Math.max(280, box.clientWidth)).flat()),
  };
}

/** A number with a bar after it, and a line at what it would be if nothing were preferred. */
function barred(text, value, most, even) {
  const at = (x) => `${(100 * between(0, x / most, 1)).toFixed(1)}%`;
  return el("td", { class: "bar", style: `--part:${at(value)};--even:${even ? at(even) : "-1px"}` }, text);
}

function tokenTables(page) {
  const { held, state } = page,
    { l, s, o, n } = state.get();
  const lists = held.views.map((view) => held.listOf(view, l, s).sort((a, b) => b[o] - a[o]));
  const shown = lists.map((list) => list.filter(({ special }) => !special).slice(0, n ? 100 : FIRST));
  const marks = lists.map((list) => (s ? list.filter(({ special }) => special) : []));
  const even = o === "lift" ? 1 : 0;
  const rowOf = (one, place, most) => {
    const various = one.spellings >= held.types.spellings, // it has no text of its own: words that the tokenizer does not know
      others = one.others.map((text) => `“${text}”`).join(", ");
    const also = various
      ? ", stands for many texts, mostly words that the tokenizer does not know"
      : others && `, also ${others}`;
    const title = `mean score ${decimals(one.mean, 4)}${one.id === null ? "" : `, token id ${one.id}`}${also}`;
    const parts = { lift: `${decimals(one.lift, 2)}×`, share: percent(one.share, 2) };
    const cells = ["lift", "share"].map((key) =>
      key === o ? barred(parts[key], one[o], most, even) : el("td", {}, parts[key]),
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
  const tables = held.views.map((view, v) => {
    const heads = ["", held.words ? "word" : "token", "lift", "share", "count"];
    const most = Math.max(even, ...[...shown[v], ...marks[v]].map((one) => one[o])) || 1;
    const parts = [marks[v].map((one) => rowOf(one, 0, most)), shown[v].map((one, i) => rowOf(one, i + 1, most))];
    const ratio = held.ratio[view][l],
      weak = isWeak(held, view, l);
    const told = [
      held.types.special && `${percent(held.special_share[view][l])} to special tokens`,
      ratio !== null && !weak && `largest ${times(ratio)}× smallest`,
    ].filter(Boolean);
    const head = el(
      "tr",
      {},
      heads.map((text) => (text ? el("th", { scope: "col", class: text === o && "bar" }, text) : el("td"))),
    );
    return el(
      "div",
      { class: "received", "data-view": view },
      el("h3", {}, view, told.length ? el("small", {}, ` ${told.join(" · ")}`) : ""),
      weak ? el("p", { class: "weak" }, `${weakly(held, view, l, "here")}.`) : null,
      el(
        "table",
        { "aria-label": `${view}: what receives attention` },
        el("thead", {}, head),
        parts.filter((part) => part.length).map((part) => el("tbody", {}, part)),
      ),
    );
  });
  const grid = el("div", { class: "beside" }, tables);
  const light = (type) => {
    for (const row of grid.querySelectorAll("[data-type]")) row.classList.toggle("lit", row.dataset.type === type);
  };
  grid.addEventListener("pointerover", ({ target }) => light(target.closest("[data-type]")?.dataset.type));
  grid.addEventListener("pointerleave", () => light());
  const longest = Math.max(...lists.map((list) => list.filter(({ special }) => !special).length));
  if (!longest) return [el("p", { class: "empty" }, `Nothing stands ${held.least} times in the corpus.`)];
  const turn = () => {
    state.set({ n: n ? "" : "1" });
    document.querySelector(".corpus .more").focus(); // it was made anew
  };
  const more = button(`show the first ${n ? FIRST : Math.min(100, longest)}`, turn, { class: "more" });
  return [grid, longest > FIRST ? more : []];
}

function textRow(page, text, view, kept, kind = "row") {
  const colours = page.colours(),
    values = kept.map((i) => text.shares[view][i]),
    parts = shares(values, ...extent([values], true));
  const order = values.map((_, i) => i).sort((a, b) => values[b] - values[a]);
  const nodes = kept.flatMap((i, place) => {
    const joined = place > 0 && text.joins[i] && kept[place - 1] === i - 1;
    const part =
      text.parts && text.parts[i] !== text.parts[kept[place - 1]] ? el("span", { class: "part" }, text.parts[i]) : null;
    const style = `background:${shade(colours, parts[place])};color:${inkOn(colours, parts[place])}`;
    const title = `${plainToken(text.tokens[i])}: ${view} ${decimals(values[place], 4)}, rank ${order.indexOf(place) + 1}`;
    return [
      place && !joined ? " " : "",
      part,
      el("span", { class: joined ? "tok joined" : "tok", style, title }, tokenNodes(text.tokens[i])),
    ];
  });
  const highest = order.slice(0, 3).map((at) => `${plainToken(text.tokens[kept[at]])} ${decimals(values[at])}`);
  return el(
    "div",
    { class: kind, "data-view": view },
    el("div", { class: "name" }, view, el("span", { class: "sr" }, `: highest ${highest.join(", ")}`)),
    el("div", { class: "text" }, nodes.filter(Boolean)),
    el("div", { class: "range", title: "lowest – highest score, and their ratio" }, rangeOf(values)),
  );
}

/** The lowest and the highest, with as many decimals as tell them apart. */
function rangeOf(values) {
  const [low, high] = extent([values], true);
  const digits = high > low ? between(3, Math.ceil(-Math.log10(high - low)) + 1, 6) : 3;
  return `${decimals(low, digits)} – ${decimals(high, digits)}${low > 0 ? ` · ${times(high / low)}×` : ""}`;
}

/** The fragment of a text's page that shows what is shown here. */
function opening({ disagreement, receptive_field: field, words }, special) {
  return new URLSearchParams({
    l: disagreement.layer.slice(1),
    ...(!special && { s: "0" }),
    ...(field && { f: field }),
    ...(words && { u: "words" }),
  });
}

function caseOf(page, { row, correlation: value }, views) {
  const { held, state } = page,
    { s } = state.get(),
    text = held.disagreement.texts[row];
  const kept = text.tokens.map((_, i) => i).filter((i) => s || !text.special[i]);
  const name = held.pages.includes(row)
    ? el("a", { href: `texts/${row}.html#${opening(held, s)}` }, text.id)
    : el("span", {}, text.id);
  const said = text.prediction,
    left = text.size > text.tokens.length && `the first ${text.tokens.length} of ${many(text.size, "token")}`;
  const notes = [
    said && `${plainToken(said.label, 40)} ${decimals(said.probability, 2)}`,
    text.truncated && "cut to what the model takes",
    text.queries.length > 1 && `mean of ${text.queries.length} queries`,
    left,
  ];
  return el(
    "li",
    { class: "case", "data-row": row },
    el(
      "div",
      { class: "about" },
      name,
      el(
        "strong",
        { title: `Spearman's rank correlation of ${views.join(" and ")}: ${value}` },
        `ρ ${correlation(value)}`,
      ),
      notes.filter(Boolean).map((note) => el("span", { class: "note" }, note)),
    ),
    held.views.filter((view) => views.includes(view)).map((view) => textRow(page, text, view, kept)),
    held.views.filter((view) => !views.includes(view)).map((view) => textRow(page, text, view, kept, "row other")),
  );
}

function disagreementParts(page) {
  const { held, state } = page,
    { views, texts } = held.disagreement.pairs[Number(state.get().p)];
  return [
    held.missing ? el("p", { class: "missing" }, held.missing) : [],
    texts.length
      ? el(
          "ol",
          { class: "cases" },
          texts.map((one) => caseOf(page, one, views)),
        )
      : el("p", { class: "empty" }, "No text is long enough for its rank correlation to mean something."),
  ].flat();
}

/** Leads to what failed, and opens it. */
function showFailures() {
  const kinds = [...document.querySelectorAll(".corpus .failures details")];
  kinds.forEach((one) => (one.open = true));
  kinds[0].querySelector("summary").focus();
  kinds[0].scrollIntoView({ block: "center" });
}

/** What was read, and what came out in a sentence. */
function corpusHead(held, theme) {
  const failed = held.texts - held.scored,
    name = held.input?.split(/[\\/]/).findLast(Boolean) ?? held.folder;
  const layers = held.layers.length > 1 ? `${held.layers.length} layers` : held.layers[0];
  const lines = [
    `${name}: ${many(held.scored, "text")} explained by ${held.views.join(", ")} at ${layers}`,
    failed ? "; " : ".",
    failed
      ? button(`${failed.toLocaleString("en")} of ${held.texts.toLocaleString("en")} failed`, showFailures, {
          class: "lead",
        })
      : "",
    failed ? ` (${held.errors.map(({ kind, count }) => `${kind} ${count.toLocaleString("en")}`).join(", ")}).` : "",
    held.truncated ? ` ${many(held.truncated, "text")} ${held.truncated === 1 ? "was" : "were"} cut.` : "",
    held.several_queries
      ? ` Where several positions of a text were explained (${many(held.several_queries, "text")}), its scores are their mean.`
      : "",
    held.differing.length
      ? ` The rows were not all made alike: they differ in ${held.differing.join(", ")}, and what is named above is the most frequent.`
      : "",
  ];
  const last = held.layers.at(-1),
    weak = held.views.filter((view) => isWeak(held, view, last)),
    found = held.pairs.map((pair) => [pair, held.cell(pair, last, "").correlation.mean]);
  const agree = found.map(([pair, mean]) => el("span", {}, `${pair} ${correlation(mean)}`));
  return [
    topOf(held.provenance, theme),
    el("p", { class: "prediction" }, lines),
    agree.length
      ? el(
          "p",
          { class: "ahead" },
          `How alike the views order the ${unit(held)}s of a text at ${last}${held.types.special ? ", special ones aside" : ""} (mean rank correlation; 1 is the same order, 0 unrelated): `,
          el(
            "strong",
            {},
            agree.flatMap((one, i) => (i ? [", ", one] : [one])),
          ),
          ".",
          weak.map((view) => ` ${weakly(held, view, last, "there")}.`.replace(/[a-z]/, (sign) => sign.toUpperCase())),
        )
      : "",
    held.finished
      ? ""
      : el(
          "p",
          { class: "missing" },
          `The job is not finished: this covers the ${many(held.parts, "part")} that ${held.parts === 1 ? "is" : "are"} there.`,
        ),
  ];
}

/** The layer and whether special tokens count, for all panels. */
function corpusPickers(page) {
  const { layers, types } = page.held;
  const buttons = () => switched(page, "layer", "l", Object.fromEntries([...layers].reverse().map((l) => [l, l])));
  const shown =
    layers.length > 12 ? pick(page, "layer", "l", layers) : [el("span", { class: "caption" }, "layer"), buttons()];
  return el(
    "div",
    { class: "pickers" },
    el("div", { class: "pick-layer" }, shown),
    types.special ? checks(page, "tokens", "s", [["1", "special tokens too"]]) : "",
  );
}

function corpusSections(page) {
  const { pairs } = page.held;
  const order = switched(page, "order", "o", { lift: "by lift", share: "by share" }),
    end = switched(page, "position", "e", { start: "from the start", end: "from the end" });
  const pair = switched(page, "views", "p", Object.fromEntries(pairs.map((name, i) => [String(i), name])));
  return [
    section(page, "tokens", "Which tokens receive attention", order, ["l", "s", "o", "n"], tokenTables),
    section(page, "positions", "Which positions receive attention", end, ["l", "s", "e"], positionsChart),
    pairs.length && section(page, "agreement", "How far the views agree", [], ["l", "s"], agreementParts),
    pairs.length &&
      section(page, "disagreement", "Where the views disagree the most", pair, ["p", "s", "theme"], disagreementParts),
    section(page, "texts", "The texts", [], [], textsParts),
  ].filter(Boolean);
}

/** Puts the corpus of the document into an element. */
function showCorpus(root, summary) {
  const held = readCorpus(summary);
  const defaults = { l: held.layers.at(-1), s: "", o: "lift", n: "", e: "start", p: "0" };
  const allowed = {
    l: held.layers,
    s: ["", "1"],
    o: ["lift", "share"],
    n: ["", "1"],
    e: ["start", "end"],
    p: held.pairs.map((_, i) => String(i)),
  };
  const foot =
    "Attention-based scores are approximations of what a token is worth to the answer: the page of a text puts them beside gradients and blank-out, where the model answers something. Every score is in the Parquet files.";
  const head = (theme) => corpusHead(held, theme),
    fill = (page) => ({ above: [corpusPickers(page)], sections: corpusSections(page), foot });
  showPanels(root, { kind: "grid corpus", held: { held }, defaults, allowed, head, fill });
}

boot(showCorpus);
