"""Runs sessions against each other in every order of their steps, on real PostgreSQL.

At every point an order may give the next step to any session that is not waiting for a lock. Exploring all of these
choices runs every merge of the sessions: a merge that asks a waiting session for its next step is the same run as the one
that asks it as soon as it can go on. Orders are explored by running them again from the start up to a point where they
part, so an order is one list of names and can be run alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from gen_durable._db.failures import StatementError
from gen_durable._db.plan import in_schema

from tests.interleavings.bench import Bench, Pins
from tests.interleavings.invariants import BrokenError, check_common
from tests.interleavings.product import Change, Product
from tests.interleavings.session import Session, Work
from tests.interleavings.world import World, look, reset

Choices: TypeAlias = tuple[str, ...]

SEED: Final = 20_251
MOST_ORDERS_OF_THREE: Final = 2_000
# A step that has not answered by then is asked whether it waits for a lock. Most answer within a millisecond.
_PATIENCE: Final = 0.0015
_LONGEST_WAIT: Final = 10.0
_RETRIES: Final = 5
_PICK_LOST_A_KEY: Final = ("23505", "pick")


class End(msgspec.Struct, frozen=True):
    """How an order ended."""

    before: World
    after: World
    sessions: Mapping[str, Session]
    trace: list[str]

    def result(self, name: str) -> Any:
        return self.sessions[name].result


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Rows, sessions that meet on them, and what must be true afterwards, whatever the order was."""

    name: str
    setup: Sequence[str]
    sessions: Mapping[str, Sequence[Work]]
    check: Callable[[End], None]
    pauses: Sequence[Change] = ()
    """Places inside of the schema's functions at which a session can be stopped: calls of pause(n)."""
    may_meet: frozenset[str] = frozenset()
    """SQLSTATEs of races that are part of the design; any other refusal breaks the order."""
    never_wait: frozenset[str] = frozenset()
    """Sessions that may never wait for a lock."""


class Broken(msgspec.Struct, frozen=True):
    """An order that ended wrong."""

    reason: str
    choices: Choices
    trace: list[str]

    def __str__(self) -> str:
        return f"{self.reason}\n      {' · '.join(self.trace)}"


class Verdict(msgspec.Struct):
    """What came of all orders of a scenario."""

    scenario: str
    orders: int = 0
    waits: int = 0
    refusals: Counter[str] = msgspec.field(default_factory=Counter)
    broken: list[Broken] = msgspec.field(default_factory=list)
    is_complete: bool = False

    def __str__(self) -> str:
        share = "all" if self.is_complete else f"sampled with seed {SEED}"
        text = f"{self.scenario}: {self.orders} orders ({share}), {self.waits} with a wait, {len(self.broken)} broken"
        if self.refusals:
            text += ", retried " + ", ".join(f"{n} × {state}" for state, n in sorted(self.refusals.items()))
        return "\n  ".join((text, *map(str, self.broken[:3])))

    def reasons(self) -> Counter[str]:
        return Counter(broken.reason for broken in self.broken)


async def explore(
    bench: Bench,
    scenario: Scenario,
    pins: Pins,
    *,
    changes: Iterable[Change] = (),
    until_broken: bool = False,
) -> Verdict:
    """Run the orders of a scenario: all of them, or 2,000 at random if three sessions have more."""
    product = await bench.install((*scenario.pauses, *changes))
    verdict = Verdict(scenario.name)
    chance = random.Random(SEED)
    most = MOST_ORDERS_OF_THREE if len(scenario.sessions) > 2 else None
    setup = in_schema(reset(scenario.setup), product.schema)
    await bench.admin.execute(setup)
    before = await look(bench.admin, product.schema)
    frontier: list[Choices] = [()]
    while frontier and (most is None or verdict.orders < most):
        # Taken at random: if the orders are too many, those that are run are no corner of the tree.
        place = chance.randrange(len(frontier))
        frontier[place], frontier[-1] = frontier[-1], frontier[place]
        await bench.admin.execute(setup)
        order = Order(bench, product, scenario, pins, chance)
        await order.run(frontier.pop(), before)
        frontier += order.untaken
        verdict.orders += 1
        verdict.waits += any(session.has_waited for session in order.sessions.values())
        verdict.refusals.update(state for session in order.sessions.values() for state in session.refusals)
        if order.broken is not None:
            verdict.broken.append(order.broken)
            if until_broken:
                return verdict
    verdict.is_complete = not frontier
    return verdict


class Order:
    """One run of the sessions."""

    def __init__(
        self, bench: Bench, product: Product, scenario: Scenario, pins: Pins, chance: random.Random
    ) -> None:
        self.untaken: list[Choices] = []
        """Where else this order could have gone, after the choices it was given."""
        self.broken: Broken | None = None
        self.sessions = {
            name: Session(name, works, lane, product, says_isolation=pins.begin)
            for (name, works), lane in zip(scenario.sessions.items(), bench.lanes(pins), strict=False)
        }
        self._bench = bench
        self._product = product
        self._scenario = scenario
        self._chance = chance
        self._choices: list[str] = []
        self._trace: list[str] = []
        self._running: dict[str, asyncio.Task[None]] = {}
        self._paused: set[str] = set()
        self._waiting: set[str] = set()
        self._refused: list[str] = []

    async def run(self, given: Choices, before: World) -> None:
        try:
            if self._scenario.pauses:
                await self._bench.brake_all()
            await self._go(given)
            after = await look(self._bench.admin, self._product.schema)
            end = End(before, after, self.sessions, self._trace)
            self._check_races()
            check_common(end.before, end.after, self.sessions.values())
            self._scenario.check(end)
        except (BrokenError, StatementError) as error:
            self.broken = Broken(_reason(error), tuple(self._choices), self._trace)
        finally:
            if self._running or self.broken is not None:
                await self._clean_up()

    async def _go(self, given: Choices) -> None:
        while ready := self._ready():
            place = len(self._choices)
            if place < len(given):
                name = given[place]
                if name not in ready:
                    # Two backends that one commit woke, or the victim of a deadlock: PostgreSQL decides, not we.
                    name = ready[0]
            else:
                name = self._chance.choice(ready)
                self.untaken += [(*self._choices, other) for other in ready if other != name]
            self._choices.append(name)
            await self._step(name)
            while self._running and not self._ready():
                await self._wait_for_deadlock()
        await self._try_again()

    def _ready(self) -> list[str]:
        return [
            name
            for name, session in self.sessions.items()
            if not session.is_finished
            and name not in self._refused
            and (name not in self._running or name in self._paused)
        ]

    async def _step(self, name: str) -> None:
        session = self.sessions[name]
        if name in self._paused:
            self._paused.discard(name)
            self._trace.append(f"{name} goes on")
            place = await self._bench.release(session.pid)
            await self._settle()
            await self._bench.brake(session.pid, place)
        else:
            self._trace.append(f"{name} {session.next_step}")
            self._running[name] = asyncio.get_running_loop().create_task(session.step())
            await self._settle()

    async def _settle(self) -> None:
        """Let everything that runs come to its end, to a lock that another session holds, or to a pause."""
        while unpaused := [name for name in self._running if name not in self._paused]:
            if fresh := [self._running[name] for name in unpaused if name not in self._waiting]:
                await asyncio.wait(fresh, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if await self._collect():
                continue
            # Asked when nothing has just ended: an end grants locks before it is answered, so this is not out of date.
            blockers = await self._bench.blockers({self.sessions[name].pid: name for name in unpaused})
            if await self._collect():
                continue
            self._note(blockers)
            if self._running.keys() <= self._waiting | self._paused:
                return

    def _note(self, blockers: Mapping[str, set[int]]) -> None:
        paused = {name for name, pids in blockers.items() if pids == {self._bench.brake_pid}}
        waiting = blockers.keys() - paused
        self._trace += [f"{name} pauses" for name in sorted(paused)]
        self._trace += [f"{name} waits" for name in sorted(waiting - self._waiting)]
        for name in waiting:
            self.sessions[name].has_waited = True
        self._paused |= paused
        self._waiting = waiting

    async def _collect(self) -> bool:
        """Take note of steps that have ended; whether there were any."""
        ended = [name for name, task in self._running.items() if task.done()]
        self._waiting.difference_update(ended)
        for name in ended:
            try:
                self._running.pop(name).result()
            except StatementError as error:
                self._trace.append(f"{name} refused {error.sqlstate}")
                if not _is_race(error, self.sessions[name]):
                    raise
                await self.sessions[name].start_again(error)
                self._refused.append(name)
        return bool(ended)

    async def _wait_for_deadlock(self) -> None:
        """Everybody waits for somebody: PostgreSQL will pick a victim."""
        await asyncio.wait(
            self._running.values(), timeout=_LONGEST_WAIT, return_when=asyncio.FIRST_COMPLETED
        )
        if not await self._collect():
            raise BrokenError("all sessions wait for ever")
        await self._settle()

    async def _try_again(self) -> None:
        """Those that lost a race do their transaction once more, after all others, as the engine does."""
        if self._refused:
            await self._bench.release_all()
        while self._refused:
            session = self.sessions[self._refused[0]]
            try:
                while not session.is_finished:
                    self._trace.append(f"{session.name} again {session.next_step}")
                    await session.step()
            except StatementError as error:
                if not _is_race(error, session) or len(session.refusals) >= _RETRIES:
                    raise
                await session.start_again(error)
            else:
                self._refused.pop(0)

    def _check_races(self) -> None:
        for session in self.sessions.values():
            for state in session.refusals:
                if state not in self._scenario.may_meet:
                    raise BrokenError({"40P01": "deadlock", "40001": "refused by isolation"}.get(state, state))
            if session.has_waited and session.name in self._scenario.never_wait:
                raise BrokenError("waited for a lock")

    async def _clean_up(self) -> None:
        """Leave the connections as the next order expects them."""
        await self._bench.release_all()
        for name, session in self.sessions.items():
            if name not in self._running:
                await session.roll_back()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=_LONGEST_WAIT)
        for name, task in self._running.items():
            task.exception()
            await self.sessions[name].roll_back()


def _is_race(error: StatementError, session: Session) -> bool:
    return error.sqlstate in ("40001", "40P01") or (error.sqlstate, session.next_step) == _PICK_LOST_A_KEY


def _reason(error: BrokenError | StatementError) -> str:
    if isinstance(error, StatementError):
        return "a terminal row changed" if error.sqlstate == "GDT01" else f"error: {error}"
    return str(error)
