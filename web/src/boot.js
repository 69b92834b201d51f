import { el, messageOf } from "./draw.js";

/** Show the document in this file with the view that it was saved with, or an error message.
 *
 * @param {(root: HTMLElement, content: any) => unknown} show
 */
export async function boot(show) {
  const root = /** @type {HTMLElement} */ (document.getElementById("attnflow"));
  try {
    const content = JSON.parse(document.getElementById("attnflow-document")?.textContent ?? "");
    root.dataset.view = typeof content.view === "string" ? content.view : "";
    await show(root, content);
  } catch (error) {
    root.removeAttribute("aria-busy");
    root.replaceChildren(
      el("p", { class: "failed", role: "alert" }, `This page could not be shown: ${messageOf(error)}`),
    );
    throw error;
  }
}
