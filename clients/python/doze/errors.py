"""The errors that calls raise. All of them are ``DozeError``."""

from __future__ import annotations

from typing import Any

import httpx


class DozeError(Exception):
    """Any error of this package."""


class ConfigError(DozeError):
    """No server or no key is known, or the address is not usable."""


class Unreachable(DozeError):
    """The server did not answer, or broke off its answer."""


class WaitTimeout(DozeError, TimeoutError):
    """A process did not end in time. It goes on."""


class APIError(DozeError):
    """An answer that reports an error.

    Its class follows from its status. ``code`` is the word for it, such as
    ``SANDBOX_ALREADY_EXISTS``. If the server gave none, it follows from the status,
    such as ``not_found``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str = "",
        retryable: bool = False,
        platform: bool = False,
        retry_after: float | None = None,
        request_id: str = "",
        details: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        #: The same call may succeed later.
        self.retryable = retryable
        #: The platform says so, and no sandbox: none has seen the call, or it may see it twice.
        self.platform = platform
        #: Seconds to wait before the next attempt, if the server names them.
        self.retry_after = retry_after
        #: The log of the platform has this id.
        self.request_id = request_id
        #: The body of the answer.
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message} ({self.code} {self.status})" if self.code else self.message


class Invalid(APIError):
    """400: errors in the request. The message names all."""


class Unauthenticated(APIError):
    """401: no credential, or one that is wrong, expired or deleted."""


class Forbidden(APIError):
    """403: the credential may not do that."""


class NotFound(APIError):
    """404: there is no such object."""


class Conflict(APIError):
    """409: the name is taken, or the state of the object forbids it."""


class TooLarge(APIError):
    """413: the body is too large."""


class Unprocessable(APIError):
    """422: it cannot be done to what is there."""


class Exhausted(APIError):
    """429: a limit is reached, or there is no room."""


class Unsupported(APIError):
    """501: this platform does not have it."""


class Unavailable(APIError):
    """503: try again later."""


class Timeout(APIError):
    """504: it took too long."""


class Internal(APIError):
    """Any other status: a fault of the server."""


#: The class and the usual code of each status.
_kinds: dict[int, tuple[type[APIError], str]] = {
    400: (Invalid, "invalid"),
    401: (Unauthenticated, "unauthenticated"),
    403: (Forbidden, "forbidden"),
    404: (NotFound, "not_found"),
    405: (Internal, "method_not_allowed"),
    409: (Conflict, "conflict"),
    413: (TooLarge, "too_large"),
    422: (Unprocessable, "unprocessable"),
    429: (Exhausted, "exhausted"),
    501: (Unsupported, "unsupported"),
    503: (Unavailable, "unavailable"),
    504: (Timeout, "timeout"),
}

_RETRYABLE = (429, 503, 504)


def of(response: httpx.Response) -> APIError:
    """Return the error that an answer reports, whose body was read.

    Both APIs and the gateway between them have a form of their own.
    """
    try:
        body = response.json()
    except ValueError:
        body = None
    details: dict[str, Any] = body if isinstance(body, dict) else {}
    said = details.get("error")
    status, code, platform = response.status_code, "", False
    message = response.text.strip() or f"the server answered {status}"
    retryable = status in _RETRYABLE
    if isinstance(said, dict):
        details, platform = said, True
        code, message = str(said.get("code", "")), str(said.get("message", message))
        retryable = bool(said.get("retryable", retryable))
    elif isinstance(said, str) and "message" in details:
        code, message = said, str(details["message"])
    elif isinstance(said, str):
        message = said
    if response.headers.get("X-Should-Retry") == "false":
        retryable = False
    kind, usual = _kinds.get(status, (Internal, "internal"))
    return kind(
        message,
        status=status,
        code=code or usual,
        retryable=retryable,
        platform=platform,
        retry_after=_seconds(response.headers.get("Retry-After")),
        request_id=response.headers.get("X-Request-Id", ""),
        details=details,
    )


def _seconds(text: str | None) -> float | None:
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None
