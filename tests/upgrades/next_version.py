"""The next version of the package: a copy of this one with one more, additive increment."""

from __future__ import annotations

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from gen_durable._db import migrate
from gen_durable._db.migrate import LATEST
from gen_durable.testing._databases import Databases

ROOT: Final = Path(__file__).parents[2]
NEXT: Final = LATEST + 1
_UP: Final = f"""-- oldest code: {LATEST}
alter table gen_durable.gen_durable add column label text, add column size int not null default 0;
alter table gen_durable.workers add column zone text not null default 'unknown';
create table gen_durable.labels (name text primary key);
create index gen_durable_label on gen_durable.gen_durable (label) where label is not null;
create function gen_durable.set_label(target bigint, label text) returns void
language sql set search_path = pg_catalog, pg_temp as $$
  update gen_durable.gen_durable g set label = set_label.label where g.id = target
$$;
"""
_DOWN: Final = """
drop function gen_durable.set_label(bigint, text);
drop index gen_durable.gen_durable_label;
drop table gen_durable.labels;
alter table gen_durable.workers drop column zone;
alter table gen_durable.gen_durable drop column size, drop column label;
"""


def copy_package(directory: Path) -> Path:
    """Write the package of the next version below `directory`; the entry for PYTHONPATH."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", directory / "src", ignore=ignored)
    _add_increment(directory / "src/gen_durable/_db/migrations")
    return directory / "src"


@contextmanager
def as_next_version(directory: Path, databases: Databases) -> Generator[None]:
    """Make the code of this process that of the next version, for the length of a `with` block."""
    shutil.copytree(ROOT / "src/gen_durable/_db/migrations", directory / "migrations")
    _add_increment(directory / "migrations")
    finish_copies(databases)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrate, "_DIRECTORY", directory / "migrations")
        patched.setattr(migrate, "_INCREMENTS", migrate._increments())
        patched.setattr(migrate, "LATEST", NEXT)
        yield


def finish_copies(databases: Databases) -> None:
    """Wait until the test kit has migrated the databases of the next tests, which it does in another thread.

    Call this before patching the migrations: otherwise the next test can get a database with the patched ones.
    """
    for ready in databases._ready.values():
        ready.result()


def _add_increment(migrations: Path) -> None:
    increment = migrations / f"{NEXT:04}_next"
    increment.mkdir()
    (increment / "01_next.sql").write_text(_UP, encoding="utf-8")
    (increment / "down.sql").write_text(_DOWN, encoding="utf-8")
