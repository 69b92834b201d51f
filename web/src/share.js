import { button, el } from "./draw.js";
import { download, savingButtons } from "./keep.js";

/** @import { State } from "./types" */

/** Return this page as a file that opens with a view: the same script and style, the document, and the selection.
 *
 * @param {object} doc
 * @param {string} view in the format of `State.text`
 * @param {string} [title]
 */
export function pageFile(doc, view, title = document.title) {
  const file = document.implementation.createHTMLDocument(title);
  /** @param {HTMLElement} parent @param {string} tag @param {Record<string, string>} attributes */
  const add = (parent, tag, attributes, text = "") => {
    const node = file.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.textContent = text;
    parent.append(node, "\n");
  };
  const own = (/** @type {string} */ selector) => document.querySelector(selector)?.textContent ?? "",
    policy = document.querySelector("meta[http-equiv]")?.getAttribute("content") ?? "";
  file.documentElement.lang = "en";
  add(file.head, "meta", { charset: "utf-8" });
  file.head.prepend(file.head.lastElementChild ?? "");
  add(file.head, "meta", {
    "http-equiv": "Content-Security-Policy",
    content: policy.replace(/connect-src [^;]*/, "connect-src 'none'"),
  });
  add(file.head, "meta", { name: "viewport", content: "width=device-width, initial-scale=1" });
  add(file.head, "style", {}, own("style"));
  add(file.body, "main", { id: "attnflow", "aria-busy": "true" }, "Reading the document …");
  add(file.body, "noscript", {}, "This page needs JavaScript.");
  // without "<" no token can end the script element; JSON reads the escape back
  const data = JSON.stringify({ ...doc, view }).replaceAll("<", "\\u003c");
  add(file.body, "script", { type: "application/json", id: "attnflow-document" }, data);
  add(file.body, "script", { type: "module" }, own("script[type=module]"));
  return `<!doctype html>\n${file.documentElement.outerHTML}\n`;
}

/** Return the document in this file. */
export const ownDocument = () => JSON.parse(document.getElementById("attnflow-document")?.textContent ?? "{}");

/** Return whether this is the app, whose own document contains no text. */
const isApp = () => Boolean(document.querySelector("#attnflow.app"));

/** Return whether this page is in a notebook's frame, which has no address and cannot print. */
const isFramed = () => location.protocol === "about:";

/** The buttons `save` and `link` of a page's top bar.
 *
 * @param {object} parts
 * @param {State<any>} parts.state
 * @param {string} parts.name of the files, after "attnflow-"
 * @param {(text: string) => void} parts.announce
 * @param {() => object} [parts.source] the document; by default the one in this file
 * @param {() => string} [parts.title] of the file; by default this page's
 * @param {Record<string, () => void | Promise<void>>} [parts.works] other kinds of files
 */
export function keepControls({
  state,
  name,
  announce,
  source = ownDocument,
  title = () => document.title,
  works = {},
}) {
  const page = () =>
    download(`attnflow-${name}.html`, pageFile(source(), state.text(), title()), "text/html;charset=utf-8");
  const paper = () => {
    foot(menu, `${location.protocol === "file:" ? "" : location.href.split("#")[0]}${state.fragment()}`);
    print();
  };
  const hasPage = source !== ownDocument || !isApp();
  const kinds = { ...(hasPage && { page }), ...works, ...(!isFramed() && { PDF: paper }) };
  const menu = el(
    "details",
    { class: "export keep", "data-name": name },
    el("summary", { title: "save this view as a file" }, "save"),
    el("div", {}, savingButtons(kinds, name, announce)),
  );
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !menu.open) return;
    menu.open = false;
    menu.querySelector("summary")?.focus();
  });
  return [menu, linkButton(state, announce)];
}

/** Add the footer of a printed page: title and address.
 *
 * @param {HTMLElement} inside
 * @param {string} address
 */
function foot(inside, address) {
  const article = inside.closest("article");
  article?.querySelector(".print-foot")?.remove();
  article?.append(el("p", { class: "print-foot" }, `${document.title}, ${address}`));
}

/** A button that copies the address of the view, or shows it if the browser does not allow copying.
 *
 * @param {State<any>} state
 * @param {(text: string) => void} announce
 */
function linkButton(state, announce) {
  const field = el("input", { type: "text", readonly: true, "aria-label": "the address of this view" }),
    hint = el("p", { class: "hint" });
  const box = el("div", { class: "link-box", hidden: true }, field, hint);
  const node = button("link", copy, { title: "copy the address of this view", "aria-expanded": "false" });

  async function copy() {
    if (!box.hidden) {
      close();
      return;
    }
    const address = isFramed() ? state.fragment() : location.href.split("#")[0] + state.fragment();
    try {
      if (isFramed()) throw new Error("no address");
      await navigator.clipboard.writeText(address);
      announce("link copied");
      node.textContent = "copied";
      setTimeout(() => (node.textContent = "link"), 1500);
    } catch {
      hint.textContent = isFramed()
        ? "This page is in a frame and has no address. Save it, and append this to the file name."
        : "Copy this address.";
      field.value = address;
      box.hidden = false;
      node.setAttribute("aria-expanded", "true");
      field.focus();
      field.select();
      announce(hint.textContent);
    }
  }

  function close() {
    box.hidden = true;
    node.setAttribute("aria-expanded", "false");
  }
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    close();
    node.focus();
  });
  return el("span", { class: "link" }, node, box);
}
