"""docs/recipes/django.md: its files are written and its tests are run, on the site of the examples."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from gen_durable.testing._databases import Databases
from tests.adapters import site
from tests.docs.pages import ROOT, Page

PAGE = Page(ROOT / "docs" / "recipes" / "django.md")


def test_tests_of_the_page_pass(
    durable_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file, text in PAGE.files().items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    site.set_up()
    try:
        tests = [
            test
            for name, test in vars(importlib.import_module("test_orders")).items()
            if name.startswith("test_")
        ]
        assert len(tests) == 3
        for test in tests:
            with durable_databases.clean() as dsn, site.on(dsn):
                create_tables()
                test()
    finally:
        for file in PAGE.files():
            sys.modules.pop(file.removesuffix(".py"), None)


def create_tables() -> None:
    from django.apps import apps
    from django.db import connection

    with connection.schema_editor() as editor:
        editor.create_model(apps.get_model("bookshop", "Order"))


def test_model_of_the_page_matches_the_example_site() -> None:
    (model, *_) = [block.text for block in PAGE.blocks if not block.file]
    assert model == (site.SITE / "bookshop" / "models.py").read_text(encoding="utf-8")
