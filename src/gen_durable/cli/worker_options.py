"""The worker that options describe, for `worker` and `dev`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import click
import msgspec

from .._dictionary import did_you_mean
from ..config import Queue, Settings
from ..definition import MachineDef
from ..limits import Limit
from ..schedules import Schedule
from ..worker import Worker
from .failure import Failure
from .limits import limit
from .options import prefix, queue
from .targets import Machines

__all__ = ["Selection", "make", "refuse_options", "selection_options", "served", "warn_of_idle"]

_log: Final = logging.getLogger("gen_durable.worker")


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The options that select what a worker runs."""

    queues: tuple[tuple[str, Queue], ...] = ()
    prefixes: tuple[tuple[str, Queue], ...] = ()
    on_unknown: Literal["fail", "leave"] | None = None
    limits: tuple[Limit, ...] = ()


_SELECTION: Final = (
    click.option(
        "--queue",
        "queues",
        type=queue,
        metavar="NAME=N",
        multiple=True,
        help="Queue to serve and its concurrency (repeatable). Default: the queues of the machines, 10 each. "
        "Further settings of the queue: mail=10,prefetch=5,min-demand=3,weight=2.",
    ),
    click.option(
        "--prefix",
        "prefixes",
        type=prefix,
        metavar="PREFIX[=N]",
        multiple=True,
        help="Serve all machines whose names have this prefix (billing.), in any queue, with concurrency N "
        "(repeatable). Replaces the default queues. Default: GEN_DURABLE_PREFIXES.",
    ),
    click.option(
        "--on-unknown",
        type=click.Choice(["fail", "leave"]),
        help="Instances under a prefix whose machine TARGET lacks: fail them, or leave them to others. "
        "Default: fail.",
    ),
    click.option(
        "--limit",
        "limits",
        type=limit,
        metavar="LIMIT",
        multiple=True,
        help="Limit to set unless it exists (repeatable): tenant=3 (executions at once per key), crm=100/1m (starts "
        "per minute), crm=100/1m/200 (with a burst of 200).",
    ),
)


def selection_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of `Selection`; the command gets a `selection`."""

    @functools.wraps(command)
    def decorated(**given: Any) -> Any:
        chosen = {name: given.pop(name) for name in Selection.__struct_fields__}
        return command(selection=Selection(**chosen), **given)

    for option in reversed(_SELECTION):
        decorated = option(decorated)
    return decorated


def refuse_options(target: str | None, selection: Selection, others: Mapping[str, Any]) -> None:
    """Fail if there are options for a Worker, which has its settings in the code."""
    of_selection = {
        "queue": selection.queues,
        "prefix": selection.prefixes,
        "on_unknown": selection.on_unknown,
        "limit": selection.limits,
    }
    given = [name for name, value in {**of_selection, **others}.items() if value not in (None, ())]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise Failure(
            f"{target} is a Worker, which has its settings in the code. "
            f"Remove {options}, or give a list of machines."
        )


def make(
    loaded: Machines,
    selection: Selection,
    dsn: str | None,
    settings: Settings,
    *,
    serves_queues: bool = True,
    health: str | None = None,
) -> Worker:
    """Return a worker for machines and schedules."""
    return Worker(
        [each for each in loaded if not isinstance(each, Schedule)],
        dsn=dsn,
        queues=_distinct(selection.queues, "queue") if serves_queues else {},
        prefixes=_distinct(selection.prefixes, "prefix"),
        on_unknown=selection.on_unknown or "fail",
        schedules=[each for each in loaded if isinstance(each, Schedule)],
        health=health,
        limits=selection.limits,
        settings=settings,
    )


def _distinct(given: tuple[tuple[str, Queue], ...], what: str) -> dict[str, Queue] | None:
    by_name = dict(given)
    if len(by_name) < len(given):
        raise Failure(f"a {what} is given twice. Give one --{what} for each.")
    return by_name or None


def warn_of_idle(ready: Worker, target: str | None) -> None:
    """Warn about prefixes and queues that no machine of the worker is in: probably a misspelling."""
    for owned in ready.prefixes:
        if not any(each.name.startswith(owned) for each in ready.machines):
            _log.warning("no machine of %s has prefix %r; %s", target, owned, _fate(ready))
    queues = sorted({each.queue for each in ready.machines})
    if ready.served_queues and not ready.prefixes and not set(queues) & set(ready.served_queues):
        hints = (did_you_mean(name, queues) for name in ready.served_queues)
        hint = next(filter(None, hints), "")
        _log.warning("worker serves none of the queues of its machines (%s)%s", ", ".join(queues), hint)


def _fate(ready: Worker) -> str:
    if ready.leaves_unknown:
        return "its instances are left to other workers"
    return "its instances fail as no_handler_registered (to leave them to other workers: --on-unknown leave)"


def served(ready: Worker) -> tuple[str, str]:
    """Return the machines of a worker as text, and its queues, with those of the machines that it does not serve."""
    prefixes = tuple(ready.prefixes)
    ours = [
        each for each in ready.machines if each.queue in ready.served_queues or each.name.startswith(prefixes)
    ]
    machines = ", ".join(_with_versions(each, ready) for each in (ours if prefixes else ready.machines))
    sources = [*_sources("queues", ready.served_queues), *_sources("prefixes", ready.prefixes)]
    elsewhere = sorted({each.queue for each in ready.machines} - set(ready.served_queues))
    named = f"queue{'s' * (len(elsewhere) > 1)} {', '.join(elsewhere)}"
    left = f"; {named} left to other workers" if elsewhere and not prefixes else ""
    return machines or "no machine", f"{', '.join(sources) or 'no queue'}{left}"


def _with_versions(machine: MachineDef, ready: Worker) -> str:
    """Name a machine with its version, and the versions that it runs by upgrade."""
    # A version that is registered runs on its own code; others run on the newest machine that upgrades them.
    alike = [each for each in ready.machines if each.name == machine.name]
    elsewhere = {each.version for each in alike}
    elsewhere.update(*(each.upgrades for each in alike if each.version > machine.version))
    upgraded = sorted(set(machine.upgrades) - elsewhere)
    also = f" (and {', '.join(f'v{version}' for version in upgraded)} by upgrade)" if upgraded else ""
    return f"{machine.name} v{machine.version}{also}"


def _sources(kind: str, sources: Mapping[str, Queue]) -> list[str]:
    named = ", ".join(f"{name}={limits.concurrency}" for name, limits in sources.items())
    return [f"{kind} {named}"] if named else []
