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
  grid: "grid",
  corpus: "corpus",
  answer: "answer-saved",
  pair: "pair",
};

const scripts = Object.entries(PAGES).map(([page, module]) => ({ out: `${page}.min`, in: here(`src/${module}.js`) }));
const styles = Object.keys(PAGES).map((page) => ({ out: `${page}.min`, in: here(`src/${page}.css`) }));

const { outputFiles } = await build({
  entryPoints: [...scripts, ...styles],
  outdir: output,
  write: !check,
  bundle: true,
  minify: true,
  lineLimit: 120, // so that a change of the bundle can be read, and merged, line by line
  format: "esm",
  target: "es2023",
  charset: "utf8",
  legalComments: "none",
});

if (check) {
  const committed = Object.fromEntries(
    await Promise.all((await readdir(output)).map(async (name) => [name, await readFile(`${output}/${name}`, "utf8")])),
  );
  const fresh = Object.fromEntries(outputFiles.map(({ path, text }) => [basename(path), text]));
  const stale = [...new Set([...Object.keys(committed), ...Object.keys(fresh)])].filter(
    (name) => committed[name] !== fresh[name],
  );
  if (stale.length) {
    console.error(`src/attnflow/view/web is not what web/src gives (${stale.join(", ")}): run make web, and commit it`);
    process.exit(1);
  }
}
