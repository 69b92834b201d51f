import { PALETTES, shade, inkOn, shares, extent } from "./colour.js";
import { el, svg, label, makeTip, button, choice, press, correlation, tokenNodes, plainToken } from "./draw.js";
import { makeState } from "./state.js";
import { path, tick, ticks, apart, chart, marked, between, decimals, interval, widest } from "./plots.js";

const FIRST = 20; // tokens in a list, unless all are asked for
const DASHES = ["2 4", "8 4", null];

const TOLD = {
  tokens: (held) =>
    `${held.words ? "Words" : "Tokens"} by what they receive. Lift is the mean score of a token times the number of tokens in its text: 1× is what it would have if all tokens of a text had the same. Share is the part of all score in the corpus that goes to it. Only what stands at least ${held.least} times in the corpus is listed${held.types.special ? "; special tokens stand apart, where they are asked for" : ""}.${divided(held)} Point at a token for its mean score; the same one lights up in every list.`,
  positions: (held) =>
    `The mean score of a token by its position${held.words ? ", counted in words" : ""}; ${held.positions.places + 1}+ is the mean of all positions from there on. The dotted line is what a token would have if all tokens of its text had the same. Positions at which fewer than ${held.least} tokens stand are left out.`,
  agreement: (held) =>
    `Spearman's rank correlation of the scores that two views give to the tokens of a text, its mean over texts with a 95 % interval, and in how many texts both have the same token first. Texts with fewer than three tokens${held.types.special ? ", special ones not counted unless they are asked for," : ""} have no rank correlation, nor have those whose scores are all the same.`,
  disagreement: ({ disagreement: { layer, least, eligible } }) =>
    `The texts with the lowest rank correlation of two views at ${layer}, over tokens that are not special, of the ${many(eligible, "text")} with at least ${least} such tokens. The stronger the colour, the higher the score: from 0 to the highest of each row.`,
  texts: () => "How many tokens the texts have, what the model said of them, and which could not be explained.",
};

const many = (n, name) => `${n.toLocaleString("en")} ${name}${n === 1 ? "" : "s"}`;
const percent = (x, digits = 1) => (Number.isFinite(x) ? `${decimals(100 * x, digits)} %` : "–");

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
  const listOf = (view, layer) =>
    held.received[view][layer].map(([type, mean, share, lift]) => ({ ...types[type], type, mean, share, lift }));
  const pairs = held.disagreement.pairs.map(({ views }) => views.join(" – "));
  const cell = (pair, layer, special) =>
    held.agreement.find((one) => one.views.join(" – ") === pair && one.layer === layer && one.special === !!special);
  return { ...held, listOf, pairs, cell };
}

function section(page, name, title, controls, needs, draw) {
  const box = el("div", { class: "body" }),
    top = el("header", {}, el("h2", {}, title), controls);
  const hint = el("p", { class: "hint" }, TOLD[name](page.held));
  return {
    node: el("section", { class: "panel", "data-panel": name }, top, hint, box),
    needs,
    draw: () => box.replaceChildren(...draw(page, Math.max(280, box.clientWidth)).flat()),
  };
}

function switched(page, name, key, options) {
  const group = choice(name, options, "", (value) => page.state.set({ [key]: value }));
  page.follow(() => press(group, page.state.get()[key]));
  return group;
}

/** What may be wider than its place scrolls, and a shadow at its edge says that there is more. */
function aside(name, node) {
  const box = el("div", { class: "scroll wide", tabindex: 0, role: "region", "aria-label": name }, node);
  box.addEventListener("scroll", () => edges(box), { passive: true });
  return el("div", { class: "sideways" }, box);
}

function edges(box) {
  box.parentNode.classList.toggle("more-left", box.scrollLeft > 1);
  box.parentNode.classList.toggle("more-right", box.scrollWidth - box.clientWidth - box.scrollLeft > 1);
}

function tableOf(name, heads, rows) {
  const head = el(
    "tr",
    {},
    heads.map((text) => el("th", { scope: "col" }, text)),
  );
  const body = rows.map(([first, ...cells]) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, first),
      cells.map((cell) => el("td", {}, cell)),
    ),
  );
  return el("table", { "aria-label": name }, el("thead", {}, head), el("tbody", {}, body));
}

/** A number with a bar behind it, as long as its part of the largest. */
const barred = (text, part) =>
  el("td", { class: "bar", style: `--part:${(100 * between(0, part, 1)).toFixed(1)}%` }, text);

function tokenTables(page) {
  const { held, state } = page,
    { l, s, o, n } = state.get();
  const lists = held.views.map((view) => held.listOf(view, l).sort((a, b) => b[o] - a[o]));
  const shown = lists.map((list) => list.filter(({ special }) => !special).slice(0, n ? 100 : FIRST));
  const marks = lists.map((list) => (s ? list.filter(({ special }) => special) : []));
  const most = Math.max(...[...shown, ...marks].flat().map((one) => one[o])) || 1;
  const rowOf = (one, place) => {
    const various = one.spellings >= held.types.spellings, // it has no text of its own: words that the tokenizer does not know
      others = one.others.map((text) => `“${text}”`).join(", ");
    const also = various
      ? ", stands for many texts, mostly words that the tokenizer does not know"
      : others && `, also ${others}`;
    const title = `mean score ${decimals(one.mean, 4)}${one.id === null ? "" : `, token id ${one.id}`}${also}`;
    const parts = { lift: `${decimals(one.lift, 2)}×`, share: percent(one.share, 2) };
    const cells = ["lift", "share"].map((key) =>
      key === o ? barred(parts[key], one[o] / most) : el("td", {}, parts[key]),
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
    const parts = [marks[v].map((one) => rowOf(one, 0)), shown[v].map((one, i) => rowOf(one, i + 1))];
    const taken = held.types.special
      ? el("small", {}, ` ${percent(held.special_share[view][l])} to special tokens`)
      : "";
    const head = el(
      "tr",
      {},
      heads.map((text) => (text ? el("th", { scope: "col" }, text) : el("td"))),
    );
    return el(
      "div",
      { class: "received", "data-view": view },
      el("h3", {}, view, taken),
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
  const more = button(`the first ${n ? FIRST : Math.min(100, longest)}`, turn, { class: "more" });
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
function linesChart(page, width, told, { names, looks, rows, at, flip, marks, tell, low, top, bars = [] }) {
  const narrow = width < 560,
    foot = 220,
    end = width - (narrow ? 20 : 50 + widest(names)),
    most = at.at(-1) || 1;
  const x = (s) => 46 + (flip ? 1 - at[s] / most : at[s] / most) * (end - 46),
    y = (v) => foot - 6 - ((v - low) / (top - low || 1)) * (foot - 16);
  const levels = ticks(low, top, 4),
    digits = between(1, Math.ceil(-Math.log10(levels[1] - levels[0]) - 1e-9), 9);
  const axis = [
    levels.map((v) => [path(`M46 ${y(v)}H${end}`), tick(40, y(v), decimals(v, digits), "end")]),
    apart(
      marks.map(([s, text]) => [x(s), text]),
      foot + 12,
    ),
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
  const legend = lineNames(names, looks, (i) => (narrow ? [46, foot + 34 + 16 * i] : [end + 12, 16 + 18 * i]));
  const spans = bars.map(([row, s, from, to]) => path(`M${x(s)} ${y(from)}V${y(to)}`, { stroke: looks[row].stroke }));
  const wide = (end - 46) / most;
  const bands = at.map((_, s) => {
    const dots = rows.flatMap((row, r) => (row[s] === null ? [] : [dot(row, r, s)]));
    const band = svg("rect", { x: x(s) - wide / 2, width: wide, height: foot, fill: "transparent" });
    return marked(tell(s), "band", band, path(`M${x(s)} 8V${foot}`), dots);
  });
  const high = narrow ? foot + 30 + 16 * names.length : foot + 24;
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
  ];
  return linesChart(page, width, `Mean score by position${side || " from the start"} at ${l}`, {
    names,
    looks,
    rows,
    tell,
    at,
    flip: e === "end",
    marks: wanted.map((i) => [steps.indexOf(i), named(i)]),
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
    return el("div", { class: "picture" }, el("h3", {}, held.pairs[i]), picture);
  });
  const table = tableOf("agreement of views", heads, rows);
  return [
    aside("agreement of views", table),
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
      tell,
      low: Math.min(0, ...values),
      top: 1,
    }),
  ];
}

function textRow(page, text, view, kept, kind = "row") {
  const colours = page.colours(),
    values = kept.map((i) => text.shares[view][i]),
    parts = shares(values, ...extent([values], false));
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
  );
}

/** The fragment of a text's page that shows what is shown here. */
function opening({ disagreement, receptive_field: field, words }) {
  return new URLSearchParams({
    l: disagreement.layer.slice(1),
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
    ? el("a", { href: `texts/${row}.html#${opening(held)}` }, text.id)
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
  const marks = [0, bars.length, ...bars.map((_, i) => i)].map((i) => [i, String(i * lengths.width)]);
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
        aside("predictions", tableOf("predictions", heads, rows)),
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

/** What was read, and what came out in a sentence. */
function corpusHead(held, theme) {
  const { model, revision, dtype } = held.provenance;
  const told = [model, revision?.replace(/^([0-9a-f]{12})[0-9a-f]+$/, "$1"), dtype].filter(Boolean).join(" · ");
  const failed = held.texts - held.scored,
    name = held.input?.split(/[\\/]/).findLast(Boolean) ?? held.folder;
  const layers = held.layers.length > 1 ? `${held.layers.length} layers` : held.layers[0];
  const lines = [
    `${name}: ${many(held.texts, "text")}, of which ${held.scored.toLocaleString("en")} ${held.scored === 1 ? "is" : "are"} explained by ${held.views.join(", ")} at ${layers}`,
    failed ? ` and ${failed.toLocaleString("en")} failed.` : ".",
    held.truncated ? ` ${many(held.truncated, "text")} ${held.truncated === 1 ? "was" : "were"} cut.` : "",
    held.several_queries
      ? ` Where several positions of a text were explained (${many(held.several_queries, "text")}), its scores are their mean.`
      : "",
    held.provenances > 1
      ? ` The rows were made in ${held.provenances} different ways; the one named above is the most frequent.`
      : "",
  ];
  const last = held.layers.at(-1),
    found = held.pairs.map((pair) => [pair, held.cell(pair, last, "").correlation.mean]);
  const agree = found.map(([pair, mean]) => `${pair} ${correlation(mean)}`).join(", ");
  return [
    el(
      "header",
      { class: "top" },
      el("div", { class: "brand" }, el("h1", {}, "attnflow"), el("span", { class: "told-model" }, told)),
      el("div", { class: "controls" }, theme),
    ),
    el("p", { class: "prediction" }, lines.join("")),
    agree
      ? el(
          "p",
          { class: "ahead" },
          `Mean rank correlation at ${last} without special tokens: `,
          el("strong", {}, agree),
          ".",
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
  const { held, state } = page,
    few = held.layers.length <= 12;
  const select = el(
    "select",
    { "aria-label": "layer", onchange: () => state.set({ l: select.value }) },
    held.layers.map((layer) => el("option", { value: layer }, layer)),
  );
  page.follow(() => (select.value = state.get().l));
  const layers = Object.fromEntries([...held.layers].reverse().map((layer) => [layer, layer]));
  const box = el("input", { type: "checkbox", onchange: () => state.set({ s: box.checked ? "1" : "" }) });
  page.follow(() => (box.checked = !!state.get().s));
  return el(
    "div",
    { class: "pickers" },
    el(
      "div",
      { class: "pick-layer" },
      el("span", { class: "caption" }, "layer"),
      few ? switched(page, "layer", "l", layers) : select,
    ),
    held.types.special ? el("div", { class: "checks" }, el("label", {}, box, " special tokens too")) : "",
  );
}

/** Puts the corpus of the document into an element. */
export function showCorpus(root) {
  const held = readCorpus(JSON.parse(document.getElementById("attnflow-document").textContent));
  const dark = matchMedia("(prefers-color-scheme: dark)"),
    { signal } = new AbortController();
  const defaults = { l: held.layers.at(-1), s: "", o: "lift", n: "", e: "start", p: "0", theme: "" };
  const allowed = {
    l: held.layers,
    s: ["", "1"],
    o: ["lift", "share"],
    n: ["", "1"],
    e: ["start", "end"],
    p: held.pairs.map((_, i) => String(i)),
    theme: ["", "light", "dark"],
  };
  const state = makeState(defaults, allowed, "", signal);
  let printing = false;
  const isDark = () => !printing && (state.get().theme === "dark" || (state.get().theme !== "light" && dark.matches));
  const theme = button("", () => state.set({ theme: isDark() ? "light" : "dark" }), { class: "theme" });
  const node = el("article", { class: "attnflow grid corpus" }, corpusHead(held, theme));
  root.replaceChildren(node);
  const followers = [],
    follow = (follower) => followers.push(follower);
  const page = { held, state, follow, tip: makeTip(root), colours: () => PALETTES[isDark() ? "dark" : "light"] };
  const order = switched(page, "order", "o", { lift: "by lift", share: "by share" }),
    end = switched(page, "position", "e", { start: "from the start", end: "from the end" });
  const pair = switched(page, "views", "p", Object.fromEntries(held.pairs.map((name, i) => [String(i), name])));
  const agree = held.pairs.length > 0;
  const sections = [
    section(page, "tokens", "Which tokens receive attention", order, ["l", "s", "o", "n"], tokenTables),
    section(page, "positions", "Which positions receive attention", end, ["l", "s", "e"], positionsChart),
    agree && section(page, "agreement", "How far the views agree", [], ["l", "s"], agreementParts),
    agree &&
      section(page, "disagreement", "Where they disagree the most", pair, ["p", "s", "theme"], disagreementParts),
    section(page, "texts", "The texts", [], [], textsParts),
  ].filter(Boolean);
  const foot =
    "Attention-based scores are approximations of what a token is worth to the answer: the page of a text puts them beside gradients and blank-out. Every score is in the Parquet files.";
  node.append(corpusPickers(page), ...sections.map((one) => one.node), el("footer", {}, foot));
  function update(changed) {
    root.dataset.theme = isDark() ? "dark" : "light";
    theme.textContent = isDark() ? "☀" : "☾";
    theme.setAttribute("aria-label", isDark() ? "light theme" : "dark theme");
    page.tip.hide();
    followers.forEach((follower) => follower());
    for (const { needs, draw } of sections) if (!changed || needs.some((name) => changed.has(name))) draw();
    node.querySelectorAll(".scroll").forEach(edges);
    node.dataset.settled = node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
  }
  state.listen(update);
  dark.addEventListener("change", () => update());
  for (const [name, flag] of Object.entries({ beforeprint: true, afterprint: false }))
    addEventListener(name, () => {
      printing = flag; // paper is white
      update();
    });
  let width = node.clientWidth;
  new ResizeObserver(() => {
    if (Math.abs(node.clientWidth - width) < 8) return;
    width = node.clientWidth;
    update();
  }).observe(node);
  root.removeAttribute("aria-busy");
  update();
}
