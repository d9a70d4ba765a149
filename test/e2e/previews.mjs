// Drives previews, their tokens and sessions with the unmodified client package,
// which logs in with the credentials of a service account. It exits with 0 only
// if everything holds.
//
// Environment: BL_API_URL, BL_CLIENT_CREDENTIALS (base64 of id:secret),
// BL_WORKSPACE, BL_DISABLE_H2=1, DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_CLIENT_CREDENTIALS", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
assert(!process.env.BL_API_KEY, "BL_API_KEY must not be set");
const { SandboxInstance } = await import("@blaxel/core");

const sandbox = await SandboxInstance.create({ name: "previewed", memory: 1024 });
try {
  await sandbox.process.exec({ name: "web", command: "python3 -u -m http.server 3000 --directory /etc", waitForPorts: [3000] });

  const open = await sandbox.previews.create({ metadata: { name: "open" }, spec: { port: 3000, public: true } });
  const url = open.spec.url;
  assert.equal((await fetch(`${url}/hostname`)).status, 200, "a public preview");

  const same = await sandbox.previews.createIfNotExists({ metadata: { name: "open" }, spec: { port: 3000, public: true } });
  assert.equal(same.spec.url, url);
  await sandbox.previews.delete("open");
  assert.equal((await fetch(`${url}/hostname`)).status, 404, "a deleted preview");
  const again = await sandbox.previews.create({ metadata: { name: "open" }, spec: { port: 3000, public: true } });
  assert.equal(again.spec.url, url, "a stable address");

  const shut = await sandbox.previews.create({
    metadata: { name: "shut" },
    spec: { port: 3000, public: false, responseHeaders: { "Access-Control-Allow-Origin": "https://app.test" } },
  });
  const at = `${shut.spec.url}/hostname`;
  assert.equal((await fetch(at)).status, 401, "without a token");
  const token = await shut.tokens.create(new Date(Date.now() + 60_000));
  const header = { "X-Blaxel-Preview-Token": token.value };
  const answer = await fetch(at, { headers: header });
  assert.equal(answer.status, 200, "with a token in the header");
  assert.equal(answer.headers.get("access-control-allow-origin"), "https://app.test");
  assert.equal((await fetch(`${at}?bl_preview_token=${token.value}`)).status, 200, "with a token in the query");
  assert.equal((await shut.tokens.list()).length, 1);
  await shut.tokens.delete(token.value);
  assert.equal((await fetch(at, { headers: header })).status, 401, "with a deleted token");
  assert.equal((await sandbox.previews.list()).length, 2);

  const session = await sandbox.sessions.create({ expiresAt: new Date(Date.now() + 60_000) });
  assert((await sandbox.sessions.list()).some((s) => s.name === session.name));
  const inside = await SandboxInstance.fromSession(session);
  await inside.fs.write("/tmp/from-session", "hello");
  assert.equal(await inside.fs.read("/tmp/from-session"), "hello", "a session");
  await sandbox.sessions.delete(session.name);
  await assert.rejects(inside.fs.read("/tmp/from-session"), "a deleted session");
  console.log("previews, tokens and sessions hold");
} finally {
  await SandboxInstance.delete("previewed");
}
