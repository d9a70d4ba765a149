"""When a call is tried again."""

from __future__ import annotations

import asyncio
import random
import time

import httpx

from .errors import APIError

_FIRST, _LONGEST = 0.25, 4.0  # seconds

#: Calls that do the same when they are done twice.
_IDEMPOTENT = ("GET", "HEAD", "PUT")


def delay(method: str, error: Exception, attempt: int) -> float | None:
    """Return the seconds before the next attempt, or None if there must be none.

    A call without a connection was not seen by anybody. The platform says of its own errors
    whether the call may be repeated. Anything else is repeated only if that changes nothing.
    """
    wait = min(_FIRST * 2.0**attempt, _LONGEST) * random.uniform(0.5, 1)
    if isinstance(error, APIError):
        if not error.retryable or not (error.platform or error.status == 429 or method in _IDEMPOTENT):
            return None
        return wait if error.retry_after is None else error.retry_after
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        return wait
    if isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError)) and method in _IDEMPOTENT:
        return wait
    return None


async def async_sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def sync_sleep(seconds: float) -> None:
    time.sleep(seconds)
