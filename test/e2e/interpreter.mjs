// Drives the code interpreter with the unmodified client package: contexts, output, results,
// errors, state, languages, callbacks, the time limit, and a sleep on disk. It exits with 0
// only if everything holds.
//
// Environment: BL_API_URL, BL_API_KEY, BL_WORKSPACE, BL_DISABLE_H2=1, DO_NOT_TRACK=1.

import assert from "node:assert/strict";

for (const name of ["BL_API_URL", "BL_API_KEY", "BL_WORKSPACE", "BL_DISABLE_H2", "DO_NOT_TRACK"]) {
  assert(process.env[name], `${name} must be set`);
}
const { CodeInterpreter } = await import("@blaxel/core");

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const patient = 300; // seconds: a kernel starts slowly on a busy host

const interpreter = await CodeInterpreter.create({ name: "interpreter", memory: 4096 });
// The program of the image may still be starting.
for (const end = Date.now() + 120_000; ; await pause(500)) {
  const answer = await interpreter.fetch(8888, "/health").catch(() => null);
  if (answer?.ok) break;
  assert(Date.now() < end, "the interpreter does not start");
}
const run = (code, options = {}) => interpreter.runCode(code, { timeout: patient, ...options });

// Output and results, with and without callbacks.
const heard = { out: [], err: [], results: [], errors: [] };
const first = await run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = 41\nx + 1", {
  onStdout: (m) => heard.out.push(m), onStderr: (m) => heard.err.push(m),
  onResult: (r) => heard.results.push(r), onError: (e) => heard.errors.push(e),
});
assert.equal(first.logs.stdout.join(""), "out\n");
assert.equal(first.logs.stderr.join(""), "err\n");
assert.equal(first.results[0].text, "42");
assert.equal(first.error, null);
assert.equal(first.executionCount, 1);
assert.equal(heard.out[0].text, "out\n");
assert(heard.out[0].timestamp > 1e9 && !heard.out[0].isStderr && heard.err[0].isStderr);
assert.equal(heard.results.length, 1);
assert.equal(heard.errors.length, 0);

// State, and an error with its traceback.
assert.equal((await run("x")).results[0].text, "41");
const failed = await run("def f():\n    return 1 / 0\nf()", { onError: (e) => heard.errors.push(e) });
assert.equal(failed.error.name, "ZeroDivisionError");
assert.equal(failed.error.value, "division by zero");
assert.match(failed.error.traceback, /in f\(\)/);
assert.equal(heard.errors[0].name, "ZeroDivisionError");

// Results with types.
const plot = await run("import matplotlib.pyplot as plt\nplt.plot([1, 2, 3])\nplt.show()");
assert.equal(plot.error, null);
const png = plot.results.find((r) => r.png);
assert.equal(Buffer.from(png.png, "base64").subarray(1, 4).toString(), "PNG");
const table = await run("import pandas\npandas.DataFrame({'a': [1, 2]})");
assert.match(table.results[0].html, /<table/);
assert.match(table.results[0].text, /a/);

// Variables last for one execution.
const variable = "import os; print(os.environ.get('GREETING'))";
assert.equal((await run(variable, { envs: { GREETING: "hello" } })).logs.stdout.join(""), "hello\n");
assert.equal((await run(variable)).logs.stdout.join(""), "None\n");

// Contexts know nothing of each other, and run at once. One context takes turns.
const [a, b] = [await interpreter.createCodeContext({ cwd: "/tmp" }), await interpreter.createCodeContext({ language: "python" })];
assert(a.id && b.id && a.id !== b.id);
assert.equal((await run("import os; os.getcwd()", { context: a })).results[0].text, "'/tmp'");
assert.equal((await run("x", { context: a })).error.name, "NameError");
const meet = (mine, other) => `import os, time
open('/tmp/${mine}', 'w').close()
for _ in range(600):
    if os.path.exists('/tmp/${other}'): break
    time.sleep(0.1)
os.path.exists('/tmp/${other}')`;
const met = await Promise.all([run(meet("a", "b"), { context: a }), run(meet("b", "a"), { context: b })]);
assert.deepEqual(met.map((m) => m.results[0].text), ["True", "True"]);
const turns = await Promise.all([run("import time; n = 1; time.sleep(1); n += 1; n", { context: a }), run("n = 10; n", { context: a })]);
assert.deepEqual(turns.map((m) => m.results[0].text), ["2", "10"]);

// Other languages, and requests that cannot be served.
const typed = await run("const n: number = 20; console.log(n + 1)", { language: "typescript" });
assert.equal(typed.logs.stdout.join(""), "21\n");
assert.equal((await run("console.log(n)", { language: "typescript" })).logs.stdout.join(""), "20\n");
assert.equal((await run("throw new TypeError('no')", { language: "javascript" })).error.name, "TypeError");
assert.equal((await run("console.log(1 + 1)", { language: "javascript" })).logs.stdout.join(""), "2\n");
await assert.rejects(run("1", { language: "cobol" }), /status: 400[\s\S]*python/);
await assert.rejects(run("1", { context: { id: "none" } }), /status: 404/);

// The time limit of the client interrupts the code, and the state stays.
await assert.rejects(run("import time\ny = 5\ntime.sleep(600)", { timeout: 5 }), /timeout/);
assert.equal((await run("y", { timeout: 60 })).results[0].text, "5");

// A kernel that ends is replaced.
assert.equal((await run("import os; os._exit(1)", { context: b })).error.name, "KernelDied");
assert.equal((await run("1 + 1", { context: b })).results[0].text, "2");

// The state survives a sleep on disk.
const asleep = `${process.env.BL_API_URL}/sandboxes/interpreter/sleep?tier=disk`;
const headers = { Authorization: `Bearer ${process.env.BL_API_KEY}` };
for (const end = Date.now() + 120_000; ; await pause(1000)) { // 409 while it is in use
  const answer = await fetch(asleep, { method: "POST", headers });
  if (answer.ok) break;
  assert(answer.status === 409 && Date.now() < end, `sleep: ${answer.status} ${await answer.text()}`);
}
assert.equal((await run("x + 1")).results[0].text, "42");
assert.equal((await run("console.log(n)", { language: "typescript" })).logs.stdout.join(""), "20\n");
await interpreter.delete();
process.exit(0);
