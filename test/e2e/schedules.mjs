// Drives schedules, and the records around sandboxes that need none, with the
// unmodified client package. It exits with 0 only if everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const {
  SandboxInstance, listSchedules, listScheduleExecutions, getSandboxScheduleMetrics,
  getConfiguration, listLocations, listImages, createPolicy, listPolicies, deletePolicy,
} = await import("@blaxel/core");

// until polls: a machine under load may take long.
const until = async (what, holds) => {
  for (const end = Date.now() + 60_000; ; await new Promise((r) => setTimeout(r, 100))) {
    const got = await holds();
    if (got) return got;
    assert(Date.now() < end, `${what} takes too long`);
  }
};

const answer = async (call, options = {}) => (await call({ ...options, throwOnError: true })).data;
assert.equal((await answer(getConfiguration)).regions[0].name, "local");
assert.equal((await answer(listLocations))[0].status, "healthy");
assert.deepEqual(await answer(listImages), []);
await answer(createPolicy, { body: { metadata: { name: "near" }, spec: { type: "location", locations: [{ type: "location", name: "local" }] } } });
assert.deepEqual((await answer(listPolicies)).data.map((p) => p.metadata.name), ["near"]);
await answer(deletePolicy, { path: { policyName: "near" } });

const sandbox = await SandboxInstance.create({ name: "planned", memory: 512 });
const nightly = await sandbox.schedules.create({ type: "cron", value: "0 3 * * *", input: { command: "true", env: { TOKEN: "t" } } });
assert.equal(nightly.id, "schedule-0");
assert.equal(nightly.input.env.TOKEN, "********");
const changed = await sandbox.schedules.update(nightly.id, { ...nightly, value: "30 3 * * 1-5" });
assert.equal(changed.value, "30 3 * * 1-5");
await assert.rejects(sandbox.schedules.create({ type: "cron", value: "61 * * * *", input: { command: "true" } }), (e) => e.code === 400);
await assert.rejects(sandbox.schedules.get("none"), (e) => e.code === 404);

// One that finds its sandbox asleep.
await until("sleep", async () => (await SandboxInstance.get("planned")).sandbox.state === "STANDBY");
const once = await sandbox.schedules.create({
  id: "once", type: "sleep", value: "2s", input: { command: "echo $WHO > /root/ran", name: "once", env: { WHO: "me" }, keepAlive: false },
});
assert.equal(once.type, "at");
assert.deepEqual((await sandbox.schedules.list({ sort: "createdAt:asc" })).data.map((s) => s.id), ["schedule-0", "once"]);
const [ran] = await until("the execution", async () => {
  const { data } = await sandbox.schedules.executions();
  return data.length > 0 && data;
});
assert.deepEqual([ran.scheduleId, ran.status, ran.statusCode, ran.processName, ran.sandbox], ["once", "succeeded", 200, "once", "planned"], ran.error);
await until("the file", async () => (await sandbox.fs.read("/root/ran").catch(() => "")) === "me\n");
await assert.rejects(sandbox.schedules.get("once"), (e) => e.code === 404, "one of the past");

assert.equal((await answer(listSchedules, { query: { sandbox: "planned" } })).data.length, 1);
assert.equal((await answer(listScheduleExecutions, { query: { status: "succeeded" } })).meta.total, 1);
assert.equal((await answer(getSandboxScheduleMetrics)).schedules, 1);
await sandbox.schedules.delete(nightly.id);
assert.equal((await sandbox.schedules.list()).data.length, 0);
await sandbox.delete();
console.log("schedules: everything holds");
