// Which heads follow an alignment, by the definitions in attnflow/heads.py.
import { button, closest, el, number, plainToken, tableOf } from "./draw.js";
import { exportMenu } from "./keep.js";
import { strongestWord } from "./flow-words.js";

/** @import { Cells, Now, Page } from "./types" */
/** @typedef {{ layer: number, head: number, weight: number, top: number }} HeadScore layer counts among those shown */

const LISTED = 5;

/** @type {Record<string, string>} */
export const ALIGNMENTS = {
  "": "nothing",
  previous: "the previous token",
  next: "the next token",
  self: "the token itself",
  first: "the first token",
  same: "the same token elsewhere",
  induction: "what followed the same token",
  pair: "this pair",
};

/** @type {Record<string, (tokens: string[], q: number) => number[]>} */
const RULES = {
  previous: (_, q) => (q ? [q - 1] : []),
  next: (tokens, q) => (q + 1 < tokens.length ? [q + 1] : []),
  self: (_, q) => [q],
  first: (_, q) => (q ? [0] : []),
  same: (tokens, q) => [...tokens.keys()].filter((k) => k !== q && tokens[k] === tokens[q]),
  induction: (tokens, q) => [...tokens.keys()].filter((k) => 0 < k && k < q && tokens[k - 1] === tokens[q]),
};

/** Return pairs of a query and its keys, as positions among all inputs.
 *
 * @param {string} name of ALIGNMENTS
 * @param {Now} at
 * @param {number} first where the queries begin
 * @param {number} token the key of a pair
 * @returns {[number, number[]][]}
 */
export function alignedKeys(name, at, first, token) {
  if (name === "pair") return [[at.query, [token]]];
  const own = at.tokens.slice(first);
  return own.map((_, q) => [first + q, RULES[name](own, q).map((k) => first + k)]);
}

/** Rank heads by the mean weight on aligned keys over queries; also count how often an aligned key is the strongest. Queries
 * without keys, or whose heads the page does not include, are skipped.
 *
 * @param {[number, number[]][]} pairs
 * @param {(query: number) => Float64Array[][] | null} headsOf
 */
export function rankHeads(pairs, headsOf) {
  const rows = pairs.flatMap(([query, keys]) => {
    const heads = keys.length ? headsOf(query) : null;
    return heads ? [{ heads, keys }] : [];
  });
  /** @type {HeadScore[]} */
  const scores = (rows[0]?.heads ?? []).flatMap((of, layer) =>
    of.map((_, head) => {
      let weight = 0,
        top = 0;
      for (const { heads, keys } of rows) {
        const row = heads[layer][head],
          most = row.reduce((best, x) => (x > best ? x : best), -Infinity);
        weight += keys.reduce((sum, k) => sum + row[k], 0) / rows.length;
        top += keys.some((k) => row[k] === most) ? 1 / rows.length : 0;
      }
      return { layer, head, weight, top };
    }),
  );
  scores.sort((a, b) => b.weight - a.weight || b.top - a.top || a.layer - b.layer || a.head - b.head);
  return { scores, queries: rows.length };
}

/** A menu of alignments, and the heads ranked by the selected one.
 *
 * @param {Page} page
 */
export function rankingPart(page) {
  const { data, state } = page;
  const pick = el(
    "select",
    { "aria-label": "rank heads by", onchange: (event) => state.set({ r: event.target.value }) },
    Object.entries(ALIGNMENTS).map(([value, text]) => el("option", { value }, text)),
  );
  const box = el("div", { class: "ranking", hidden: true });
  const menu = exportMenu(page, "ranking", csvRows);
  let all = false;

  function ranked() {
    const name = state.get().r,
      at = page.now();
    if (!name || !data.headQueries) return null;
    const token = state.get().t >= 0 ? at.token : strongestWord(page, at);
    const pairs = alignedKeys(name, at, data.firstQuery, token);
    const what = name === "pair" ? `${at.queryName} → ${plainToken(at.tokens[token])}` : ALIGNMENTS[name];
    return { ...rankHeads(pairs, (query) => data.heads(at.unit, query)), what, at };
  }

  /** @param {HeadScore} score */
  const named = ({ layer, head }) => `L${data.layers[layer] + 1}.${head + 1}`;

  /** @returns {Cells[]} */
  function csvRows() {
    const head = ["head", "layer", "number", "weight", "top"];
    const rows = ranked()?.scores ?? [];
    return [
      head,
      ...rows.map((score) => [named(score), data.layers[score.layer] + 1, score.head + 1, score.weight, score.top]),
    ];
  }

  function paint() {
    pick.value = state.get().r;
    const ranking = ranked();
    box.hidden = !ranking;
    if (!ranking) return;
    const { scores, queries, what, at } = ranking;
    if (!scores.length) {
      box.replaceChildren(el("p", { class: "why" }, "No token in this text has a matching token to look at."));
      return;
    }
    const shown = all ? scores : scores.slice(0, LISTED),
      left = scores.length - shown.length,
      count = at.tokens.length - data.firstQuery;
    const chosen = state.get().h;
    const rows = shown.map((score) => {
      const id = named(score).slice(1);
      return el(
        "tr",
        { "data-rank": id, class: id === chosen ? "chosen" : null },
        el(
          "th",
          { scope: "row" },
          button(named(score), () => state.set({ h: id })),
        ),
        el("td", {}, number(score.weight)),
        el(
          "td",
          { class: "size" },
          el("span", { class: "amount", style: `--part:${(100 * score.weight).toFixed(1)}%` }),
        ),
        el("td", {}, `${(100 * score.top).toFixed(0)} %`),
      );
    });
    box.replaceChildren(
      tableOf(
        {},
        ["head", el("th", { scope: "col", colspan: "2" }, "mean weight"), "strongest"],
        rows,
        `${state.get().r === "pair" ? "Heads for the pair" : "Heads that look at"} ${what}${queries < count && state.get().r !== "pair" ? `, over ${queries} of ${count} tokens` : ""}`,
      ),
      el(
        "div",
        { class: "bar" },
        left > 0 || all
          ? button(
              all ? "fewer" : `${left} more`,
              () => {
                all = !all;
                paint();
              },
              { class: "more" },
            )
          : "",
        menu,
      ),
    );
  }
  box.addEventListener("click", (event) => {
    const row = closest(event, "tr[data-rank]");
    if (row) state.set({ h: row.dataset.rank ?? "" });
  });
  return { pick: el("label", {}, "rank by ", pick), box, paint };
}
