import { shade, inkOn, shares, extent } from "./colour.js";
import { el, svg, label, button, tableOf, correlation, tokenNodes, plainToken } from "./draw.js";
import { path, tick, ticks, apart, chart, marked, between, decimals, interval, widest } from "./plots.js";
import { many, topOf, panel, wideTable, pick, switched, checks, showPanels } from "./frame.js";

const FIRST = 20; // tokens in a list, unless all are asked for
const DASHES = ["2 4", "8 4", null];
const WEAK = 1.2; // the largest score by the smallest, below which their order says little

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

const percent = (x, digits = 1) => (Number.isFinite(x) ? `${decimals(100 * x, digits)} %` : "–");

const unit = ({ words }) => (words ? "word" : "token");

const times = (x) => decimals(x, x < 2 ? 2 : x < 10 ? 1 : 0);

/** Whether a view gives nearly the same to all of a text. */
const isWeak = ({ ratio }, view, layer) => ratio[view][layer] !== null && ratio[view][layer] < WEAK;

const weakly = (held, view, layer, where) =>
  `${view} hardly tells ${unit(held)}s apart ${where}: the largest score is ${times(held.ratio[view][layer])} times the smallest of a typical text`;

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

const lineLook = (i, hue = i) => ({
  stroke: `var(--hue-${hue})`,
  "stroke-width": 1.8,
  "stroke-dasharray": DASHES[i],
  "stroke-linecap": "round",
});

/** Names of lines, beside the picture where there is room, else below it. */
function lineNames(names, looks, place) {
  return names.map((name, i) => {
    const [x, y] = place(i);
    return [path(`M${x} ${y}h20`, looks[i]), label(x + 26, y, name, { style: `fill:${looks[i].stroke}` })];
  });
}

/** Lines over steps, with a band at each that tells its values.
 *
 * at: the place of each step on the axis, whole numbers from 0; lines go on between neighbours, and what has none is a dot.
 */
function linesChart(page, width, told, { names, looks, rows, at, flip, marks, axes, tell, low, top, bars = [] }) {
  const narrow = width < 560,
    foot = 230,
    end = width - (narrow ? 20 : 50 + widest(names)),
    most = at.at(-1) || 1;
  const x = (s) => 46 + (flip ? 1 - at[s] / most : at[s] / most) * (end - 46),
    y = (v) => foot - 6 - ((v - low) / (top - low || 1)) * (foot - 28);
  const levels = ticks(low, top, 4),
    digits = between(1, Math.ceil(-Math.log10(levels[1] - levels[0]) - 1e-9), 9);
  const axis = [
    levels.map((v) => [path(`M46 ${y(v)}H${end}`), tick(40, y(v), decimals(v, digits), "end")]),
    apart(
      marks.map(([s, text]) => [x(s), text]),
      foot + 12,
    ),
    tick(46, 8, axes[1], "start"),
    tick((46 + end) / 2, foot + 28, axes[0]),
  ];
  const follows = (row, s) =>
    s > 0 && s < at.length && at[s] - at[s - 1] === 1 && row[s] !== null && row[s - 1] !== null;
  const dot = (row, r, s) => svg("circle", { cx: x(s), cy: y(row[s]), r: 3, fill: looks[r].stroke });
  const lines = rows.map((row, r) => {
    const there = at.map((_, s) => s).filter((s) => row[s] !== null);
    const drawn = there.map((s) => `${follows(row, s) ? "L" : "M"}${x(s)} ${y(row[s])}`).join("");
    const alone = there.filter((s) => !follows(row, s) && !follows(row, s + 1));
    return [path(drawn, looks[r]), alone.map((s) => dot(row, r, s))];
  });
  const legend = lineNames(names, looks, (i) => (narrow ? [46, foot + 50 + 16 * i] : [end + 12, 28 + 18 * i]));
  const spans = bars.map(([row, s, from, to]) => path(`M${x(s)} ${y(from)}V${y(to)}`, { stroke: looks[row].stroke }));
  const wide = (end - 46) / most;
  const bands = at.map((_, s) => {
    const dots = rows.flatMap((row, r) => (row[s] === null ? [] : [dot(row, r, s)]));
    const band = svg("rect", { x: x(s) - wide / 2, width: wide, height: foot, fill: "transparent" });
    return marked(tell(s), "band", band, path(`M${x(s)} 20V${foot}`), dots);
  });
  const high = foot + 36 + (narrow ? 10 + 16 * names.length : 0);
  return chart(page, [width, high], told, [axis, lines, spans, legend], [flip ? bands.reverse() : bands]);
}

function positionsChart(page, width) {
  const { held, state } = page,
    { l, s, e } = state.get();
  const { counts, uniform, shares: found } = held.positions[e][s ? "all" : "plain"],
    rest = held.positions.places;
  const steps = counts.flatMap((n, i) => (n >= held.least ? [i] : []));
  if (steps.length < 2) return [el("p", { class: "empty" }, "Too few tokens stand at any position.")];
  const at = [];
  steps.forEach((i, k) => at.push(k ? at[k - 1] + (i === rest || i - steps[k - 1] > 1 ? 2 : 1) : 0));
  const names = [...held.views, "all the same"],
    rows = [...held.views.map((view) => found[view][l]), uniform].map((row) => steps.map((i) => row[i]));
  const looks = [
    ...held.views.map((_, i) => lineLook(i)),
    { ...lineLook(0), stroke: "var(--faint)", "stroke-dasharray": "1 4" },
  ];
  const named = (i) => (i === rest ? `${rest + 1}+` : String(i + 1)),
    side = { start: "", end: " from the end" }[e];
  const tell = (k) => [
    `position ${named(steps[k])}${side}, ${many(counts[steps[k]], "token")}`,
    ...names.map((name, r) => `${name} ${decimals(rows[r][k], 4)}`),
  ];
  const wanted = [
    steps[0],
    steps.at(-1),
    ...steps.filter((i) => (i + 1) % 10 === 0),
    ...steps.filter((i) => (i + 1) % 5 === 0),
    ...steps,
  ];
  return linesChart(page, width, `Mean score by position${side || " from the start"} at ${l}`, {
    names,
    looks,
    rows,
    tell,
    at,
    flip: e === "end",
    marks: wanted.map((i) => [steps.indexOf(i), named(i)]),
    axes: [`position${side}`, "mean score"],
    low: Math.min(0, ...rows.flat()),
    top: Math.max(...rows.flat()),
  });
}

/** Counts as bars. bars: [name of the range, count]; marks: texts at places between bars, from 0 to their number. */
function barsChart(page, width, told, bars, marks, middle = null) {
  const foot = 110,
    most = Math.max(...bars.map(([, n]) => n)) || 1;
  const x = (i) => 8 + (i / bars.length) * (width - 16),
    high = (n) => (n ? Math.max(1, (n / most) * (foot - 18)) : 0);
  const axis = [
    path(`M8 ${foot}H${width - 8}`),
    apart(
      marks.map(([i, text]) => [between(14, x(i), width - 14), text]),
      foot + 12,
    ),
    tick(8, 8, `highest: ${many(most, "text")}`, "start"),
  ];
  const drawn = bars.map(([name, n], i) => {
    const size = { x: x(i), width: x(i + 1) - x(i) };
    const all = svg("rect", { ...size, y: 0, height: foot, fill: "transparent" });
    const bar = svg("rect", {
      x: size.x + 0.5,
      width: size.width - 1,
      y: foot - high(n),
      height: high(n),
      class: "count",
    });
    return marked([name, many(n, "text")], "cell", all, bar);
  });
  const line =
    middle === null ? [] : [path(`M${x(middle)} 16V${foot}`, { stroke: "var(--ink)", "stroke-dasharray": "4 3" })];
  const [node, list] = chart(page, [width, foot + 22], told, axis, [drawn]);
  node.append(...line);
  return [node, list];
}

/** The width of one of some things beside each other, as the style sets them. */
function besides(width, count) {
  const columns = between(1, Math.floor((width + 28) / (290 + 28)), count);
  return Math.floor((width - 28 * (columns - 1)) / columns);
}

function agreementParts(page, width) {
  const { held, state } = page,
    { l, s } = state.get();
  const cells = held.pairs.map((pair) => held.cell(pair, l, s));
  const rows = cells.map((one, i) => {
    const { mean, low, high } = one.correlation,
      first = one.first;
    return [
      held.pairs[i],
      `${correlation(mean)} [${correlation(low)}, ${correlation(high)}]`,
      first.share === null
        ? "–"
        : `${percent(first.share, 0)} [${decimals(100 * first.low, 0)}, ${decimals(100 * first.high, 0)}]`,
      one.texts.toLocaleString("en"),
      [
        one.few && `${one.few.toLocaleString("en")} too short`,
        one.flat && `${one.flat.toLocaleString("en")} all the same`,
      ]
        .filter(Boolean)
        .join(", ") || "none",
    ];
  });
  const heads = ["views", "rank correlation", "same token first", "texts", "left out"];
  const each = besides(width, cells.length);
  const places = [-1, -0.5, 0, 0.5, 1].map((v, i) => [5 * i, correlation(v)]);
  const histograms = cells.map((one, i) => {
    const bars = one.histogram.map((n, b) => [
      `ρ from ${correlation(b / 10 - 1)} to ${correlation((b + 1) / 10 - 1)}`,
      n,
    ]);
    const { mean } = one.correlation;
    const told = `${held.pairs[i]}: texts by rank correlation at ${l}`;
    const picture = barsChart(page, each, told, bars, places, mean === null ? null : 10 * (mean + 1));
    return el(
      "div",
      { class: "picture" },
      el("h3", {}, held.pairs[i], el("small", {}, " texts by ρ; the line is the mean")),
      picture,
    );
  });
  const table = tableOf({ "aria-label": "agreement of views" }, heads, rows);
  const weak = held.views.filter((view) => isWeak(held, view, l));
  return [
    weak.map((view) =>
      el(
        "p",
        { class: "weak" },
        `${weakly(held, view, l, `at ${l}`)}, so that its order, and how far others agree with it, says little.`,
      ),
    ),
    wideTable("agreement of views", table),
    el("div", { class: "beside" }, histograms),
    held.layers.length > 1 ? overLayers(page, width) : [],
  ].flat();
}

function overLayers(page, width) {
  const { held, state } = page,
    { s } = state.get();
  const found = held.pairs.map((pair) => held.layers.map((layer) => held.cell(pair, layer, s).correlation));
  const values = found.flat().flatMap(({ mean, low, high }) => (mean === null ? [] : [low ?? mean, high ?? mean]));
  if (!values.length) return [];
  const tell = (k) => [held.layers[k], ...held.pairs.map((pair, i) => `${pair} ${interval(found[i][k])}`)];
  return [
    el("h3", { class: "second" }, "Rank correlation layer by layer"),
    ...linesChart(page, width, "Rank correlation layer by layer", {
      names: held.pairs,
      looks: held.pairs.map((_, i) => lineLook(i, 3 + i)), // other hues than those of the views
      rows: found.map((row) => row.map(({ mean }) => mean)),
      bars: found.flatMap((row, i) => row.flatMap(({ low, high }, k) => (low === null ? [] : [[i, k, low, high]]))),
      at: held.layers.map((_, i) => i),
      marks: held.layers.map((layer, i) => [i, layer]),
      axes: ["layer", "mean ρ"],
      tell,
      low: Math.min(0, ...values),
      top: 1,
    }),
  ];
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

function textsParts(page, width) {
  const { lengths, predictions, errors, scored } = page.held;
  const bars = lengths.counts.map((n, i) => {
    const [from, to] = [1 + i * lengths.width, (i + 1) * lengths.width];
    return [from === to ? many(from, "token") : `${from} to ${to} tokens`, n];
  });
  const most = bars.length * lengths.width;
  // a number below its own bar, or at the end of the bar that reaches up to it
  const place = (n) => (lengths.width === 1 ? n - 0.5 : n / lengths.width);
  const marks = ticks(0, most, 6).flatMap((n) => (n % 1 || place(n) < 0 ? [] : [[place(n), String(n)]]));
  const summary = `${many(scored, "text")} of ${lengths.shortest} to ${lengths.longest} tokens, median ${lengths.median}`;
  const there = 1 + (predictions.top.length > 0) + (errors.length > 0);
  const parts = [
    el(
      "div",
      { class: "picture" },
      el("h3", {}, "Lengths"),
      el("p", { class: "told" }, summary),
      barsChart(page, Math.min(besides(width, there), 420), "Texts by their number of tokens", bars, marks),
    ),
  ];
  if (predictions.top.length) {
    const kinds = [...new Set(predictions.top.map(({ kind }) => kind))];
    const rows = predictions.top.map((one) => [
      plainToken(one.label, 40),
      one.count.toLocaleString("en"),
      percent(one.count / predictions.texts),
      decimals(one.mean, 2),
    ]);
    const rest = predictions.labels - predictions.top.length;
    const heads = [kinds.join(", "), "texts", "share", kinds[0] === "score" ? "mean score" : "mean probability"];
    const note = rest ? [el("p", { class: "hint" }, `and ${many(rest, "other")}, less often`)] : [];
    parts.push(
      el(
        "div",
        { class: "said" },
        el("h3", {}, "Predictions"),
        wideTable("predictions", tableOf({ "aria-label": "predictions" }, heads, rows)),
        note,
      ),
    );
  }
  if (errors.length) {
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
    parts.push(el("div", { class: "failures" }, el("h3", {}, "Failed"), lists));
  }
  return [el("div", { class: "beside" }, parts)];
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
export function showCorpus(root) {
  const held = readCorpus(JSON.parse(document.getElementById("attnflow-document").textContent));
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
