import { shadeStyle, shares, extent } from "./colour.js";
import { el, flattened, plainToken, tokenLine, tokenNodes } from "./draw.js";
import { many, pick, switched, checks } from "./frame.js";

/** @import { Child, Corpus, CorpusContext, CorpusGroup, CorpusPage, CorpusSplit, GroupWord } from "./types" */

/** Format with a fixed number of decimals, so that columns can be compared. @param {number | null | undefined} x */
const decimals = (x, digits = 3) =>
  typeof x === "number" && Number.isFinite(x) ? x.toFixed(digits).replace("-", "−") : "–";

const ALL = 15; // words in the list of all texts
const EACH = 10; // words in the list of a group

/** What each method measures, for a newcomer. @type {Record<string, (layer: string) => string>} */
const METHODS = {
  raw: (layer) => `the attention of layer ${layer.slice(1)}`,
  rollout: (layer) => `attention multiplied down from layer ${layer.slice(1)}`,
  flow: (layer) => `the most attention that could flow down from layer ${layer.slice(1)}`,
  answer_inputs: () => "what each input contributes to the answer, followed through all layers",
  answer_rows: () => "what the answering position reads from each input",
  blank_out: () => "how much the answer changes when a token is blanked out",
  gradient: () => "how much the answer changes with the embedding of a token",
  integrated_gradients: () => "gradients added up along the way from a blank text",
  shapley: () => "the mean gain when a token is added to a blank text",
  fading: () => "how fast the answer's probability falls as attention to an input fades",
  combined: () => "what the answer reads from each input, and what it loses as attention to it fades",
};

/** Return the words of all texts at the layer of the first screen, highest first.
 *
 * @param {Corpus} corpus
 * @param {string} method
 * @param {boolean} every include punctuation
 * @returns {GroupWord[]}
 */
function wordsOfAll(corpus, method, every) {
  return corpus.top[method]
    .map(([type, lift, count]) => ({ ...corpus.typeOf(type), type, lift, count, difference: null }))
    .filter(({ punctuation }) => every || !punctuation)
    .sort((a, b) => b.lift - a.lift);
}

/** Return the words of a group, ranked by their lift there, or by how much it exceeds that in all other texts.
 *
 * @param {Corpus} corpus
 * @param {CorpusGroup} group
 * @param {string} method
 * @param {boolean} every
 * @param {boolean} isDifference
 * @returns {GroupWord[]}
 */
function wordsOfGroup(corpus, group, method, every, isDifference) {
  const words = group.received[method].map(([type, lift, difference, count]) => {
    return { ...corpus.typeOf(type), type, lift, difference, count };
  });
  const by = (/** @type {GroupWord} */ one) => (isDifference ? one.difference : one.lift) ?? -Infinity;
  return words
    .filter((one) => (every || !one.punctuation) && Number.isFinite(by(one)))
    .sort((a, b) => by(b) - by(a))
    .slice(0, EACH);
}

/** Return the groups on the first screen, each with its words and its key among the examples.
 *
 * @param {CorpusPage} page
 */
function shownGroups({ corpus, state }) {
  const { b, v, s, x } = state.get(),
    every = Boolean(s);
  const split = /** @type {CorpusSplit | undefined} */ (b === "" ? undefined : corpus.splits[Number(b)]);
  if (!split) return [{ key: "", title: "", note: "", words: wordsOfAll(corpus, v, every).slice(0, ALL) }];
  return split.groups.map((group, g) => ({
    key: `${b}.${g}`,
    title: split.predicted ? group.value : `${split.name}: ${group.value}`,
    note: many(group.texts, "text"),
    words: wordsOfGroup(corpus, group, v, every, x === "differs"),
  }));
}

/** The headline: the top words over all texts.
 *
 * @param {CorpusPage} page
 */
function headline({ corpus, state }) {
  const words = wordsOfAll(corpus, state.get().v, false).slice(0, 3);
  if (!words.length)
    return `Across ${many(corpus.scored, "text")}, no ${corpus.unit} occurs often enough (${corpus.least} times) to be named.`;
  const named = words.map(({ text }) => el("strong", {}, el("bdi", {}, plainToken(text))));
  const between = words.map((_, i) => (i === 0 ? "" : i === words.length - 1 ? " and " : ", "));
  return [
    `Across ${many(corpus.scored, corpus.answers ? "prompt" : "text")}, ${verb(corpus, state.get().v)} `,
    words.map((_, i) => [between[i], named[i]]),
    ".",
  ];
}

/** Return the verb phrase for the words that a method ranks first.
 *
 * @param {Corpus} corpus
 * @param {string} method
 */
function verb({ about_answer: about, answers, edges, span }, method) {
  if (answers && about.includes(method))
    return `${span ? `“${span}” in the answers rests` : "the answers rest"} most on`;
  if (about.includes(method)) return "the answers rest most on";
  return edges ? `edges by ${edges} lead most to` : "attention goes most to";
}

/** Explain a method and its limits. @param {CorpusPage} page */
function reason({ corpus, state }) {
  const { v } = state.get(),
    { layer } = corpus.lead;
  const edges = corpus.edges && !["answer_inputs", "answer_rows"].includes(v) ? ` (edges: ${corpus.edges})` : "";
  const said = `By ${v}, ${METHODS[v]?.(layer) ?? v}${edges}`;
  if (!corpus.about_answer.includes(v)) return `${said}: where the model looks, not what its answer rests on.`;
  const sign = corpus.signed.includes(v) ? " Values below zero count against the answer." : "";
  return `${said}.${sign}`;
}

/** One word as a button that shows it in context, with a bar.
 *
 * @param {CorpusPage} page
 * @param {string} key of its list
 * @param {GroupWord} one
 * @param {number} most
 * @param {string} chosen
 */
function wordButton(page, key, one, most, chosen) {
  const { state } = page,
    isDifference = state.get().x === "differs" && key !== "",
    value = (isDifference ? one.difference : one.lift) ?? 0,
    name = `${key}:${one.type}`;
  const text = isDifference ? `${value < 0 ? "" : "+"}${decimals(value, 1)}×` : `${decimals(value, 1)}×`;
  const also = one.others.map((other) => `“${other}”`).join(", ");
  const title = [
    plainToken(one.text, 60),
    `${decimals(one.lift, 2)}× an equal share`,
    many(one.count, "time"),
    also && `also ${also}`,
  ];
  return el(
    "li",
    {},
    el(
      "button",
      {
        type: "button",
        class: "word",
        title: title.filter(Boolean).join(", "),
        "data-word": name,
        "aria-pressed": String(name === chosen),
        onclick: () => state.set({ w: name }),
      },
      el("span", { class: "spelling" }, tokenNodes(one.text)),
      el("span", { class: "length", style: `--part:${((100 * Math.max(0, value)) / most).toFixed(1)}%` }),
      el("span", { class: "number" }, text),
    ),
  );
}

/** Say what the lists leave out that a reader would miss. @param {CorpusPage} page */
const apartLine = ({ corpus }) =>
  corpus.sink ? el("p", { class: "apart" }, "Not listed: the first token, an attention sink") : null;

/** @param {CorpusPage} page @param {ReturnType<typeof shownGroups>} groups @param {string} chosen */
function listsOf(page, groups, chosen) {
  const { corpus, state } = page,
    isDifference = state.get().x === "differs";
  const values = groups.flatMap(({ key, words }) =>
    words.map((one) => (isDifference && key !== "" ? one.difference : one.lift) ?? 0),
  );
  const most = Math.max(...values, 1e-9);
  return groups.map(({ key, title, note, words }) =>
    el(
      "div",
      { class: "words", "data-group": key },
      title ? el("h3", {}, plainToken(title, 40), el("small", {}, ` ${note}`)) : null,
      words.length
        ? el(
            "ol",
            { "aria-label": title || "all texts" },
            words.map((one) => wordButton(page, key, one, most, chosen)),
          )
        : el("p", { class: "empty" }, `No ${corpus.unit} occurs often enough.`),
    ),
  );
}

/** Say how many texts are in no group. @param {CorpusPage} page */
function leftOut({ corpus, state }) {
  const split = corpus.splits[Number(state.get().b || NaN)];
  if (!split) return null;
  const grouped = split.groups.reduce((sum, { texts }) => sum + texts, 0),
    rest = corpus.scored - grouped;
  if (rest <= 0) return null;
  const why = split.others ? `${many(split.others, "rarer value")}, or none` : "no value";
  return el("p", { class: "apart" }, `${many(rest, "more text")} (${why}) in no group`);
}

/** A word in context: the word is marked, and the text is shaded by the method.
 *
 * @param {CorpusPage} page
 * @param {CorpusContext} one
 */
function contextLine(page, one) {
  const { v, b } = page.state.get(),
    said = page.corpus.answers ? "answered" : "predicted",
    isSaid = Boolean(page.corpus.splits[Number(b || NaN)]?.predicted), // the group's heading shows the prediction
    colours = page.colours();
  const places = one.tokens.map((_, i) => i).filter((i) => !one.special[i]),
    shaded = places.filter((i) => !one.apart[i]),
    values = shaded.map((i) => one.lifts[v][i] ?? 0),
    parts = shares(values, ...extent([values], true));
  const line = tokenLine(one, places, (i) => {
    const k = shaded.indexOf(i);
    return {
      class: `tok${one.joins[i] ? " joined" : ""}${i === one.at ? " the-word" : ""}`,
      style: k < 0 ? null : shadeStyle(colours, parts[k]),
      title: `${plainToken(one.tokens[i])}: ${k < 0 ? "not shaded" : `${decimals(values[k], 2)}× an equal share`}`,
    };
  });
  const notes = [
    !isSaid && one.prediction && `${said} ${plainToken(one.prediction, 40)}`,
    `${decimals(one.lifts[v][one.at] ?? NaN, 1)}×`,
    one.id,
  ];
  const isCut = one.first + one.tokens.length < one.size;
  return el(
    "li",
    { "data-row": one.row },
    el("p", { class: "in-context", dir: "auto" }, one.first > 0 ? "… " : null, line, isCut ? " …" : null),
    el("p", { class: "note" }, notes.filter(Boolean).join(" · ")),
  );
}

/** Return the selected word by list and type; by default, the first word of the first list.
 *
 * @param {CorpusPage} page
 * @param {ReturnType<typeof shownGroups>} groups
 */
function chosenWord({ state }, groups) {
  const there = groups.flatMap(({ key, words }) => words.map(({ type }) => `${key}:${type}`)),
    { w } = state.get();
  return there.includes(w) ? w : (there[0] ?? "");
}

/** The selected word in context.
 *
 * @param {CorpusPage} page
 * @param {string} chosen
 * @returns {Child[]}
 */
function examplesOf(page, chosen) {
  const { corpus } = page,
    { of, texts } = corpus.contexts;
  if (!chosen) return [];
  const [key, type] = chosen.split(":"),
    places = of[key]?.[type] ?? of[""]?.[type] ?? [];
  const name = plainToken(corpus.typeOf(Number(type)).text);
  return [
    el("h3", {}, el("bdi", {}, `“${name}”`), " in context"),
    places.length
      ? el(
          "ol",
          {},
          places.map((i) => contextLine(page, texts[i])),
        )
      : el("p", { class: "empty" }, "There are no stored examples of it."),
  ];
}

/** @param {CorpusPage} page @returns {Child} */
function controlsOf(page) {
  const { corpus } = page;
  const splits = Object.fromEntries(
    corpus.splits.map(({ name, predicted }, i) => [String(i), predicted ? "prediction" : name]),
  );
  const by = el(
    "select",
    { "data-pick": "b" },
    Object.entries({ "": "all texts", ...splits })
      .sort(([a], [b]) => Number(a === "" ? -1 : a) - Number(b === "" ? -1 : b))
      .map(([value, text]) => el("option", { value }, text)),
  );
  by.addEventListener("change", () => page.state.set({ b: by.value, w: "" }));
  page.follow(() => (by.value = page.state.get().b));
  const order = switched(page, "words", "x", { most: "most", differs: "what differs" });
  page.follow(() => order.toggleAttribute("hidden", page.state.get().b === ""));
  return [
    corpus.splits.length ? el("label", {}, "split ", by) : null,
    pick(page, "method", "v", corpus.methods),
    corpus.splits.length ? order : null,
    corpus.types.punctuation ? checks(page, "tokens", "s", [["1", "punctuation"]]) : null,
  ];
}

/** The first screen: a headline, the words of each group, and the selected word in context.
 *
 * @param {CorpusPage} page
 * @param {Child} notice warnings
 */
export function leadSection(page, notice) {
  const say = el("h2", { class: "headline" }),
    why = el("p", { class: "reason" }),
    lists = el("div", { class: "groups" }),
    examples = el("div", { class: "examples", "aria-live": "polite" }),
    rest = el("div", { class: "rest" });
  const body = el("div", { class: "spread" }, el("div", {}, lists, rest), examples);
  const scale = el("p", { class: "measure" });
  const node = el(
    "section",
    { class: "opening", "data-panel": "lead", "aria-label": "summary" },
    say,
    why,
    notice,
    el("div", { class: "steering" }, controlsOf(page)),
    scale,
    body,
  );
  let word = "";
  function draw() {
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.word,
      { b, x, w } = page.state.get();
    scale.replaceChildren(
      b !== "" && x === "differs"
        ? "+2× is two equal shares more than in all other texts."
        : "2× is twice an equal share.",
    );
    say.replaceChildren(...flattened(headline(page)));
    why.replaceChildren(reason(page));
    const groups = shownGroups(page),
      chosen = chosenWord(page, groups);
    lists.replaceChildren(...listsOf(page, groups, chosen));
    lists.classList.toggle("single", groups.length === 1);
    body.classList.toggle("stacked", groups.length > 2);
    rest.replaceChildren(...flattened([apartLine(page), leftOut(page)]));
    examples.replaceChildren(...flattened(examplesOf(page, chosen)));
    if (focused)
      /** @type {HTMLElement | null} */ (lists.querySelector(`[data-word="${focused}"]`))?.focus({
        preventScroll: true,
      });
    if (w !== word && w !== "") examples.scrollIntoView({ block: "nearest" }); // below the lists on a phone
    word = w;
  }
  return { node, needs: ["b", "v", "s", "x", "w", "theme"], draw };
}
