"""Check machines: unknown and unreachable steps, loops, ends, signals, types."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from ..definition import MachineDef, definition_of
from ..errors import StateTypeError, UsageError
from ..findings import Finding
from ..machine import check_storable, type_name
from ..refs import Insertable
from .model import HANDLE, Edge
from .reader import Reading, read

__all__ = ["CODES", "check"]

CODES: Final = (
    "step.unknown",
    "step.refused",
    "step.unreachable",
    "step.no_end",
    "loop.busy",
    "signal.undeclared",
    "stream.undeclared",
    "call.unawaited",
    "state.unstorable",
    "definition.invalid",
    "step.unread",
    "children.unread",
)
"""The codes of all findings about machines."""


def check(*machines: Insertable[Any, Any]) -> list[Finding]:
    """Check machines for mistakes that their code shows, without running it and without a database.

        assert check(Checkout, Refund) == []

    Finds: unknown steps, steps that no path leads to, steps without a path to an end, loops that neither wait nor end,
    awaited signals that the machine does not declare, streams that it does not declare although it declares others,
    calls of `ctx.publish`, `ctx.close_stream` and `ctx.checkpoint`
    without `await`, and types that cannot be stored. The command is `gen-durable check`.

    Args:
        machines: machine classes, objects of them, or jobs.

    Returns:
        The findings, by machine. A target, or a machine of children, that cannot be read from the code is a notice.

    Raises:
        UsageError: no machine is given.
    """
    if not machines:
        raise UsageError("check got no machine", "pass machine classes or jobs")
    return [finding for machine in machines for finding in _check(machine)]


def _check(machine: Insertable[Any, Any]) -> Iterator[Finding]:
    definition = definition_of(machine)
    reading = read(machine)
    yield from sorted(reading.findings, key=lambda finding: finding.facts["line"])
    yield from _Shape(reading, definition).findings()
    yield from _types(definition)


class _Shape:
    """Findings about the graph as a whole. A step whose targets are not all known may lead anywhere."""

    def __init__(self, reading: Reading, definition: MachineDef) -> None:
        self._graph = reading.graph
        self._definition = definition
        # An exception may end them, or one of their targets is reported already.
        misdirected = {
            finding.facts["step"] for finding in reading.findings if finding.code == "step.unknown"
        }
        self._excused = reading.raising | misdirected | set(reading.graph.unread)
        self._unknown = misdirected | set(reading.graph.unread)
        self._undoing = reading.undoing
        steps = set(self._graph.steps)
        self._followed: dict[str, list[Edge]] = {step: [] for step in (*self._graph.steps, HANDLE)}
        for edge in self._graph.edges:
            self._followed[edge.source].append(edge)
        self._next = {
            source: [edge.target for edge in edges if edge.target in steps]
            for source, edges in self._followed.items()
        }

    def findings(self) -> Iterator[Finding]:
        yield from self._unreachable()
        reported: set[str] = set()
        for loop in _components(self._graph.steps, self._outcomes):
            for finding in self._endless(loop):
                reported.update(loop)
                yield finding
        yield from self._never_undone(reported)

    def _unreachable(self) -> Iterator[Finding]:
        reached = _closure([self._graph.initial, *self._next[HANDLE]], lambda step: self._next[step])
        if reached & set(self._graph.unread) or HANDLE in self._graph.unread:
            return
        for step in self._graph.steps:
            if step not in reached:
                yield self._finding(
                    "step.unreachable",
                    step,
                    f"step '{step}' of machine '{self._graph.machine}' is unreachable: no path from "
                    f"'{self._graph.initial}' leads to it",
                    "remove it, or continue with it somewhere; an insert with step= may still start there",
                )

    def _outcomes(self, step: str) -> list[str]:
        """Return the steps that the outcomes of a step lead to, without those that only an error leads to."""
        return [edge.target for edge in self._progress(step) if edge.target in self._next]

    def _progress(self, step: str) -> list[Edge]:
        return [edge for edge in self._followed[step] if edge.kind in _PROGRESS and edge.max_attempts is None]

    def _endless(self, loop: list[str]) -> Iterator[Finding]:
        """Report steps that no outcome leaves: they neither end nor lead to a step that does."""
        inside = set(loop)
        edges = [edge for step in loop for edge in self._progress(step)]
        if inside & (self._excused | self._undoing) or any(edge.target not in inside for edge in edges):
            return
        where = f"of machine '{self._graph.machine}'"
        if not edges:
            what = f"step '{loop[0]}' {where} returns no outcome that continues or ends the instance"
            yield self._finding("step.no_end", loop[0], what, "return Next, Done or Stop")
        elif any(edge.waits for edge in edges):
            what = f"{_listed(loop)} {where} {_have(loop)} no path to an end: no outcome after {_them(loop)} is Done "
            what += "or Stop"
            yield self._finding("step.no_end", loop[0], what, "return Done or Stop somewhere in this loop")
        else:
            what = f"{_listed(loop)} {where} {_repeat(loop)} forever, without a wait and without an end"
            fix = "return Done or Stop, wait with Await, or give Next or Retry a delay"
            yield self._finding("loop.busy", loop[0], what, fix)

    def _never_undone(self, reported: set[str]) -> Iterator[Finding]:
        """Report undo steps without a path to Done, apart from those that a finding reports already."""
        if HANDLE in self._graph.unread or any(edge.kind == "done" for edge in self._followed[HANDLE]):
            return
        for undo in dict.fromkeys(edge.target for edge in self._graph.edges if edge.kind == "undo"):
            reached = _closure([undo], self._outcomes)
            if reached & (self._unknown | self._undoing | reported) or undo not in self._next:
                continue
            if not any(edge.kind == "done" for step in reached for edge in self._followed[step]):
                yield self._finding(
                    "step.no_end",
                    undo,
                    f"undo step '{undo}' of machine '{self._graph.machine}' has no path to Done, which ends an undo "
                    "step",
                    "return Done when the work is undone",
                )

    def _finding(self, code: str, step: str, what: str, fix: str) -> Finding:
        node = next(node for node in self._graph.nodes if node.id == step)
        facts = {"machine": self._graph.machine, "version": self._graph.version, "step": step}
        file = getattr(getattr(self._definition.steps[step].function, "__code__", None), "co_filename", "")
        return Finding(code=code, what=what, fix=fix, facts={**facts, "file": file, "line": node.line})


_PROGRESS: Final = ("next", "await", "children", "retry", "possible", "done", "stop", "cancel")
"""Edges that an outcome of the step itself leads along."""


def _listed(steps: list[str]) -> str:
    names = ", ".join(f"'{step}'" for step in steps)
    return f"step {names}" if len(steps) == 1 else f"steps {names}"


def _them(steps: list[str]) -> str:
    return "it" if len(steps) == 1 else "them"


def _have(steps: list[str]) -> str:
    return "has" if len(steps) == 1 else "have"


def _repeat(steps: list[str]) -> str:
    return "repeats" if len(steps) == 1 else "repeat"


def _closure(start: Iterable[str], after: Callable[[str], Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [*start]
    while waiting:
        here = waiting.pop()
        if here not in seen:
            seen.add(here)
            waiting.extend(after(here))
    return seen


def _components(steps: Iterable[str], after: Callable[[str], Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components: loops, and single steps. Machines are small: no need for Tarjan."""
    steps = [*steps]
    reach = {step: _closure(after(step), after) for step in steps}
    found: list[list[str]] = []
    for step in steps:
        if not any(step in component for component in found):
            mutual = [other for other in steps if other in reach[step] and step in reach[other]]
            found.append(mutual or [step])
    return found


def _types(definition: MachineDef) -> Iterator[Finding]:
    """Check types again that refer to names which were not defined yet when the class was."""
    kinds = {"state": definition.state_type, "result": definition.result_type}
    signals = {f"payload of signal '{name}'": type_ for name, type_ in definition.signals.items()}
    streams = {f"item of stream '{name}'": type_ for name, type_ in definition.streams.items()}
    for kind, type_ in {**kinds, **signals, **streams}.items():
        where = f"the {kind} of machine '{definition.name}'"
        try:
            check_storable(type_, where)
            msgspec.json.Decoder(type_)
        except NameError as error:
            problem = f"{where}: {type_name(type_)} refers to '{error.name}', which is not defined"
            fix = "define or import it at run time, outside `if TYPE_CHECKING:`"
        except StateTypeError as error:
            problem, fix = f"{error.where}: {error.problem}", error.advice
        except TypeError as error:
            problem, fix = (
                f"{where}: {type_name(type_)} cannot be read from JSON ({error})",
                "use another type",
            )
        else:
            continue
        yield Finding(
            code="state.unstorable",
            what=problem,
            fix=fix,
            facts={"machine": definition.name, "version": definition.version, "type": type_name(type_)},
        )
