import { boot } from "./boot.js";
import { el, button, messageOf } from "./draw.js";
import { read } from "./data.js";
import { mount } from "./page.js";

/** @typedef {{ name: string, kind?: string }} Model */
/** @typedef {ReturnType<typeof mount>} Shown */
/** @typedef {{ model: string, truncate: boolean, text?: string, target?: string, image?: string }} Question */

/** @param {string} method @param {string} path @param {object} [body] @returns {Promise<any>} */
async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
    });
  } catch {
    throw new Error("the server does not answer: is attnflow serve still running?");
  }
  const content = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(content?.error ?? `the server answered ${answer.status}`);
  return content;
}

const EXAMPLE = "the key to the cabinets";

/** What two pages of the same tokens share, and what a new text does away with: places in the old one. */
const SHARED = ["q", "t", "u", "s", "v", "f", "m", "g", "l"];
const PLACES = ["q", "t", "l", "h"];

function address() {
  return new URLSearchParams(location.hash.slice(1));
}

/** @param {HTMLElement} root @param {Model[]} models */
function application(root, models) {
  /** @type {ReturnType<typeof makeSlot>[]} */
  const slots = [];
  const columns = el("div", { class: "slots" });
  const more = button("compare with another text or model", () => open("b.", slots[0].text()).focus(), {
    class: "more",
  });
  /** @type {Shown[]} */
  let together = [];
  root.removeAttribute("aria-busy");
  root.classList.add("app");
  root.dataset.theme = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.replaceChildren(
    el(
      "div",
      { class: "app-top" },
      el("h1", {}, "attnflow"),
      el("span", { class: "hint" }, "runs on this machine; nothing leaves it"),
      more,
    ),
    columns,
  );

  /** @param {string} prefix */
  function open(prefix, text = EXAMPLE) {
    const slot = makeSlot(prefix, models, text, prefix ? close : null, (page, fresh) => arrived(slot, page, fresh));
    slots.push(slot);
    columns.append(slot.node);
    arrange();
    return slot;
  }

  function close() {
    slots.pop()?.close();
    arrange();
    link();
    more.focus();
  }

  function arrange() {
    columns.classList.toggle("two", slots.length > 1);
    more.hidden = slots.length > 1;
  }

  /** @param {typeof slots[0]} slot @param {Shown} page @param {boolean} fresh */
  function arrived(slot, page, fresh) {
    const other = slots.find((one) => one !== slot)?.shown(),
      box = /** @type {HTMLElement} */ (page.node.parentNode);
    // what is around the pages wears their theme, and they wear one
    const dress = () => {
      if (slot.shown() === page) root.dataset.theme = box.dataset.theme;
    };
    new MutationObserver(dress).observe(box, { attributeFilter: ["data-theme"] });
    dress();
    page.state.listen((changed) => {
      if (changed.has("theme"))
        for (const one of slots) if (one !== slot) one.shown()?.state.set({ theme: page.state.get().theme });
    });
    if (other) page.state.set({ theme: other.state.get().theme });
    link();
    if (fresh && other && together.length) follow(page, other, SHARED);
  }

  /** Two pages of the same tokens move together, until one of them is another. */
  function link() {
    const [a, b] = slots.map((slot) => slot.shown());
    const pair = (together =
      a && b && JSON.stringify(a.page.data.units) === JSON.stringify(b.page.data.units) ? [a, b] : []);
    for (const one of pair)
      one.state.listen((changed) => {
        const other = pair.find((candidate) => candidate !== one);
        if (together === pair && other) follow(other, one, [...changed]);
      });
  }

  /** @param {Shown} page @param {Shown} leader @param {string[]} names */
  function follow(page, leader, names) {
    const s = leader.state.get();
    const fits = (/** @type {string} */ name) =>
      SHARED.includes(name) && (name !== "l" || page.page.data.layers.includes(s.l - 1));
    page.state.set(Object.fromEntries(Object.entries(s).filter(([name]) => names.includes(name) && fits(name))));
  }

  const second = () => address().has("b.model") || address().has("b.text");
  open("").start();
  if (second()) open("b.").start();
  // a link to another text that is opened where the app is already
  addEventListener("hashchange", () => {
    if (slots.length > 1 && !second()) close();
    for (const slot of slots) slot.start();
    if (slots.length < 2 && second()) open("b.").start();
  });
}

/** One form and the page under it.
 *
 * @param {string} prefix
 * @param {Model[]} models
 * @param {string} first the text that it opens with
 * @param {(() => void) | null} onclose
 * @param {(page: Shown, fresh: boolean) => void} onshown
 */
function makeSlot(prefix, models, first, onclose, onshown) {
  const model = el(
    "select",
    { "aria-label": "model", onchange: fit },
    models.map(({ name }) => el("option", { value: name }, name)),
  );
  const text = el("textarea", { rows: 2, "aria-label": "text", placeholder: "Type a text …", spellcheck: "false" });
  const target = el("input", {
    type: "text",
    "aria-label": "what the decoder writes",
    placeholder: "what the decoder writes (its own answer, if left empty)",
  });
  const file = el("input", { type: "file", accept: "image/png,image/jpeg", "aria-label": "image" });
  const cut = el("input", { type: "checkbox" }),
    cutLabel = el("label", { class: "hint" }, cut, " cut a text that is too long");
  const go = el("button", { type: "submit" }, "Explain"),
    stop = button("Cancel", () => cancel(), { hidden: true });
  const bar = el("progress", { max: 1, value: 0, hidden: true }),
    say = el("span", { class: "say", role: "status" });
  const form = el(
    "form",
    {
      class: "ask",
      onsubmit: (event) => {
        event.preventDefault();
        run();
      },
    },
    model,
    text,
    target,
    file,
    el("div", { class: "go" }, go, stop, cutLabel, onclose ? button("close", onclose) : "", bar, say),
  );
  const empty = el("p", { class: "empty" }),
    body = el("div", { class: "body" }, empty);
  const node = el("div", { class: "slot" }, form, body);
  /** @type {{ id: string | null } | null} */
  let job = null;
  /** @type {Shown | null} */
  let shown = null;
  let shownForm = "";

  const kindOf = (/** @type {string | null} */ name) => models.find((one) => one.name === name)?.kind;
  text.value = first;
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    }
  });
  fit();

  function fit() {
    const kind = kindOf(model.value);
    text.hidden = kind === "image";
    file.hidden = kind !== "image";
    cutLabel.hidden = kind === "image";
    target.hidden = kind !== "encoder-decoder";
    empty.textContent = kind === "image" ? "Choose an image and press Explain." : "Type a text and press Explain.";
  }

  /** @returns {Promise<Question>} */
  async function readForm() {
    const kind = kindOf(model.value),
      image = file.files?.[0],
      question = { model: model.value, truncate: cut.checked };
    if (kind === "image") {
      if (!image) throw new Error("choose an image first");
      return { ...question, image: await base64(image) };
    }
    return {
      ...question,
      text: text.value,
      ...(kind === "encoder-decoder" && target.value ? { target: target.value } : {}),
    };
  }

  /** What the form has in the address.
   *
   * @param {URLSearchParams} parameters
   */
  function formIn(parameters) {
    return JSON.stringify(["model", "text", "target", "cut"].map((name) => parameters.get(prefix + name) ?? ""));
  }

  /** What the next page starts from: the address keeps the question, and places in another text go.
   *
   * @param {Question} question
   * @param {boolean} fresh
   */
  function remember(question, fresh) {
    const now = address();
    if (fresh) for (const name of PLACES) now.delete(prefix + name);
    for (const [name, value] of Object.entries({
      model: question.model,
      text: question.text,
      target: question.target,
      cut: question.truncate ? "1" : "",
    })) {
      if (value) now.set(prefix + name, value);
      else now.delete(prefix + name);
    }
    shownForm = formIn(now);
    history.replaceState(null, "", `#${now}`);
  }

  /** Explains what the address says, unless it is here already. */
  function start() {
    const parameters = address(),
      name = parameters.get(`${prefix}model`);
    if (shownForm && formIn(parameters) === shownForm) return;
    if (name && models.some((one) => one.name === name)) model.value = name;
    text.value = parameters.get(`${prefix}text`) ?? first;
    target.value = parameters.get(`${prefix}target`) ?? "";
    cut.checked = parameters.has(`${prefix}cut`);
    fit();
    if (kindOf(model.value) !== "image") run(false);
  }

  /** Takes the question back, even where the server has not said yet which job it is. */
  function cancel() {
    if (!job) return;
    drop(job);
    job = null;
    idle("cancelled");
  }

  /** @param {{ id: string | null }} one */
  function drop({ id }) {
    if (id) ask("DELETE", `/api/jobs/${id}`).catch(() => null);
  }

  function idle(message = "", bad = false) {
    stop.hidden = bar.hidden = true;
    go.disabled = false;
    say.textContent = message;
    say.classList.toggle("bad", bad);
  }

  async function run(fresh = true) {
    cancel();
    /** @type {{ id: string | null }} */
    const mine = { id: null };
    job = mine;
    go.disabled = true;
    stop.hidden = bar.hidden = false;
    bar.removeAttribute("value");
    say.classList.remove("bad");
    say.textContent = "…";
    try {
      const question = await readForm();
      if (job !== mine) return;
      const { id } = await ask("POST", "/api/jobs", question);
      mine.id = id;
      if (job !== mine) {
        drop(mine);
        return;
      }
      for (let wait = 60; ; wait = Math.min(500, wait * 1.3)) {
        const now = await ask("GET", `/api/jobs/${id}`);
        if (job !== mine) return;
        if (now.state === "done") break;
        if (now.state === "failed" || now.state === "cancelled") throw new Error(now.error ?? now.state);
        if (now.state === "queued") say.textContent = now.position ? `waiting: ${now.position} before this` : "waiting";
        else {
          say.textContent = now.total > 1 ? `${now.stage} ${now.done} of ${now.total}` : now.stage;
          if (now.total > 1) bar.value = now.done / now.total;
          else bar.removeAttribute("value");
        }
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
      const data = await read(await ask("GET", `/api/jobs/${id}/result`));
      if (job !== mine) return;
      remember(question, fresh);
      const box = el("div");
      shown?.close();
      body.replaceChildren(box);
      shown = mount(box, data, prefix, {
        rows: (query) => ask("POST", "/api/rows", { ...question, ...query }),
        paths: (pair) => ask("POST", "/api/paths", { ...question, ...pair }),
      });
      onshown(shown, fresh);
      job = null;
      idle();
    } catch (error) {
      if (job !== mine) return;
      job = null;
      idle(messageOf(error), true);
    }
  }

  function close() {
    cancel();
    shown?.close();
    node.remove();
    const parameters = address();
    for (const name of [...parameters.keys()]) if (name.startsWith(prefix)) parameters.delete(name);
    history.replaceState(null, "", `#${parameters}`);
  }

  return { node, start, close, shown: () => shown, text: () => text.value, focus: () => text.focus() };
}

/** @param {File} file */
async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(text);
}

boot((root, { models }) => application(root, models));
