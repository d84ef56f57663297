"""A worker process: `python -m tests.chaos.worker ORDERS-AS-JSON`.

It writes what its steps do, and the engine's fault events, to the journal.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import msgspec

from gen_durable import Queue, Settings, Worker
from gen_durable.telemetry import AwaitTimeout, Event, OutcomeStale, PickStop, ReaperReaped
from tests.chaos.journal import Journal
from tests.chaos.machines import MACHINES, Page
from tests.chaos.releases import RELEASES


class Orders(msgspec.Struct, kw_only=True):
    dsn: str
    journal: str
    settings: Settings
    queues: dict[str, int]
    release: str = ""
    """Run this release of the parcels instead of the other machines."""


def main(text: str) -> None:
    orders = msgspec.json.decode(text, type=Orders)
    logging.basicConfig(level=logging.INFO, format="%(relativeCreated)d %(levelname)s %(message)s")
    journal = Page.journal = Journal(Path(orders.journal))
    queues = {name: Queue(concurrency=limit) for name, limit in orders.queues.items()}
    machines = [RELEASES[orders.release]] if orders.release else MACHINES
    worker = Worker(machines, dsn=orders.dsn, settings=orders.settings, queues=queues)

    def on_first_look(_: PickStop) -> None:
        unsubscribe()
        journal.note("ready")

    def on_event(event: Event) -> None:
        journal.note("event", event=event.name, **msgspec.to_builtins(event))

    unsubscribe = worker.telemetry.subscribe(on_first_look, PickStop)
    worker.telemetry.subscribe(on_event, ReaperReaped, OutcomeStale, AwaitTimeout)
    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
