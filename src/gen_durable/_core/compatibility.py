"""Which stored instances some code cannot run: facts of the database → findings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from .._graph.description import describe
from ..definition import MachineDef
from ..errors import DecodeError
from ..findings import Finding, Severity
from .codec import decode
from .hydration import stored_state
from .registry import Registered, Registry

__all__ = ["CODES", "Code", "Differing", "LiveMachine", "differing_steps"]

CODES: Final = (
    "instance.step_unknown",
    "instance.undo_unknown",
    "instance.version_unknown",
    "instance.machine_unknown",
    "state.undecodable",
    "checkpoint.undecodable",
    "signal.unknown",
    "signal.undecodable",
    "child.unknown",
)
"""The codes of all findings about stored instances."""
# How many ids and names a finding lists.
_SHOWN: Final = 10


class LiveMachine(msgspec.Struct, frozen=True):
    """A machine that a live worker runs."""

    worker: str
    fsm: str
    version: int
    steps: tuple[str, ...]
    """The steps at which the worker runs its rows, former names included."""


class Differing(msgspec.Struct, frozen=True):
    """Two live workers that run a machine and version with different steps."""

    fsm: str
    version: int
    first: LiveMachine
    second: LiveMachine

    @property
    def is_conflict(self) -> bool:
        """Whether each has a step that the other does not have; otherwise one may be a later release."""
        first, second = set(self.first.steps), set(self.second.steps)
        return not (first <= second or second <= first)

    def __str__(self) -> str:
        first = ", ".join(sorted(set(self.first.steps) - set(self.second.steps)))
        second = ", ".join(sorted(set(self.second.steps) - set(self.first.steps)))
        only = [
            f"only {each.worker} has {steps}"
            for each, steps in ((self.first, first), (self.second, second))
            if steps
        ]
        return f"{self.fsm} version {self.version} has different steps in live workers: {', '.join(only)}"


def differing_steps(live: Iterable[LiveMachine]) -> list[Differing]:
    """Return one pair of workers for each machine and version that live workers run with different steps.

    A worker that upgrades older versions runs them with the steps of its own version; these are not compared.
    """
    by_machine: defaultdict[tuple[str, int], dict[tuple[str, ...], LiveMachine]] = defaultdict(dict)
    machines = [*live]
    own = {(each.worker, each.fsm, each.version, tuple(sorted(each.steps))) for each in machines}
    for each in machines:
        steps = tuple(sorted(each.steps))
        is_upgraded = any(
            other[:2] == (each.worker, each.fsm) and other[2] > each.version and other[3] == steps
            for other in own
        )
        if not is_upgraded:
            by_machine[each.fsm, each.version].setdefault(steps, each)
    found: list[Differing] = []
    for (fsm, version), by_steps in sorted(by_machine.items()):
        first, *others = by_steps.values()
        pairs = [Differing(fsm, version, first, other) for other in others]
        found += sorted(pairs, key=lambda pair: not pair.is_conflict)[:1]
    return found


class _Tally:
    """Instances of one group that have the same problem."""

    __slots__ = ("count", "example", "ids")

    def __init__(self) -> None:
        self.count = 0
        self.ids: list[int] = []
        self.example = ""

    def add(self, id: int, example: str = "") -> None:
        self.count += 1
        self.example = self.example or example
        if len(self.ids) < _SHOWN:
            self.ids.append(id)


class Code:
    """The machines of some code, compared with stored instances.

    Args:
        registry: the machines.
        live: the machines of live workers.
        is_worker: whether it is one of several workers, which need not have all machines. Otherwise the code replaces
            the workers that have one of its machines: it also has to run their other machines.
    """

    def __init__(self, registry: Registry, live: Iterable[LiveMachine], *, is_worker: bool) -> None:
        self._registry = registry
        self._is_worker = is_worker
        self._names = {machine.name for machine in registry}
        by_worker: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)
        for each in live:
            by_worker[each.worker].add((each.fsm, each.version))
        self._replaced: set[tuple[str, int]] = set()
        self._elsewhere: set[tuple[str, int]] = set()
        for keys in by_worker.values():
            is_related = bool({name for name, _ in keys} & self._names) and not is_worker
            (self._replaced if is_related else self._elsewhere).update(keys)
        self._states: defaultdict[tuple[str, int], _Tally] = defaultdict(_Tally)
        self._checkpoints: defaultdict[tuple[str, int, str], _Tally] = defaultdict(_Tally)
        self._awaits: defaultdict[tuple[str, int, str, str], _Tally] = defaultdict(_Tally)
        self._undo_steps: defaultdict[tuple[str, int, str], _Tally] = defaultdict(_Tally)
        self._payloads: defaultdict[tuple[str, int, str], _Tally] = defaultdict(_Tally)
        self._children: defaultdict[tuple[str, str, int], int] = defaultdict(int)
        self._checked = 0

    def runs(self, fsm: str, version: int) -> Registered | None:
        """Return the machine that runs instances of a version."""
        return self._registry.get(fsm, version)

    def groups(self, counts: Mapping[tuple[str, int, str], int], most: int | None) -> Iterator[Finding]:
        """Report groups of live instances (machine, version, step) that this code cannot run.

        Args:
            counts: how many instances each group has.
            most: counts from this one on are reported as "at least"; `None`: all counts are complete.
        """
        unknown: defaultdict[tuple[str, int], int] = defaultdict(int)
        for (fsm, version, step), count in counts.items():
            registered = self.runs(fsm, version)
            if registered is None:
                unknown[fsm, version] += count
            elif registered.definition.find_step(step) is None:
                yield _finding(
                    "instance.step_unknown",
                    f"{_counted(count, most)} of {fsm} version {version} {_are(count)} at step {step}, which this code "
                    "does not have",
                    f'keep the step, or name it in was="{step}" of the step that replaces it',
                    machine=fsm,
                    version=version,
                    step=step,
                    count=count,
                )
        for (fsm, version), count in unknown.items():
            yield from self._unknown(fsm, version, count, most)

    def _unknown(self, fsm: str, version: int, count: int, most: int | None) -> Iterator[Finding]:
        facts: dict[str, Any] = {"machine": fsm, "version": version, "count": count}
        if fsm in self._names:
            if (fsm, version) in self._elsewhere:
                return  # another worker runs them
            known = sorted(machine.version for machine in self._registry if machine.name == fsm)
            yield _finding(
                "instance.version_unknown",
                f"{_counted(count, most)} of {fsm} {_have(count)} version {version}; this code has version "
                f"{', '.join(map(str, known))}",
                f"also register the class of version {version}, or write @upgrade(from_version={version})"
                if version < known[-1]
                else f"newer code has inserted or upgraded them: let workers with version {version} run",
                **facts,
            )
        elif (fsm, version) in self._replaced:
            yield _finding(
                "instance.machine_unknown",
                f"this code does not have machine {fsm}; {_counted(count, most)} of version {version} "
                f"{_are(count)} run by workers that this code replaces",
                f'keep the machine until its instances have ended; if it was renamed, keep its name: name="{fsm}"',
                **facts,
            )
        elif not self._is_worker and (fsm, version) not in self._elsewhere:
            yield _finding(
                "instance.machine_unknown",
                f"neither this code nor a live worker has machine {fsm}; {_counted(count, most)} of version "
                f"{version} {_wait(count)}",
                "ignore it if another service has the machine; otherwise add it, or cancel the instances",
                severity="notice",
                **facts,
            )

    def instance(self, row: Mapping[str, Any]) -> None:
        """Check the state of an instance, its checkpoint, recorded undo steps, and the signals that it awaits."""
        registered = self.runs(row["fsm"], row["fsm_version"])
        if registered is None:
            return
        machine, key = registered.definition, (row["fsm"], row["fsm_version"])
        self._checked += 1
        try:
            stored_state(
                row["state"], row["fsm_version"], machine, f"the state of {machine.name} {row['id']}"
            )
        except DecodeError as error:
            self._states[key].add(row["id"], error.problem)
        self._checkpoint(row, machine)
        if row["undo_steps"]:
            for name in {undo for _, undo in msgspec.json.decode(row["undo_steps"])}:
                if machine.find_step(name) is None:
                    self._undo_steps[(*key, name)].add(row["id"])
        if row["awaits"]:
            known = {*machine.signals, *_awaited(registered)}
            for name in row["awaits"]:
                if name not in known:
                    self._awaits[(*key, row["step"], name)].add(row["id"])

    def _checkpoint(self, row: Mapping[str, Any], machine: MachineDef) -> None:
        step = machine.find_step(row["step"])
        if row["checkpoint"] is None or step is None:
            return
        try:
            decode(row["checkpoint"], step.checkpoint, "the checkpoint")
        except DecodeError as error:
            self._checkpoints[machine.name, row["fsm_version"], step.name].add(row["id"], error.problem)

    def payload(self, id: int, fsm: str, version: int, name: str, text: str) -> None:
        """Check the payload of an unread signal of an instance."""
        registered = self.runs(fsm, version)
        if registered is None or name not in registered.definition.signals:
            return
        try:
            decode(text, registered.definition.signals[name], f"the payload of signal '{name}'")
        except DecodeError as error:
            self._payloads[fsm, version, name].add(id, error.problem)

    def child(self, parent: str, fsm: str, version: int, count: int) -> None:
        """Check that live children can be run."""
        if self.runs(fsm, version) is None and (fsm, version) not in self._elsewhere:
            self._children[parent, fsm, version] += count

    def findings(self) -> Iterator[Finding]:
        """Report what the checks of instances, payloads and children have found."""
        sampled = f"of {self._checked} that were read"
        for (fsm, version), tally in self._states.items():
            registered = self.runs(fsm, version)
            is_upgraded = registered is not None and registered.definition.version != version
            yield _finding(
                "state.undecodable",
                f"{_counted(tally.count)} of {fsm} version {version} ({sampled}) {_have(tally.count)} a state that "
                f"this code cannot decode: {tally.example}",
                f"correct the upgrades from version {version} on"
                if is_upgraded
                else f"make the new fields optional, or raise the version and write @upgrade(from_version={version})",
                machine=fsm,
                version=version,
                count=tally.count,
                ids=tally.ids,
            )
        for (fsm, version, step), tally in self._checkpoints.items():
            yield _finding(
                "checkpoint.undecodable",
                f"{_counted(tally.count)} of {fsm} version {version} ({sampled}) {_have(tally.count)} a checkpoint of "
                f"step {step} that this code cannot decode: {tally.example}",
                "accept the old checkpoint as well, for example by a union type in @step(checkpoint=…)",
                machine=fsm,
                version=version,
                step=step,
                count=tally.count,
                ids=tally.ids,
            )
        for (fsm, version, undo), tally in self._undo_steps.items():
            yield _finding(
                "instance.undo_unknown",
                f"{_counted(tally.count)} of {fsm} version {version} ({sampled}) {_have(tally.count)} recorded undo "
                f"step {undo}, which this code does not have",
                f'keep the step, or name it in was="{undo}" of the step that replaces it',
                machine=fsm,
                version=version,
                step=undo,
                count=tally.count,
                ids=tally.ids,
            )
        for (fsm, version, step, name), tally in self._awaits.items():
            yield _finding(
                "signal.unknown",
                f"{_counted(tally.count)} of {fsm} version {version} ({sampled}) {_await(tally.count)} signal {name} "
                f"at step {step}, which this code does not declare",
                f'declare it until no instance awaits it: Signal("{name}", …)',
                machine=fsm,
                version=version,
                step=step,
                signal=name,
                count=tally.count,
                ids=tally.ids,
            )
        for (fsm, version, name), tally in self._payloads.items():
            yield _finding(
                "signal.undecodable",
                f"{tally.count} unread signal{'' if tally.count == 1 else 's'} {name} of instances of {fsm} version "
                f"{version} {_have(tally.count)} a payload that this code cannot decode: {tally.example}",
                "accept the old payload as well, for example by a union type",
                machine=fsm,
                version=version,
                signal=name,
                count=tally.count,
                ids=tally.ids,
            )
        for (parent, fsm, version), count in self._children.items():
            yield _finding(
                "child.unknown",
                f"instances of {parent} wait for {count} live {'child' if count == 1 else 'children'} of {fsm} version "
                f"{version}, which neither this code nor another live worker has",
                "keep the machine of the children until they have ended",
                machine=parent,
                child=fsm,
                version=version,
                count=count,
            )


def _awaited(registered: Registered) -> set[str]:
    """Return the signals that the code awaits without declaring them."""
    graph = describe(registered.machine).graph
    return {name for edge in graph.edges for name in edge.signals} if graph is not None else set()


def _finding(code: str, what: str, fix: str, *, severity: Severity = "problem", **facts: Any) -> Finding:
    return Finding(code=code, severity=severity, what=what, fix=fix, facts=facts)


def _counted(count: int, most: int | None = None) -> str:
    least = "at least " if most is not None and count >= most else ""
    return f"{least}{count} live instance{'' if count == 1 else 's'}"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _wait(count: int) -> str:
    return "is waiting" if count == 1 else "are waiting"


def _await(count: int) -> str:
    return "awaits" if count == 1 else "await"
