"""`gen-durable …` in a process of the fork server: `python -m tests.cli.program STDIN STDERR ARGUMENTS…`.

The fork server gives a process one file for all that it says; these are the two others.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from gen_durable.cli import main
from tests.support.forkserver import Child, launch

__all__ = ["exit_code", "start"]


def start(*arguments: str, output: int, errors: Path, input: Path | None = None) -> Child:
    """Start `gen-durable ARGUMENTS…`. Close `output` here, so that its reader sees the end of file."""
    errors.touch()
    child = launch("tests.cli.program", str(input or os.devnull), str(errors), *arguments, output=output)
    os.close(output)
    return child


def exit_code(child: Child) -> int:
    """Wait for the end of a process and return its exit code."""
    while (code := child.exit_code) is None:
        time.sleep(0.01)
    return code


def _put(path: str, file: int) -> None:
    # Append: processes that this one starts open the same file.
    opened = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_APPEND)
    os.dup2(opened, file)
    os.close(opened)


if __name__ == "__main__":
    _put(sys.argv[1], 0)
    _put(sys.argv[2], 2)
    # Open the streams again: buffering depends on whether a stream is a terminal.
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv[1:3] = []
    main()
