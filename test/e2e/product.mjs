// Drives what a product needs every day with the unmodified client package: ports,
// labels, regions, network rules, deadlines, upgrades, rights of drives, output that
// outlives its sandbox. It exits with 0 only if everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1. The platform answers to the regions local and us-pdx-1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { DriveInstance, SandboxInstance, VolumeInstance, listSandboxes, updateSandbox } = await import("@blaxel/core");

const names = (page) => page.data.map((s) => s.metadata.name);
// until polls: a machine under load may take long.
const until = async (what, check) => {
  for (const end = Date.now() + 60_000; !(await check()); await new Promise((done) => setTimeout(done, 100))) {
    assert(Date.now() < end, `${what} does not happen`);
  }
};
const run = async (box, command) => (await box.process.exec({ command, waitForCompletion: true })).stdout;
const put = async (name, spec) => {
  const { data } = await updateSandbox({ path: { sandboxName: name }, body: { metadata: { name }, spec }, throwOnError: true });
  return data;
};
// call asks for what the package has no function for.
const call = async (path) => {
  const answer = await fetch(process.env.BL_API_URL + path, { headers: { authorization: `Bearer ${process.env.BL_API_KEY}` } });
  return { status: answer.status, body: await answer.json() };
};

// Ports have names and lead somewhere; to change them replaces no machine.
const web = await SandboxInstance.create({ name: "web", memory: 512, ports: [{ name: "site", target: 3000 }], labels: { team: "red", tier: "front" } });
await web.process.exec({ name: "site", command: "python3 -m http.server 3000 --directory /etc", keepAlive: true });
await until("the site answers", async () => (await web.fetch(3000, "/hostname")).status === 200);
const boot = await run(web, "cat /proc/sys/kernel/random/boot_id");
const changed = await put("web", { runtime: { ...web.spec.runtime, ports: [{ name: "site", target: 3000 }, { name: "admin", target: 3001, protocol: "HTTP" }] } });
assert.deepEqual(changed.spec.runtime.ports.map((p) => [p.name, p.target]), [["site", 3000], ["admin", 3001]]);
assert.equal((await web.fetch(3000, "/hostname")).status, 200, "the site after its ports were changed");
assert.equal(await run(web, "cat /proc/sys/kernel/random/boot_id"), boot, "the machine is the same");

// What the specification says of metadata and events.
assert.equal(web.metadata.plan, "self-hosted");
for (const event of changed.events) assert(event.revision && event.canaryRevision, `an event without a revision: ${JSON.stringify(event)}`);

// Labels filter lists, also those that are arrays of another kind.
await SandboxInstance.create({ name: "worker", memory: 512, labels: { team: "red", tier: "back" } });
assert.deepEqual(names(await SandboxInstance.list({ labels: "team=red", sort: "name:asc" })), ["web", "worker"]);
assert.deepEqual(names(await SandboxInstance.list({ labels: ["team=red", "tier=back"] })), ["worker"]);
await VolumeInstance.create({ name: "data", size: 32, labels: { team: "red" } });
const volumes = await call("/volumes?labels=team%3Dred");
assert.deepEqual((volumes.body.data ?? volumes.body).map((v) => v.metadata.name), ["data"]);
const none = await call("/volumes?labels=team%3Dblue");
assert.deepEqual(none.body.data ?? none.body, []);

// One place answers to several regions.
const west = await SandboxInstance.create({ name: "west", memory: 512, region: "us-pdx-1" });
assert.equal(west.spec.region, "us-pdx-1");
assert.equal(await run(west, "echo here"), "here\n");
await assert.rejects(SandboxInstance.create({ name: "east", memory: 512, region: "eu-lon-1" }), (e) => e.code === 400, "a region of somebody else");

// A PUT without network rules leaves them, and an empty object removes them.
await put("worker", { network: { allowedDomains: ["example.com"] } });
const aged = await SandboxInstance.updateTtl("worker", "1h");
assert.deepEqual(aged.spec.network.allowedDomains, ["example.com"], "rules after a PUT of something else");
const free = await put("worker", { network: {} });
assert.equal(free.spec.network?.allowedDomains, undefined, "rules that were removed");

// An upgrade without anything new counts.
const before = await worker("upgradeCount");
await (await SandboxInstance.get("worker")).system.upgrade({});
await until("the upgrade is counted", async () => (await worker("upgradeCount")) === before + 1);
async function worker(member) {
  const box = await SandboxInstance.get("worker");
  const answer = await fetch(`${box.metadata.url}/health`, { headers: { authorization: `Bearer ${process.env.BL_API_KEY}` } });
  return (await answer.json())[member];
}

// A drive says who may mount it.
await DriveInstance.create({ name: "theirs", permissions: [{ labels: { team: "blue" } }] });
await assert.rejects(web.drives.mount({ driveName: "theirs", mountPath: "/mnt/theirs" }), (e) => /permission denied/i.test(`${e.message} ${JSON.stringify(e)}`));

// A deadline is over a moment after it. A busy machine takes seconds to start a sandbox.
const short = await SandboxInstance.create({ name: "short", memory: 512, ttl: "8s" });
await new Promise((done) => setTimeout(done, Math.max(0, Date.parse(short.metadata.createdAt) + 8100 - Date.now())));
const over = await SandboxInstance.get("short").then((s) => s.status, (e) => (e.code === 404 ? "TERMINATED" : Promise.reject(e)));
assert.equal(over, "TERMINATED", "100 ms after its deadline");

// Output outlives its sandbox.
await run(web, "echo the last words; echo a mistake >&2");
await until("its output is stored", async () => {
  const { body } = await call("/observability/logs?resourceType=sandbox&workloadIds=web&search=last%20words");
  return body.web?.logs.length > 0;
});
await SandboxInstance.delete("web");
await until("it has ended", async () => (await listSandboxes({ query: { q: "web" } })).data.data.every((s) => s.metadata.name !== "web" || s.status === "TERMINATED"));
const left = await call("/observability/logs?resourceType=sandbox&workloadIds=web&search=last%20words");
assert(left.body.web.logs.some((line) => line.message.includes("the last words")), JSON.stringify(left.body));

// A path that does not exist is named.
const lost = await call("/sandboxen");
assert.equal(lost.status, 404);
assert.match(lost.body.message, /\/v0\/sandboxen/);
console.log("the product holds");
