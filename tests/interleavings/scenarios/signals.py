"""Signals against everything that may happen to their target at the same moment."""

from __future__ import annotations

from gen_durable._db.insert import insert
from gen_durable._db.lease import expire, reap
from gen_durable._db.pick import pick
from gen_durable._db.plan import Plan, Statement
from gen_durable._db.signal import Arrival, deliver

from ..explore import End, Scenario
from ..invariants import require
from ..product import SCHEMA, Change
from ..session import Work, autocommit, flush, transaction
from ..world import LEASE, LIVE, MACHINES, PAST, QUEUE, WORKER, instance, leased, new, outcome, signal
