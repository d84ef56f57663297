"""Words of the specification and of other systems, and what they are called here.

`did_you_mean` adds a hint to the message of an error about an unknown name. It knows the words in `ENTRIES`; for any
other word it looks for a similar name. docs/reference/dictionary.md lists the same entries; a test compares the two.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, NoReturn, TypeAlias

__all__ = [
    "ENTRIES",
    "Entry",
    "Place",
    "attribute_hint",
    "closest",
    "did_you_mean",
    "package_attribute",
    "translation",
]

Place: TypeAlias = Literal[
    "insert",
    "filter",
    "machine",
    "step",
    "job",
    "context",
    "instance",
    "client",
    "package",
    "settings",
    "status",
]
"""Where a word is used: an option of insert, an attribute of `ctx`, a name in the package, a status, and so on."""

# Places whose names are keyword arguments.
_OPTIONS: Final[frozenset[Place]] = frozenset({"insert", "filter", "machine", "step", "job"})

# How a name is shown when the word was used in another place than the entry says.
_SHOWN: Final[dict[Place, str]] = {
    "insert": "insert(…, {}=…)",
    "filter": "client.list(…, {}=…)",
    "machine": "class M(Machine, {}=…)",
    "step": "@step({}=…)",
    "job": "@job(…, {}=…)",
    "context": "ctx.{}",
    "instance": "instance.{}",
    "client": "client.{}",
    "package": "gen_durable.{}",
    "settings": "Settings({}=…)",
    "status": "status '{}'",
}


class Entry(NamedTuple):
    """One word of another vocabulary."""

    word: str
    ours: str
    """The name here, or a piece of code where no single name says it."""
    place: Place
    source: str
    """The vocabulary that the word comes from."""
    note: str = ""
    """How the two differ in meaning."""

    @property
    def is_name(self) -> bool:
        """Whether `ours` is one name of its place, not a piece of code."""
        return self.ours.isidentifier()

    @property
    def code(self) -> str:
        """`ours` as a piece of code that also says where it belongs: `ctx.inbox`, `insert(…, concurrency_key=…)`."""
        return _SHOWN[self.place].format(self.ours) if self.is_name else self.ours


_FIRST_COUNTS: Final = "the first execution counts"

_Row: TypeAlias = tuple[str, str, Place] | tuple[str, str, Place, str]
_TABLE: Final[dict[str, tuple[_Row, ...]]] = {
    "specification": (
        ("fsm", "Machine", "package"),
        ("fsm", "name", "machine"),
        ("fsm", "machine", "context"),
        ("fsm", "machine", "instance"),
        ("fsm", "client.list(machine, …)", "filter"),
        ("fsm_version", "version", "machine"),
        ("fsm_version", "version", "context"),
        ("fsm_version", "version", "instance"),
        ("fsm_version", "version", "filter"),
        ("state", "class M(Machine[State])", "machine"),
        ("initial", "@step(initial=True)", "machine"),
        ("replay", "Retry", "package"),
        ("schedule_childs", "ScheduleChildren", "package"),
        ("all", "inbox", "context"),
        ("signals", "inbox", "context"),
        ("childs", "children", "context"),
        ("partition_key", "concurrency_key", "insert"),
        ("partition_key", "concurrency_key", "filter"),
        ("partition_key", "concurrency_key", "instance"),
        ("lease_ttl", "lease", "settings"),
        ("heartbeat_interval", "heartbeat", "settings"),
        ("reaper_interval", "reap_interval", "settings"),
        ("prefix", "schema", "settings"),
        ("repo", "insert(…, conn=…)", "insert"),
    ),
    "simple-workflow": (
        ("workflow_run", "Instance", "package"),
        ("workflow_event", "AuditEvent", "package"),
        ("outbox_event", "Event", "package"),
        ("handler", "job", "package"),
        ("type", "name", "machine"),
        ("type", "machine", "context"),
        ("type", "machine", "instance"),
        ("type", "client.list(machine, …)", "filter"),
        ("payload", "insert(machine, state)", "insert"),
        ("payload", "state", "context"),
        ("payload", "state", "instance"),
        ("run_at", "eligible_at", "insert"),
        ("run_at", "eligible_at", "instance"),
        ("leased_by", "locked_by", "instance"),
        ("worker_id", "locked_by", "instance"),
        ("created_at", "inserted_at", "instance"),
        ("pending", "runnable", "status"),
        ("leased", "executing", "status"),
        ("succeeded", "done", "status"),
        ("lease_duration", "lease", "settings"),
    ),
    "state model": (
        ("job_id", "id", "context"),
        ("job_id", "id", "instance"),
        ("lease_owner", "locked_by", "instance"),
        ("submit", "insert", "client"),
        ("running", "executing", "status"),
        ("in_progress", "executing", "status"),
        ("exec_id", "client.executions(instance)", "instance"),
    ),
    "Celery": (
        ("task", "job", "package"),
        ("shared_task", "job", "package"),
        ("chord", "ScheduleChildren", "package"),
        ("group", "ScheduleChildren", "package"),
        ("crontab", "Schedule", "package"),
        ("periodic_task", "Schedule", "package"),
        ("AsyncResult", "Ref", "package"),
        ("delay", "client.insert(job, payload)", "job"),
        ("apply_async", "client.insert(job, payload)", "job"),
        ("send_task", "insert", "client"),
        ("revoke", "cancel", "client"),
        ("countdown", "schedule_in", "insert"),
        ("eta", "eligible_at", "insert"),
        ("max_retries", "max_attempts", "insert", _FIRST_COUNTS),
        ("max_retries", "max_attempts", "job", _FIRST_COUNTS),
        ("max_retries", "retry=Backoff(max_attempts=…)", "machine", _FIRST_COUNTS),
        ("max_retries", "retry=Backoff(max_attempts=…)", "step", _FIRST_COUNTS),
        ("default_retry_delay", "retry=Backoff(base=…)", "job"),
        ("retry_backoff", "retry=Backoff(base=…)", "job"),
        ("retry_backoff_max", "retry=Backoff(cap=…)", "job"),
        ("retry_jitter", "retry=Backoff(jitter=…)", "job"),
        ("time_limit", "timeout", "job"),
        ("soft_time_limit", "timeout", "job"),
        ("retries", "attempt", "context"),
        ("update_state", "progress", "context"),
        ("worker_concurrency", "concurrency", "settings"),
        ("visibility_timeout", "lease", "settings"),
        ("success", "done", "status"),
        ("failure", "failed", "status"),
        ("revoked", "cancelled", "status"),
    ),
    "Dramatiq": (
        ("actor", "job", "package"),
        ("send", "client.insert(job, payload)", "job"),
        ("delay", "schedule_in", "insert"),
        ("enqueue", "insert", "client"),
    ),
    "Temporal": (
        ("workflow", "Machine", "package"),
        ("activity", "step", "package"),
        ("RetryPolicy", "Backoff", "package"),
        ("continue_as_new", "Next", "package", "Next to the same step has no history to cut"),
        ("execute_child_workflow", "ScheduleChildren", "package"),
        ("start_child_workflow", "ScheduleChildren", "package"),
        ("wait_condition", "Await", "package"),
        ("start_workflow", "insert", "client"),
        ("execute_workflow", "insert", "client", "then wait for it: client.wait(…)"),
        ("signal_workflow", "signal", "client"),
        ("terminate", "client.cancel(…, force=True)", "client"),
        ("list_workflows", "list", "client"),
        ("count_workflows", "count", "client"),
        ("workflow_id", "correlation_key", "insert"),
        ("workflow_id", "correlation_key", "filter"),
        ("task_queue", "queue", "insert"),
        ("task_queue", "queue", "filter"),
        ("task_queue", "queue", "machine"),
        ("task_queue", "queue", "job"),
        ("start_delay", "schedule_in", "insert"),
        ("cron_schedule", "Schedule(name, spec, cron=…)", "insert"),
        ("retry_policy", "retry", "machine"),
        ("retry_policy", "retry", "step"),
        ("retry_policy", "retry", "job"),
        ("start_to_close_timeout", "timeout", "step"),
        ("start_to_close_timeout", "timeout", "job"),
        ("heartbeat", "checkpoint", "context"),
        ("heartbeat_details", "last_checkpoint", "context"),
        ("heartbeat_timeout", "lease", "step", "workers send heartbeats automatically"),
        ("heartbeat_timeout", "lease", "job", "workers send heartbeats automatically"),
        ("workflow_id", "correlation_key", "context"),
        ("completed", "done", "status"),
        ("canceled", "cancelled", "status"),
        ("terminated", "cancelled", "status"),
    ),
    "Oban": (
        ("unique", "unique_key", "insert"),
        ("snooze", "Next", "package", "Next(step, delay=…) does not count as an attempt"),
        ("discard_job", "cancel", "client"),
        ("cancel_job", "cancel", "client"),
        ("retry_job", "retry", "client"),
        ("cancel_all_jobs", "cancel_all", "client"),
        ("retry_all_jobs", "retry_all", "client"),
        ("delete_job", "soft_delete", "client"),
        ("attempted_by", "locked_by", "instance"),
        ("scheduled_at", "schedule_at", "insert"),
        ("scheduled_at", "eligible_at", "instance"),
        ("shutdown_grace_period", "drain_timeout", "settings"),
        ("available", "runnable", "status"),
        ("scheduled", "runnable", "status", "with eligible_at in the future"),
        ("retryable", "runnable", "status", "with attempt above 0"),
        ("discarded", "failed", "status"),
    ),
}

ENTRIES: Final = tuple(
    Entry(word, ours, place, source, *note)
    for source, rows in _TABLE.items()
    for word, ours, place, *note in rows
)


def _folded(word: str) -> str:
    """A word without case and separators: `schedule_childs`, `ScheduleChilds` and `:schedule_childs` are one."""
    return word.lower().replace("_", "").replace("-", "").lstrip(":")


_BY_WORD: Final[dict[str, list[Entry]]] = {}
for _entry in ENTRIES:
    _BY_WORD.setdefault(_folded(_entry.word), []).append(_entry)


def did_you_mean(word: str, known: Sequence[str], place: Place | None = None) -> str:
    """Return a hint such as `; did you mean 'ship'?`, or an empty text if no known name is meant.

    Args:
        word: the name that is not known.
        known: the names that could be meant.
        place: what these names are. Without it, they are names of the user.
    """
    entry = translation(word, place, known)
    if entry is not None:
        name = _spelled(entry, known) or (entry.ours if entry.place == place and entry.is_name else None)
        meant = f"`{entry.code}`" if name is None else f"'{name}'"
        return f"; did you mean {meant}?{f' ({entry.note})' if entry.note else ''}"
    close = closest(word, known)
    return "" if close is None else f"; did you mean '{close}'?"


def closest(word: str, known: Sequence[str]) -> str | None:
    """Return the known name that is most similar to a word, if one is similar enough."""
    return next(iter(difflib.get_close_matches(word, known, n=1)), None)


def translation(word: str, place: Place | None, known: Sequence[str] = ()) -> Entry | None:
    """Find the entry of a word: of its place, else one of the known names, else of any other place."""
    entries = _BY_WORD.get(_folded(word), ())
    here = [entry for entry in entries if entry.place == place]
    known_here = [entry for entry in entries if _spelled(entry, known)]
    # A decorator is not what an option means.
    elsewhere = [
        entry
        for entry in (entries if place is not None else ())
        if place not in _OPTIONS or entry.place != "package" or not entry.ours.islower()
    ]
    return next(iter((*here, *known_here, *elsewhere)), None)


def _spelled(entry: Entry, known: Sequence[str]) -> str | None:
    """The known name that an entry means, as it is spelled there: with dashes, or in capitals."""
    ours = _folded(entry.ours)
    return next((name for name in known if _folded(name) == ours), None)


def attribute_hint(place: Place) -> Callable[[object, str], NoReturn]:
    """Return a `__getattr__` that refuses an attribute with a hint.

    Python itself suggests similar names, so this one adds only what the dictionary knows.
    """

    def __getattr__(self: object, name: str) -> NoReturn:  # noqa: N807
        problem = f"{type(self).__name__!r} object has no attribute {name!r}"
        if translation(name, place) is None:
            raise AttributeError(problem, name=name, obj=self)
        # Without obj, the traceback does not add a suggestion of its own, which may be the wrong one.
        raise AttributeError(problem + did_you_mean(name, (), place), name=name, obj=None)

    return __getattr__


def package_attribute(name: str) -> NoReturn:
    """Refuse a name that the package does not have: its `__getattr__`."""
    problem = f"module 'gen_durable' has no attribute {name!r}"
    if translation(name, "package") is None:
        raise AttributeError(problem, name=name, obj=sys.modules["gen_durable"])
    hint = did_you_mean(name, (), "package")
    # `from gen_durable import name` drops the text of an AttributeError, but not that of an ImportError.
    if sys._getframe(1).f_code.co_name == "_handle_fromlist":  # noqa: SLF001
        raise ImportError(f"cannot import name {name!r} from 'gen_durable'{hint}")
    raise AttributeError(problem + hint, name=name, obj=None)
