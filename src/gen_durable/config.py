"""Settings, and the only place that reads the environment.

A setting comes from an argument, else from the environment, else from a file, else from the default here.
What was given is merged first and becomes one `Settings`, so the checks see the values that count.
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
from .errors import SettingsError, UsageError, did_you_mean

__all__ = [
    "AuditLevel",
    "Pooler",
    "Queue",
    "RecordLevel",
    "Settings",
    "environment_dsn",
    "environment_dsn_source",
    "environment_home",
    "environment_pg_bin",
    "environment_pg_user",
    "environment_prefixes",
    "health_address",
    "lend_environment",
    "malloc_is_tuned",
    "parse_duration",
    "supervised_environment",
    "take_supervision",
]

_PREFIX: Final = "GEN_DURABLE_"
_DSN: Final = "GEN_DURABLE_DSN"
_DSN_SOURCE: Final = "GEN_DURABLE_DSN_SOURCE"
_HOME: Final = "GEN_DURABLE_HOME"
_PG_BIN: Final = "GEN_DURABLE_PG_BIN"
_PG_USER: Final = "GEN_DURABLE_PG_USER"
_SUPERVISED: Final = "GEN_DURABLE_SUPERVISED"
_PREFIXES: Final = "WORKER_TYPE_PREFIXES"
_NOT_SETTINGS: Final = frozenset({_DSN, _DSN_SOURCE, _HOME, _PG_BIN, _PG_USER, _SUPERVISED})

# 48 characters leave room for what we append to a schema name inside the 63 bytes of an identifier.
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_NUMBER: Final = r"(\d+(?:\.\d+)?)"
_DURATION: Final = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?", re.ASCII
)
_UNITS: Final = ("days", "hours", "minutes", "seconds", "milliseconds")
_MAX_DURATION: Final = timedelta(days=3650)
_LOOPBACK: Final = "127.0.0.1"
_SWITCH: Final = {"true": True, "false": False, "on": True, "off": False, "1": True, "0": False}
# A jsonb value cannot hold more.
_MAX_JSONB: Final = 2**28 - 1


RecordLevel: TypeAlias = Literal["all", "failures", "off"]
AuditLevel: TypeAlias = Literal["off", "failures", "all"]
Pooler: TypeAlias = Literal["none", "transaction"]


class _Named(msgspec.StructMeta):
    """Refuses an argument that is no field, with what it may have meant. Type checkers see the fields themselves."""

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **given: Any) -> Any:
            for name in given:
                if name not in self.__struct_fields__:
                    path = f"{self.__name__.lower()}.{name}"
                    raise SettingsError(path, f"is not a setting{did_you_mean(name, self.__struct_fields__)}")
            return super().__call__(*args, **given)


class Queue(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """How a worker serves one queue. In `queues=`, a bare number stands for `Queue(concurrency=number)`."""

    concurrency: int = 10
    """How many of its instances execute at once in this worker."""
    prefetch: int = 0
    """How many more are leased ahead, to begin the moment a slot comes free. Nobody else can run them meanwhile."""
    min_demand: int = 1
    """Look for work only when so many could be taken, or `poll_interval` after the last look: fewer, larger picks."""
    weight: int = 1
    """Its share of `settings.concurrency`, against the weights of the other queues that have work."""

    def __post_init__(self) -> None:
        _check_int("queue.concurrency", self.concurrency, 1)
        _check_int("queue.prefetch", self.prefetch, 0)
        _check_int("queue.min_demand", self.min_demand, 1)
        _check_int("queue.weight", self.weight, 1, 1_000_000)
        if self.min_demand > self.concurrency + self.prefetch:
            raise SettingsError(
                "queue.min_demand",
                f"must be at most queue.concurrency and queue.prefetch together ({self.concurrency + self.prefetch}), "
                f"got {self.min_demand}",
            )


class Settings(msgspec.Struct, metaclass=_Named, frozen=True, kw_only=True):
    """How clients and workers behave. Each default suits most; durations are `timedelta`."""

    schema: str = "gen_durable"
    """The PostgreSQL schema that holds the tables."""
    lease: timedelta = timedelta(seconds=60)
    """How long an execution stays ours without a heartbeat."""
    heartbeat: timedelta = timedelta(0)
    """How old a lease may get before it is renewed.

    0 stands for a third of each lease (`renew_after`): a live execution keeps its lease if two renewals are
    lost. The reaper waits this long for a late renewal.
    """
    poll_interval: timedelta = timedelta(seconds=1)
    """The longest pause between two looks at a silent queue: how late work of another process may start."""
    min_poll_interval: timedelta = timedelta(milliseconds=20)
    """The pause after a look that found work."""
    concurrency: int = 0
    """How many steps of all queues together run at once in one worker, shared by `Queue.weight`; 0 is no such limit."""
    chain_steps: int = 50
    """How many steps of an instance run in a row on one lease, before others get a turn; 1 does not chain."""
    chain_time: timedelta = timedelta(milliseconds=100)
    """After how much time in its steps such a row ends."""
    reap_interval: timedelta = timedelta(seconds=30)
    """The pause between two searches for leases that ran out."""
    reaper: bool = True
    """Whether this worker searches for them; some worker must."""
    gc: bool = True
    """Whether this worker removes what has ended and was kept for long enough."""
    gc_interval: timedelta = timedelta(minutes=1)
    """The pause between two sweeps."""
    retention_done: timedelta = timedelta(days=1)
    """How long an instance is kept after it is done."""
    retention_cancelled: timedelta = timedelta(days=1)
    """How long an instance is kept after it was cancelled."""
    # Somebody may want to look at it, and to retry it, after the weekend.
    retention_failed: timedelta = timedelta(days=7)
    """How long an instance is kept after it failed."""
    retention_deleted: timedelta = timedelta(days=7)
    """How long an instance is kept after it was deleted softly, however it had ended."""
    retention_events: timedelta = timedelta(days=7)
    """How long an event of the outbox is kept after it was published, and the id of a message that came in."""
    retention_pending: timedelta = timedelta(days=30)
    """How long an event that no sink has accepted is kept and retried, from its commit on."""
    retention_executions: timedelta = timedelta(days=7)
    """How long the record of an execution is kept; it goes with its instance at the latest."""
    retention_audit: timedelta = timedelta(days=90)
    """How long an audit event is kept; it goes with its instance at the latest."""
    # Supervisors send SIGKILL 30 s after SIGTERM; what is unfinished by then must have been given back.
    drain_timeout: timedelta = timedelta(seconds=25)
    """How long a worker that is told to stop waits for running steps."""
    crash_limit: int = 20
    """An instance that lost so many executions in a row fails: it seems to be what kills its workers."""
    threads: int = 32
    """How many plain `def` steps run at once."""
    pool_processes: int = 0
    """How many `pool="process"` steps run at once; 0 is one for each processor."""
    executions: RecordLevel = "all"
    """Which executions leave a record: `all`, only `failures` (what was aborted or stopped), or none (`off`)."""
    audit: AuditLevel | None = None
    """The level of the audit, set in the database when a worker starts; left out, it stays what it is there."""
    alerts: str = ""
    """The sink that is told of instances that fail; left out, none is."""
    pooler: Pooler = "none"
    """What stands before PostgreSQL: `transaction` for PgBouncer and its like in transaction mode."""
    max_payload: int = 2**20
    """The size of one state, result or signal: the bytes of its JSON as PostgreSQL writes it, `state::text`."""
    max_inbox: int = 16 * 2**20
    """How many bytes of JSON the signals of one inbox may have that no step has consumed."""
    max_children: int = 10_000
    """How many children one outcome may insert."""
    event_source: str = ""
    """The `source` of the events that this system publishes, a URI; left out, `/gen_durable/<schema>`."""

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
        _check_duration("settings.chain_time", self.chain_time, timedelta(0))
        _check_int("settings.concurrency", self.concurrency, 0)
        _check_int("settings.chain_steps", self.chain_steps, 1)
        _check_int("settings.crash_limit", self.crash_limit, 1)
        _check_int("settings.threads", self.threads, 1)
        _check_int("settings.pool_processes", self.pool_processes, 0, 1024)
        if self.executions not in get_args(RecordLevel):
            raise SettingsError(
                "settings.executions", f"must be all, failures or off, got {self.executions!r}"
            )
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
                f"got {duration_text(self.heartbeat)}",
            )
        if self.min_poll_interval > self.poll_interval:
            raise SettingsError(
                "settings.min_poll_interval",
                f"must be at most settings.poll_interval ({self.poll_interval}), got {self.min_poll_interval}",
            )

    def renew_after(self, lease: timedelta | None = None) -> timedelta:
        """How old a lease of this length (left out: `lease`) may get before it is renewed."""
        return self.heartbeat or min(lease or self.lease, self.lease) / 3

    @classmethod
    def given(cls, settings: Self | None) -> Self:
        """These, or those of the environment."""
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
        """Merge a file, the environment and arguments; the later of these wins.

        Args:
            file: TOML with a table `[tool.gen_durable]`; durations in it are text: "90s", "1m30s", "500ms".
            **given: settings by name.

        The environment has them as `GEN_DURABLE_LEASE=90s`; an empty variable counts as not set.
        """
        merged: dict[str, Any] = {}
        if file is not None:
            for name, value in _read_table(Path(file)).items():
                merged[name] = _converted(name, value, f"{file}: tool.gen_durable.{name}")
        for variable, text in os.environ.items():
            if variable.startswith(_PREFIX) and variable not in _NOT_SETTINGS and text:
                name = variable.removeprefix(_PREFIX).lower()
                merged[name] = _converted(name, text, variable)
        return cls(**{**merged, **given})


def environment_dsn() -> str | None:
    """Read from `GEN_DURABLE_DSN` where PostgreSQL is."""
    return os.environ.get(_DSN) or None


def environment_dsn_source() -> str | None:
    """Who lent the DSN of the environment, if it was lent."""
    return os.environ.get(_DSN_SOURCE) or None


def lend_environment(dsn: str, source: str, given: Mapping[str, Any]) -> None:
    """Tell this process, and those that it starts, where to work: for the command line inside of another program.

    `source` is where the program has the DSN from, for whoever reads that nobody answers there.
    """
    os.environ[_DSN] = dsn
    os.environ[_DSN_SOURCE] = source
    for name, value in given.items():
        if isinstance(value, timedelta):
            os.environ[_PREFIX + name.upper()] = f"{value.total_seconds():.6f}s"
        elif value is not None:
            os.environ[_PREFIX + name.upper()] = str(value)


def malloc_is_tuned() -> bool:
    """Whether the environment says how glibc allocates memory."""
    return "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(
        variable.startswith("MALLOC_") and variable.endswith("_") for variable in os.environ
    )


def environment_home() -> Path | None:
    """Read from `GEN_DURABLE_HOME` where the embedded server lives."""
    home = os.environ.get(_HOME)
    return Path(home).expanduser() if home else None


def environment_pg_bin() -> Path | None:
    """Read from `GEN_DURABLE_PG_BIN` in which directory PostgreSQL's programs are."""
    directory = os.environ.get(_PG_BIN)
    return Path(directory).expanduser() if directory else None


def environment_pg_user() -> str | None:
    """Read from `GEN_DURABLE_PG_USER` which account the embedded server runs under."""
    return os.environ.get(_PG_USER) or None


def supervised_environment(orders: str) -> dict[str, str]:
    """The environment of a process that is to take orders from this one."""
    return {**os.environ, _SUPERVISED: orders}


def take_supervision() -> str | None:
    """What a supervisor told this process. Taken out: it is not meant for those that are started from here."""
    return os.environ.pop(_SUPERVISED, None)


def environment_prefixes() -> list[str] | None:
    """The namespaces that a worker owns, if `WORKER_TYPE_PREFIXES` says so: `billing.,media.`; empty is `default.`."""
    given = os.environ.get(_PREFIXES)
    return None if given is None else [prefix.strip() for prefix in given.split(",") if prefix.strip()]


def health_address(given: int | str) -> tuple[str, int]:
    """Host and port of `8080`, `":8080"`, `"0.0.0.0:8080"` or `"[::1]:8080"`; the default host is loopback."""
    host, _, port = ("", "", str(given)) if type(given) is int else str(given).rpartition(":")
    if isinstance(given, bool) or not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise SettingsError("health", f"must be a port or host:port, got {given!r}")
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


def parse_duration(text: str) -> timedelta:
    """Read "90s", "1m30s", "500ms" or "2h": days (d), hours, minutes, seconds, milliseconds, in this order.

    Raises:
        ValueError: it is not written like that.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is no duration; write for example 90s, 1m30s, 500ms or 2h")
    try:
        return timedelta(**{unit: float(n) for unit, n in zip(_UNITS, found.groups(), strict=True) if n})
    except OverflowError:
        raise ValueError(f"{text!r} is longer than any duration can be") from None


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
        known = [*(_PREFIX + field.upper() for field in _DEFAULTS), *sorted(_NOT_SETTINGS - {_SUPERVISED})]
        raise SettingsError(path, f"is not a setting{did_you_mean(path, known)}")
    raise SettingsError(path, f"is not a setting{did_you_mean(name, tuple(_DEFAULTS))}")


def _converted(name: str, value: Any, path: str) -> Any:
    """Give a value of the file or the environment the type of its setting; its range is checked later."""
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
        raise SettingsError(
            path, f"must not begin with pg_, which PostgreSQL keeps for itself, got {value!r}"
        )


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
