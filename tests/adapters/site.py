"""The example Django site, set up once per process, on the database of a test."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import django
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections

SITE = Path(__file__).parents[2] / "examples" / "django_site"
# MIGRATION_MODULES: create the tables of Django without its migrations, which no test needs.
AT_ONCE = dict.fromkeys(("admin", "auth", "contenttypes", "sessions"))


def set_up() -> None:
    if not settings.configured:
        sys.path.insert(0, str(SITE))
        os.environ["DJANGO_SETTINGS_MODULE"] = "bookshop.settings"
        django.setup()


@contextmanager
def on(dsn: str) -> Iterator[None]:
    """Use this database as the default one."""
    set_up()
    place = urlsplit(dsn)
    connection = connections["default"]
    before = dict(connection.settings_dict)
    connection.close()
    connection.settings_dict.update(
        NAME=place.path.removeprefix("/"),
        USER=unquote(place.username or ""),
        PASSWORD=unquote(place.password or ""),
        HOST=place.hostname or parse_qs(place.query).get("host", [""])[0],
        PORT=str(place.port or parse_qs(place.query).get("port", [""])[0]),
    )
    try:
        yield
    finally:
        connection.close()
        asyncio.run(sync_to_async(connections.close_all)())  # in the thread that sync_to_async has used
        connection.settings_dict.update(before)
