// The form of the app: a model and its input; for a language model, a prompt and the length of the answer.
import { choice, el, press } from "./draw.js";

/** @typedef {{ name: string, kind?: string, writes?: boolean, characters?: number | null, tokens?: number | null }} Model */
/** @typedef {{ model: string, truncate?: boolean, text?: string, target?: string, image?: string, answer?: string,
 *   tokens?: number }} Question */

const EXAMPLE = "the key to the cabinets";
const PROMPT =
  "The museum was founded in 1921. Its first director, Agnes Holm, had been a ship's engineer. After her it was led by Peter Lund, who sold half of the collection. Who was the first director?";
const TOKENS = 40; // the server's default

/** The fields of the form that the address stores. */
export const NAMES = ["model", "text", "target", "cut", "as", "tokens", "answer"];

/**
 * @param {Model[]} models
 * @param {string | null} first the initial text, or null for an example
 * @param {() => void} onsubmit
 * @param {() => void} onchange called after every change
 */
export function makeForm(models, first, onsubmit, onchange) {
  const model = el(
    "select",
    { "aria-label": "model", onchange: fit },
    models.map(({ name }) => el("option", { value: name }, name)),
  );
  const text = el("textarea", { rows: 2, "aria-label": "text", spellcheck: "false" });
  const target = el("input", {
    type: "text",
    "aria-label": "what the decoder writes",
    placeholder: "what the decoder writes (leave empty for its own answer)",
  });
  const answer = el("input", {
    type: "text",
    "aria-label": "answer",
    placeholder: "an answer to explain (leave empty to let the model write one)",
  });
  const tokens = el("input", { type: "number", min: 1, max: 999, value: TOKENS, "aria-label": "tokens to write" });
  const writing = el(
    "div",
    { class: "writing" },
    answer,
    el("label", { class: "hint" }, "at most ", tokens, " tokens"),
  );
  const file = el("input", { type: "file", accept: "image/png,image/jpeg", "aria-label": "image" });
  const cut = el("input", { type: "checkbox" }),
    cutLabel = el("label", { class: "hint" }, cut, " truncate a text that is too long");
  const go = el("button", { type: "submit" }, "Explain"),
    keys = el("span", { class: "hint keys" }, /Mac|iP/.test(navigator.platform) ? "⌘ Enter" : "Ctrl+Enter");
  const long = el("span", { class: "long bad", hidden: true });
  let way = "",
    isMade = false;
  const ways = choice("what to do", { "": "write an answer", text: "text only" }, "", (value) => {
    way = value;
    fit();
  });
  const row = el("div", { class: "go" }, go, keys, ways, cutLabel, long);
  const node = el(
    "form",
    {
      class: "ask",
      onsubmit: (event) => {
        event.preventDefault();
        onsubmit();
      },
      oninput: changed,
      onchange: changed,
    },
    model,
    text,
    target,
    writing,
    file,
    row,
  );
  node.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      onsubmit();
    }
  });
  text.value = first ?? example();
  fit();
  isMade = true;

  function chosen() {
    return models.find(({ name }) => name === model.value) ?? models[0];
  }

  /** Return whether to write an answer: the default for a language model, but not for a model that translates. */
  function isAnswer() {
    const { kind, writes } = chosen();
    return Boolean(writes) && (kind === "encoder-decoder" ? way === "answer" : way !== "text");
  }

  function example() {
    return chosen()?.writes && chosen().kind === "text" ? PROMPT : EXAMPLE;
  }

  function fit() {
    const { kind, writes } = chosen(),
      answers = isAnswer();
    if ([EXAMPLE, PROMPT].includes(text.value)) text.value = example();
    text.hidden = kind === "image";
    text.placeholder = answers ? "Ask something …" : "Type a text …";
    text.setAttribute("aria-label", answers ? "prompt" : "text");
    file.hidden = kind !== "image";
    cutLabel.hidden = kind === "image" || answers;
    target.hidden = kind !== "encoder-decoder" || answers;
    writing.hidden = !answers;
    ways.hidden = !writes;
    const both = kind === "encoder-decoder" ? ["answer", ""] : ["", "text"];
    [...ways.children].forEach((one, i) => one.setAttribute("data-value", both[i]));
    press(ways, answers ? both[0] : both[1]);
    go.textContent = answers ? "Answer" : "Explain";
    changed();
  }

  function changed() {
    const most = chosen()?.characters,
      count = text.value.length;
    text.rows = Math.min(8, Math.max(2, Math.ceil(count / 110), text.value.split("\n").length));
    long.hidden = !most || count <= most || text.hidden;
    if (most && !long.hidden)
      long.textContent = `${count.toLocaleString("en")} characters: this server accepts at most ${most.toLocaleString("en")}`;
    if (isMade) onchange();
  }

  /** Return the form's values as the address stores them. */
  function values() {
    const { kind } = chosen(),
      answers = isAnswer(),
      image = kind === "image" ? file.files?.[0] : null;
    return {
      model: model.value,
      text: kind === "image" ? "" : text.value,
      target: target.hidden ? "" : target.value,
      cut: cut.checked && !cutLabel.hidden ? "1" : "",
      as: way,
      tokens: answers && Number(tokens.value) !== TOKENS ? tokens.value : "",
      answer: answers ? answer.value : "",
      image: image ? `${image.name} ${image.size} ${image.lastModified}` : "",
    };
  }

  /** @returns {Promise<Question>} */
  async function question() {
    const { kind } = chosen(),
      image = file.files?.[0];
    if (isAnswer())
      return {
        model: model.value,
        text: text.value,
        tokens: Math.max(1, Math.round(Number(tokens.value)) || TOKENS),
        ...(answer.value ? { answer: answer.value } : {}),
      };
    const common = { model: model.value, truncate: cut.checked };
    if (kind === "image") {
      if (!image) throw new Error("choose an image first");
      return { ...common, image: await base64(image) };
    }
    return { ...common, text: text.value, ...(target.hidden || !target.value ? {} : { target: target.value }) };
  }

  /** Fill the form from an address. @param {(name: string) => string | null} of */
  function load(of) {
    const name = of("model");
    if (name && models.some((one) => one.name === name)) model.value = name;
    way = of("as") ?? "";
    target.value = of("target") ?? "";
    answer.value = of("answer") ?? "";
    tokens.value = of("tokens") ?? String(TOKENS);
    cut.checked = Boolean(of("cut"));
    text.value = of("text") ?? first ?? example();
    fit();
  }

  return {
    node,
    row,
    load,
    values,
    question,
    isAnswer,
    kind: () => chosen().kind,
    setText: (/** @type {string} */ value) => {
      text.value = value;
      changed();
    },
    busy: (/** @type {boolean} */ is) => (go.disabled = is),
    focus: () => text.focus(),
    text: () => text.value,
    verb: () => go.textContent ?? "",
  };
}

/** @param {File} file */
async function base64(file) {
  const bytes = new Uint8Array(await file.arrayBuffer());
  let binary = "";
  for (let i = 0; i < bytes.length; i += 8192) binary += String.fromCharCode(...bytes.subarray(i, i + 8192));
  return btoa(binary);
}

/** Return a sentence that says what the results are for, or "" if they match the form.
 *
 * @param {Record<string, string>} before
 * @param {Record<string, string>} now
 */
export function staleness(before, now) {
  const changed = Object.keys(now).filter((name) => (before[name] ?? "") !== now[name]);
  if (!changed.length) return "";
  if (changed.includes("model")) return `These results are for ${before.model}.`;
  if (changed.includes("text")) return "These results are for the previous text.";
  if (changed.includes("image")) return "These results are for the previous image.";
  return "These results are for the previous settings.";
}
