// Drives the records of sandboxes with the unmodified client package: external
// ids, pages, updates, every kind of deadline. It exits with 0 only if everything
// holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { SandboxInstance } = await import("@blaxel/core");

const create = (name, more = {}) => SandboxInstance.create({ name, memory: 512, ...more });
const found = async (externalId) => (await SandboxInstance.getByExternalId(externalId)).metadata.name;
const missing = (e) => e.code === 404;
// gone polls until a sandbox has ended: a machine under load may take long.
const gone = async (name) => {
  for (const end = Date.now() + 60_000; ; await new Promise((r) => setTimeout(r, 100))) {
    const status = await SandboxInstance.get(name).then((s) => s.status, (e) => (missing(e) ? "TERMINATED" : Promise.reject(e)));
    if (status === "TERMINATED") return;
    assert(Date.now() < end, `${name} is ${status}`);
  }
};

const first = await create("first", { externalId: "order-7", labels: { team: "Red" }, envs: [{ name: "TOKEN", value: "s3cret", secret: true }] });
assert.equal(first.metadata.externalId, "order-7");
assert.equal(await found("order-7"), "first");
await create("second", { externalId: "order-7" });
assert.equal(await found("order-7"), "second", "the youngest");
assert.deepEqual((await SandboxInstance.list({ externalId: "order-7", sort: "name:asc" })).data.map((s) => s.metadata.name), ["first", "second"]);
await SandboxInstance.delete("second");
assert.equal(await found("order-7"), "first", "one that has ended does not count");
await assert.rejects(SandboxInstance.getByExternalId("none"), missing);
await assert.rejects(create("first"), (e) => e.code === 409 || e.code === "SANDBOX_ALREADY_EXISTS", "a name that is taken");
const [one, other] = await Promise.all([1, 2].map(() => SandboxInstance.createIfNotExists({ name: "third", memory: 512 })));
assert.equal(one.metadata.createdAt, other.metadata.createdAt, "two callers get one");

const page = await SandboxInstance.list({ limit: 1, sort: "name:asc" });
assert.deepEqual([page.data.length, page.hasMore, page.meta.total >= 2], [1, true, true]);
const names = [];
for await (const s of page) names.push(s.metadata.name);
assert.deepEqual(names.filter((name) => name !== "second"), ["first", "third"], "all pages");
assert.deepEqual((await SandboxInstance.list({ q: "rED" })).data.map((s) => s.metadata.name), ["first"], "a search");

const renamed = await SandboxInstance.updateMetadata("first", { displayName: "The first", labels: { team: "Blue" } });
assert.deepEqual([renamed.metadata.displayName, renamed.metadata.labels.team, renamed.metadata.externalId], ["The first", "Blue", "order-7"]);
const kept = await renamed.process.exec({ command: "echo $TOKEN", waitForCompletion: true });
assert.equal(kept.stdout, "s3cret\n", "an update leaves secrets as they are");

const aged = await SandboxInstance.updateTtl("first", "1h");
assert(aged.expiresIn > 3000 && aged.expiresIn <= 3600, `it expires in ${aged.expiresIn}`);
const ageless = await SandboxInstance.updateTtl("first", null);
assert.equal(ageless.expiresIn, undefined, "without a ttl");
const policy = (type, value) => ({ expirationPolicies: [{ type, value, action: "delete" }] });
const combined = await SandboxInstance.updateLifecycle("first", {
  expirationPolicies: [...policy("ttl-max-age", "2h").expirationPolicies, ...policy("ttl-idle", "30m").expirationPolicies],
});
assert(combined.expiresIn > 1000 && combined.expiresIn <= 1800, `it expires in ${combined.expiresIn}`);
await assert.rejects(SandboxInstance.updateLifecycle("first", policy("date", "2020-01-01T00:00:00Z")), (e) => e.code === 400, "a date of the past");
assert.equal((await SandboxInstance.get("first")).status, "DEPLOYED", "a refused update ends nothing");

await SandboxInstance.updateLifecycle("first", policy("date", new Date(Date.now() + 20_000).toISOString()));
// It is used just now: a time without use that is over already would be refused.
await (await SandboxInstance.get("third")).process.exec({ command: "true", waitForCompletion: true });
await SandboxInstance.updateLifecycle("third", policy("ttl-idle", "5s"));
await Promise.all([gone("first"), gone("third")]);
await assert.rejects(SandboxInstance.getByExternalId("order-7"), missing);
await create("first", { expires: new Date(Date.now() + 3600_000) }).then((s) => s.delete());
console.log("records hold");
