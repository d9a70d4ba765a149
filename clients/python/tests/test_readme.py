"""The examples of README.md, against a real platform."""

from __future__ import annotations

import contextlib
import io
import os
import re
import unittest
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


@unittest.skipUnless(os.environ.get("DOZE_ADDRESS"), "SKIPPED: DOZE_ADDRESS names no platform")
class Readme(unittest.TestCase):
    def test_examples(self) -> None:
        printed = []
        for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL):
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(block, str(README), "exec"), {"__name__": "__main__"})
            printed.append(out.getvalue())
        first, processes, previews, schedules, asynchronous, errors = printed
        self.assertEqual(first, "hello\n 0\n")
        self.assertEqual(processes.split(), ["1", "2", "3", "stdout", "done"])  # output comes in pieces of any size
        self.assertRegex(previews, r"^http://\S+\npython3 -m http.server 3000\n$")
        self.assertEqual(schedules, "['nightly']\n")
        self.assertEqual(asynchronous, "['0\\n', '1\\n', '2\\n']\n")
        self.assertRegex(errors, r"^404 \w+\n$")


if __name__ == "__main__":
    unittest.main()
