"""A worker whose undo steps kill their process: `python -m tests.engine.undo.killable_worker DSN SETTINGS STEP`."""

from __future__ import annotations

import os
import signal
import sys

import msgspec

from gen_durable import Context, Done, Machine, Next, Outcome, Settings, Stop, Worker, step


class Trip(Machine[list[str], str]):
    """flight (cancel_flight) → hotel (cancel_hotel) → pay, which fails. Undo steps note their keys in the state."""

    kill: str = ""

    @step(undo="cancel_flight")
    async def flight(self, ctx: Context[list[str]]) -> Outcome[str]:
        return Next(self.hotel)

    @step(undo="cancel_hotel")
    async def hotel(self, ctx: Context[list[str]]) -> Outcome[str]:
        return Next(self.pay)

    @step
    async def pay(self, ctx: Context[list[str]]) -> Outcome[str]:
        return self._killed_or(ctx, Stop("card declined"))

    @step
    async def cancel_hotel(self, ctx: Context[list[str]]) -> Outcome:
        return self._killed_or(ctx, Done())

    @step
    async def cancel_flight(self, ctx: Context[list[str]]) -> Outcome:
        return self._killed_or(ctx, Done())

    def _killed_or(self, ctx: Context[list[str]], outcome: Outcome[str] | Done[None]) -> Outcome:
        if ctx.step == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        ctx.state.append(f"{ctx.step} {ctx.idempotency_key.partition(':')[2]}")
        return outcome


def main(dsn: str, settings: str, kill: str) -> None:
    machine = Trip()
    machine.kill = kill
    Worker([machine], dsn=dsn, settings=msgspec.json.decode(settings, type=Settings)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
