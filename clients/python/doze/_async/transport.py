"""How calls are sent: with a credential, again if they may be, and with errors raised."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Any, AsyncIterator, Mapping, TypeVar

import httpx

from .. import errors
from .._codec import Decoder, encode
from .._config import Config
from .._retry import async_sleep as sleep
from .._retry import delay

T = TypeVar("T")

_CONNECT = 10.0  # seconds


class AsyncTransport:
    def __init__(self, config: Config, timeout: float, retries: int, http: httpx.AsyncClient | None) -> None:
        self.config = config
        self.timeout = timeout
        self.retries = retries
        self._own = http is None
        self._http = http or httpx.AsyncClient()

    async def close(self) -> None:
        if self._own:
            await self._http.aclose()

    async def call(
        self,
        method: str,
        url: str,
        *,
        decode: Decoder[T],
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> T:
        """Send a call and decode the JSON of its answer. The answer has timeout seconds to begin."""
        response = await self.send(method, url, params=params, body=body, content=content, headers=headers, timeout=timeout)
        try:
            return decode(response.json() if response.content else None)
        except (TypeError, ValueError, KeyError) as e:
            raise errors.Unreachable(f"{method} {response.url.path}: the answer is not as described: {e}") from e

    async def send(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        content: bytes | None = None,
        files: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Return the whole answer to a call. A body of files is sent once."""
        request = self._request(method, url, params, body, content, files, headers, timeout)
        for attempt in range(self.retries + 1):
            try:
                response = await self._http.send(request, follow_redirects=False)
                if response.status_code < 300 or response.status_code == 304:
                    return response
                raise errors.of(response)
            except (errors.APIError, httpx.TransportError) as e:
                wait = delay(method, e, attempt) if attempt < self.retries and files is None else None
                if wait is not None:
                    await sleep(wait)
                    continue
                if isinstance(e, httpx.TransportError):
                    raise errors.Unreachable(f"{request.url.host} does not answer: {e}") from e
                raise
        raise AssertionError("not reached")

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncIterator[str]]:
        """Give the lines of an answer as they come. Streams are not tried again: their begin was seen."""
        request = self._request(method, url, params, body, None, None, headers, None)
        try:
            response = await self._http.send(request, stream=True, follow_redirects=False)
        except httpx.TransportError as e:
            raise errors.Unreachable(f"{request.url.host} does not answer: {e}") from e
        try:
            if response.status_code >= 300:
                await response.aread()
                raise errors.of(response)
            yield response.aiter_lines()
        except httpx.TransportError as e:
            raise errors.Unreachable(f"{request.url.host} broke off its answer: {e}") from e
        finally:
            await response.aclose()

    async def lines(self, method: str, url: str, *, params: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
        """Return the lines of an answer as they come, without their ends."""
        async with self.stream(method, url, params=params) as lines:
            async for line in lines:
                yield line.rstrip("\n")

    def _request(
        self,
        method: str,
        url: str,
        params: Mapping[str, Any] | None,
        body: Any,
        content: bytes | None,
        files: Any,
        headers: Mapping[str, str] | None,
        timeout: float | None,
    ) -> httpx.Request:
        all = {"Accept": "application/json", **self.config.headers(), **(headers or {})}
        if body is not None:
            content = json.dumps(encode(body)).encode()
            all["Content-Type"] = "application/json"
        limits = httpx.Timeout(timeout or self.timeout, connect=_CONNECT)
        return self._http.build_request(
            method, url, params=dict(params or {}), content=content, files=files, headers=all, timeout=limits
        )
