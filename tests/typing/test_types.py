"""mypy and pyright accept every right use, and report every wrong one on its line."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MARK = re.compile(r"# E(?:\((mypy|pyright)\))?: ")

# Each checker reads both files in one run, which all tests share: starting a checker is slow.
pytestmark = pytest.mark.timeout(240)


def test_mypy_accepts_right_uses() -> None:
    assert _found("mypy", "right.py") == {}


def test_pyright_accepts_right_uses() -> None:
    assert _found("pyright", "right.py") == {}


@pytest.mark.parametrize("checker", ["mypy", "pyright"])
def test_checkers_report_wrong_uses_on_their_line(checker: str) -> None:
    marked, found = _marked(checker), _found(checker, "wrong.py")
    missed = {line: text for line, text in marked.items() if line not in found}
    unexpected = {line: text for line, text in found.items() if line not in marked}
    assert (missed, unexpected) == ({}, {})


def test_there_are_wrong_uses() -> None:
    assert len(_marked("mypy")) > 60


def _marked(checker: str) -> dict[int, str]:
    lines = enumerate((HERE / "wrong.py").read_text(encoding="utf-8").splitlines(), 1)
    marks = ((number, line, MARK.search(line)) for number, line in lines)
    return {number: line.strip() for number, line, mark in marks if mark and mark[1] in (None, checker)}


def _found(checker: str, file: str) -> dict[int, str]:
    return {line: text for name, line, text in _run(checker) if name == file}


@functools.cache
def _run(checker: str) -> list[tuple[str, int, str]]:
    return _run_mypy() if checker == "mypy" else _run_pyright()


def _run_mypy() -> list[tuple[str, int, str]]:
    options = ["--strict", "--no-error-summary", "--hide-error-context", "--no-pretty"]
    output = _output("mypy", *options, str(HERE / "right.py"), str(HERE / "wrong.py"))
    return [
        (Path(name).name, int(line), text)
        for name, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", output, re.MULTILINE)
    ]


def _run_pyright() -> list[tuple[str, int, str]]:
    output = _output("pyright", "--project", str(HERE), "--pythonpath", sys.executable, "--outputjson")
    return [
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1, found["message"])
        for found in json.loads(output)["generalDiagnostics"]
        if found["severity"] == "error"
    ]


def _output(module: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
