"""Which files `gen-durable dev` watches, and what counts as a change."""

from __future__ import annotations

import asyncio
import os
import py_compile
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from gen_durable.cli.sources import Scan, Sources, changes, described_changes, forget_bytecode


def write(path: Path, text: str = "") -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def touch(path: str) -> None:
    """Change the time of a file: two writes may come within one tick of the clock."""
    now = Path(path).stat().st_mtime_ns + 1_000_000
    os.utime(path, ns=(now, now))


def names(scan: Scan, below: Path) -> list[str]:
    return sorted(os.path.relpath(path, below) for path in scan)


async def test_python_files_of_the_project_are_watched(tmp_path: Path) -> None:
    for name in (
        *("app.py", "shop/machines.py", "shop/notes.txt", "README.md"),
        *(".hidden/x.py", "node_modules/x.py", "__pycache__/x.py", "lib/site-packages/x.py"),
        *("env/pyvenv.cfg", "env/lib/x.py"),
    ):
        write(tmp_path / name)
    assert names(await Sources([tmp_path]).scan(), tmp_path) == ["app.py", "shop/machines.py"]
    others = [tmp_path / "shop", tmp_path / "README.md", tmp_path / "nothing"]
    assert names(await Sources([], others).scan(), tmp_path) == [
        *("README.md", "shop/machines.py", "shop/notes.txt")
    ]


async def test_directory_in_a_virtual_environment_is_watched(tmp_path: Path) -> None:
    write(tmp_path / "pyvenv.cfg")
    write(tmp_path / "app.py")
    assert names(await Sources([tmp_path]).scan(), tmp_path) == ["app.py"]


async def test_changed_new_and_removed_files_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.cli.sources._POLL_INTERVAL", 0.01)
    changed, removed = write(tmp_path / "a.py"), write(tmp_path / "b.py")
    sources = Sources([tmp_path])
    before = await sources.scan()
    waiting = asyncio.get_running_loop().create_task(sources.changed(before))
    touch(changed)
    assert await waiting == [changed]
    Path(removed).unlink()
    made = write(tmp_path / "new" / "c.py")
    assert await sources.changed(before) == [changed, removed, made]
    assert changes(before, before) == []


async def test_change_is_reported_when_writing_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gen_durable.cli.sources._POLL_INTERVAL", 0)
    scans: list[Scan] = [{}, {"a": (1, 0)}, {"a": (1, 0), "b": (1, 0)}, {"a": (2, 5), "b": (1, 0)}]
    sources = Sources([tmp_path])

    async def scan() -> Scan:
        return scans.pop(0) if len(scans) > 1 else scans[0]

    monkeypatch.setattr(sources, "scan", scan)
    assert await sources.changed({}) == ["a", "b"]
    assert len(scans) == 1


def test_changed_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app, other = str(tmp_path / "shop" / "app.py"), str(tmp_path.parent / "x.py")
    assert described_changes([app]) == "shop/app.py changed"
    assert described_changes([app, "b"]) == "shop/app.py and 1 other file changed"
    assert described_changes([other, "b", "c"]) == f"{other} and 2 other files changed"


def test_bytecode_of_a_changed_file_is_deleted(tmp_path: Path) -> None:
    file = write(tmp_path / "app.py", "x = 1\n")
    py_compile.compile(file)
    forget_bytecode([file, file, str(tmp_path / "notes.txt")])
    assert not Path(cache_from_source(file)).exists()
    assert Path(file).exists()
