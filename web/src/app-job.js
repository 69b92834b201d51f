// Requests to the app's server, and jobs that are polled until they end.
import { el } from "./draw.js";

/** @typedef {{ id: string | null }} Job */
/** @typedef {{ state: string, position: number | null, stage: string, done: number, total: number, partials: number,
 *   error: string | null }} JobState */

/** @param {string} method @param {string} path @param {object} [body] @returns {Promise<any>} */
export async function ask(method, path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method,
      ...(body && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) }),
    });
  } catch {
    throw new Error("The server does not respond. Is attnflow serve still running?");
  }
  const content = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(content?.error ?? `The server responded with status ${answer.status}.`);
  return content;
}

/** Cancel a job, if the server has named it yet. @param {Job} job */
export function drop({ id }) {
  if (id) ask("DELETE", `/api/jobs/${id}`).catch(() => null);
}

/** @type {Record<string, string>} clearer names for some of the server's stages */
const STAGES = { model: "running the model", "answer edges": "finding what the answer rests on" };

/** Describe a duration. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1.5) return "about a second";
  if (seconds < 90) return `about ${Math.round(seconds)} s`;
  return `about ${Math.round(seconds / 60)} min`;
}

/** A job's progress: a bar, and a sentence with the time left if it is known. */
export function makeProgress() {
  const bar = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" }),
    say = el("span", { class: "say", role: "status" });
  /** When the stage began, and how much was done by then. */
  let begun = { stage: "", at: 0, done: 0 };

  /** @param {JobState} now @param {string} before the beginning of the sentence */
  function tell(now, before = "") {
    if (now.state === "queued") {
      say.textContent = now.position ? `waiting: ${now.position} ahead of this` : "waiting";
      return;
    }
    const counted = now.total > 1,
      at = performance.now();
    if (begun.stage !== now.stage || now.done < begun.done) begun = { stage: now.stage, at, done: now.done };
    const rate = (now.done - begun.done) / (at - begun.at);
    const left = counted && rate > 0 ? ` · ${duration((now.total - now.done) / rate / 1000)} left` : "";
    const stage = STAGES[now.stage] ?? now.stage;
    say.textContent = before + (counted ? `${stage} ${now.done} of ${now.total}${left}` : stage);
    if (counted) bar.value = now.done / now.total;
    else bar.removeAttribute("value");
  }

  function begin() {
    begun = { stage: "", at: 0, done: 0 };
    bar.hidden = false;
    bar.removeAttribute("value");
    say.classList.remove("bad");
    say.textContent = "…";
  }

  function end(message = "", bad = false) {
    bar.hidden = true;
    say.textContent = message;
    say.classList.toggle("bad", bad);
  }
  return { bar, say, tell, begin, end };
}

/** Start a job and wait for its result; partial results are shown as they arrive.
 *
 * @param {Job} job receives its id
 * @param {string} path
 * @param {object} question
 * @param {object} watch
 * @param {() => boolean} watch.isWanted
 * @param {(now: JobState) => void} watch.tell
 * @param {(partial: any) => Promise<void>} watch.show
 * @returns {Promise<any>} the result, or null if it is no longer wanted
 */
export async function resultOf(job, path, question, { isWanted, tell, show }) {
  job.id = (await ask("POST", path, question)).id;
  if (!isWanted()) {
    drop(job);
    return null;
  }
  let partials = 0;
  for (let wait = 60; ; wait = Math.min(500, wait * 1.3)) {
    const now = await ask("GET", `/api/jobs/${job.id}`);
    if (!isWanted()) return null;
    if (now.state === "done") break;
    if (now.state === "failed" || now.state === "cancelled") throw new Error(now.error ?? now.state);
    if (now.partials > partials) {
      partials = now.partials;
      wait = 60;
      const partial = await ask("GET", `/api/jobs/${job.id}/partial`).catch(() => null); // the job may have ended
      if (!isWanted()) return null;
      if (partial) await show(partial);
      if (!isWanted()) return null;
    }
    tell(now);
    await new Promise((resolve) => setTimeout(resolve, wait));
  }
  const result = await ask("GET", `/api/jobs/${job.id}/result`);
  return isWanted() ? result : null;
}
