"""What needs no platform: models, errors, and which calls are sent again."""

from __future__ import annotations

import os
import unittest
from typing import Any
from unittest import mock

import httpx

from doze import AsyncDoze, Doze, errors, models
from doze._codec import encode, file_path, model, page
from doze._output import Output
from doze._retry import delay

SANDBOX: dict[str, Any] = {"metadata": {"name": "web", "url": "http://x/run/main/sandboxes/web"}, "spec": {"runtime": {}}, "later": 1}


def client(answer: httpx.Response | Exception, *more: httpx.Response, retries: int = 3) -> tuple[Doze, list[httpx.Request]]:
    """Return a client of a server that gives these answers in turn, and what it was asked."""
    asked: list[httpx.Request] = []
    answers = [answer, *more]

    def serve(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        this = answers[min(len(asked), len(answers)) - 1]
        if isinstance(this, Exception):
            raise this
        return httpx.Response(this.status_code, headers=this.headers, content=this.content)

    http = httpx.Client(transport=httpx.MockTransport(serve))
    return Doze("http://doze.test", "key", "main", retries=retries, http=http), asked


class Models(unittest.TestCase):
    def test_members(self) -> None:
        got = model(models.Sandbox)({**SANDBOX, "lastUsedAt": "2026-01-31T12:00:00.000Z", "status": "DEPLOYED"})
        self.assertEqual((got.metadata.name, got.last_used_at, got.status), ("web", "2026-01-31T12:00:00.000Z", "DEPLOYED"))
        self.assertIsNone(got.expires_in)

    def test_wrong(self) -> None:
        wrong: list[Any] = [{"spec": {"runtime": {}}}, {**SANDBOX, "expiresIn": "x"}, [], None]
        for value in wrong:
            with self.assertRaises((TypeError, ValueError)):
                model(models.Sandbox)(value)

    def test_encode(self) -> None:
        request = models.ProcessRequest(command="true", working_dir="/srv", env={"A": "b"})
        self.assertEqual(encode(request), {"command": "true", "workingDir": "/srv", "env": {"A": "b"}})
        self.assertEqual(encode({"spec": {"network": None}}), {"spec": {"network": None}})

    def test_page(self) -> None:
        decode = page(model(models.Welcome))
        one = {"message": "m", "documentation": "d", "description": "e"}
        got = decode({"data": [one], "meta": {"hasMore": True, "nextCursor": "c", "total": 2}})
        self.assertEqual((len(got.data), got.total, got.next_cursor), (1, 2, "c"))
        self.assertIsNone(decode([one]).next_cursor)

    def test_paths(self) -> None:
        self.assertEqual(file_path("/srv/a b.txt"), "%2Fsrv%2Fa%20b.txt")
        self.assertEqual(file_path("src/ä.txt"), "src/%C3%A4.txt")

    def test_output(self) -> None:
        self.assertEqual(Output.of("stderr:a:b"), Output("stderr", "a:b"))
        self.assertIsNone(Output.of("[keepalive]"))


class Config(unittest.TestCase):
    def test_environment(self) -> None:
        with mock.patch.dict(os.environ, {"DOZE_ADDRESS": "https://doze.test/", "DOZE_KEY": "k", "DOZE_WORKSPACE": "w"}):
            config = Doze()._transport.config
            self.assertEqual((config.base, config.key, config.workspace), ("https://doze.test/v0", "k", "w"))
            self.assertEqual(Doze(workspace="other")._transport.config.workspace, "other")

    def test_missing(self) -> None:
        with mock.patch.dict(os.environ, clear=True):
            for arguments, word in (((), "DOZE_ADDRESS"), (("http://x",), "DOZE_KEY"), (("x", "key"), "https://host")):
                with self.assertRaisesRegex(errors.ConfigError, word):
                    Doze(*arguments)


class Errors(unittest.TestCase):
    def test_forms(self) -> None:
        platform = {"error": {"code": "WORKLOAD_NOT_FOUND", "status": 404, "message": "no such sandbox", "retryable": False}}
        for status, body, kind, code, message in (
            (409, {"error": "SANDBOX_ALREADY_EXISTS", "code": 409, "message": "it exists"}, errors.Conflict, "SANDBOX_ALREADY_EXISTS", "it exists"),
            (404, platform, errors.NotFound, "WORKLOAD_NOT_FOUND", "no such sandbox"),
            (422, {"error": "no shell"}, errors.Unprocessable, "unprocessable", "no shell"),
            (404, {"error": "no such file"}, errors.NotFound, "not_found", "no such file"),
            (405, None, errors.Internal, "method_not_allowed", "oops"),
            (502, None, errors.Internal, "internal", "oops"),
        ):
            response = httpx.Response(status, json=body) if body else httpx.Response(status, text="oops")
            response.headers["X-Request-Id"] = "r1"
            doze, _ = client(response)
            with self.assertRaises(kind) as caught:
                doze.sandboxes.get("web")
            e = caught.exception
            self.assertEqual((e.status, e.code, e.message, e.request_id), (status, code, message, "r1"))

    def test_nonsense(self) -> None:
        doze, _ = client(httpx.Response(200, json={"metadata": 5}))
        with self.assertRaisesRegex(errors.Unreachable, "not as described"):
            doze.sandboxes.get("web")

    def test_redirect(self) -> None:
        doze, asked = client(httpx.Response(302, headers={"Location": "http://elsewhere.test/"}))
        with self.assertRaises(errors.APIError):
            doze.sandboxes.get("web")
        self.assertEqual(len(asked), 1)  # the key goes nowhere else


class Schedules(unittest.TestCase):
    def test_one_time(self) -> None:
        doze, asked = client(httpx.Response(200, json=SANDBOX))
        sandbox = doze.sandboxes.get("web")
        times: list[dict[str, Any]] = [{}, {"cron": "0 3 * * *", "after": "15m"}, {"at": "2099-01-01T00:00:00Z", "after": "15m"}]
        for wrong in times:
            with self.assertRaisesRegex(errors.DozeError, "cron, at or after"):
                sandbox.schedules.create("true", **wrong)
        self.assertEqual(len(asked), 1)  # the sandbox alone

    def test_pages(self) -> None:
        def part(id: str, **meta: Any) -> httpx.Response:
            execution = {"id": id, "scheduleId": "s", "sandbox": "web", "status": "failed", "statusCode": 0, "timeout": 0}
            return httpx.Response(200, json={"data": [execution], "meta": {"total": 2, **meta}})

        doze, asked = client(httpx.Response(200, json=SANDBOX), part("1", hasMore=True, nextCursor="c"), part("2", hasMore=False))
        ran = doze.sandboxes.get("web").schedules.executions("s", status="failed")
        self.assertEqual([e.id for e in ran], ["1", "2"])
        self.assertEqual([dict(r.url.params) for r in asked[1:]], [{"schedule": "s", "status": "failed"}, {"schedule": "s", "status": "failed", "cursor": "c"}])


class Retries(unittest.TestCase):
    def setUp(self) -> None:
        sleep = mock.patch("doze._retry.time.sleep")
        self.slept = sleep.start()
        self.addCleanup(sleep.stop)

    def test_again(self) -> None:
        busy = httpx.Response(429, json={"error": "exhausted", "code": 429, "message": "wait"}, headers={"Retry-After": "7"})
        doze, asked = client(busy, httpx.Response(200, json=SANDBOX))
        self.assertEqual(doze.sandboxes.create("web").name, "web")
        self.assertEqual(len(asked), 2)
        self.slept.assert_called_once_with(7.0)
        self.assertEqual(asked[0].content, asked[1].content)

    def test_bounded(self) -> None:
        doze, asked = client(httpx.ConnectError("refused"), retries=2)
        with self.assertRaises(errors.Unreachable):
            doze.sandboxes.create("web")
        self.assertEqual(len(asked), 3)

    def test_rules(self) -> None:
        def said(status: int, body: object, **headers: str) -> errors.APIError:
            return errors.of(httpx.Response(status, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()}))

        gateway = {"error": {"code": "WORKLOAD_UNAVAILABLE", "status": 503, "message": "m", "retryable": True}}
        final = {"error": {"code": "WORKLOAD_UNAVAILABLE", "status": 503, "message": "m", "retryable": False}}
        for method, error, again in (
            ("GET", said(503, {"error": "m"}), True),
            ("POST", said(503, {"error": "the process does not read"}), False),
            ("POST", said(503, gateway), True),
            ("POST", said(503, final), False),
            ("GET", said(503, gateway, X_Should_Retry="false"), False),
            ("GET", said(404, {"error": "m"}), False),
            ("DELETE", said(409, {"error": "m"}), False),
            ("POST", httpx.ConnectTimeout("m"), True),
            ("POST", httpx.ReadError("m"), False),
            ("GET", httpx.ReadError("m"), True),
            ("GET", httpx.ReadTimeout("m"), False),
            ("GET", httpx.RemoteProtocolError("m"), True),
            ("GET", httpx.UnsupportedProtocol("m"), False),
        ):
            with self.subTest(method=method, error=repr(error)):
                self.assertEqual(delay(method, error, 0) is not None, again)


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def test_call(self) -> None:
        def serve(request: httpx.Request) -> httpx.Response:
            self.assertEqual(request.headers["Authorization"], "Bearer key")
            self.assertEqual(request.headers["X-Blaxel-Workspace"], "main")
            return httpx.Response(200, json=SANDBOX)

        http = httpx.AsyncClient(transport=httpx.MockTransport(serve))
        async with AsyncDoze("http://doze.test", "key", "main", http=http) as doze:
            self.assertEqual((await doze.sandboxes.get("web")).name, "web")


if __name__ == "__main__":
    unittest.main()
