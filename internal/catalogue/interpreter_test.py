"""Tests of the pure parts of the code interpreter: TestInterpreterParts runs them."""

import json
import os
import shutil
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "images", "jupyter-server"))
import interpreter as it  # noqa: E402


class Requests(unittest.TestCase):
    def test_what_the_client_sends(self):
        raw = json.dumps({"code": "1", "context_id": None, "language": None, "env_vars": None})
        self.assertEqual(it.execution_of(raw), ("1", None, None, {}))
        raw = json.dumps({"code": "", "context_id": "c", "env_vars": {"A": "b"}})
        self.assertEqual(it.execution_of(raw), ("", "c", None, {"A": "b"}))

    def test_refused(self):
        for raw in (
            b"", b"[]", b"{", b"\xff", b"[" * 100000, b"{}", b'{"code": 1}', b'{"code": "", "language": 1}', b'{"code": "", "cod": ""}',
            b'{"code": "", "language": "python", "context_id": "c"}', b'{"code": "", "env_vars": {"a b": ""}}',
            b'{"code": "", "env_vars": {"A": 1}}', b'{"code": "", "env_vars": {"A": "\\u0000"}}', b'{"code": "", "env_vars": [1]}',
            json.dumps({"code": "", "env_vars": {f"A{i}": "" for i in range(it.VARIABLES_MAX + 1)}}).encode(),
        ):
            with self.assertRaises(it.Refused) as caught:
                it.execution_of(raw)
            self.assertEqual(caught.exception.status, 400, raw[:80])

    def test_languages(self):
        known = {"python": "python3", "typescript": "typescript"}
        for name, want in {None: "python", "": "python", "Python": "python", "py": "python", "ts": "typescript"}.items():
            self.assertEqual(it.language_of(name, known), want)
        with self.assertRaises(it.Refused) as caught:
            it.language_of("cobol", known)
        self.assertEqual(caught.exception.status, 400)
        self.assertIn("python, typescript", str(caught.exception))


class Lines(unittest.TestCase):
    def test_kinds(self):
        for kind, content, want in (
            ("stream", {"name": "stdout", "text": "a"}, {"type": "stdout", "text": "a", "timestamp": 7}),
            ("stream", {"name": "stderr", "text": "a"}, {"type": "stderr", "text": "a", "timestamp": 7}),
            ("execute_result", {"data": {"text/plain": "1"}}, {"type": "result", "is_main_result": True, "text": "1"}),
            ("display_data", {"data": {"image/png": "AA==", "text/x": 1}},
             {"type": "result", "is_main_result": False, "png": "AA==", "extra": {"text/x": 1}}),
            ("error", {"ename": "E", "evalue": "v", "traceback": ["\x1b[0;31mE\x1b[0m", "v"]},
             {"type": "error", "name": "E", "value": "v", "traceback": "E\nv"}),
            ("execute_input", {"execution_count": 3}, {"type": "number_of_executions", "execution_count": 3}),
            ("status", {"execution_state": "busy"}, None),
        ):
            self.assertEqual(it.line_of(kind, content, 7), want)

    def test_thrown(self):
        got = it.thrown("file.js:2\nthrow\n^\n\nTypeError: no\n    at x")
        self.assertEqual((got["name"], got["value"]), ("TypeError", "no"))
        got = it.thrown("1:5 - Type 'string' is wrong\n")
        self.assertEqual((got["name"], got["value"]), ("Error", "1:5 - Type 'string' is wrong"))


class Variables(unittest.TestCase):
    def test_set_and_put_back(self):
        before, after = it.needed("python", {"DOZE_A": "'\"\\\n{}é", "DOZE_B": "x"})
        os.environ["DOZE_B"] = "old"  # as earlier code may do
        exec(before, {})
        self.assertEqual((os.environ["DOZE_A"], os.environ["DOZE_B"]), ("'\"\\\n{}é", "x"))
        exec(after, {})
        self.assertEqual((os.environ.get("DOZE_A"), os.environ.pop("DOZE_B")), (None, "old"))
        os.environ["DOZE_A"] = "later"
        exec(after, {})  # nothing is left to put back
        self.assertEqual(os.environ.pop("DOZE_A"), "later")
        self.assertEqual(it.needed("python", {}), (None, None))

    def test_set_and_put_back_in_javascript(self):
        if not shutil.which("node"):
            self.skipTest("there is no node")
        before, after = it.needed("javascript", {"DOZE_A": "'\"\\\n{}é", "DOZE_B": "x"})
        show = "console.log(JSON.stringify([process.env.DOZE_A, process.env.DOZE_B]));"
        code = "\n".join(('process.env.DOZE_B = "old";', before, show, after, show, 'process.env.DOZE_A = "later";', after, show))
        got = subprocess.run(["node", "-e", code], capture_output=True, text=True, check=True).stdout.splitlines()
        self.assertEqual([json.loads(line) for line in got], [["'\"\\\n{}é", "x"], [None, "old"], ["later", "old"]])


if __name__ == "__main__":
    unittest.main()
