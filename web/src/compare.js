import { el, button, number, correlation, tokenNodes, plainToken } from "./draw.js";
import { shade, inkOn, shares, extent, cellCanvas } from "./colour.js";
import { spearman } from "./maths.js";
import { exportMenu, compareFigure } from "./keep.js";
import { paintPatches, patchFigure } from "./patches.js";
import { readerNotes } from "./notes.js";

const LONG = 96;
const TABLE = 100;

/** The sentence by every method, shaded; the numbers; how far the methods agree. */
export function comparePanel(page) {
  const { data, state } = page;
  let table = [];
  const spans = new Map();
  const rowsBox = el("div", { class: "rows" });
  const more = button(
    "",
    () => {
      all = !all;
      drawTable();
    },
    { class: "more" },
  );
  const tableBox = el("div", { class: "numbers" }),
    matrixBox = el("div", { class: "matrix" });
  let all = false;
  const stretch = el("input", {
    type: "checkbox",
    onchange: (event) => state.set({ cs: event.target.checked ? 1 : 0 }),
  });
  const legend = el("p", { class: "legend" }),
    notes = el("ul", { class: "notes" });
  const node = el(
    "section",
    { class: "panel", "data-panel": "compare", tabindex: "-1" },
    el(
      "header",
      {},
      el("h2", {}, "Compare"),
      el("p", { class: "hint" }),
      el("label", {}, stretch, " shade each row from its lowest to its highest"),
      exportMenu(
        "compare",
        (colours) =>
          data.grid
            ? patchFigure(
                page,
                table.filter((method) => method.shares),
                figureParts().title,
                colours,
              )
            : compareFigure({ ...figureParts(), colours }),
        csvRows,
        data,
        page.announce,
      ),
    ),
    rowsBox,
    legend,
    notes,
    el("div", { class: "columns" }, el("div", {}, tableBox, more), matrixBox),
  );

  /** Values of every method over the inputs shown, in their order. */
  function gather() {
    const at = page.now();
    table = page.methods.map((method) => {
      const found = page.values(method.name);
      if (!found) return { ...method, values: null };
      const across = method.importance ? [found.row] : found.rows;
      const cut = (row) => at.inputs.map((i) => row[i]);
      // of an image, patches against patches: what the class token gives itself would leave them all pale
      const scaled = data.grid
        ? (row) => at.inputs.filter((i) => i >= at.tokens.length - data.grid[0] * data.grid[1]).map((i) => row[i])
        : cut;
      const [low, high] = state.get().cs ? extent([scaled(found.row)], true) : extent(across.map(scaled), false);
      const values = cut(found.row);
      return { ...method, values, low, high, shares: shares(values, low, high), exact: found.exact };
    });
    const worth = table.filter((method) => method.importance);
    for (const method of table) {
      if (!method.importance && method.values) {
        method.correlations = worth.map((w) => ({ name: w.name, value: spearman(method.values, w.values) }));
      }
    }
  }

  function build() {
    const at = page.now();
    rowsBox.classList.toggle("long", at.inputs.length > LONG && !data.grid);
    const against = page.methods.filter((method) => method.importance).map((method) => method.name);
    rowsBox.replaceChildren(
      against.length && page.methods.some((method) => !method.importance)
        ? el(
            "div",
            { class: "row heads" },
            el("div"),
            el("div"),
            el(
              "div",
              { class: "rho" },
              against.map((name) => el("span", { title: `Spearman's rank correlation with ${name}` }, `ρ ${name}`)),
            ),
          )
        : "",
      ...page.methods.map((method) => {
        const body = data.grid ? imageCell(method, at) : textCell(at);
        return el(
          "div",
          { class: "row", "data-method": method.name },
          el("div", { class: "name" }, el("span", { title: method.what }, method.title), el("small", {})),
          body,
          el("div", { class: "rho" }),
        );
      }),
    );
    for (const row of rowsBox.children)
      if (row.dataset.method) spans.set(row.dataset.method, [...row.querySelectorAll(".text .tok")]);
    rowsBox.classList.toggle("images", !!data.grid);
  }

  function textCell(at) {
    const text = el("div", { class: "text" });
    let part = "";
    at.inputs.forEach((i, place) => {
      if (at.parts[i] && at.parts[i] !== part) {
        part = at.parts[i];
        text.append(el("span", { class: "part" }, part));
      }
      const joined = place && at.joins[i] && at.inputs[place - 1] === i - 1;
      if (place && !joined) text.append(" ");
      text.append(el("span", { class: joined ? "tok joined" : "tok", "data-i": i }, tokenNodes(at.tokens[i])));
    });
    return el(
      "div",
      { class: "strip" },
      at.inputs.length > LONG && el("canvas", { class: "overview", "aria-hidden": "true" }),
      text,
      el("p", { class: "why", hidden: true }),
    );
  }

  function imageCell() {
    return el(
      "div",
      { class: "strip" },
      el("canvas", { class: "over", role: "img" }),
      el("div", { class: "text" }),
      el("p", { class: "why", hidden: true }),
    );
  }

  function paint() {
    const at = page.now(),
      colours = page.colours();
    gather();
    stretch.checked = !!state.get().cs;
    node.querySelector(".hint").textContent =
      data.levels.length || data.layers.length > 1
        ? `what ${at.queryName} at ${at.layerName} comes from${at.field ? `; rollout and flow: ${page.fields[at.field]}` : ""}`
        : "";
    for (const method of table) {
      const row = [...rowsBox.children].find((r) => r.dataset.method === method.name);
      if (!row) continue;
      const why = row.querySelector(".why"),
        text = row.querySelector(".text");
      row.classList.toggle("absent", !method.values);
      why.hidden = !!method.values;
      row.querySelector("small").textContent = method.values && !method.exact ? "≈" : "";
      row.querySelector("small").title = "computed from weights rounded to eight bits";
      if (!method.values) {
        why.replaceChildren(...page.whyNot(method.name));
        row.querySelector(".rho").replaceChildren();
        continue;
      }
      if (data.grid) paintImage(row, method, at, colours);
      else {
        const { t } = state.get();
        spans.get(method.name).forEach((tok, place) => {
          const share = method.shares[place];
          tok.style.cssText = `background:${shade(colours, share)};color:${inkOn(colours, share)}`;
          tok.classList.toggle("chosen", at.inputs[place] === t);
        });
        const overview = row.querySelector(".overview");
        if (overview) {
          const line = cellCanvas([method.shares], (share) => share, colours);
          overview.width = line.width;
          overview.height = 1;
          overview.getContext("2d").drawImage(line, 0, 0);
        }
      }
      text.setAttribute("aria-label", spokenRow(method, at));
      row
        .querySelector(".rho")
        .replaceChildren(
          ...(method.correlations ?? []).map((c) =>
            el(
              "span",
              { title: `Spearman's rank correlation of ${method.title} with ${c.name}: ${c.value}` },
              correlation(c.value),
            ),
          ),
        );
    }
    legend.textContent = state.get().cs
      ? "The stronger the colour, the higher: from the lowest to the highest value of each row."
      : "The stronger the colour, the higher: from 0 to the highest value of each method over all layers.";
    notes.replaceChildren(...readerNotes(page, table).map((line) => el("li", {}, line)));
    drawTable();
    drawMatrix();
  }

  function paintImage(row, method, at, colours) {
    const canvas = row.querySelector("canvas"),
      { shareOf, first } = paintPatches(page, canvas, method, at, colours);
    canvas.setAttribute("aria-label", spokenRow(method, at));
    const specials = row.querySelector(".text");
    specials.replaceChildren(
      ...at.inputs
        .filter((i) => i < first)
        .flatMap((i) => [
          el(
            "span",
            {
              class: "tok",
              "data-i": i,
              style: `background:${shade(colours, shareOf.get(i))};color:${inkOn(colours, shareOf.get(i))}`,
            },
            at.tokens[i],
          ),
          " ",
        ]),
    );
  }

  function spokenRow(method, at) {
    const order = method.values
      .map((_, i) => i)
      .sort((a, b) => method.values[b] - method.values[a])
      .slice(0, 3);
    return `${method.title}: highest ${order.map((i) => `${plainToken(at.tokens[at.inputs[i]])} ${number(method.values[i])}`).join(", ")}`;
  }

  function drawTable() {
    const at = page.now(),
      { o } = state.get();
    const there = table.filter((method) => method.values);
    const [key, direction] = o ? o.split(".") : ["text", "up"];
    const column = there.find((method) => method.name === key);
    const order = at.inputs.map((_, place) => place);
    if (column) order.sort((a, b) => (direction === "up" ? 1 : -1) * (column.values[a] - column.values[b]) || a - b);
    else if (direction === "down") order.reverse();
    const shown = all ? order : order.slice(0, TABLE);
    const head = (name, title) =>
      el(
        "th",
        { scope: "col", "aria-sort": name === key ? (direction === "up" ? "ascending" : "descending") : "none" },
        button(
          title,
          () =>
            state.set({
              o:
                name === key && direction === (name === "text" ? "up" : "down")
                  ? `${name}.${name === "text" ? "down" : "up"}`
                  : `${name}.${name === "text" ? "up" : "down"}`,
            }),
          { "data-sort": name },
        ),
      );
    const body = shown.map((place) =>
      el(
        "tr",
        { "data-i": at.inputs[place], class: at.inputs[place] === state.get().t ? "chosen" : null },
        el("td", { class: "place" }, at.inputs[place]),
        el("th", { scope: "row" }, tokenNodes(at.tokens[at.inputs[place]])),
        there.map((method) => el("td", {}, number(method.values[place]))),
      ),
    );
    const focused = tableBox.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    tableBox.replaceChildren(
      el(
        "table",
        {},
        el("caption", {}, `Values of ${at.queryName} at ${at.layerName}; click a heading to sort`),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, "#"),
            head("text", "token"),
            there.map((method) => head(method.name, method.title)),
          ),
        ),
        el("tbody", {}, body),
      ),
    );
    if (focused) tableBox.querySelector(`[data-sort="${focused}"]`)?.focus();
    more.hidden = order.length <= TABLE;
    more.textContent = all ? `show the first ${TABLE}` : `show all ${order.length} (${TABLE} are shown)`;
  }

  function drawMatrix() {
    const there = table.filter((method) => method.values);
    if (there.length < 2) {
      matrixBox.replaceChildren();
      return;
    }
    const colours = page.colours();
    matrixBox.replaceChildren(
      el(
        "table",
        {},
        el(
          "caption",
          {},
          `Rank correlation (Spearman's ρ) of every pair, over the ${there[0].values.length} tokens shown${there[0].values.length < 20 ? "; of so few, .5 is easily chance" : ""}`,
        ),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th"),
            there.slice(0, -1).map((method) => el("th", { scope: "col" }, method.short)),
          ),
        ),
        el(
          "tbody",
          {},
          there.slice(1).map((a, i) =>
            el(
              "tr",
              {},
              el("th", { scope: "row" }, a.short),
              there.slice(0, i + 1).map((b) => {
                const rho = spearman(a.values, b.values),
                  share = Number.isFinite(rho) ? rho * 0.9 : 0;
                return el(
                  "td",
                  {
                    title: Number.isFinite(rho)
                      ? `${a.title} and ${b.title}: ${rho}`
                      : "one of them is the same for all tokens",
                    style: `background:${shade(colours, share)};color:${inkOn(colours, share)}`,
                  },
                  correlation(rho),
                );
              }),
              there.slice(i + 1, -1).map(() => el("td")),
            ),
          ),
        ),
      ),
    );
  }

  function figureParts() {
    const at = page.now();
    return {
      tokens: at.inputs.map((i) => at.tokens[i]),
      joins: at.inputs.map((i, place) => place && at.joins[i]),
      methods: table.map((method) => ({ ...method, reason: method.values ? "" : "not computed" })),
      foot: [
        `${page.modelName}; `,
        state.get().cs
          ? "colours from the lowest to the highest of each row"
          : "colours from 0 to the highest of each method over all layers",
      ].join(""),
      title: `${plainToken(data.text.replace(/\s+/g, " ").trim() || String(data.model.model ?? "attention"), 70)} · query ${at.queryName} · ${at.layerName}`,
    };
  }

  function csvRows() {
    const at = page.now(),
      there = table.filter((method) => method.values);
    return [
      ["position", "token", "special", "query", "layer", ...there.map((method) => method.name)],
      ...at.inputs.map((i, place) => [
        i,
        at.tokens[i],
        at.special[i],
        at.query,
        at.layerName,
        ...there.map((method) => method.values[place]),
      ]),
    ];
  }

  function pointed(event) {
    const spot = event.target.closest("[data-i]");
    if (spot && node.contains(spot)) return Number(spot.dataset.i);
    const canvas = event.target.closest("canvas.over");
    if (!canvas) return null;
    const box = canvas.getBoundingClientRect(),
      [rows, columns] = data.grid;
    const c = Math.floor(((event.clientX - box.left) / box.width) * columns),
      r = Math.floor(((event.clientY - box.top) / box.height) * rows);
    return (
      page.now().tokens.length -
      rows * columns +
      Math.min(rows - 1, Math.max(0, r)) * columns +
      Math.min(columns - 1, Math.max(0, c))
    );
  }

  function hover(event) {
    const i = pointed(event);
    for (const lit of rowsBox.querySelectorAll(".lit")) lit.classList.remove("lit");
    if (i === null) {
      page.tip.hide();
      return;
    }
    for (const tok of rowsBox.querySelectorAll(`[data-i="${i}"]`)) tok.classList.add("lit");
    const at = page.now(),
      place = at.inputs.indexOf(i);
    if (place < 0) return;
    const own = event.target.closest(".row")?.dataset.method;
    page.tip.show(event, [
      `${plainToken(at.tokens[i])} · position ${i}`,
      ...table
        .filter((m) => m.values)
        .map((method) => {
          const above = method.values.filter((v) => v > method.values[place]).length;
          return `${method.name === own ? "▸ " : ""}${method.title} ${method.values[place]} · rank ${above + 1} of ${method.values.length}`;
        }),
    ]);
  }

  rowsBox.addEventListener("pointermove", hover);
  rowsBox.addEventListener("pointerleave", () => {
    page.tip.hide();
    for (const lit of rowsBox.querySelectorAll(".lit")) lit.classList.remove("lit");
  });
  node.addEventListener("click", (event) => {
    const i = pointed(event);
    if (i !== null) state.set({ t: i });
    else if (event.target.classList.contains("overview")) {
      const box = event.target.getBoundingClientRect(),
        text = event.target.parentNode.querySelector(".text");
      const at = page.now(),
        place = Math.floor(((event.clientX - box.left) / box.width) * at.inputs.length);
      const tok = text.querySelector(`[data-i="${at.inputs[Math.min(at.inputs.length - 1, place)]}"]`);
      text.scrollTop = tok.offsetTop - text.clientHeight / 2;
    }
  });
  // long rows scroll together
  rowsBox.addEventListener(
    "scroll",
    (event) => {
      if (!event.target.classList?.contains("text")) return;
      for (const text of rowsBox.querySelectorAll(".text"))
        if (text !== event.target) text.scrollTop = event.target.scrollTop;
    },
    true,
  );

  return {
    node,
    update(changed) {
      if (!changed || ["u", "s"].some((key) => changed.has(key))) build();
      if (!changed || ["u", "s", "q", "l", "f", "t", "cs", "theme", "rows"].some((key) => changed.has(key))) paint();
      else if (changed.has("o")) drawTable();
    },
  };
}
