"""Log records with the instance, machine and step that they belong to.

    from gen_durable import logs

    logs.add_context()
    logging.basicConfig(format="%(levelname)s [%(durable)s] %(message)s")   # INFO [Checkout 42 ship 3] parcel ready

Every record that is logged while a step runs has the attributes of `FIELDS`: from your code or a library, on the event
loop or in a thread. Outside steps `durable` is "-" and the others are `None`, so one format works everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from ._running import running

__all__ = ["FIELDS", "add_context"]

FIELDS: Final = ("durable", "durable_instance", "durable_machine", "durable_step", "durable_execution")
"""A summary of the others as text; instance id, machine, step, and number of the execution (1, 2, 3 …).

The prefix avoids conflicts: `logging` raises if `extra=` has a name that the record already has."""


def add_context() -> Callable[[], None]:
    """Add the attributes of `FIELDS` to all log records from now on.

    Returns:
        A function that undoes it.
    """
    previous = logging.getLogRecordFactory()

    def make(*args: Any, **options: Any) -> logging.LogRecord:
        record = previous(*args, **options)
        execution = running.get()
        values: tuple[Any, ...] = ("-", None, None, None, None)
        if execution is not None:
            own = (execution.id, execution.fsm, execution.step, execution.number)
            values = (f"{execution.fsm} {execution.id} {execution.step} {execution.number}", *own)
        record.__dict__.update(zip(FIELDS, values, strict=True))
        return record

    logging.setLogRecordFactory(make)

    def undo() -> None:
        # Keep a factory that was installed on top of this one.
        if logging.getLogRecordFactory() is make:
            logging.setLogRecordFactory(previous)

    return undo
