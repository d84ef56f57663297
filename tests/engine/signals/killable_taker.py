"""A worker that dies while it applies messages: `python -m tests.engine.signals.killable_taker DSN SETTINGS POINT`."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from gen_durable import Context, Done, Machine, Next, Outcome, Settings, Signal, Worker, step

STEER = Signal("steer", str)


class Steered(Machine[list[str], list[str]]):
    """Takes one message per step, and notes it in its state."""

    kill: str = ""

    @step
    async def read(self, ctx: Context[list[str]]) -> Outcome[list[str]]:
        if ctx.state:
            self._killed_at("before the second")
        text = ctx.inbox.take(STEER)
        self._killed_at("after take")
        if text is None:
            return Done(ctx.state)
        return Next(self.read, state=[*ctx.state, text], requeue=True)

    def _killed_at(self, point: str) -> None:
        if point == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


def main(dsn: str, settings: str, kill: str) -> None:
    machine = Steered()
    machine.kill = kill
    Worker([machine], dsn=dsn, settings=msgspec.json.decode(settings, type=Settings)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
