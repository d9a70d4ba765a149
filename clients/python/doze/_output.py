"""What a process writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Output:
    """A line that a process wrote, without its end."""

    stream: Literal["stdout", "stderr"]
    text: str

    @staticmethod
    def of(line: str) -> Output | None:
        """Read a line of the stream of logs. None is no output."""
        stream, colon, text = line.partition(":")
        if colon and stream == "stdout":
            return Output("stdout", text)
        if colon and stream == "stderr":
            return Output("stderr", text)
        return None
