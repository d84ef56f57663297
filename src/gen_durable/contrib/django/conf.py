"""The setting `GEN_DURABLE` of a Django project, and the DSN of its database."""

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
# Options that psycopg and asyncpg share. Other OPTIONS concern only the connections of Django.
_OPTIONS: Final = (
    *("host", "port"),  # HOST and PORT take precedence, as in Django
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
    """The checked setting `GEN_DURABLE`."""

    database: str
    """The alias in `DATABASES` of the database with the tables."""
    worker: str | None
    """The default target of `manage.py gen_durable worker`."""
    given: Mapping[str, Any]
    """The settings that the project sets."""
    settings: Settings


def read() -> Conf:
    """Read and check the setting `GEN_DURABLE`.

    Raises:
        ImproperlyConfigured: a name or value is invalid.
    """
    configured: Any = getattr(project, "GEN_DURABLE", {})
    if not isinstance(configured, Mapping):
        raise ImproperlyConfigured(f"GEN_DURABLE must be a dict, got {configured!r}")
    for name in configured:
        if name not in (*_OURS, *_SETTINGS):
            close = did_you_mean(str(name).upper(), (*_OURS, *_SETTINGS))
            raise ImproperlyConfigured(f"GEN_DURABLE[{name!r}] is not a setting{close}")
    given = {name.lower(): value for name, value in configured.items() if name in _SETTINGS}
    try:
        settings = Settings.load(**given)
    except SettingsError as error:
        raise ImproperlyConfigured(f"GEN_DURABLE: {error}") from error
    return Conf(_database(configured.get("DATABASE", "default")), configured.get("WORKER"), given, settings)


def _database(alias: Any) -> str:
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise ImproperlyConfigured(f"GEN_DURABLE['DATABASE'] is {alias!r}; DATABASES has {known}")
    engine = connections.settings[alias]["ENGINE"]
    vendor = getattr(connections[alias], "vendor", None)
    if vendor != "postgresql":
        raise ImproperlyConfigured(
            f"DATABASES[{alias!r}] is {engine!r}; gen_durable needs PostgreSQL. Name a PostgreSQL "
            "database: GEN_DURABLE = {'DATABASE': …}"
        )
    return str(alias)


def database_dsn(using: str | None = None) -> str:
    """Return the DSN of a database of `DATABASES`, for workers and `AsyncClient(database_dsn())`.

    Args:
        using: its alias; default: `GEN_DURABLE["DATABASE"]`, or `"default"`.
    """
    database = connections[read().database if using is None else using].settings_dict
    user = "" if not database["USER"] else quote(database["USER"], safe="")
    password = "" if not database["PASSWORD"] else f":{quote(database['PASSWORD'], safe='')}"
    options = {name: str(database["OPTIONS"][name]) for name in _OPTIONS if name in database["OPTIONS"]}
    # As a parameter, host may also be a socket directory or several hosts.
    if database["HOST"]:
        options["host"] = str(database["HOST"])
    if database["PORT"]:
        options["port"] = str(database["PORT"])
    account = f"{user}{password}@" if user or password else ""
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{account}/{quote(database['NAME'] or '', safe='')}{query}"
