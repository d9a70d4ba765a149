"""Where a server is, and who calls it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from urllib.parse import urlsplit

from .errors import ConfigError

#: The version of the control API that this client speaks: lists are pages since.
API_VERSION = "2026-04-28"


@dataclass(frozen=True)
class Config:
    base: str
    key: str
    workspace: str

    @staticmethod
    def of(address: str | None, key: str | None, workspace: str | None) -> Config:
        """Take what the caller does not name from the environment, as the command doze does."""
        address = address or os.environ.get("DOZE_ADDRESS", "")
        key = key or os.environ.get("DOZE_KEY", "")
        if not address:
            raise ConfigError("no server is configured: pass address=, or set DOZE_ADDRESS")
        if not key:
            raise ConfigError("no API key is configured: pass key=, or set DOZE_KEY")
        url = urlsplit(address)
        if url.scheme not in ("http", "https") or not url.netloc:
            raise ConfigError(f"the address {address!r} must look like https://host[:port]")
        path = url.path.rstrip("/") or "/v0"
        if not workspace:
            workspace = os.environ.get("DOZE_WORKSPACE", "")
        return Config(f"{url.scheme}://{url.netloc}{path}", key, workspace)

    def headers(self) -> dict[str, str]:
        """Return what every request carries."""
        all = {"Authorization": f"Bearer {self.key}", "Blaxel-Version": API_VERSION, "User-Agent": "doze-python"}
        if self.workspace:
            all["X-Blaxel-Workspace"] = self.workspace
        return all
