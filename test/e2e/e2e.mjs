// Drives the unmodified client package against a running server, from the
// first sandbox to its end, with a sleep in between. It prints one line for
// each step and exits with 0 only if all of them passed.
//
// Environment:
//   BL_API_URL           address of the control API, with /v0
//   BL_API_KEY           API key
//   BL_WORKSPACE         workspace of the key
//   BL_DISABLE_H2        must be 1: otherwise the package sends the calls of a
//                        sandbox, and the key, to the public service
//   DO_NOT_TRACK         must be 1: otherwise it reports errors there
//   E2E_IMAGE            image (blaxel/base-image:latest)
//   E2E_MEMORY           megabytes (512)
//   E2E_REGION           region (that of the server)
//   E2E_SLEEP_TIMEOUT_S  how long to wait for the sandbox to sleep (90)
//   E2E_ASLEEP_S         how long to leave it asleep (10)
//   E2E_PARTS            1: write a file of more than 5 MB too, which the
//                        package sends in parts

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

const required = { BL_API_URL: null, BL_API_KEY: null, BL_WORKSPACE: null, BL_DISABLE_H2: "1", DO_NOT_TRACK: "1" };
for (const [name, value] of Object.entries(required)) {
  if (!process.env[name] || (value && process.env[name] !== value)) {
    console.error(`FAIL environment: ${name} must be ${value ?? "set"}`);
    process.exit(2);
  }
}
process.env.BL_REGION ||= process.env.E2E_REGION ?? "";

const number = (name, otherwise) => {
  const n = Number(process.env[name] ?? otherwise);
  assert(Number.isFinite(n) && n > 0, `${name} must be a positive number`);
  return n;
};
const image = process.env.E2E_IMAGE ?? "blaxel/base-image:latest";
const memory = number("E2E_MEMORY", 512);
const sleepTimeout = number("E2E_SLEEP_TIMEOUT_S", 90) * 1000;
const asleepFor = number("E2E_ASLEEP_S", 10) * 1000;

const ticksPerSecond = 10;
const counter = `
import json, os, time
n, token = 0, os.urandom(8).hex()
while True:
    n += 1
    with open("/tmp/counter.new", "w") as f:
        json.dump({"n": n, "token": token}, f)
    os.replace("/tmp/counter.new", "/tmp/counter.json")
    time.sleep(${1 / ticksPerSecond})
`;

// Only now: the package reads the environment when it is loaded.
const { SandboxInstance } = await import("@blaxel/core");

const name = `e2e-${randomBytes(5).toString("hex")}`;
let sandbox;
let failed = 0;

// step runs one check. The first that fails ends the run, but for the clean-up.
class Stop extends Error {}
async function step(what, fn) {
  const began = performance.now();
  const took = () => `(${Math.round(performance.now() - began)} ms)`;
  try {
    const note = await fn();
    console.log(`PASS ${what} ${took()}${note ? `: ${note}` : ""}`);
  } catch (err) {
    failed++;
    // The package throws the body of an answer as it is, without a stack.
    const text = err instanceof Error ? err.message : JSON.stringify(err);
    console.log(`FAIL ${what} ${took()}: ${text.replaceAll("\n", " ")}`);
    throw new Stop();
  }
}

const state = async () => (await SandboxInstance.get(name)).sandbox.state;
const count = async () => JSON.parse(await sandbox.fs.read("/tmp/counter.json"));

async function until(what, timeout, ok) {
  for (const end = Date.now() + timeout; Date.now() < end; await sleep(200)) {
    if (await ok()) return;
  }
  assert.fail(`${what}: not within ${timeout / 1000} s`);
}

async function steps() {
  await step("create a sandbox", async () => {
    sandbox = await SandboxInstance.create({ name, image, memory, labels: { purpose: "e2e" }, envs: [{ name: "GREETING", value: "hello there" }] });
    assert.equal(sandbox.metadata.name, name);
    assert.equal(sandbox.status, "DEPLOYED");
    assert.equal(sandbox.spec.runtime.image, image);
    assert.equal(sandbox.spec.runtime.memory, memory);
    assert.ok(sandbox.metadata.url, "it has no url");
  });

  await step("create it again if it does not exist", async () => {
    const same = await SandboxInstance.createIfNotExists({ name, image, memory });
    assert.equal(same.metadata.createdAt, sandbox.metadata.createdAt);
  });

  await step("find it in the list", async () => {
    const page = await SandboxInstance.list({ q: name });
    const all = Array.isArray(page) ? page : page.data;
    assert.ok(all.some((s) => s.metadata.name === name), "it is not there");
  });

  await step("exec and wait", async () => {
    const p = await sandbox.process.exec({ command: 'echo "$GREETING"; echo oops >&2; exit 3', waitForCompletion: true });
    assert.equal(p.exitCode, 3);
    assert.equal(p.status, "failed");
    assert.equal(p.stdout, "hello there\n");
    assert.equal(p.stderr, "oops\n");
  });

  await step("exec with callbacks", async () => {
    let out = "";
    let err = "";
    let first = 0;
    const p = await sandbox.process.exec({
      command: "for i in 1 2 3; do echo out$i; echo err$i >&2; sleep 0.3; done",
      waitForCompletion: true,
      onStdout: (s) => { first ||= performance.now(); out += s; },
      onStderr: (s) => { err += s; },
    });
    const lines = (s) => s.split("\n").filter(Boolean);
    assert.deepEqual(lines(out), ["out1", "out2", "out3"]);
    assert.deepEqual(lines(err), ["err1", "err2", "err3"]);
    assert.equal(p.exitCode, 0);
    const early = performance.now() - first;
    assert.ok(early > 500, `the first output came only ${Math.round(early)} ms before the end`);
  });

  await step("follow the log of a process", async () => {
    const seen = [];
    const p = await sandbox.process.exec({ name: "chatty", command: "for i in 1 2 3; do echo line$i; sleep 0.1; done" });
    const stream = sandbox.process.streamLogs(p.pid, { onStdout: (s) => seen.push(s) });
    await stream.wait();
    assert.deepEqual(seen, ["line1", "line2", "line3"]);
    assert.equal((await sandbox.process.get("chatty")).status, "completed");
    assert.equal(await sandbox.process.logs("chatty", "stdout"), "line1\nline2\nline3\n");
  });

  await step("stop a process", async () => {
    await sandbox.process.exec({ name: "lazy", command: "sleep 1000" });
    await sandbox.process.stop("lazy");
    assert.equal((await sandbox.process.get("lazy")).status, "stopped");
  });

  await step("write and read text", async () => {
    const text = 'naïve "quotes" \\ \n\ttabs, 日本語, 🙂\n';
    await sandbox.fs.write("/tmp/a dir/näme.txt", text);
    assert.equal(await sandbox.fs.read("/tmp/a dir/näme.txt"), text);
  });

  const blobs = [["binary", 1 << 20]];
  if (process.env.E2E_PARTS === "1") blobs.push(["binary in parts", 6 << 20]);
  for (const [what, size] of blobs) {
    await step(`write and read ${what}`, async () => {
      const bytes = randomBytes(size);
      await sandbox.fs.writeBinary("/tmp/blob.bin", bytes);
      const back = Buffer.from(await (await sandbox.fs.readBinary("/tmp/blob.bin")).arrayBuffer());
      assert.ok(back.equals(bytes), `${back.length} bytes came back, or others`);
    });
  }

  await step("write a tree and list it", async () => {
    await sandbox.fs.writeTree([{ path: "a.txt", content: "A" }, { path: "sub/b.txt", content: "B" }], "/tmp/tree");
    const dir = await sandbox.fs.ls("/tmp/tree");
    assert.deepEqual(dir.files.map((f) => f.name), ["a.txt"]);
    assert.deepEqual(dir.subdirectories.map((d) => d.name), ["sub"]);
    assert.equal(await sandbox.fs.read("/tmp/tree/sub/b.txt"), "B");
  });

  await step("a file that is not there is an error", async () => {
    await assert.rejects(sandbox.fs.read("/tmp/nothing"));
  });

  let before;
  let beforeAt;
  let running; // its last moment awake, as far as we know
  await step("start a process that counts in memory", async () => {
    await sandbox.fs.write("/tmp/counter.py", counter);
    await sandbox.process.exec({ name: "counter", command: "python3 /tmp/counter.py" });
    await until("the counter starts", 15_000, async () => {
      try { return (await count()).n > 5; } catch { return false; }
    });
    before = await count();
    beforeAt = Date.now();
    return `at ${before.n}`;
  });

  await step("it falls asleep when nobody calls", async () => {
    await until("STANDBY", sleepTimeout, async () => {
      running = Date.now();
      return (await state()) === "STANDBY";
    });
  });

  let wokenAt;
  await step("looking at it does not wake it", async () => {
    for (const end = Date.now() + asleepFor; Date.now() < end; await sleep(500)) {
      assert.equal(await state(), "STANDBY");
    }
  });

  await step("the next call wakes it where it was", async () => {
    wokenAt = Date.now();
    const after = await count();
    const now = Date.now();
    // What it can have counted: the time that it was awake, and some slack for
    // the moments between our looks.
    const awake = running - beforeAt + (now - wokenAt);
    const most = before.n + Math.ceil((awake / 1000 + 2) * ticksPerSecond);
    const slept = wokenAt - running;
    assert.equal(after.token, before.token, "the process was restarted");
    assert.ok(after.n >= before.n, `it went back from ${before.n} to ${after.n}`);
    assert.ok(after.n <= most, `it counted to ${after.n} while it slept; ${most} is the most`);
    await until("RUNNING", 5_000, async () => (await state()) === "RUNNING");
    await until("it counts on", 10_000, async () => (await count()).n > after.n);
    return `${before.n} before, ${after.n} after ${(slept / 1000).toFixed(1)} s of sleep; the call took ${now - wokenAt} ms`;
  });

  await step("the process is still known", async () => {
    assert.equal((await sandbox.process.get("counter")).status, "running");
    await sandbox.process.kill("counter");
  });
}

try {
  await steps();
} catch (err) {
  if (!(err instanceof Stop)) throw err;
} finally {
  if (sandbox) {
    await step("delete", async () => {
      await SandboxInstance.delete(name);
      await until("it is gone", 30_000, async () => {
        try {
          return (await SandboxInstance.get(name)).status === "TERMINATED";
        } catch (err) {
          assert.equal(err.code, 404);
          return true;
        }
      });
      await assert.rejects(sandbox.fs.ls("/"), "it still answers");
    }).catch(() => {});
  }
}
console.log(failed ? `FAIL ${failed} step(s)` : "PASS all");
process.exit(failed ? 1 : 0);
