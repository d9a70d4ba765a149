// Drives drives with the unmodified client package. It exits with 0 only if
// everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { DriveInstance, SandboxInstance } = await import("@blaxel/core");

const drive = await DriveInstance.create({ name: "shared", labels: { for: "test" } });
assert.equal(drive.status, "DEPLOYED");
await assert.rejects(DriveInstance.create({ name: "shared" }), "its name is taken");
const [one, two] = await Promise.all(["one", "two"].map((name) => SandboxInstance.create({ name, memory: 512 })));
const mounted = await one.drives.mount({ driveName: "shared", mountPath: "/mnt/shared" });
assert.deepEqual([mounted.success, mounted.mountPath, mounted.drivePath], [true, "/mnt/shared", "/"]);
await two.drives.mount({ driveName: "shared", mountPath: "/elsewhere", drivePath: "/part", readOnly: true });
await one.fs.write("/mnt/shared/part/state", "shared");
assert.equal(await two.fs.read("/elsewhere/state"), "shared");
await assert.rejects(two.fs.write("/elsewhere/state", "altered"), "a read-only mount");
await assert.rejects(one.drives.mount({ driveName: "none", mountPath: "/x" }), "no such drive");
await assert.rejects(DriveInstance.delete("shared"), "a drive that is mounted");
assert.equal((await one.drives.list())[0].driveName, "shared");
await one.drives.unmount("/mnt/shared");
assert.equal((await one.drives.list()).length, 0);
await Promise.all(["one", "two"].map((name) => SandboxInstance.delete(name)));
for (const end = Date.now() + 30_000; ; ) {
  try {
    await DriveInstance.delete("shared");
    break;
  } catch (err) {
    assert(Date.now() < end, `the drive is in use: ${JSON.stringify(err)}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}
assert.equal((await DriveInstance.list()).data.length, 0);
console.log("drives hold");
