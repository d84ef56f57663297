"""The commands that README and CI name exist."""

from __future__ import annotations

import os
import re
import subprocess

import click
import pytest

from gen_durable.cli.root import root
from tests.architecture.sources import ROOT

README = ROOT / "README.md"
RUN = ROOT / "run"


def _shell_lines() -> list[str]:
    blocks = re.findall(
        r"```(?:sh|shell|console|bash)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL
    )
    inline = re.findall(r"`((?:\./run|gen-durable) [^`]+)`", README.read_text(encoding="utf-8"))
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines()] + inline


@pytest.mark.parametrize("command", ["demo", "test", "check"])
def test_run_knows_its_commands(command: str) -> None:
    assert re.search(rf"^    {command}\) ", RUN.read_text(encoding="utf-8"), re.MULTILINE)


def test_run_is_executable_and_parses() -> None:
    assert os.access(RUN, os.X_OK)
    subprocess.run(["sh", "-n", RUN], check=True)


def test_run_prints_its_usage() -> None:
    done = subprocess.run([RUN, "nonsense"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: ./run demo")


def test_every_run_command_of_the_readme_exists() -> None:
    named = {line.split()[1] for line in _shell_lines() if line.startswith("./run ")}
    assert named
    assert named <= {"demo", "test", "check", "docs"}


def test_every_gen_durable_command_of_the_readme_exists() -> None:
    missing = []
    for line in _shell_lines():
        if not line.startswith("gen-durable "):
            continue
        command: click.Command | None = root
        for word in line.split()[1:]:
            if not isinstance(command, click.Group):
                break
            command = command.commands.get(word)
        if command is None:
            missing.append(line)
    assert missing == []
