"""A worker process that fires schedules and may be killed meanwhile: `python -m tests.schedules.killable_worker …`."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from gen_durable import Settings, Worker
from gen_durable._db import schedules
from gen_durable._db.plan import Plan
from gen_durable._db.schedules import Due, Fired, Firing
from gen_durable.telemetry import PickStop
from tests.schedules.support import Report

fire = schedules.fire


def die(due: Due, firing: Firing, point: str) -> Plan[Fired | None]:
    """Fire, and kill this process before or after."""
    if point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    fired = yield from fire(due, firing)
    if point == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    return fired


def main(dsn: str, settings: str, point: str) -> None:
    worker = Worker([Report], dsn=dsn, settings=msgspec.json.decode(settings, type=Settings))

    def on_first_look(_: PickStop) -> None:
        unsubscribe()
        print('{"ready": true}', flush=True)  # noqa: T201 - that is how it tells

    unsubscribe = worker.telemetry.subscribe(on_first_look, PickStop)
    if point != "nowhere":
        schedules.fire = lambda due, firing: die(due, firing, point)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
