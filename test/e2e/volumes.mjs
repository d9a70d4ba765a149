// Drives volumes with the unmodified client package. It exits with 0 only if
// everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { SandboxInstance, VolumeInstance, getVolume } = await import("@blaxel/core");

const volume = await VolumeInstance.create({ name: "data", size: 64, labels: { for: "test" } });
assert.equal(volume.size, 64);
assert.equal((await VolumeInstance.createIfNotExists({ name: "data", size: 64 })).name, "data");
const attach = (name, mountPath, readOnly) => SandboxInstance.create({ name, memory: 512, volumes: [{ name: "data", mountPath, readOnly }] });
const attachedTo = async () => (await getVolume({ path: { volumeName: "data" }, throwOnError: true })).data.state.attachedTo;
const free = async () => {
  for (const end = Date.now() + 30_000; await attachedTo(); ) {
    assert(Date.now() < end, "the volume is not free");
    await new Promise((done) => setTimeout(done, 50));
  }
};

const first = await attach("first", "/mnt/data", false);
assert.equal(await attachedTo(), "sandbox:first");
await first.fs.write("/mnt/data/state", "kept");
await assert.rejects(attach("second", "/mnt/data", false), "one sandbox at a time");
await assert.rejects(VolumeInstance.delete("data"), "a volume that is attached");
await VolumeInstance.update("data", { size: 128 });
await assert.rejects(VolumeInstance.update("data", { size: 64 }), "a volume does not become smaller");
await SandboxInstance.delete("first");
await free();

const second = await attach("second", "/elsewhere", true);
assert.equal(await second.fs.read("/elsewhere/state"), "kept");
await assert.rejects(second.fs.write("/elsewhere/state", "altered"), "a read-only volume");
const size = await second.process.exec({ command: "df -m --output=size /elsewhere | tail -1", waitForCompletion: true });
assert(Number(size.stdout) > 100, `of 128 MB it sees ${size.stdout}`);
await SandboxInstance.delete("second");
await free();
assert.equal((await VolumeInstance.list()).data.length, 1);
await VolumeInstance.delete("data");
await assert.rejects(VolumeInstance.get("data"), "a deleted volume");
console.log("volumes hold");
