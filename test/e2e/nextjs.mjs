// Starts the dev server of blaxel/nextjs with the unmodified client package, as products
// do: a preview shows the page, and follows a change of it. It exits with 0 only if
// everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1, DO_NOT_TRACK=1.

import assert from "node:assert/strict";
import { get } from "node:http";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { SandboxInstance } = await import("@blaxel/core");

// until polls: the first page is compiled when somebody asks for it.
const until = async (what, check) => {
  for (const end = Date.now() + 120_000; !(await check()); await new Promise((done) => setTimeout(done, 500))) {
    assert(Date.now() < end, `${what} does not happen`);
  }
};

const sandbox = await SandboxInstance.create({
  name: "site", image: "blaxel/nextjs:latest", memory: 4096, ports: [{ name: "preview", target: 3000 }],
});
await sandbox.process.exec({
  name: "dev", command: "npm run dev -- --port 3000", workingDir: "/blaxel/app", waitForPorts: [3000],
});
const preview = await sandbox.previews.create({ metadata: { name: "page" }, spec: { port: 3000, public: true } });
const page = async () => {
  const answer = await fetch(preview.spec.url);
  return { status: answer.status, text: await answer.text() };
};
const begin = Date.now();
await until("the page", async () => (await page()).text.includes("Your Next.js app runs"));
console.log(`the first page after ${Date.now() - begin} ms`);
assert.equal((await page()).status, 200);

const source = await sandbox.fs.read("/blaxel/app/app/page.tsx");
await sandbox.fs.write("/blaxel/app/app/page.tsx", source.replace("Your Next.js app runs", "It was changed"));
await until("the changed page", async () => (await page()).text.includes("It was changed"));

// What the page loads has absolute paths. They are there at the host of the preview, which
// this host need not resolve.
const { text } = await page();
const [script] = text.match(/\/_next\/static\/[^"\\]+\.js/) ?? [];
assert(script, "the page loads a script");
const { hostname, port } = new URL(process.env.BL_API_URL);
const host = `${preview.spec.url.split("/").pop()}.local.preview.localhost`;
const status = await new Promise((done, failed) => {
  get({ hostname, port, path: script, headers: { host } }, (answer) => done(answer.resume().statusCode)).on("error", failed);
});
assert.equal(status, 200, script);
await sandbox.delete();
