import { el, between, button, messageOf, number, plainToken, makeTip, choice, press } from "./draw.js";
import { shortName, topOf } from "./frame.js";
import { exportsOf } from "./keep.js";
import { leadFigure, leadRows } from "./lead-figure.js";
import { keepControls } from "./share.js";
import { makeState } from "./state.js";
import { makeTheme } from "./theme.js";
import { queryNames } from "./data.js";
import { methodsOf, rowMethods } from "./methods.js";
import { queryStrip } from "./query.js";
import { listenToKeys } from "./keys.js";
import { leadOf } from "./headline.js";
import { imageLead } from "./image-lead.js";
import { leadPanel } from "./lead.js";
import { imageCanvas } from "./patches.js";
import { comparePanel } from "./compare.js";
import { layersPanel } from "./layers.js";
import { VIEW_NAMES, viewTabs } from "./views.js";

/** @import { Changed, Data, Now, Page, Palette, Panel, Selection, Server } from "./types" */

/** Show a document in an element.
 *
 * @param {HTMLElement} root
 * @param {Data} data
 * @param {string} [prefix] distinguishes two pages in one address
 * @param {Server | null} [server]
 */
export function mount(root, data, prefix = "", server = null) {
  const { units } = data,
    first = data.state,
    lastLayer = data.layers[data.layers.length - 1] + 1;
  const methodNames = rowMethods(data),
    methods = methodsOf(data);
  const ended = new AbortController(),
    { signal } = ended;
  /** @type {Selection} */
  const selection = {
    q: first.query ?? 0,
    l: first.layer === undefined ? lastLayer : first.layer + 1,
    t: -1,
    u: first.unit ?? "subwords",
    s: first.special === false ? 0 : 1,
    v: "graph",
    m: methodNames.find((name) => name === first.method) ?? methodNames[0] ?? "raw",
    h: "",
    k: "rollout",
    o: "",
    a: methods.find(({ name }) => name === first.method)?.name ?? "",
    x: 0,
    d: 0,
    theme: "",
  };
  const state = makeState(
    { ...selection },
    {
      u: Object.keys(units),
      v: VIEW_NAMES,
      m: methodNames,
      k: ["rollout", "raw"],
      a: ["", ...methods.map(({ name }) => name)],
      theme: ["", "light", "dark"],
    },
    prefix,
    signal,
    root.dataset.view,
  );
  const theme = makeTheme(root, state, signal, (printed) => {
    update(new Set(["theme"]));
    if (printed) parts.forEach(paintPart);
  });
  const { colours } = theme;
  /** @type {Map<string, number>} */
  const waiting = new Map();
  const live = el("p", { class: "sr", "aria-live": "polite" });
  let width = 0;

  /** Return the selection, corrected to fit the document, because an address may come from anywhere.
   *
   * @returns {Now}
   */
  function now() {
    const s = state.get();
    const unit = s.u,
      { tokens, special, parts } = units[unit];
    const names = queryNames(data, unit);
    const query = between(data.firstQuery, s.q, names.length - 1);
    const at = data.layers.indexOf(s.l - 1),
      layer = at >= 0 ? at : data.layers.length - 1;
    let inputs = tokens.map((_, i) => i);
    if (!s.s && special.some((flag) => !flag)) inputs = inputs.filter((i) => !special[i]);
    const layerNames = data.layers.map((l) => `L${l + 1}`);
    const token = s.t >= 0 && s.t < tokens.length ? s.t : strongestToken(unit, query, layer, inputs);
    return {
      unit,
      tokens,
      special,
      parts,
      names,
      query,
      layer,
      inputs,
      token,
      layerNames,
      layerName: layerNames[layer],
      queryName: plainToken(names[query], data.isPool(unit, query) ? 60 : undefined),
      joins: joins(unit),
    };
  }

  /** Return the default token: the word with the most rollout, except the query, special tokens and a sink.
   *
   * @param {string} unit
   * @param {number} query
   * @param {number} layer
   * @param {number[]} inputs
   */
  function strongestToken(unit, query, layer, inputs) {
    const name = methodNames.includes("rollout") ? "rollout" : methodNames[0],
      row = name && data.rows(name, unit, query)?.rows[layer];
    const words = inputs.filter((i) => i !== query && !units[unit].special[i] && !(data.causal && i === 0)),
      others = words.length ? words : inputs.filter((i) => i !== query);
    if (!row || !others.length) return inputs[0] ?? 0;
    return others.reduce((best, i) => (row[i] > row[best] ? i : best), others[0]);
  }

  /** Return which tokens continue the previous token's word.
   *
   * @param {string} unit
   */
  function joins(unit) {
    /** @type {boolean[]} */
    const flags = [];
    if (unit === "subwords")
      for (const group of units.words?.groups ?? []) for (const i of group.slice(1)) flags[i] = group.includes(i - 1);
    return flags;
  }

  /** @param {string} name */
  function values(name) {
    const at = now(),
      worth = data.importance.findIndex((one) => one.name === name);
    if (worth >= 0) return { row: data.worth(at.unit)[worth].values, rows: [], exact: true };
    const all = data.rows(name, at.unit, at.query);
    return all && { ...all, row: all.rows[at.layer] };
  }

  /** @type {Page} */
  const page = {
    data,
    state,
    methods,
    server,
    modelName: shortName(data.model.model),
    tip: makeTip(root),
    colours,
    now,
    values,
    width: () => Math.min(1180, width || root.clientWidth || 900), // of the Details
    /** Name a state by its token, or by its number if the model has merged positions. */
    stateName(level, position, most = 24) {
      const { tokens } = now(),
        size = level ? data.widths[level - 1] : tokens.length;
      const name = plainToken(
        !data.queries || size === tokens.length ? (tokens[position] ?? String(position)) : String(position),
        most,
      );
      // keeps a right-to-left script from reordering the line
      return /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/u.test(name) ? `\u2068${name}\u2069` : name;
    },
    titleOf: (name) => methods.find((method) => method.name === name)?.title ?? name,
    switchUnit,
    openView(v) {
      state.set({ v, d: 1 });
      views.section.scrollIntoView({ block: "start" });
    },
    switchTheme: theme.flip,
    view: () => state.text(),
    announce: (text) => {
      live.textContent = text;
    },
    /** Build invisible parts, such as tables for screen readers, once the page is idle. */
    soon(name, work) {
      clearTimeout(waiting.get(name));
      waiting.set(name, setTimeout(work, 250));
    },
    picture: data.image && imageCanvas(data.image),
    whyNot(name) {
      const at = now(),
        queries = data.methods[at.unit]?.[name]?.queries ?? [];
      if (server && name === "flow" && data.levels.length) return ["solving …"];
      if (!queries.length) return [`This page does not include ${page.titleOf(name)}.`];
      return [
        `${page.titleOf(name)} was computed only for ${queries
          .slice(0, 3)
          .map((q) => plainToken(at.names[q]))
          .join(", ")}: `,
        button(`show ${plainToken(at.names[queries[0]])}`, () => {
          state.set({ q: queries[0] });
          query.node.focus();
        }),
      ];
    },
    whyNoHeads: () =>
      data.headQueries
        ? `This page includes single heads only for ${plainToken(queryNames(data, "subwords")[data.headQueries[0]])}, the query that it opened with.`
        : "This page does not include single heads: the trace did not keep them, or the file would be too large.",
  };

  const unitPick = units.words
    ? choice("unit", { subwords: "subwords", words: "words" }, "", (u) => switchUnit(u))
    : null;
  const special = el("input", {
    type: "checkbox",
    onchange: (event) => state.set({ s: event.target.checked ? 1 : 0 }),
  });
  theme.node.title = "light or dark (d)";
  const query = queryStrip(page, prefix);
  const slider = el("input", {
    type: "range",
    min: 0,
    max: data.layers.length - 1,
    step: 1,
    "aria-label": "layer",
    oninput: (event) => state.set({ l: data.layers[event.target.value] + 1 }),
  });
  const layerOut = el("output", {});
  const { model } = data,
    strange = /** @type {number[]} */ (model.unknown ?? []).filter((i) => i < units.subwords.tokens.length);
  const facts = [
    model.revision && String(model.revision).slice(0, 12),
    model.class !== page.modelName && model.class,
    model.dtype,
    model.captured && `captured ${model.captured}`,
    model.heads && `heads: ${model.heads}`,
    `residual ${data.residual}`,
  ];
  const details = Object.entries(model).map(([k, v]) => `${k}: ${typeof v === "object" ? JSON.stringify(v) : v}`);

  const figureOf = (/** @type {Palette} */ palette) =>
    leadFigure(page, lead.node.querySelector(".headline")?.textContent ?? "", palette);
  const lead = leadPanel(page, data.patches || data.picture ? () => imageLead(page, () => leadOf(page)) : undefined);
  const summary = el(
    "summary",
    {},
    el("b", {}, "Details"),
    " ",
    el("span", { class: "hint" }, "all methods · layers · every position · heads · numbers"),
  );
  const everything = el(
    "details",
    { class: "everything", ontoggle: (event) => state.set({ d: event.target.open ? 1 : 0 }) },
    summary,
    el(
      "div",
      { class: "settings" },
      el("span", { class: "hint", title: details.join("\n") }, facts.filter(Boolean).join(" · ")),
      el(
        "div",
        { class: "controls" },
        unitPick,
        units.subwords.special.some(Boolean) && units.subwords.special.some((flag) => !flag)
          ? el("label", {}, special, " special tokens")
          : "",
      ),
    ),
    data.prediction
      ? el(
          "p",
          { class: "prediction" },
          `${data.prediction.kind}: `,
          data.prediction.top
            .slice(0, 3)
            .flatMap(([name, chance], i) => [
              i ? ", " : "",
              el(i ? "span" : "strong", {}, plainToken(name, 40)),
              ` ${number(chance)}`,
            ]),
        )
      : "",
    strange.length
      ? el(
          "p",
          { class: "unknown" },
          `unknown to the model: ${strange
            .slice(0, 12)
            .map((i) => plainToken(units.subwords.tokens[i]))
            .join(", ")}${strange.length > 12 ? ` and ${strange.length - 12} more` : ""}`,
        )
      : "",
    el(
      "div",
      { class: "pickers" },
      el("div", { class: "pick-query" }, el("span", { class: "caption" }, "query"), query.node),
      data.layers.length > 1
        ? el("label", { class: "pick-layer" }, el("span", { class: "caption" }, "layer"), slider, layerOut)
        : "",
    ),
    data.leftOut.length
      ? el(
          "details",
          { class: "left-out", open: data.leftOut.length < 2 },
          el("summary", {}, "What this page leaves out"),
          el(
            "ul",
            {},
            data.leftOut.map((line) => el("li", {}, line)),
          ),
        )
      : "",
    data.missing ? el("p", { class: "missing" }, data.missing) : "",
  );
  const node = el(
    "article",
    { class: "attnflow one-text", lang: "en" },
    topOf(
      [page.modelName],
      details.join("\n"),
      keepControls({
        state,
        name: "page",
        announce: (text) => page.announce(text),
        source: () => data.source,
        title: () => `${data.text.replace(/\s+/g, " ").trim().slice(0, 60)} · attnflow`,
        works: exportsOf(page, "page", figureOf, () => leadRows(page)),
      }),
      theme.node,
      button("?", () => keys.showModal(), { class: "theme", title: "keys", "aria-label": "keys" }),
    ),
    lead.node,
    everything,
  );
  const footer = el(
    "footer",
    {},
    "These values are approximations from attention weights: they show where information could have come from, not what the model did with it. Rollout and flow ignore value vectors and feed-forward layers, and the residual weight is an assumption. Check them against blank-out before you rely on them. (Abnar & Zuidema, ACL 2020)",
  );

  /** @param {string} u */
  function switchUnit(u) {
    const at = now();
    if (u === at.unit) return;
    // select the same places in the other unit
    const groups = units.words.groups ?? [],
      of = (/** @type {number} */ i) => groups.findIndex((group) => group.includes(i));
    const moved = (/** @type {number} */ i) => (i < 0 ? i : u === "words" ? of(i) : (groups[i]?.[0] ?? 0));
    const q = data.isPool(at.unit, at.query) ? units[u].tokens.length : moved(at.query);
    state.set({ u, q, t: moved(state.get().t) });
  }

  function paintControls() {
    const at = now(),
      s = state.get();
    theme.paint();
    if (unitPick) press(unitPick, at.unit);
    special.checked = !!s.s;
    slider.value = String(at.layer);
    slider.setAttribute("aria-valuetext", at.layerName ?? "");
    layerOut.textContent = `${at.layerName} of ${at.layerNames.length > 1 ? at.layerNames.at(-1) : at.layerName}`;
    query.paint(at);
    everything.open = !!s.d;
    views.paint();
  }

  const views = viewTabs(page, prefix);
  const compare = comparePanel(page),
    layers = data.layers.length && methodNames.length ? layersPanel(page) : null;
  async function askRows() {
    const at = now();
    if (!server || !data.levels.length || data.isPool(at.unit, at.query)) return;
    if (data.methods[at.unit].flow?.queries.includes(at.query)) return;
    try {
      await data.add(await server.rows({ unit: at.unit, query: at.query }));
      update(new Set(["rows"]));
    } catch (error) {
      page.announce(messageOf(error));
    }
  }

  /** The panels, each with what has changed since it was painted; undefined if nothing has.
   *
   * @type {(Panel & { due?: Changed })[]}
   */
  const parts = [lead, compare, ...(layers?.parts ?? []), views];
  for (const part of parts) part.due = null;
  /** Return whether a panel may be painted: Details only when they are open and unpacked. @param {Panel} part */
  const isOpen = (part) => part === lead || (!!state.get().d && unpacked);
  let unpacked = !data.unpack;
  let later = 0;

  /** @param {HTMLElement} one */
  function seen(one) {
    const box = one.getBoundingClientRect();
    return box.bottom >= 0 && box.top <= innerHeight;
  }

  /** @param {Panel & { due?: Changed }} part */
  function paintPart(part) {
    const { due } = part;
    if (due === undefined) return;
    part.due = undefined;
    part.update(due);
  }

  function paintRest() {
    const next = parts
      .filter((part) => part.due !== undefined && isOpen(part))
      .sort((a, b) => Number(seen(b.node)) - Number(seen(a.node)))[0];
    if (!next) {
      if (unpacked) node.dataset.settled = node.dataset.updated;
      return;
    }
    paintPart(next);
    later = setTimeout(paintRest, 0);
  }

  addEventListener("scroll", () => parts.forEach((part) => isOpen(part) && seen(part.node) && paintPart(part)), {
    passive: true,
    signal,
  });

  /** @param {Changed} changed */
  function update(changed) {
    const start = performance.now();
    if (!changed || changed.has("u")) query.build();
    paintControls();
    const visible = parts.filter((part) => isOpen(part) && seen(part.node)); // before painting, which forces a new layout
    for (const part of parts)
      part.due = !changed || part.due === null ? null : new Set([...(part.due ?? []), ...changed]);
    visible.forEach(paintPart);
    // panels out of view wait until the page is idle
    clearTimeout(later);
    later = setTimeout(paintRest, 30);
    if (changed && (changed.has("q") || changed.has("u"))) askRows();
    node.dataset.updated = String(Number(node.dataset.updated ?? 0) + 1);
    node.dataset.took = (performance.now() - start).toFixed(1);
  }

  everything.append(compare.node);
  if (layers) everything.append(layers.node);
  if (data.levels.length) everything.append(views.section);
  everything.append(footer);
  node.append(live);
  const keys = listenToKeys(page, node, prefix, signal);
  root.replaceChildren(node, root.querySelector(".tip") ?? "");
  root.removeAttribute("aria-busy");
  width = node.clientWidth;
  state.listen(update);
  let resizing = 0;
  const watch = new ResizeObserver(() => {
    clearTimeout(resizing);
    resizing = setTimeout(() => {
      if (Math.abs(node.clientWidth - width) < 8) return;
      width = node.clientWidth;
      update(new Set(["width"]));
    }, 150);
  });
  watch.observe(node);
  update(null);
  if (data.unpack)
    setTimeout(async () => {
      await data.unpack?.();
      unpacked = true;
      if (!signal.aborted) update(new Set(["rows"]));
    }, 30);

  /** Stop everything, because another page replaces this one. */
  function close() {
    ended.abort();
    watch.disconnect();
    [later, resizing, ...waiting.values()].forEach(clearTimeout);
  }

  return { state, node, page, close };
}
