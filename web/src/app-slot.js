// One form of the app and the page below it: of a text, or of an answer, whose text is shown while it is written.
import { mountAnswer } from "./answer.js";
import { editRow } from "./app-edit.js";
import { NAMES, makeForm, staleness } from "./app-form.js";
import { ask, drop, makeProgress, resultOf } from "./app-job.js";
import { read } from "./data.js";
import { button, el, messageOf } from "./draw.js";
import { mount } from "./page.js";

/** @import { Model, Question } from "./app-form.js" */
/** @import { Job } from "./app-job.js" */
/** @import { AnswerDocument, Data } from "./types" */
/** The page below a form. page: the page of a text; null for an answer.
 *
 * @typedef {{ box: HTMLElement, state: any, page: ReturnType<typeof mount> | null, close(): void }} Shown
 */

/** Names in the address that a new text clears: places in the old text, and names that another kind of page reads differently. */
const PLACES = { page: ["q", "t", "l", "h"], answer: ["s", "h", "v"] };
const OTHERS = ["q", "t", "l", "h", "s", "v", "u", "n", "m", "c", "a", "x"];

export function address() {
  return new URLSearchParams(location.hash.slice(1));
}

/**
 * @param {string} prefix of its names in the address
 * @param {Model[]} models
 * @param {string | null} first the initial text
 * @param {object} on
 * @param {(() => void) | null} on.close
 * @param {(shown: Shown, fresh: boolean) => void} on.shown
 * @param {((model: string, text: string) => void) | null} on.beside
 */
export function makeSlot(prefix, models, first, on) {
  /** @type {Job | null} */
  let job = null;
  /** @type {Shown | null} */
  let shown = null;
  /** @type {Record<string, string> | null} the form's values for the results on screen */
  let shownForm = null;
  let shownKind = "";
  const progress = makeProgress(),
    form = makeForm(models, first, () => run(), grey);
  const stop = button("Cancel", () => cancel(), { hidden: true });
  form.row.append(stop, ...(on.close ? [button("close", on.close)] : []), progress.bar, progress.say);
  const empty = el("p", { class: "empty" }),
    loading = el("div", { class: "skeleton", "aria-hidden": "true", hidden: true }, el("i"), el("i"), el("i"));
  const note = el("p", { class: "stale-note", role: "status", hidden: true }),
    growing = el("p", { class: "growing", hidden: true }),
    tools = el("div", { class: "tools" }),
    body = el("div", { class: "body" }, empty, loading);
  const node = el("div", { class: "slot" }, form.node, note, growing, tools, body);
  grey();

  /** Grey out results that do not match the form, and say what they are for. */
  function grey() {
    empty.textContent =
      form.kind() === "image"
        ? "Choose an image and press Explain."
        : form.isAnswer()
          ? "Type a prompt and press Answer."
          : "Type a text and press Explain.";
    const why = shown && shownForm ? staleness(shownForm, form.values()) : "";
    note.hidden = !why;
    note.textContent =
      why && (job ? `${why} New ones are being computed.` : `${why} Press ${form.verb()} for new ones.`);
    for (const part of [tools, body]) part.classList.toggle("stale", Boolean(why));
  }

  /** Return the form's values in an address. @param {URLSearchParams} parameters */
  function formIn(parameters) {
    return JSON.stringify(NAMES.map((name) => parameters.get(prefix + name) ?? ""));
  }

  /** Update the address for the next page: store the question, and clear places in another text.
   *
   * @param {Record<string, string>} values
   * @param {"page" | "answer"} kind
   * @param {boolean} fresh
   */
  function remember(values, kind, fresh) {
    const now = address();
    if (fresh) for (const name of shownKind && shownKind !== kind ? OTHERS : PLACES[kind]) now.delete(prefix + name);
    for (const name of NAMES) {
      if (values[name]) now.set(prefix + name, values[name]);
      else now.delete(prefix + name);
    }
    shownForm = values;
    shownKind = kind;
    history.replaceState(null, "", `#${now}`);
  }

  /** Explain what the address asks for, unless it is already shown. */
  function start() {
    const parameters = address();
    const isHere = shownForm && formIn(parameters) === JSON.stringify(NAMES.map((name) => shownForm?.[name] ?? ""));
    if (isHere) return;
    form.load((name) => parameters.get(prefix + name));
    if (form.kind() !== "image") run(false);
  }

  /** Cancel the job, even if the server has not named it yet. */
  function cancel() {
    if (!job) return;
    drop(job);
    job = null;
    idle("cancelled");
  }

  function idle(message = "", bad = false) {
    stop.hidden = true;
    loading.hidden = true;
    empty.hidden = Boolean(shown);
    form.busy(false);
    progress.end(message, bad);
    grey();
  }

  async function run(fresh = true) {
    cancel();
    /** @type {Job} */
    const mine = { id: null },
      isWanted = () => job === mine;
    job = mine;
    form.busy(true);
    stop.hidden = false;
    loading.hidden = Boolean(shown);
    empty.hidden = true;
    growing.hidden = true;
    progress.begin();
    grey();
    try {
      const values = form.values(),
        answers = form.isAnswer(),
        question = await form.question();
      if (!isWanted()) return;
      /** @type {{ read(doc: any): Promise<any>, put(ready: any): Promise<Shown | null> }} */
      const make = answers ? answerShower(question, isWanted) : pageShower(question);
      let isNew = fresh,
        begun = false;
      const show = async (/** @type {any} */ doc) => {
        const before = shown,
          ready = await make.read(doc);
        if (!isWanted()) return;
        if (!begun) remember(values, answers ? "answer" : "page", isNew);
        const next = await make.put(ready);
        if (!next || !isWanted()) return;
        shown = next;
        if (before !== shown || !begun) on.shown(shown, isNew);
        begun = true;
        isNew = false;
        growing.hidden = true;
        loading.hidden = true;
        grey();
      };
      const grow = async (/** @type {{ text: string }} */ { text }) => {
        growing.textContent = text;
        growing.hidden = false;
      };
      const result = await resultOf(mine, answers ? "/api/answers" : "/api/jobs", question, {
        isWanted,
        tell: (now) => progress.tell(now, begun && !answers ? "filling in: " : ""),
        show: answers ? grow : show,
      });
      if (!result || !isWanted()) return;
      await show(result);
      if (!isWanted()) return;
      job = null;
      idle();
    } catch (error) {
      if (!isWanted()) return;
      job = null;
      idle(messageOf(error), true);
    }
  }

  /** Show the page of a text, and show it again when more of it is known; the selection stays.
   *
   * @param {Question} question
   */
  function pageShower(question) {
    let begun = false;
    /** @type {ReturnType<typeof editRow> | null} */
    let row = null;
    return {
      read,
      put: async (/** @type {Data} */ data) => {
        const box = el("div"),
          kept = begun ? keep() : null;
        shown?.close();
        body.replaceChildren(empty, loading, box);
        empty.hidden = true;
        const page = mount(box, data, prefix, {
          rows: (query) => ask("POST", "/api/rows", { ...question, ...query }),
          paths: (pair) => ask("POST", "/api/paths", { ...question, ...pair }),
        });
        kept?.(page, box);
        if (!begun) {
          row = isEditable(question, data) ? edits(question, data) : null;
          tools.replaceChildren(...(row ? [row.node] : []));
        }
        page.state.listen((changed) => {
          const { t, u } = page.state.get();
          if (changed.has("t")) row?.choose(u, t);
        });
        begun = true;
        return { box, state: page.state, page, close: () => page.close() };
      },
    };
  }

  /** Remember the reader's place. The returned function restores it on the next page. */
  function keep() {
    const choices = shown?.state.get(),
      scrolled = scrollY,
      box = shown?.box,
      focus = box?.contains(document.activeElement)
        ? pathTo(box, /** @type {Element} */ (document.activeElement))
        : null;
    body.style.minHeight = `${body.offsetHeight}px`; // keeps the content below from jumping
    return (/** @type {ReturnType<typeof mount>} */ page, /** @type {HTMLElement} */ next) => {
      page.state.set(choices);
      if (focus) at(next, focus)?.focus({ preventScroll: true });
      scrollTo(scrollX, scrolled);
      requestAnimationFrame(() => (body.style.minHeight = ""));
    };
  }

  /** @param {Question} question @param {() => boolean} isWanted */
  function answerShower(question, isWanted) {
    return {
      read: async (/** @type {AnswerDocument} */ doc) => doc,
      put: async (/** @type {AnswerDocument} */ doc) => {
        const box = el("div");
        shown?.close();
        tools.replaceChildren();
        body.replaceChildren(empty, loading, box);
        empty.hidden = true;
        const now = await mountAnswer(box, doc, prefix, {
          leaveOut: (source) => ask("POST", "/api/leave-out", { ...question, ...source }),
        });
        if (isWanted()) return { box, state: now.state, page: null, close: () => now.close() };
        now.close();
        box.remove();
        shown = null;
        return null;
      },
    };
  }

  /** @param {Question} question @param {Data} data */
  function isEditable(question, data) {
    return question.text !== undefined && question.target === undefined && data.prediction && form.kind() === "text";
  }

  /** @param {Question} question @param {Data} data */
  function edits(question, data) {
    const row = editRow(data, {
      edit: (change) => ask("POST", "/api/edits", { ...question, ...change }),
      explain: (text) => {
        form.setText(text);
        run();
      },
      beside: (text) => on.beside?.(question.model, text),
    });
    if (!on.beside) row.node.classList.add("last");
    return row;
  }

  function close() {
    cancel();
    shown?.close();
    node.remove();
    const parameters = address();
    for (const name of [...parameters.keys()]) if (name.startsWith(prefix)) parameters.delete(name);
    history.replaceState(null, "", `#${parameters}`);
  }

  return { node, start, close, run, shown: () => shown, text: form.text, focus: form.focus, load: form.load };
}

/** Return the path of child indices from a box to an element. @param {Element} box @param {Element} element */
function pathTo(box, element) {
  const path = [];
  for (let at_ = element; at_ !== box && at_.parentElement; at_ = at_.parentElement)
    path.unshift([...at_.parentElement.children].indexOf(at_));
  return path;
}

/** Return the element at a path, if it still exists. @param {Element} box @param {number[]} path */
function at(box, path) {
  const element = path.reduce((/** @type {Element | undefined} */ node, i) => node?.children[i], box);
  return element instanceof HTMLElement ? element : null;
}
