import { shade, shadeStyle } from "./colour.js";
import { brush, closest, el, number, plainToken, readable } from "./draw.js";
import { SMALL, shadingOf } from "./answer-shading.js";
import { spanFrom, trimmed } from "./answer-span.js";

/** @import { AnswerPage, Piece } from "./types" */

const LONG = 1500; // longer prompts scroll in a box, and tokens are built only when visible
const BLOCK = 120; // tokens in a block of a long prompt, at least
const MOST = 800;
const PLAIN = 0.03; // units below this part of the largest share are not shaded
const SOFT = 0.36; // the darkest shade of a sentence, so that it stays readable

/** @typedef {{ node: HTMLElement, start: number, end: number, token: number, shown: { node: HTMLElement, tokens: number[] }[], units: HTMLElement[], built: boolean }} Block */

/** Return where the blocks of a long prompt begin: after line breaks or, in an endless line, after a sentence.
 *
 * @param {Piece[]} pieces
 * @param {Int32Array} sentences of each token
 */
function blockStarts(pieces, sentences) {
  const starts = [0];
  let size = 0,
    sentence = -1;
  pieces.forEach(([text, ...tokens], i) => {
    const other = tokens.length > 0 && sentences[tokens[0]] !== sentence;
    if (size >= MOST && other) {
      starts.push(i);
      size = 0;
    }
    if (tokens.length) sentence = sentences[tokens[0]];
    size += tokens.length;
    if (size >= BLOCK && text.includes("\n") && i + 1 < pieces.length) {
      starts.push(i + 1);
      size = 0;
    }
  });
  return starts;
}

/** The prompt as readable text, with its units shaded by their shares.
 *
 * @param {AnswerPage} page
 */
export function promptText(page) {
  const { state, tip } = page;
  const text = el("div", { class: "prompt", role: "region", "aria-label": "prompt", tabindex: 0 });
  const strip = el("canvas", { class: "strip", width: 1, height: 600, "aria-hidden": "true" });
  const node = el("section", { class: "read" }, text, strip);
  /** @type {Block[]} */
  let blocks = [];
  /** @type {Piece[] | null} */
  let pieces = null;
  let long = false,
    built = "",
    chosen = "none yet",
    lit = -1;
  const seen = new IntersectionObserver(
    (entries) => {
      for (const { target, isIntersecting } of entries) {
        const block = blocks[Number(/** @type {HTMLElement} */ (target).dataset.block)];
        if (block?.node !== target || block.built === isIntersecting) continue;
        if (isIntersecting) {
          build(block, state.get().u);
          shadeBlocks([block]);
        } else asText(block);
      }
    },
    { root: text, rootMargin: "900px 0px" },
  );
  page.signal.addEventListener("abort", () => seen.disconnect());

  function lay() {
    const { prompt, units } = page.data;
    pieces = prompt.pieces;
    long = prompt.size > LONG;
    node.classList.toggle("long", long);
    strip.hidden = !long;
    seen.disconnect();
    const starts = long ? blockStarts(pieces, units.sentence.of) : [0];
    blocks = starts.map((start, i) => {
      const end = starts[i + 1] ?? prompt.pieces.length;
      const token = prompt.pieces.slice(start, end).find((piece) => piece.length > 1)?.[1] ?? 0;
      const box = el("div", { class: "block", "data-block": i });
      return { node: box, start, end, token: Number(token), shown: [], units: [], built: false };
    });
    if (long) blocks.forEach(asText);
    text.replaceChildren(...blocks.map((block) => block.node));
    if (long) blocks.forEach((block) => seen.observe(block.node));
    built = "";
  }

  /** @param {Block} block */
  function asText(block) {
    const { pieces: all } = page.data.prompt;
    const texts = all.slice(block.start, block.end).map(([content]) => content);
    block.node.replaceChildren(readable(texts.join("")));
    Object.assign(block, { shown: [], units: [], built: false });
  }

  /** Wrap the tokens of a block in their units. @param {Block} block @param {string} unit */
  function build(block, unit) {
    const { of } = page.data.units[unit],
      { marks } = page.data,
      box = block.node;
    Object.assign(block, { shown: [], units: [], built: true });
    box.replaceChildren();
    let into = box,
      last = -1,
      open = /** @type {Node[]} */ ([]);
    /** @param {number} its */
    const begin = (its) => {
      into = el("span", { class: "unit", "data-unit": its });
      box.append(into);
      block.units.push(into);
    };
    for (const [content, ...tokens] of page.data.prompt.pieces.slice(block.start, block.end)) {
      if (!tokens.length) {
        open.push(document.createTextNode(readable(content))); // belongs to the unit if the unit continues after it
        continue;
      }
      const its = of[tokens[0]] ?? -1;
      if (its !== last) {
        box.append(...open);
        if (its >= 0) begin(its);
        else into = box;
        last = its;
      } else into.append(...open);
      open = [];
      const { before, core, after } = trimmed(content);
      const mark = tokens.some((token) => marks[token]);
      const one = el("span", { class: mark ? "mark" : "tok", "data-at": block.shown.length }, readable(core));
      block.shown.push({ node: one, tokens });
      // white space before a unit's first word is not shaded
      if (into !== box && !into.hasChildNodes()) into.before(before);
      else into.append(before);
      if (core) into.append(one);
      if (after.includes("\n")) {
        box.append(after);
        if (its >= 0 && !SMALL.includes(unit)) begin(its);
        else last = -1;
      } else into.append(after);
    }
    box.append(...open);
    if (lit >= 0) light(block);
  }

  /** @param {Block[]} some */
  function shadeBlocks(some) {
    const shading = shadingOf(page),
      { u } = state.get(),
      { of } = page.data.units[u],
      colours = page.colours(),
      full = SMALL.includes(u) ? 1 : SOFT;
    for (const { shown, units: spans } of some) {
      for (const one of spans) paint(one, u === "token" ? 0 : shading.unit(Number(one.dataset.unit)));
      for (const { node: one, tokens } of shown) {
        const apart = tokens.some(shading.isApart);
        if (u !== "token" && !apart) continue;
        const parts = tokens.map((token) => (apart ? shading.alone(token) : shading.unit(of[token])));
        paint(
          one,
          Math.min(
            1,
            parts.reduce((sum, x) => sum + x, 0),
          ),
        );
      }
    }

    /** @param {HTMLElement} one @param {number} part */
    function paint(one, part) {
      if (part >= PLAIN) one.setAttribute("style", shadeStyle(colours, full * part));
      else one.removeAttribute("style");
    }
  }

  function draw() {
    const { s, u, h } = state.get();
    if (pieces !== page.data.prompt.pieces) lay();
    if (built !== u) for (const block of blocks) if (!long || block.built) build(block, u);
    built = u;
    shadeBlocks(blocks.filter((block) => block.built));
    if (long) paintStrip();
    if (long && chosen !== `${s} ${u} ${h}`) showStrongest();
    chosen = `${s} ${u} ${h}`;
  }

  function showStrongest() {
    const { units } = page.data.sources(spanFrom(state.get().s, page.data), state.get().u, state.get().h);
    let best = 0;
    units.forEach((share, i) => (best = share > units[best] ? i : best));
    if (units.length) bring(best);
  }

  /** Scroll the box of a long prompt to a unit. @param {number} unit */
  function bring(unit) {
    const token = page.data.units[state.get().u].of.indexOf(unit);
    let at = blocks.length - 1;
    while (at > 0 && blocks[at].token > token) at--;
    const block = blocks[at];
    if (!block) return;
    if (!block.built) {
      build(block, state.get().u);
      shadeBlocks([block]);
    }
    const center = () => {
      const one = block.node.querySelector(`[data-unit="${unit}"]`) ?? block.node;
      const box = text.getBoundingClientRect(),
        place = one.getBoundingClientRect();
      text.scrollTop += place.top - box.top - text.clientHeight / 3;
    };
    center();
    requestAnimationFrame(center); // the heights of invisible blocks were estimates
  }

  /** Draw the overview strip: where in a long prompt the shades are. */
  function paintStrip() {
    const { unit: partOf } = shadingOf(page),
      { of } = page.data.units[state.get().u],
      colours = page.colours(),
      context = brush(strip),
      rows = new Float64Array(strip.height);
    of.forEach((unit, token) => {
      const y = Math.floor((token / of.length) * rows.length);
      if (unit >= 0) rows[y] = Math.max(rows[y], partOf(unit));
    });
    context.clearRect(0, 0, 1, rows.length);
    rows.forEach((part, y) => {
      if (part < PLAIN) return;
      context.fillStyle = shade(colours, part);
      context.fillRect(0, y, 1, 1);
    });
  }
  strip.addEventListener("click", (event) => {
    const token = (event.offsetY / strip.clientHeight) * page.data.prompt.size;
    const block = blocks.findLast((one) => one.token <= token);
    if (block) text.scrollTop += block.node.getBoundingClientRect().top - text.getBoundingClientRect().top;
  });

  text.addEventListener("pointermove", (event) => {
    const at = closest(event, "[data-at]")?.getAttribute("data-at"),
      block = blocks[Number(closest(event, "[data-block]")?.getAttribute("data-block") ?? -1)],
      unit = closest(event, "[data-unit]")?.getAttribute("data-unit");
    page.point(unit ? Number(unit) : -1);
    const under = at && block?.shown[Number(at)];
    if (!under) return tip.hide();
    const { s, u, h } = state.get(),
      { data } = page,
      span = spanFrom(s, data),
      { tokens } = under;
    const shares = data.sources(span, "token", h).units,
      parts = data.signedOf(span, "token");
    const share = tokens.reduce((sum, token) => sum + shares[token], 0),
      part = tokens.reduce((sum, token) => sum + parts[token], 0);
    tip.show(event, [
      tokens.map((token) => plainToken(data.units.token.texts[token])).join(" "),
      data.first && tokens[0] === 0 ? "first token: no share" : `share ${number(share)}`,
      `${part < 0 ? "against: " : ""}${number(part, 2)} of the log-odds`,
      unit && u !== "token" ? `its ${u}: share ${number(data.sources(span, u, h).units[Number(unit)])}` : null,
    ]);
  });
  text.addEventListener("pointerleave", () => {
    tip.hide();
    page.point(-1);
  });

  /** @param {Block} block */
  function light(block) {
    for (const one of block.units) one.classList.toggle("lit", Number(one.dataset.unit) === lit);
  }

  /** Highlight one unit, or none, and optionally scroll to it.
   *
   * @param {number} unit
   * @param {boolean} into
   */
  function point(unit, into) {
    lit = unit;
    if (into && long) bring(unit);
    blocks.forEach(light);
    const one = into ? text.querySelector(`[data-unit="${unit}"]`) : null;
    one?.scrollIntoView({ block: long ? "nearest" : "center", behavior: "smooth" });
  }

  return { node, draw, point };
}
