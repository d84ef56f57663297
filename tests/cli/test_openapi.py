"""`gen-durable openapi`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gen_durable.dashboard.openapi import document
from tests.cli.conftest import Gd, output, parsed, refused


def test_document_is_printed_or_written(gd: Gd, tmp_path: Path) -> None:
    printed = gd("openapi")
    assert parsed(printed) == document()
    file = tmp_path / "openapi.json"
    assert output(gd("openapi", "-o", file)) == (0, "", "")
    assert file.read_text(encoding="utf-8") == printed.stdout


def test_file_that_cannot_be_written_is_named(gd: Gd, tmp_path: Path) -> None:
    file = tmp_path / "nothing" / "openapi.json"
    assert f"{file} cannot be written" in refused(gd("openapi", "-o", file))


def test_missing_extra_is_named(gd: Gd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gen_durable.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "gen_durable[dash]" in refused(gd("openapi"))
