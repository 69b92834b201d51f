import { shade, shadeStyle } from "./colour.js";
import { isAnswerEdges } from "./data.js";
import { brush, button, closest, el, number, percent, plainToken, readable } from "./draw.js";
import { apartOf, disagreement, leadOf, ranked, recommended, restsOn, speaksAgainst } from "./headline.js";
import { answerName, originPicture } from "./origin.js";
import { running } from "./reading.js";
import { touched } from "./state.js";

/** @import { Changed, Lead, Page, Panel } from "./types" */

const PLAIN = 0.03; // weaker shades are left out
const LISTED = 6; // words in the list, before "more"
const PARAGRAPH = 60; // longer texts are set as a paragraph
const LONG = 160; // longer texts have an overview strip
const SIDE = 120; // longer texts have the picture at their side
const SHARES = new Set(["answer_rows", "answer_inputs", "raw", "rollout"]);
const MOVES = "how much the answer's probability changes, up or down, when the word is blanked out";
const UNKNOWN = "not measured: there was no time to blank out every word";
const DECODED = /** @type {Record<string, string>} */ ({ "next token": "Next: ", "masked token": "Masked: " });

/** The first screen: the answer and what it rests on, the shaded text, and a picture of where the answer came from.
 *
 * @param {Page} page
 * @param {(page: Page) => Panel} [pictured] shows an image instead of a text
 */
export function leadPanel(page, pictured) {
  const { data, state, tip } = page;
  const headline = el("h2", { class: "headline" }),
    others = el("p", { class: "others" });
  const text = el("div", { class: "reading", role: "group", "aria-label": "the text, shaded" });
  const strip = el("canvas", { class: "ribbon", width: 1, height: 1, "aria-hidden": "true" });
  const image = pictured?.(page) ?? null,
    alone = image !== null && !data.picture, // not within a text
    drawn = new Set(data.picture?.places); // in the picture, and not in the text
  const aside = el("div", { class: "aside" }),
    asks = el("p", { class: "asks hint" });
  const pick = el(
    "select",
    { "aria-label": "method", onchange: (event) => state.set({ a: event.target.value }) },
    page.methods.map(({ name, title }) => el("option", { value: name }, title)),
  );
  const layer = el(
    "select",
    { "aria-label": "layer to shade", onchange: (event) => state.set({ l: Number(event.target.value) }) },
    data.layers.map((l) => el("option", { value: l + 1 }, `L${l + 1}`)),
  );
  const paper = el("div", { class: "paper" }, text, strip);
  const list = el("div", { class: "list" });
  const origin = originPicture(page, (token) => point(token));
  const two = el("div", { class: "two" }, origin.node, list);
  const controls = el("div", { class: "bar" }, aside, el("span", { class: "spring" }), pick, layer);
  const node = el(
    "section",
    { class: "lead", "data-panel": "lead", tabindex: "-1" },
    headline,
    others,
    image
      ? [
          el("div", { class: "pictured" }, image.node, el("div", { class: "side" }, !alone && paper, controls, asks)),
          !alone && two,
        ]
      : el("div", { class: "halves" }, el("div", {}, paper, controls, asks), two),
  );
  /** @type {HTMLElement[]} */
  let spans = [];
  let built = "",
    all = false;
  /** @type {Lead | null} */
  let lead = null;

  /** @param {number} i */
  function word(i) {
    const own = page.now().tokens[i],
      name = plainToken(own.trim() || own, 30);
    return el("em", { "data-i": i }, /[\p{L}\p{N}]/u.test(name) ? name : `“${name}”`);
  }

  /** @param {number[]} words */
  function named(words) {
    const { tokens } = page.now();
    const once = words.filter((i, place) => words.findIndex((j) => tokens[j] === tokens[i]) === place);
    return once.flatMap((i, place) => [place ? ", " : "", word(i)]);
  }

  function drawHeadline() {
    const best = recommended(page),
      own = best && page.values(best.name),
      at = page.now();
    const judged = own && { values: own.row, apart: apartOf(data, at) };
    const words = judged ? restsOn(judged) : [],
      against = judged ? speaksAgainst(judged) : [];
    const top = data.prediction?.top[0];
    const answer = top
      ? [
          DECODED[data.prediction?.kind ?? ""] ?? "",
          el("strong", {}, answerName(page)),
          " ",
          el("span", { class: "chance" }, data.prediction?.kind === "score" ? number(top[1]) : percent(top[1])),
        ]
      : [el("strong", {}, at.queryName), data.layers.length > 1 ? ` at ${at.layerName}` : ""];
    const verb = !top ? "comes from " : isAnswerEdges(best.name) ? "rests on " : "could come from ";
    const unread = data.patches,
      rests = unread ? `${verb}the marked places` : "no word stands out";
    headline.replaceChildren(
      ...answer,
      el("span", { class: "dash" }, " — "),
      ...(words.length && !unread ? [verb, ...named(words)] : [rests]),
      ...(against.length && !unread ? ["; ", ...named(against), " counts against it"] : []),
    );
    const says = unread || !top ? [] : disagreement(page, words);
    others.replaceChildren(...says.map((part) => (typeof part === "string" ? part : word(part.word))));
    others.hidden = !says.length;
  }

  function build() {
    const at = page.now();
    if (built === at.unit || alone) return;
    built = at.unit;
    spans = [];
    const apart = at.special;
    const pieces = running(data.text, at);
    /** @type {(Node | string)[]} */
    const nodes = [];
    pieces.forEach((piece, i) => {
      const span = el("span", { class: "tok", "data-i": i, tabindex: -1 }, readable(piece.text));
      spans.push(span);
      if ((apart[i] && !piece.found) || drawn.has(i)) return; // shown below the text
      nodes.push(readable(piece.before), span);
    });
    text.replaceChildren(...nodes);
    text.classList.toggle("paragraph", pieces.length > PARAGRAPH);
    node.classList.toggle("long", pieces.length > SIDE);
    strip.hidden = pieces.length <= LONG;
  }

  function shadeText() {
    const colours = page.colours(),
      { t } = state.get();
    spans.forEach((span, i) => {
      const share = lead?.shades[i] ?? 0;
      span.style.cssText = Math.abs(share) >= PLAIN ? shadeStyle(colours, share) : "";
      span.classList.toggle("chosen", i === t);
      span.classList.toggle("apart", Boolean(lead?.apart[i] && !state.get().x));
    });
    if (strip.hidden || !lead) return;
    const { shades } = lead;
    strip.width = Math.min(shades.length, 1000);
    const context = brush(strip);
    for (let c = 0; c < strip.width; c++) {
      const from = Math.floor((c * shades.length) / strip.width),
        to = Math.max(from + 1, Math.floor(((c + 1) * shades.length) / strip.width));
      const most = shades.slice(from, to).reduce((best, s) => (Math.abs(s) > Math.abs(best) ? s : best), 0);
      context.fillStyle = shade(colours, most || 0);
      context.fillRect(c, 0, 1, 1);
    }
  }

  function drawAside() {
    if (!lead) return aside.replaceChildren();
    const { apart, shareOf, method, values } = lead,
      { tokens } = page.now();
    const places = tokens.map((_, i) => i).filter((i) => apart[i]);
    const shown = places.sort((i, j) => (shareOf(j) || 0) - (shareOf(i) || 0)).slice(0, 4);
    // methods without shares show the value itself
    const share = (/** @type {number} */ i) =>
      SHARES.has(method.name) ? percent(shareOf(i)) : Number.isFinite(values[i]) ? number(values[i]) : "–";
    const chips = shown.map((i) =>
      el("span", { class: "chip", "data-i": i }, plainToken(tokens[i]), " ", el("b", {}, share(i))),
    );
    const toggle = button(
      state.get().x ? "leave them out" : "shade them too",
      () => state.set({ x: state.get().x ? 0 : 1 }),
      { class: "quiet" },
    );
    aside.replaceChildren(...chips, ...(chips.length ? [toggle] : []));
  }

  function drawList() {
    if (!lead) return list.replaceChildren();
    const { values, method } = lead,
      at = page.now(),
      order = ranked(lead),
      most = Math.max(...order.map((i) => Math.abs(values[i])), 0) || 1;
    const bySize = [...order].sort((i, j) => Math.abs(values[j]) - Math.abs(values[i]) || i - j);
    const shown = all ? bySize : bySize.slice(0, LISTED);
    const left = method.name === "blank-out" ? null : (page.values("blank-out")?.row ?? null);
    const signed = order.some((i) => values[i] < 0);
    const rows = shown.map((i) =>
      el(
        "tr",
        { "data-i": i, class: i === state.get().t ? "chosen" : null, tabindex: 0 },
        el("th", { scope: "row" }, plainToken(at.tokens[i], 22)),
        el("td", { class: "n" }, number(values[i])),
        el(
          "td",
          { class: "size" },
          el("span", {
            class: "amount",
            style: `--part:${((100 * Math.abs(values[i])) / most).toFixed(1)}%;background:${shade(page.colours(), values[i] < 0 ? -0.7 : 0.7)}`,
          }),
          values[i] < 0 ? el("small", {}, "against") : null,
        ),
        left
          ? el(
              "td",
              { class: "n", title: Number.isFinite(left[i]) ? MOVES : UNKNOWN },
              Number.isFinite(left[i]) ? number(left[i]) : "–",
            )
          : null,
      ),
    );
    const more = bySize.length - shown.length;
    list.replaceChildren(
      el(
        "table",
        {},
        el("caption", { class: "sr" }, `Values of ${method.title}`),
        el(
          "thead",
          {},
          el(
            "tr",
            {},
            el("th", { scope: "col" }, data.patches ? "place" : "word"),
            el(
              "th",
              { scope: "col", colspan: 2 },
              signed ? "for or against" : SHARES.has(method.name) ? "share" : "value",
            ),
            left ? el("th", { scope: "col", title: MOVES }, "without it") : null,
          ),
        ),
        el("tbody", {}, rows),
      ),
      more > 0 || all
        ? button(
            all ? "fewer" : `${more} more`,
            () => {
              all = !all;
              drawList();
            },
            { class: "quiet" },
          )
        : "",
    );
  }

  /** @param {number | null} i @param {PointerEvent} [event] */
  function point(i, event) {
    for (const lit of node.querySelectorAll(".lit")) lit.classList.remove("lit");
    origin.light(i);
    if (i === null || !lead) return tip.hide();
    for (const one of node.querySelectorAll(`[data-i="${i}"]`)) one.classList.add("lit");
    if (event)
      tip.show(event, [plainToken(page.now().tokens[i], 40), `${lead.method.title} ${number(lead.values[i])}`]);
  }
  const place = (/** @type {Event} */ event) => {
    const spot = closest(event, "[data-i]");
    return spot ? Number(spot.dataset.i) : null;
  };
  node.addEventListener("pointermove", (event) => {
    if (!closest(event, ".origin")) point(place(event), event);
  });
  node.addEventListener("pointerleave", () => point(null));
  node.addEventListener("focusin", (event) => {
    if (closest(event, "tr[data-i]")) point(place(event));
  });
  node.addEventListener("click", (event) => {
    const i = place(event);
    if (i !== null) state.set({ t: state.get().t === i ? -1 : i });
  });
  list.addEventListener("keydown", (event) => {
    const i = place(event);
    if (i === null || (event.key !== "Enter" && event.key !== " ")) return;
    event.preventDefault();
    state.set({ t: state.get().t === i ? -1 : i });
  });
  strip.addEventListener("click", (event) => {
    const box = strip.getBoundingClientRect();
    spans[Math.floor(((event.clientX - box.left) / box.width) * spans.length)]?.scrollIntoView({ block: "center" });
  });

  return {
    node,
    /** @param {Changed} changed */
    update(changed) {
      lead = leadOf(page);
      const { t } = state.get();
      pick.value = lead?.method.name ?? "";
      pick.hidden = page.methods.length < 2;
      layer.hidden = !lead || lead.method.importance || data.layers.length < 2;
      layer.value = String(data.layers[page.now().layer] + 1);
      asks.textContent = (lead?.method.asks ?? "").replace(/\bword(?=s?\b)/g, alone ? "place" : "word");
      if (touched(changed, "u")) build();
      if (touched(changed, "u", "q", "l", "a", "rows")) drawHeadline();
      if (touched(changed, "u", "q", "l", "a", "x", "t", "theme", "rows")) {
        shadeText();
        drawAside();
        drawList();
      }
      image?.update(changed);
      origin.update(changed);
      if (touched(changed, "t", "u", "theme", "width")) origin.light(t >= 0 ? t : null);
    },
  };
}
