import { PALETTES } from "./colour.js";
import { button } from "./draw.js";

/** @import { State } from "./types" */

/** Choose a page's palette: the selected one, or the system's; light on paper.
 *
 * @template {{ theme: string }} Values
 * @param {HTMLElement} root
 * @param {State<Values>} state
 * @param {AbortSignal} signal
 * @param {(printed: boolean) => void} changed called when the palette may have changed
 */
export function makeTheme(root, state, signal, changed) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let printing = false;
  const colours = () => {
    const { theme } = state.get();
    return PALETTES[!printing && (theme === "dark" || (theme !== "light" && dark.matches)) ? "dark" : "light"];
  };
  const other = () => (colours().name === "dark" ? "light" : "dark");
  const flip = () => state.set(/** @type {Partial<Values>} */ ({ theme: other() }));
  const node = button("", flip, { class: "theme" });

  function paint() {
    root.dataset.theme = colours().name;
    node.textContent = colours().name === "dark" ? "☀" : "☾";
    node.setAttribute("aria-label", `${other()} theme`);
  }

  dark.addEventListener("change", () => changed(false), { signal });
  for (const name of ["beforeprint", "afterprint"])
    addEventListener(
      name,
      () => {
        printing = name === "beforeprint";
        changed(true);
      },
      { signal },
    );
  return { colours, flip, node, paint };
}
