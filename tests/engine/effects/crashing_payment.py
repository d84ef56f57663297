"""A worker process that stalls or kills itself at a given point.

Run it as `python -m tests.engine.effects.crashing_payment DSN SETTINGS POINT FILE`: SETTINGS as JSON, POINT one of `POINTS`, FILE
what a stalled step waits for. It prints what its steps and its engine do, one JSON object per line.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from gen_durable import Context, Done, Machine, Outcome, Settings, Sql, Transaction, Worker, step
from gen_durable._db import commit as commits
from gen_durable._runtime import flusher
from gen_durable.telemetry import OutcomeStale
from tests.support.crashing_workers import print_json
from tests.support.ledger import BOOK

POINTS: Final = ("nowhere", "stall", "in the step", "in the effect", "before COMMIT", "after COMMIT")


class Payment(Machine[None, str]):
    """A step with one effect. The body of the step prints too, and may run more than once."""

    def __init__(self, point: str = "nowhere", file: str = "") -> None:
        self._point = point
        self._file = Path(file)

    @step
    async def pay(self, ctx: Context[None]) -> Outcome[str]:
        print_json(paying=ctx.idempotency_key, attempt=ctx.attempt)
        # Block the event loop, so that the step is not cancelled when its lease is lost.
        while self._point == "stall" and not self._file.exists():
            time.sleep(0.01)
        if self._point == "in the step":
            _die()
        who = f"{os.getpid()}"
        if self._point != "in the effect":
            return Done(who, effect=Sql(BOOK, ctx.idempotency_key, who))

        async def half(tx: Transaction) -> None:
            await tx.execute(BOOK, ctx.idempotency_key, who)
            _die()

        return Done(who, effect=half)


def _die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after(commit: Any) -> Any:
    def plan(*args: Any) -> Any:
        yield from commit(*args)
        _die()

    return plan


def _main(dsn: str, settings: str, point: str, file: str) -> None:
    assert point in POINTS
    if point == "before COMMIT":
        commits.commit = _die_after(commits.commit)
    if point == "after COMMIT":
        flusher.Flusher._effect_committed = _die  # type: ignore[method-assign,assignment]
    worker = Worker([Payment(point, file)], dsn=dsn, settings=msgspec.json.decode(settings, type=Settings))
    worker.telemetry.subscribe(
        lambda event: print_json(stale=event.id, step_seq=event.step_seq), OutcomeStale
    )
    print_json(worker=worker.name)
    worker.run()
    print_json(ended=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
