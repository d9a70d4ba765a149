// Builds images with the image builder of the unmodified client package. It exits with 0
// only if everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1,
// DO_NOT_TRACK=1.

import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { ImageInstance, SandboxInstance } = await import("@blaxel/core");

const api = async (path) => {
  const answer = await fetch(`${process.env.BL_API_URL}${path}`, {
    headers: { Authorization: `Bearer ${process.env.BL_API_KEY}`, "X-Blaxel-Workspace": process.env.BL_WORKSPACE },
  });
  assert.equal(answer.status, 200, path);
  return answer.json();
};

const files = mkdtempSync(join(tmpdir(), "doze-builder-"));
try {
  writeFileSync(join(files, "greeting"), "hello\n");
  const base = ImageInstance.fromRegistry("blaxel/slim:latest").workdir("/srv").env({ WHO: "built" }).addLocalFile(join(files, "greeting"), "/srv/greeting", "greeting");

  // A new sandbox.
  const statuses = [];
  const made = await base.runCommands("cat greeting >/srv/said && echo the step ran").build({ name: "built", memory: 512, onStatusChange: (s) => statuses.push(s) });
  assert.equal(made.status, "DEPLOYED");
  assert.match(made.spec.runtime.image, /^sandbox\/built:/);
  assert.equal(statuses.at(-1), "DEPLOYED");
  assert(statuses.some((s) => s === "UPLOADING" || s === "BUILDING"), `nothing was seen of the build: ${statuses}`);
  const sandbox = await SandboxInstance.get("built");
  assert.equal(await sandbox.fs.read("/srv/said"), "hello\n", "what a step wrote");
  const env = await sandbox.process.exec({ command: "echo $WHO", waitForCompletion: true });
  assert.equal(env.stdout, "built\n", "a variable of the image");
  await sandbox.fs.write("/srv/state", "of the first machine");

  const lines = (await api("/observability/logs?resourceType=sandboxes&workloadIds=built&type=all&limit=1000&offset=0")).built.logs;
  assert(lines.some((l) => l.message.includes("the step ran")), "the log has no output of the step");
  const stamps = lines.map((l) => l.timestamp + l.message);
  assert.equal(new Set(stamps).size, stamps.length, "two lines look the same to clients");

  // A build that fails leaves it as it is.
  await assert.rejects(base.runCommands("echo why it fails && exit 7").build({ name: "built", memory: 512 }), /Deployment failed/);
  assert.equal(await sandbox.fs.read("/srv/state"), "of the first machine", "a failed build changed the sandbox");
  const failed = (await api("/sandboxes/built")).events.at(-1).message;
  assert.match(failed, /RUN echo why it fails && exit 7/);
  assert.match(failed, /why it fails$/);

  // A build that works replaces it.
  const again = await base.runCommands("echo again >/srv/said").build({ name: "built", memory: 512 });
  assert.notEqual(again.spec.runtime.image, made.spec.runtime.image);
  const fresh = await SandboxInstance.get("built");
  assert.equal(await fresh.fs.read("/srv/said"), "again\n");
  await assert.rejects(fresh.fs.read("/srv/state"), "the files of the machine before");

  // Another sandbox begins with its image.
  const other = await SandboxInstance.create({ name: "other", image: "built", memory: 512 });
  assert.equal(await other.fs.read("/srv/said"), "again\n");
  const based = await ImageInstance.fromRegistry("built").runCommands("cat /srv/said >/srv/heard").build({ name: "based", memory: 512 });
  assert.equal(based.status, "DEPLOYED");
  assert.equal(await (await SandboxInstance.get("based")).fs.read("/srv/heard"), "again\n", "FROM an image of the workspace");
} finally {
  rmSync(files, { recursive: true, force: true });
}
