"""One run of the sessions of a scenario, step by step, in a given order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from gen_durable._db.failures import StatementError
from tests.interleavings.bench import Bench, Pins
from tests.interleavings.invariants import BrokenError, check_always, check_answers, check_audit, check_traces
from tests.interleavings.product import Product
from tests.interleavings.scenario import Broken, Choices, End, Scenario
from tests.interleavings.session import Session
from tests.interleavings.world import World, look

# After this time, check whether a step waits for a lock. Most steps end within 2 ms.
_PATIENCE: Final = 0.003
_LONGEST_WAIT: Final = 10.0
_RETRIES: Final = 5
_NAMES: Final = {"40P01": "deadlock", "40001": "refused by isolation"}


class Order:
    """Follows the given choices, then chooses at random, and records the alternatives."""

    def __init__(
        self, bench: Bench, product: Product, scenario: Scenario, pins: Pins, chance: random.Random
    ) -> None:
        self.sessions = {
            name: Session(name, works, lane, product, says_isolation=pins.begin)
            for (name, works), lane in zip(scenario.sessions.items(), bench.lanes(pins), strict=False)
        }
        self.untaken: list[Choices] = []
        self.trace: list[str] = []
        self.broken: Broken | None = None
        self.is_detour = False
        self._bench = bench
        self._product = product
        self._scenario = scenario
        self._chance = chance
        self._choices: list[str] = []
        self._known = 0
        self._running: dict[str, asyncio.Task[None]] = {}
        # Of running sessions: those that wait for a lock, and those that are paused.
        self._waiting: set[str] = set()
        self._paused: set[str] = set()
        self._refused: list[str] = []

    async def run(self, given: Choices, before: World) -> None:
        try:
            if self._scenario.pauses:
                await self._bench.brake_all()
            await self._go(given)
            await self._try_again()
            self._check_races()
            after = await look(self._bench.admin, self._product.schema)
            check_always(after)
            check_answers(before, after, self.sessions.values())
            self._scenario.check(End(after, self.sessions, self.trace))
            check_traces(before, after)
            check_audit(before, after)
        except (BrokenError, StatementError) as error:
            self.broken = Broken(_reason(error), tuple(self._choices), self.trace)
            await self._clean_up()
        except BaseException:
            await self._clean_up()
            raise
        finally:
            for session in self.sessions.values():
                await session.unlock()

    async def _go(self, given: Choices) -> None:
        choices = iter(given)
        # Another order has checked all states but the last.
        self._known = len(given) - 1
        while ready := self.ready():
            await self._take(self._choose(ready, choices))
            while self._running and not self.ready():
                await self._wait_for_deadlock()

    def ready(self) -> list[str]:
        """The sessions that can take a step."""
        return [
            name
            for name, session in self.sessions.items()
            if not session.is_finished
            and name not in self._refused
            and (name not in self._running or name in self._paused)
        ]

    def steps(self) -> Counter[str]:
        """The number of steps per session."""
        return Counter(self._choices)

    def _choose(self, ready: list[str], choices: Iterator[str]) -> str:
        given = next(choices, None)
        if given in ready:
            return given
        if given is not None:
            # It was ready when this order was first thought of: of two that one commit wakes, PostgreSQL decides who is
            # first.
            self.is_detour = True
            return ready[0]
        chosen = self._chance.choice(ready)
        self.untaken += [(*self._choices, other) for other in ready if other != chosen]
        return chosen

    async def _take(self, name: str) -> None:
        """Run the next step of a session."""
        self._choices.append(name)
        session = self.sessions[name]
        if name in self._paused:
            self._paused.discard(name)
            self.trace.append(f"{name} goes on")
            place = await self._bench.release(session.pid)
            await self._settle()
            await self._bench.brake(session.pid, place)
            return
        step = session.next_step
        self.trace.append(f"{name} {step}")
        self._running[name] = asyncio.get_running_loop().create_task(session.step())
        await self._settle()
        if step == "COMMIT" and len(self._choices) > self._known and self.ready():
            check_always(await look(self._bench.admin, self._product.schema))

    async def _settle(self) -> None:
        """Wait until every running step has ended, waits for a lock, or is paused."""
        while unpaused := [name for name in self._running if name not in self._paused]:
            if fresh := [self._running[name] for name in unpaused if name not in self._waiting]:
                await asyncio.wait(fresh, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            if await self._collect():
                continue
            # Checked when no step has just ended: locks are granted before the reply, so the answer is current.
            blockers = await self._bench.blockers({self.sessions[name].pid: name for name in unpaused})
            if await self._collect():
                continue
            self._note(blockers)
            if self._running.keys() <= self._waiting | self._paused:
                return

    def _note(self, blockers: Mapping[str, set[int]]) -> None:
        paused = {name for name, pids in blockers.items() if pids == {self._bench.brake_pid}}
        waiting = blockers.keys() - paused
        self.trace += [f"{name} pauses" for name in sorted(paused)]
        self.trace += [f"{name} waits" for name in sorted(waiting - self._waiting)]
        for name in waiting:
            self.sessions[name].has_waited = True
        self._paused |= paused
        self._waiting = waiting

    async def _collect(self) -> bool:
        """Record ended steps; return whether there were any."""
        ended = [name for name, task in self._running.items() if task.done()]
        self._waiting.difference_update(ended)
        for name in ended:
            session = self.sessions[name]
            try:
                self._running.pop(name).result()
            except StatementError as error:
                self.trace.append(f"{name} refused {error.sqlstate}")
                await self._lose(session, error)
                self._refused.append(name)
        return bool(ended)

    async def _wait_for_deadlock(self) -> None:
        """All sessions wait: PostgreSQL chooses a deadlock victim."""
        await asyncio.wait(self._running.values(), timeout=_LONGEST_WAIT, return_when=asyncio.FIRST_COMPLETED)
        if not await self._collect():
            raise BrokenError("all sessions wait forever")
        await self._settle()

    async def _try_again(self) -> None:
        """Repeat transactions that failed to serialize or deadlocked, after all others, as the engine does."""
        if self._refused:
            await self._bench.release_all()
        while self._refused:
            session = self.sessions[self._refused[0]]
            try:
                while not session.is_finished:
                    self.trace.append(f"{session.name} again {session.next_step}")
                    await session.step()
            except StatementError as error:
                await self._lose(session, error)
            else:
                self._refused.pop(0)

    async def _lose(self, session: Session, error: StatementError) -> None:
        is_race = error.sqlstate in _NAMES or (error.sqlstate, session.next_step) == (
            "23505",
            "pick_with_admission",
        )
        if not is_race or len(session.refusals) == _RETRIES:
            raise error
        await session.start_again(error)

    def _check_races(self) -> None:
        for session in self.sessions.values():
            for state in session.refusals:
                if state not in self._scenario.may_meet:
                    raise BrokenError(_NAMES.get(state, state))
            if session.has_waited and session.name in self._scenario.never_wait:
                raise BrokenError("waited for a lock")

    async def _clean_up(self) -> None:
        """Reset the connections for the next order."""
        await self._bench.release_all()
        for name, session in self.sessions.items():
            if name not in self._running:
                await session.roll_back()
        if self._running:
            await asyncio.wait(self._running.values(), timeout=_LONGEST_WAIT)
        for name, task in self._running.items():
            task.exception()
            await self.sessions[name].roll_back()


def _reason(error: BrokenError | StatementError) -> str:
    if isinstance(error, StatementError):
        return "a terminal row changed" if error.sqlstate == "GDT01" else f"error: {error}"
    return str(error)
