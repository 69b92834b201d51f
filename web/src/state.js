/** The selection: one object that drives every panel and is stored in the URL's fragment, so that a view can be shared.
 *
 * q query, l layer (L1 is 1), t token, u unit, s special tokens, v view, m method of the map, h head as layer.head, k method of
 * the heads, o order of the table, a method of the first screen, x whether usually unshaded tokens are shaded there, d whether
 * Details are open, theme. Values that are not `allowed` are ignored, because an address may come from anywhere.
 *
 * @import { State } from "./types"
 * @template {Record<string, string | number>} Values
 * @param {Values} defaults
 * @param {{ [name: string]: { includes(text: string): boolean } }} allowed
 * @param {string} prefix of the names in the address
 * @param {AbortSignal} signal stops listening
 * @param {string} [opening] the view that a file was saved with, in the format of `text`
 * @returns {State<Values>}
 */
export function makeState(defaults, allowed, prefix, signal, opening = "") {
  /** @type {((changed: Set<string>) => void)[]} */
  const listeners = [];
  const first = { ...defaults, ...parsed(opening, "") };
  const fromFragment = (/** @type {string} */ hash) => parsed(hash.slice(1), prefix);
  let current = { ...first, ...fromFragment(location.hash) },
    waiting = false;

  /** @param {string} view @param {string} before its names @returns {Partial<Values>} */
  function parsed(view, before) {
    /** @type {Record<string, string | number>} */
    const values = {};
    for (const [key, text] of new URLSearchParams(view)) {
      const name = key.startsWith(before) ? key.slice(before.length) : "";
      if (!Object.hasOwn(defaults, name)) continue;
      const number = Number(text);
      if (typeof defaults[name] === "number") {
        if (Number.isInteger(number)) values[name] = number;
      } else if (!allowed[name] || allowed[name].includes(text)) values[name] = text;
    }
    return /** @type {Partial<Values>} */ (values);
  }

  function fragment() {
    const parameters = new URLSearchParams(location.hash.slice(1));
    for (const name of Object.keys(defaults)) {
      if (current[name] === first[name]) parameters.delete(prefix + name);
      else parameters.set(prefix + name, String(current[name]));
    }
    return `#${parameters}`;
  }

  function write() {
    if (signal.aborted) return;
    try {
      history.replaceState(null, "", fragment());
    } catch {
      // a frame without an origin has no address to share
    }
  }

  /** @param {Partial<Values>} changes */
  function set(changes) {
    const changed = Object.keys(changes).filter((name) => current[name] !== changes[name]);
    if (!changed.length) return;
    current = { ...current, ...changes };
    const names = new Set(changed);
    for (const listener of listeners) listener(names);
    if (!waiting) {
      waiting = true;
      setTimeout(() => {
        waiting = false;
        write();
      }, 120); // browsers throttle pages that write the address at every key
    }
  }

  // use the event's own address: the previous selection may already have overwritten the current one
  addEventListener("hashchange", (event) => set({ ...first, ...fromFragment(new URL(event.newURL).hash) }), {
    signal,
  });
  return {
    get: () => current,
    set,
    listen: (listener) => listeners.push(listener),
    fragment,
    text: () => String(new URLSearchParams(Object.entries(current).map(([name, value]) => [name, String(value)]))),
  };
}

/** Return whether a panel that depends on these names in the state must be redrawn.
 *
 * @param {import("./types").Changed} changed
 * @param {...string} names
 */
export const touched = (changed, ...names) => !changed || names.some((name) => changed.has(name));
