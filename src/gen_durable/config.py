"""Settings of clients and workers, and the environment variables of the library.

Precedence: argument, environment variable, file, default. `Settings` is built from the merged values, so its checks
see the values that apply.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, get_args

import msgspec

from ._checks import checked_name, duration_text, timedelta_of
from ._dictionary import did_you_mean, translation
from .errors import SettingsError, UsageError

__all__ = [
    "DASHBOARD_PORT",
    "SUPERVISED",
    "AuditLevel",
    "HistoryLevel",
    "Pooler",
    "Queue",
    "RecordLevel",
    "Settings",
    "dashboard_token",
    "environment_dsn",
    "environment_dsn_source",
    "environment_home",
    "environment_pg_bin",
    "environment_pg_user",
    "environment_prefixes",
    "export_settings",
    "health_address",
    "is_supervised",
    "malloc_is_tuned",
    "parse_duration",
]

_PREFIX: Final = "GEN_DURABLE_"
_DSN: Final = "GEN_DURABLE_DSN"
_DSN_SOURCE: Final = "GEN_DURABLE_DSN_SOURCE"
_HOME: Final = "GEN_DURABLE_HOME"
_PG_BIN: Final = "GEN_DURABLE_PG_BIN"
_PG_USER: Final = "GEN_DURABLE_PG_USER"
_PREFIXES: Final = "GEN_DURABLE_PREFIXES"
_DASH_TOKEN: Final = "GEN_DURABLE_DASH_TOKEN"  # noqa: S105 - the name of a variable
_PREFIXES_OF_SPECIFICATION: Final = "WORKER_TYPE_PREFIXES"
DASHBOARD_PORT: Final = 8420
"""The default port of the dashboard."""
SUPERVISED: Final = "GEN_DURABLE_SUPERVISED"
"""Set by a supervisor for its child processes."""
_NOT_SETTINGS: Final = frozenset(
    {_DSN, _DSN_SOURCE, _HOME, _PG_BIN, _PG_USER, _PREFIXES, _DASH_TOKEN, SUPERVISED}
)
# Options of this project's own test suite.
_TEST_PREFIX: Final = "GEN_DURABLE_TEST_"

# PostgreSQL identifiers have at most 63 bytes; some of our names append up to 15 bytes to the schema name.
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_DURATION: Final = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?", re.ASCII
)
_UNITS: Final = ("days", "hours", "minutes", "seconds", "milliseconds")
_MAX_DURATION: Final = timedelta(days=3650)
_LOOPBACK: Final = "127.0.0.1"
_SWITCH: Final = {"true": True, "false": False, "on": True, "off": False, "1": True, "0": False}
# The largest string that jsonb can store.
_MAX_JSONB: Final = 2**28 - 1


RecordLevel: TypeAlias = Literal["all", "failures", "off"]
HistoryLevel: TypeAlias = Literal["off", "all"]
AuditLevel: TypeAlias = Literal["off", "failures", "all"]
Pooler: TypeAlias = Literal["none", "transaction"]


class _Named(msgspec.StructMeta):
    """Reject unknown arguments with a suggestion. Type checkers see the fields instead."""

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **given: Any) -> Any:
            for name in given:
                if name not in self.__struct_fields__:
                    path = f"{self.__name__.lower()}.{name}"
                    raise SettingsError(
                        path, f"is not a setting{did_you_mean(name, self.__struct_fields__, 'settings')}"
                    )
            return super().__call__(*args, **given)


class Queue(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """How a worker serves one queue. In `queues=`, a number `n` means `Queue(concurrency=n)`."""

    concurrency: int = 10
    """Maximum number of steps of this queue that run at once in each worker process."""
    prefetch: int = 0
    """Number of instances to lease ahead, beyond `concurrency`.

    They start as soon as a running step ends. Other workers cannot run them meanwhile, so do not prefetch long steps.
    """
    min_demand: int = 1
    """Pick only when at least this many instances could be taken, or `poll_interval` after the last pick.

    Higher values give fewer, larger picks.
    """
    weight: int = 1
    """Share of `settings.concurrency`, relative to the weights of the other queues that have work."""

    def __post_init__(self) -> None:
        _check_int("queue.concurrency", self.concurrency, 1)
        _check_int("queue.prefetch", self.prefetch, 0)
        _check_int("queue.min_demand", self.min_demand, 1)
        _check_int("queue.weight", self.weight, 1, 1_000_000)
        if self.min_demand > self.concurrency + self.prefetch:
            raise SettingsError(
                "queue.min_demand",
                f"must be at most queue.concurrency + queue.prefetch ({self.concurrency + self.prefetch}), "
                f"got {self.min_demand}",
            )


class Settings(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """Settings of clients and workers. Durations are `timedelta`."""

    schema: str = "gen_durable"
    """PostgreSQL schema that holds the tables."""
    lease: timedelta = timedelta(seconds=60)
    """How long an execution keeps its instance without a heartbeat.

    After a crash, other workers can run the instance once the lease has expired and the reaper has found it.
    """
    heartbeat: timedelta = timedelta(0)
    """Age at which a lease is renewed, at most half of the lease.

    0 means a third of each lease: a running step keeps its lease even if two renewals fail. The reaper waits this
    long for a late renewal.
    """
    poll_interval: timedelta = timedelta(seconds=1)
    """Longest pause between two picks of an idle queue.

    Work that another process inserts starts at most this much later.
    """
    min_poll_interval: timedelta = timedelta(milliseconds=20)
    """Pause after a pick that found work."""
    concurrency: int = 0
    """Maximum number of steps of all queues that run at once in one worker process; 0 means no limit.

    Queues with work share it by `Queue.weight`.
    """
    chain_steps: int = 50
    """Maximum number of steps of an instance that run in a row on one lease; 1 disables chaining."""
    chain_time: timedelta = timedelta(milliseconds=100)
    """Maximum time in chained steps before the instance returns to its queue."""
    reap_interval: timedelta = timedelta(seconds=30)
    """Pause between two searches for expired leases."""
    reaper: bool = True
    """Whether this worker searches for expired leases; at least one worker must."""
    gc: bool = True
    """Whether this worker removes rows whose retention is over; at least one worker should."""
    gc_interval: timedelta = timedelta(minutes=1)
    """Pause between two sweeps of the collector."""
    retention_done: timedelta = timedelta(days=1)
    """How long a done instance is kept; 0: the commit deletes it, as with `keep=False`."""
    retention_cancelled: timedelta = timedelta(days=1)
    """How long a cancelled instance is kept."""
    # Long enough to inspect and retry a failure after a weekend.
    retention_failed: timedelta = timedelta(days=7)
    """How long a failed instance is kept."""
    retention_deleted: timedelta = timedelta(days=7)
    """How long a soft-deleted instance is kept, whatever its status."""
    retention_events: timedelta = timedelta(days=7)
    """How long a published outbox event is kept, and the id of a received message."""
    retention_pending: timedelta = timedelta(days=30)
    """How long an outbox event that no sink accepts is retried, counted from its commit."""
    retention_executions: timedelta = timedelta(days=7)
    """How long the record of an execution is kept, at most as long as its instance."""
    retention_audit: timedelta = timedelta(days=90)
    """How long an audit event is kept, at most as long as its instance, and a batch after its end."""
    # Process managers send SIGKILL 30 s after SIGTERM; unfinished executions must be released before that.
    drain_timeout: timedelta = timedelta(seconds=25)
    """How long a worker waits for running steps after SIGTERM."""
    crash_limit: int = 20
    """Number of crashes in one step after which the instance fails as poison."""
    loop_blocked_after: timedelta = timedelta(seconds=1)
    """How long a step may block the event loop before the worker logs it, with its stack; 0 turns this off."""
    threads: int = 32
    """Maximum number of plain `def` steps that run at once in one worker process."""
    pool_processes: int = 0
    """Maximum number of `pool="process"` steps that run at once; 0 means one per processor."""
    executions: RecordLevel = "all"
    """Which executions are recorded: `all`, `failures` (aborted or stopped) or `off`."""
    history: HistoryLevel = "off"
    """Whether each transition keeps the state that it wrote, in its execution record: `all` or `off`.

    For machines that do not say it themselves (`history=`). With `all`, every execution is recorded.
    """
    audit: AuditLevel | None = None
    """Audit level that a worker writes to the database at start. If it is not set, the current level stays."""
    alerts: str = ""
    """Sink that receives an event for each instance that fails; empty disables alerts."""
    pooler: Pooler = "none"
    """Connection pooler in front of PostgreSQL: `transaction` for PgBouncer or a similar pooler in transaction mode."""
    max_payload: int = 2**20
    """Maximum size in bytes of a state, result or signal payload, measured as PostgreSQL prints it (`state::text`)."""
    max_inbox: int = 16 * 2**20
    """Maximum size in bytes of the unconsumed signals of one instance."""
    max_children: int = 10_000
    """Maximum number of children that one outcome may insert."""
    event_source: str = ""
    """CloudEvents `source` of published events, a URI; empty means `/gen_durable/<schema>`."""

    def __post_init__(self) -> None:
        _check_schema("settings.schema", self.schema)
        shortest = timedelta(milliseconds=1)
        _check_duration("settings.lease", self.lease, shortest)
        if self.heartbeat != timedelta(0):
            _check_duration("settings.heartbeat", self.heartbeat, shortest)
        _check_duration("settings.poll_interval", self.poll_interval, shortest)
        _check_duration("settings.min_poll_interval", self.min_poll_interval, shortest)
        _check_duration("settings.reap_interval", self.reap_interval, shortest)
        _check_duration("settings.gc_interval", self.gc_interval, shortest)
        for name in ("done", "cancelled", "failed", "deleted", "events", "pending", "executions", "audit"):
            _check_duration(f"settings.retention_{name}", getattr(self, f"retention_{name}"), timedelta(0))
        _check_bool("settings.reaper", self.reaper)
        _check_bool("settings.gc", self.gc)
        _check_duration("settings.drain_timeout", self.drain_timeout, timedelta(0))
        _check_duration("settings.loop_blocked_after", self.loop_blocked_after, timedelta(0))
        _check_duration("settings.chain_time", self.chain_time, timedelta(0))
        _check_int("settings.concurrency", self.concurrency, 0)
        _check_int("settings.chain_steps", self.chain_steps, 1)
        _check_int("settings.crash_limit", self.crash_limit, 1)
        _check_int("settings.threads", self.threads, 1)
        _check_int("settings.pool_processes", self.pool_processes, 0, 1024)
        _check_level("settings.executions", self.executions, RecordLevel, "all, failures or off")
        _check_level("settings.history", self.history, HistoryLevel, "all or off")
        if self.audit not in (None, *get_args(AuditLevel)):
            raise SettingsError("settings.audit", f"must be off, failures or all, got {self.audit!r}")
        if self.alerts != "":
            _check_name("settings.alerts", self.alerts)
        if self.pooler not in get_args(Pooler):
            raise SettingsError("settings.pooler", f"must be none or transaction, got {self.pooler!r}")
        _check_int("settings.max_payload", self.max_payload, 1, _MAX_JSONB)
        _check_int("settings.max_inbox", self.max_inbox, 1)
        _check_int("settings.max_children", self.max_children, 1)
        if type(self.event_source) is not str or not self.event_source.isprintable():
            raise SettingsError("settings.event_source", f"must be a URI, got {self.event_source!r}")
        if self.heartbeat * 2 > self.lease:
            raise SettingsError(
                "settings.heartbeat",
                f"must be at most half of settings.lease ({duration_text(self.lease)}), "
                f"got {duration_text(self.heartbeat)}. Lower heartbeat or raise lease.",
            )
        if self.min_poll_interval > self.poll_interval:
            raise SettingsError(
                "settings.min_poll_interval",
                f"must be at most settings.poll_interval ({duration_text(self.poll_interval)}), "
                f"got {duration_text(self.min_poll_interval)}. Lower min_poll_interval or raise poll_interval.",
            )

    def renew_after(self, lease: timedelta | None = None) -> timedelta:
        """Return the age at which a lease of this length (default: `lease`) is renewed."""
        return self.heartbeat or min(lease or self.lease, self.lease) / 3

    @classmethod
    def given(cls, settings: Self | None) -> Self:
        """Return `settings`, or load them from the environment if `None`."""
        if settings is None:
            return cls.load()
        if not isinstance(settings, cls):
            raise SettingsError(
                "settings=",
                f"must be a Settings, got {type(settings).__name__}; "
                "write settings=Settings(lease=timedelta(seconds=30))",
            )
        return settings

    @classmethod
    def load(cls, file: Path | str | None = None, /, **given: Any) -> Self:
        """Load settings. Arguments win over environment variables, which win over the file.

        The variable of a setting is its name in capitals after `GEN_DURABLE_`: `GEN_DURABLE_LEASE=90s`. An empty
        variable counts as not set.

        Args:
            file: TOML file with a table `[tool.gen_durable]`; durations are text: "90s", "1m30s", "500ms".
            **given: settings by name.

        Raises:
            SettingsError: A setting is unknown or out of range, or the file cannot be read.
        """
        return cls.load_over({}, file, **given)

    @classmethod
    def load_over(cls, defaults: Mapping[str, Any], file: Path | str | None = None, /, **given: Any) -> Self:
        """Load settings, with other defaults."""
        merged = dict(defaults)
        if file is not None:
            for name, value in _read_table(Path(file)).items():
                merged[name] = _converted(name, value, f"{file}: tool.gen_durable.{name}")
        for variable, text in os.environ.items():
            if _is_setting(variable) and text:
                name = variable.removeprefix(_PREFIX).lower()
                merged[name] = _converted(name, text, variable)
        return cls(**{**merged, **given})


def _is_setting(variable: str) -> bool:
    return (
        variable.startswith(_PREFIX)
        and not variable.startswith(_TEST_PREFIX)
        and variable not in _NOT_SETTINGS
    )


def is_supervised() -> bool:
    """Return whether a supervisor started this process as a worker."""
    return SUPERVISED in os.environ


def environment_dsn() -> str | None:
    """Return `GEN_DURABLE_DSN`, the DSN of PostgreSQL."""
    return os.environ.get(_DSN) or None


def environment_dsn_source() -> str | None:
    """Return where `GEN_DURABLE_DSN` came from, if `export_settings` set it."""
    return os.environ.get(_DSN_SOURCE) or None


def export_settings(dsn: str, source: str, given: Mapping[str, Any]) -> None:
    """Set the environment variables of this process and its children, for a program that embeds the command line.

    Args:
        dsn: DSN of PostgreSQL.
        source: where the program has the DSN from; connection errors name it.
        given: settings by name.
    """
    os.environ[_DSN] = dsn
    os.environ[_DSN_SOURCE] = source
    for name, value in given.items():
        if isinstance(value, timedelta):
            os.environ[_PREFIX + name.upper()] = f"{value.total_seconds():.6f}s"
        elif value is not None:
            os.environ[_PREFIX + name.upper()] = str(value)


def malloc_is_tuned() -> bool:
    """Return whether environment variables configure the malloc of glibc."""
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        variable.startswith("MALLOC_") and variable.endswith("_") for variable in os.environ
    )


def environment_home() -> Path | None:
    """Return `GEN_DURABLE_HOME`, the directory of the embedded server."""
    home = os.environ.get(_HOME)
    return Path(home).expanduser() if home else None


def environment_pg_bin() -> Path | None:
    """Return `GEN_DURABLE_PG_BIN`, the directory of PostgreSQL's programs."""
    directory = os.environ.get(_PG_BIN)
    return Path(directory).expanduser() if directory else None


def environment_pg_user() -> str | None:
    """Return `GEN_DURABLE_PG_USER`, the account that runs the embedded server."""
    return os.environ.get(_PG_USER) or None


def environment_prefixes() -> list[str] | None:
    """Return the prefixes that a worker serves: `GEN_DURABLE_PREFIXES=billing.,media.`.

    `WORKER_TYPE_PREFIXES` is an alias, the name in the specification. If that is set and empty, the list is empty.
    """
    given = os.environ.get(_PREFIXES) or os.environ.get(_PREFIXES_OF_SPECIFICATION)
    return None if given is None else [prefix.strip() for prefix in given.split(",") if prefix.strip()]


def dashboard_token() -> str | None:
    """Return the bearer token of `gen-durable dash`: `GEN_DURABLE_DASH_TOKEN`."""
    return os.environ.get(_DASH_TOKEN) or None


def health_address(given: int | str) -> tuple[str, int]:
    """Return host and port of `8080`, `":8080"`, `"0.0.0.0:8080"` or `"[::1]:8080"`. Default host: 127.0.0.1."""
    host, _, port = ("", "", str(given)) if type(given) is int else str(given).rpartition(":")
    if isinstance(given, bool) or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise SettingsError("health", f"must be a port or host:port, got {given!r}")
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


def parse_duration(text: str) -> timedelta:
    """Parse "90s", "1m30s", "500ms", "2h" or "0": days (d), hours, minutes, seconds, milliseconds, in this order.

    Raises:
        ValueError: The text is not a duration.
    """
    if text.strip() == "0":
        return timedelta(0)
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration; write for example 90s, 1m30s, 500ms or 2h")
    try:
        return timedelta(**{unit: float(n) for unit, n in zip(_UNITS, found.groups(), strict=True) if n})
    except OverflowError:
        raise ValueError(f"{text!r} is too long for a duration") from None


def _read_table(file: Path) -> Mapping[str, Any]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(str(file), f"cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise SettingsError(str(file), f"is not valid TOML: {error}") from error
    tool = tree.get("tool", {})
    table = tool.get("gen_durable", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise SettingsError(f"{file}: tool.gen_durable", "must be a table")
    return table


def _refuse_unknown(name: str, path: str) -> None:
    if name in _DEFAULTS:
        return
    if path.startswith(_PREFIX):
        known = [*(_PREFIX + field.upper() for field in _DEFAULTS), *sorted(_NOT_SETTINGS - {SUPERVISED})]
        meant = translation(name, "settings")
        path_meant = _PREFIX + meant.ours.upper() if meant is not None and meant.ours in _DEFAULTS else path
        raise SettingsError(path, f"is not a setting{did_you_mean(path_meant, known)}")
    raise SettingsError(path, f"is not a setting{did_you_mean(name, tuple(_DEFAULTS), 'settings')}")


def _converted(name: str, value: Any, path: str) -> Any:
    """Convert a value of the file or the environment to the type of its setting. `Settings` checks the range."""
    _refuse_unknown(name, path)
    kind = type(_DEFAULTS[name])
    if kind is timedelta:
        if not isinstance(value, str):
            raise SettingsError(path, f'must be a duration like "90s" or "1m30s", got {value!r}')
        try:
            return parse_duration(value)
        except ValueError as error:
            raise SettingsError(path, f"must be a duration: {error}") from error
    if kind is bool and isinstance(value, str):
        if value.lower() not in _SWITCH:
            raise SettingsError(path, f"must be one of {', '.join(_SWITCH)}, got {value!r}")
        return _SWITCH[value.lower()]
    if kind is int and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise SettingsError(path, f"must be a whole number, got {value!r}") from None
    return value


def _check_schema(path: str, value: object) -> None:
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        raise SettingsError(path, f"must match [a-z_][a-z0-9_]* with at most 48 characters, got {value!r}")
    if value.startswith("pg_"):
        raise SettingsError(path, f"must not begin with pg_, which PostgreSQL reserves, got {value!r}")


def _check_name(path: str, value: object) -> None:
    try:
        checked_name(value, "it")
    except UsageError as error:
        raise SettingsError(path, f"must be the name of a sink: {error}") from None


def _check_int(path: str, value: object, least: int, most: int = 2**31 - 1) -> None:
    if type(value) is not int:
        raise SettingsError(path, f"must be a whole number, got {value!r}")
    if value < least:
        raise SettingsError(path, f"must be at least {least}, got {value}")
    if value > most:
        raise SettingsError(path, f"must be at most {most}, got {value}")


def _check_level(path: str, value: str, levels: Any, text: str) -> None:
    if value not in get_args(levels):
        raise SettingsError(path, f"must be {text}, got {value!r}")


def _check_bool(path: str, value: object) -> None:
    if type(value) is not bool:
        raise SettingsError(path, f"must be True or False, got {value!r}")


def _check_duration(path: str, value: object, least: timedelta) -> None:
    if not isinstance(value, timedelta):
        hint = f"; {timedelta_of(value)}" if type(value) in (int, float) else ""
        raise SettingsError(path, f"must be a timedelta, got {value!r}{hint}")
    if value < least:
        raise SettingsError(path, f"must be at least {duration_text(least)}, got {duration_text(value)}")
    if value > _MAX_DURATION:
        raise SettingsError(
            path, f"must be at most {duration_text(_MAX_DURATION)}, got {duration_text(value)}"
        )


_DEFAULTS: Final[Mapping[str, Any]] = msgspec.structs.asdict(Settings())
