// Bundles each page into one script and one style, which view/page.py puts into a file of HTML. The output is committed, so
// that nobody needs Node to use or install attnflow; with --check nothing is written, and a stale bundle is an error.
import { readFile, readdir } from "node:fs/promises";
import { basename } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const output = here("../src/attnflow/view/web"),
  check = process.argv.includes("--check");

/** Each page by the module that starts it. */
const PAGES = {
  page: "saved",
  app: "app",
  corpus: "corpus",
  answer: "answer-saved",
  similarity: "similarity",
};

const scripts = Object.entries(PAGES).map(([page, module]) => ({ out: `${page}.min`, in: here(`src/${module}.js`) }));
const styles = Object.keys(PAGES).map((page) => ({ out: `${page}.min`, in: here(`src/${page}.css`) }));

/** @type {import("esbuild").BuildOptions} */
const options = {
  write: !check,
  bundle: true,
  minify: true,
  lineLimit: 120, // so that a change of the bundle can be read, and merged, line by line
  target: "es2023",
  charset: "utf8",
  legalComments: "none",
};
const { outputFiles } = await build({
  ...options,
  entryPoints: [...scripts, ...styles],
  outdir: output,
  format: "esm",
});

if (check) {
  const fresh = new Map((outputFiles ?? []).map(({ path, text }) => [path, text]));
  const stale = (await readdir(output)).map((name) => `${output}/${name}`).filter((path) => !fresh.has(path));
  for (const [path, text] of fresh) if ((await readFile(path, "utf8").catch(() => "")) !== text) stale.push(path);
  if (stale.length) {
    const names = stale.map((path) => basename(path)).join(", ");
    console.error(`The bundles are not what web/src gives (${names}): run make web, and commit them`);
    process.exit(1);
  }
}
