"""The operations of both clients and of the command line. Each is a plan that returns the value for the caller.

Plans of changes return two values: the result, and the queues that have work now.
"""

from __future__ import annotations

from . import schedules
from .common import definition_of_target, read, resolve
from .control import (
    cancel,
    cancel_all,
    cancel_batch,
    delete_all,
    delete_batch,
    restore,
    restore_batch,
    retry,
    retry_all,
    retry_batch,
    soft_delete,
)
from .edits import check_by_name, check_change, edit
from .forks import fork
from .history import audit, audit_level, audit_log, events, replay, set_audit
from .inserts import given_state, insert, insert_all
from .named_inserts import NamedResult, check_registered, insert_named
from .operations import (
    PauseConfirmation,
    check,
    doctor,
    limits,
    pause_confirmation,
    pause_queue,
    queues,
    remove_limit,
    resume_queue,
    set_limit,
    set_queue,
    workers,
)
from .reads import Filters, children, count, executions, explain, get, page
from .signals import receive, signal, signal_with_reason
from .transitions import history_of
from .waits import Poll, Wait, checked_until, current

__all__ = [
    "Filters",
    "NamedResult",
    "PauseConfirmation",
    "Poll",
    "Wait",
    "audit",
    "audit_level",
    "audit_log",
    "cancel",
    "cancel_all",
    "cancel_batch",
    "check",
    "check_by_name",
    "check_change",
    "check_registered",
    "checked_until",
    "children",
    "count",
    "current",
    "definition_of_target",
    "delete_all",
    "delete_batch",
    "doctor",
    "edit",
    "events",
    "executions",
    "explain",
    "fork",
    "get",
    "given_state",
    "history_of",
    "insert",
    "insert_all",
    "insert_named",
    "limits",
    "page",
    "pause_confirmation",
    "pause_queue",
    "queues",
    "read",
    "receive",
    "remove_limit",
    "replay",
    "resolve",
    "restore",
    "restore_batch",
    "resume_queue",
    "retry",
    "retry_all",
    "retry_batch",
    "schedules",
    "set_audit",
    "set_limit",
    "set_queue",
    "signal",
    "signal_with_reason",
    "soft_delete",
    "workers",
]
