// Builds the page into a directory: the assets of the package, or the first argument.
import { build } from "esbuild";
import { copyFile, mkdir, rm } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? path.join(here, "../assets"));
await mkdir(out, { recursive: true });
await rm(path.join(out, "chunk"), { recursive: true, force: true }); // their names change
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  splitting: true, // what import() names is loaded when it is needed
  chunkNames: "chunk/[name]-[hash]",
  minify: true,
  format: "esm",
  target: ["es2022"],
  charset: "utf8",
  legalComments: "none", // LICENSE.parts has them
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
});
await copyFile(path.join(here, "icon.svg"), path.join(out, "icon.svg"));
