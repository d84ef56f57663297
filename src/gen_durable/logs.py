"""Log records that know their instance.

    from gen_durable import logs

    logs.add_context()
    logging.basicConfig(format="%(levelname)s [%(durable)s] %(message)s")   # INFO [Checkout 42 ship 3] parcel ready

Whatever logs while a step runs, its own code or a library, on the loop or in a thread, leaves a record with the
attributes below. Outside of steps `durable` is "-" and the others are `None`, so one format serves all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from ._running import running

__all__ = ["FIELDS", "add_context"]

FIELDS: Final = ("durable", "durable_instance", "durable_machine", "durable_step", "durable_execution")
"""All of it in one text; the id, the machine, the step, and which execution of the instance it is (1, 2, 3 …).

Not `step` and the like: `logging` refuses a record whose `extra=` has a name that is there already."""


def add_context() -> Callable[[], None]:
    """Let every record from now on have the attributes of `FIELDS`.

    Returns:
        A function that takes it back.
    """
    made_by = logging.getLogRecordFactory()

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = made_by(*args, **options)
        execution = running.get()
        values: tuple[Any, ...] = ("-", None, None, None, None)
        if execution is not None:
            own = (execution.id, execution.fsm, execution.step, execution.number)
            values = (f"{execution.fsm} {execution.id} {execution.step} {execution.number}", *own)
        record.__dict__.update(zip(FIELDS, values, strict=True))
        return record

    logging.setLogRecordFactory(make)

    def take_back() -> None:
        # Whoever has put a factory on top of ours keeps it.
        if logging.getLogRecordFactory() is make:
            logging.setLogRecordFactory(made_by)

    return take_back
