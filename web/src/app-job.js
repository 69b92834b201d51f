// What the app asks of its server: requests, and jobs that are watched until they end.
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
    throw new Error("the server does not answer: is attnflow serve still running?");
  }
  const content = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(content?.error ?? `the server answered ${answer.status}`);
  return content;
}

/** Takes a job back, whose name the server has said. @param {Job} job */
export function drop({ id }) {
  if (id) ask("DELETE", `/api/jobs/${id}`).catch(() => null);
}

/** @type {Record<string, string>} what is done, where the server's own word says too little */
const STAGES = { model: "running the model", "answer edges": "finding what the answer rests on" };

/** Seconds in words. @param {number} seconds */
export function duration(seconds) {
  if (seconds < 1.5) return "about a second";
  if (seconds < 90) return `about ${Math.round(seconds)} s`;
  return `about ${Math.round(seconds / 60)} min`;
}

/** How far a job is, as a bar and a sentence with what is left, where that can be known. */
export function makeProgress() {
  const bar = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "progress" }),
    say = el("span", { class: "say", role: "status" });
  /** Where the stage began, and how much was done by then. */
  let begun = { stage: "", at: 0, done: 0 };

  /** @param {JobState} now @param {string} before what is said first */
  function tell(now, before = "") {
    if (now.state === "queued") {
      say.textContent = now.position ? `waiting: ${now.position} before this` : "waiting";
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

/** Asks for a job and waits for its result. What is known before is handed on.
 *
 * @param {Job} job gets its name
 * @param {string} path
 * @param {object} question
 * @param {object} watch
 * @param {() => boolean} watch.isWanted
 * @param {(now: JobState) => void} watch.tell
 * @param {(partial: any) => Promise<void>} watch.show
 * @returns {Promise<any>} the result; null where nobody wants it any more
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
      const partial = await ask("GET", `/api/jobs/${job.id}/partial`).catch(() => null); // it may have ended by now
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
