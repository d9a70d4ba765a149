"""Python client of Doze: sandboxes that sleep and wake.

``Doze`` calls and waits. ``AsyncDoze`` is the same for asyncio. Both take the server
from ``DOZE_ADDRESS``, ``DOZE_KEY`` and ``DOZE_WORKSPACE``, unless the caller names it::

    from doze import Doze

    with Doze() as doze, doze.sandboxes.create(name="web") as sandbox:
        sandbox.fs.write("/srv/a.txt", "hello\\n")
        print(sandbox.process.exec("cat /srv/a.txt", wait=True).stdout)
"""

from . import errors, models
from ._async.client import AsyncDoze, AsyncSandbox
from ._codec import Page
from ._output import Output
from ._sync.client import Doze, Sandbox
from .errors import APIError, DozeError

__all__ = [
    "APIError",
    "AsyncDoze",
    "AsyncSandbox",
    "Doze",
    "DozeError",
    "Output",
    "Page",
    "Sandbox",
    "errors",
    "models",
]
