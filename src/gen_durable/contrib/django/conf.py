"""What `GEN_DURABLE` of a project's settings says, and where its database is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from ..._dictionary import did_you_mean
from ...config import Settings
from ...errors import SettingsError

__all__ = ["Conf", "database_dsn", "read"]

_SETTINGS: Final = tuple(field.name.upper() for field in msgspec.structs.fields(Settings))
_OURS: Final = ("DATABASE", "WORKER")
# What both drivers call by the same name. Anything else of OPTIONS is about Django's own connections.
_OPTIONS: Final = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword"),
    *(
        "passfile",
        "service",
        "servicefile",
        "krbsrvname",
        "target_session_attrs",
        "application_name",
        "options",
    ),
)


class Conf(msgspec.Struct, frozen=True):
    """`GEN_DURABLE`, checked."""

    database: str
    """Which of `DATABASES` holds our tables."""
    worker: str | None
    """What `manage.py gen_durable worker` runs, if it is not told."""
    given: Mapping[str, Any]
    """The settings that the project chose itself."""
    settings: Settings


def read() -> Conf:
    """What the project says.

    Raises:
        ImproperlyConfigured: it is not understood.
    """
    said: Any = getattr(project, "GEN_DURABLE", {})
    if not isinstance(said, Mapping):
        raise ImproperlyConfigured(f"GEN_DURABLE must be a dict, got {said!r}")
    for name in said:
        if name not in (*_OURS, *_SETTINGS):
            close = did_you_mean(str(name).upper(), (*_OURS, *_SETTINGS))
            raise ImproperlyConfigured(f"GEN_DURABLE[{name!r}] is not a setting{close}")
    given = {name.lower(): value for name, value in said.items() if name in _SETTINGS}
    try:
        settings = Settings.load(**given)
    except SettingsError as error:
        raise ImproperlyConfigured(f"GEN_DURABLE: {error}") from error
    return Conf(_database(said.get("DATABASE", "default")), said.get("WORKER"), given, settings)


def _database(alias: Any) -> str:
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise ImproperlyConfigured(f"GEN_DURABLE['DATABASE'] is {alias!r}; DATABASES has {known}")
    engine = connections.settings[alias]["ENGINE"]
    vendor = getattr(connections[alias], "vendor", None)
    if vendor != "postgresql":
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {engine!r}; gen_durable needs PostgreSQL. If another one of DATABASES is, name "
            "it: GEN_DURABLE = {'DATABASE': …}"
        )
    return str(alias)


def database_dsn(using: str | None = None) -> str:
    """Where a database of `DATABASES` is, as a DSN: for workers, and for `AsyncClient(database_dsn())`.

    Args:
        using: its alias; left out, the one that `GEN_DURABLE` names.
    """
    said = connections[read().database if using is None else using].settings_dict
    user = "" if not said["USER"] else quote(said["USER"], safe="")
    password = "" if not said["PASSWORD"] else f":{quote(said['PASSWORD'], safe='')}"
    options = {name: str(said["OPTIONS"][name]) for name in _OPTIONS if name in said["OPTIONS"]}
    # The parameter understands what an authority does not: a directory of sockets, several hosts.
    if said["HOST"]:
        options["host"] = str(said["HOST"])
    if said["PORT"]:
        options["port"] = str(said["PORT"])
    account = f"{user}{password}@" if user or password else ""
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{account}/{quote(said['NAME'] or '', safe='')}{query}"
