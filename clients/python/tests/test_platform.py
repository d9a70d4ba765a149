"""The client against a real platform. DOZE_ADDRESS and DOZE_KEY name it."""

from __future__ import annotations

import asyncio
import io
import os
import time
import unittest

import httpx

from doze import AsyncDoze, Doze, Sandbox, _codec, errors


@unittest.skipUnless(os.environ.get("DOZE_ADDRESS"), "SKIPPED: DOZE_ADDRESS names no platform")
class Platform(unittest.TestCase):
    """One sandbox for all tests: each takes a second to start."""

    doze: Doze
    sandbox: Sandbox

    @classmethod
    def setUpClass(cls) -> None:
        cls.doze = Doze()
        cls.addClassCleanup(cls.doze.close)
        cls.sandbox = cls.doze.sandboxes.create("python", memory=512, envs={"COLOR": "green"}, labels={"team": "a"}, ports=[3000])
        cls.addClassCleanup(cls.sandbox.delete)

    def test_files(self) -> None:
        fs = self.sandbox.fs
        fs.write("/srv/text/ä b.txt", "hello\n", permissions="0600")
        self.assertEqual(fs.read("/srv/text/ä b.txt"), "hello\n")
        content = bytes(range(256)) * 100
        fs.write("/srv/bytes", content, permissions="0640")
        self.assertEqual(fs.read_bytes("/srv/bytes"), content)
        fs.write("/srv/stream", io.BytesIO(content))
        self.assertEqual(fs.read_bytes("/srv/stream"), content)
        fs.mkdir("/srv/empty")
        listing = fs.ls("/srv")
        self.assertEqual({f.name: (f.size, f.permissions) for f in listing.files}["bytes"], (len(content), "640"))
        self.assertIn("empty", [d.name for d in listing.subdirectories])
        fs.write_tree("/srv/tree", {"src/main.py": "print('needle')\n", "empty": None})
        self.assertEqual(fs.find("/srv/tree", patterns=["*.py"]), ["src/main.py"])
        self.assertEqual([(m.path, m.line) for m in fs.grep("needle", "/srv/tree").matches], [("src/main.py", 1)])
        fs.write("relative/a.txt", "r")
        self.assertEqual(self.sandbox.process.exec("cat relative/a.txt", wait=True).stdout, "r")
        fs.delete("/srv/tree", recursive=True)
        with self.assertRaises(errors.NotFound):
            fs.read("/srv/tree/empty")
        with self.assertRaisesRegex(errors.DozeError, "use ls"):
            fs.read("/srv")
        with self.assertRaisesRegex(errors.DozeError, "use read"):
            fs.ls("/srv/bytes")

    def test_watch(self) -> None:
        fs = self.sandbox.fs
        fs.mkdir("/srv/watched")
        process = self.sandbox.process.exec("sh -c 'while sleep 0.2; do echo x >> /srv/watched/a.txt; done'")
        try:
            event = next(iter(fs.watch("/srv/watched")))
            self.assertEqual((event.name, event.path), ("a.txt", "/srv/watched"))
        finally:
            self.sandbox.process.kill(process.name)

    def test_processes(self) -> None:
        run = self.sandbox.process
        done = run.exec("echo $COLOR $SHADE; echo oops >&2; exit 3", env={"SHADE": "dark"}, cwd="/srv", wait=True, timeout=30)
        self.assertEqual((done.stdout, done.stderr, done.exit_code, done.status), ("green dark\n", "oops\n", 3, "failed"))
        out: list[str] = []
        err: list[str] = []
        done = run.exec("echo a; echo b >&2; echo c", on_stdout=out.append, on_stderr=err.append)
        self.assertEqual(("".join(out), "".join(err), done.exit_code), ("a\nc\n", "b\n", 0))
        with self.assertRaises(errors.Unprocessable):
            run.exec("true", cwd="/none", on_stdout=out.append)

        reader = run.exec("cat", name="reader", stdin=True)
        self.assertEqual((reader.name, reader.status), ("reader", "running"))
        run.write_stdin("reader", "first\nsecond\n")
        run.close_stdin("reader")
        self.assertEqual([(o.stream, o.text) for o in run.stream_logs("reader")], [("stdout", "first"), ("stdout", "second")])
        self.assertEqual(run.get("reader").exit_code, 0)
        self.assertEqual(run.logs("reader").logs, "first\nsecond\n")
        self.assertIn("reader", [p.name for p in run.list()])

        run.exec("sleep 1000", name="sleeper")
        with self.assertRaisesRegex(errors.Invalid, "already exists"):
            run.exec("sleep 1000", name="sleeper")
        run.stop("sleeper")
        with self.assertRaises(errors.NotFound):
            run.kill("nobody")

    def test_previews(self) -> None:
        self.sandbox.fs.write("/srv/www/index.html", "a page")
        self.sandbox.process.exec("python3 -m http.server -d /srv/www 3000", name="server", wait_for_ports=[3000])
        preview = self.sandbox.previews.create(3000, public=False)
        self.assertEqual([p.metadata.name for p in self.sandbox.previews.list()], ["port-3000"])
        token = self.sandbox.previews.create_token("port-3000", expires_at="2099-01-01T00:00:00Z")
        assert preview.spec.url
        self.assertEqual(httpx.get(preview.spec.url).status_code, 401)
        self.assertEqual(httpx.get(preview.spec.url, params={"bl_preview_token": token}, follow_redirects=False).status_code // 100 in (2, 3), True)
        self.sandbox.previews.delete("port-3000")
        self.assertEqual(self.sandbox.previews.list(), [])
        self.assertEqual(self.sandbox.api.port_get(3000, "index.html"), b"a page")

    def test_sandboxes(self) -> None:
        with self.assertRaises(errors.Conflict) as caught:
            self.doze.sandboxes.create("python")
        self.assertEqual(caught.exception.code, "SANDBOX_ALREADY_EXISTS")
        self.assertEqual(self.doze.sandboxes.create("python", exist_ok=True).name, "python")
        self.assertEqual([s.name for s in self.doze.sandboxes.list(labels={"team": "a"})], ["python"])
        self.assertEqual([s.name for s in self.doze.sandboxes.list(labels={"team": "b"})], [])
        with self.assertRaises(errors.NotFound):
            self.doze.sandboxes.get("nobody")
        with self.assertRaises(errors.Invalid) as wrong:
            self.doze.sandboxes.create("x", memory=1)
        self.assertIn("spec.runtime.memory", wrong.exception.message)
        self.sandbox.refresh()
        self.assertEqual(self.sandbox.status, "DEPLOYED")
        self.assertEqual(self.sandbox.api.sandbox_health().status, "ok")
        described = self.doze._transport.call("GET", self.sandbox.url + "/openapi.json", decode=_codec.anything)
        self.assertEqual(described["openapi"], "3.1.0")

    def test_snapshots(self) -> None:
        self.sandbox.fs.write("/srv/kept", "then")
        snapshot = self.sandbox.snapshots.create("before")
        self.assertEqual([s.name for s in self.sandbox.snapshots.list()], ["before"])
        with self.doze.snapshots.fork(snapshot.id, "copy") as copy:
            self.assertEqual(copy.fs.read("/srv/kept"), "then")
        self.assertEqual(self.doze.sandboxes.get("copy").status, "TERMINATED")
        self.assertIn(snapshot.id, [s.id for s in self.doze.snapshots.list()])
        self.doze.snapshots.delete(snapshot.id)

    def test_schedules(self) -> None:
        schedules = self.sandbox.schedules
        nightly = schedules.create("true", "nightly", cron="0 3 * * *", env={"TOKEN": "t"}, cwd="/srv", keep_alive=False, timeout=30, max_executions=5)
        self.assertEqual((nightly.type, nightly.value, nightly.max_executions), ("cron", "0 3 * * *", 5))
        self.assertEqual((nightly.input.working_dir, nightly.input.timeout, nightly.input.keep_alive), ("/srv", 30, False))
        late = schedules.create("true", at="2099-01-01T00:00:00Z")
        self.assertEqual({s.id for s in schedules.list()}, {"nightly", late.id})
        self.assertEqual(schedules.get(late.id).type, "at")
        schedules.delete(late.id)
        with self.assertRaises(errors.NotFound):
            schedules.get(late.id)
        with self.assertRaises(errors.Invalid):
            schedules.create("true", cron="0 0 31 2 *")

        schedules.create("echo $SHADE > /srv/scheduled", "soon", after="1s", env={"SHADE": "dark"}, name="shade")
        end = time.monotonic() + 60
        while not (ran := list(schedules.executions("soon"))) and time.monotonic() < end:
            time.sleep(0.1)
        self.assertEqual([(e.schedule_id, e.status, e.process_name) for e in ran], [("soon", "succeeded", "shade")])
        while self.sandbox.process.get("shade").status == "running" and time.monotonic() < end:
            time.sleep(0.1)
        self.assertEqual(self.sandbox.fs.read("/srv/scheduled"), "dark\n")
        self.assertEqual([s.id for s in schedules.list()], ["nightly"])
        self.assertEqual(list(schedules.executions("nightly")), [])
        self.assertEqual(list(schedules.executions(status="failed")), [])
        schedules.delete("nightly")

    def test_volumes(self) -> None:
        self.doze.volumes.create("disk", size=64)
        self.assertEqual(self.doze.volumes.get("disk").spec.size, 64)
        with self.doze.sandboxes.create("with-disk", memory=512, volumes={"disk": "/data"}) as sandbox:
            sandbox.fs.write("/data/a", "b")
        self.doze.volumes.delete("disk")
        self.assertEqual([v.metadata.name for v in self.doze.volumes.list()], [])

    def test_asynchronous(self) -> None:
        async def run() -> None:
            async with AsyncDoze() as doze:
                sandbox = await doze.sandboxes.get("python")
                await sandbox.fs.write("/srv/async", b"bytes")
                results = await asyncio.gather(*(sandbox.process.exec(f"echo {i}", wait=True) for i in range(3)))
                self.assertEqual([r.stdout for r in results], ["0\n", "1\n", "2\n"])
                self.assertEqual(await sandbox.fs.read("/srv/async"), "bytes")
                await sandbox.process.exec("echo one; echo two", name="two-lines")
                self.assertEqual([o.text async for o in sandbox.process.stream_logs("two-lines")], ["one", "two"])
                self.assertIn("python", [s.name async for s in doze.sandboxes.list()])
                with self.assertRaises(errors.NotFound):
                    await sandbox.process.get("nobody")

        asyncio.run(run())


if __name__ == "__main__":
    unittest.main()
