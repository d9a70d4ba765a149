// Drives snapshots, forks, restore and archives with the unmodified client
// package. It exits with 0 only if everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { SandboxInstance, Snapshot } = await import("@blaxel/core");

const sandbox = await SandboxInstance.create({ name: "origin", memory: 512, envs: [{ name: "WHO", value: "origin" }] });
await sandbox.fs.write("/root/state", "before");
const taken = await sandbox.snapshots.create("first");
assert.equal(taken.status, "ready");
assert.equal((await sandbox.snapshots.get("first")).id, taken.id);
assert.equal((await sandbox.snapshots.list()).length, 1);
assert.equal((await Snapshot.get(taken.id)).name, "first");
await assert.rejects(sandbox.snapshots.create("first"), "a name that is taken");

await sandbox.fs.write("/root/state", "after");
const forked = await taken.fork("copy", { envs: [{ name: "WHO", value: "copy" }] });
assert.deepEqual([forked.name, forked.type, forked.snapshotId], ["copy", "sandbox", taken.id]);
const copy = await SandboxInstance.get("copy");
assert.equal(await copy.fs.read("/root/state"), "before", "the file of a fork");
const said = await copy.process.exec({ command: "echo $WHO; hostname", waitForCompletion: true });
assert.equal(said.stdout, "copy\ncopy\n", "the identity of a fork");
const live = await sandbox.fork("live");
assert.equal(live.name, "live");
assert.equal(await (await SandboxInstance.get("live")).fs.read("/root/state"), "after", "a fork of the live sandbox");
await assert.rejects(sandbox.fork("live"), "a name that is taken");

const restored = await sandbox.snapshots.restore("first");
assert.equal(restored.snapshotId, taken.id);
assert.equal(await sandbox.fs.read("/root/state"), "before", "a restored file");

await copy.process.exec({ name: "web", command: "python3 -m http.server 3000 --directory /root", waitForPorts: [3000] });
await copy.archive();
assert.equal(copy.status, "ARCHIVED");
await assert.rejects(copy.fs.read("/root/state"), "an archived sandbox");
await copy.unarchive();
assert.equal(copy.status, "DEPLOYED");
assert.equal(await copy.fs.read("/root/state"), "before", "a file out of an archive");
assert.equal((await copy.process.get("web")).status, "running", "a process out of an archive");

for (const name of ["origin", "copy", "live"]) {
  await SandboxInstance.delete(name);
}
assert.equal((await Snapshot.get(taken.id)).source.deleted, true);
await taken.delete();
await assert.rejects(Snapshot.get(taken.id), "a deleted snapshot");
console.log("snapshots, forks, restore and archives hold");
