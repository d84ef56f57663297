"""Durable state machines on PostgreSQL.

A machine is a class; its steps return outcomes. The engine commits each outcome before it runs the next step, so an
instance survives crashes of its process, its host and the database server.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ._core.records import job_state
from ._graph import Edge, Graph, Node, check, graph
from ._schema import migrate, migrate_async
from ._version import VERSION
from .async_client import AsyncClient
from .audit import AuditEvent
from .batches import Batch, BatchGroup, BatchPreview
from .client import Client
from .config import Queue, Settings
from .context import Children, Context
from .errors import (
    BatchCountError,
    CodecError,
    DatabaseError,
    DecodeError,
    DefinitionError,
    EncodeError,
    GenDurableError,
    InboxFullError,
    InstanceCancelledError,
    InstanceCollectedError,
    InstanceFailedError,
    InstanceUnfinishedError,
    KeyTakenError,
    LeaseLostError,
    LimitError,
    NoBatchError,
    NoScheduleError,
    NoTargetError,
    NotDoneError,
    NotLoadedError,
    PauseTimeoutError,
    SearchError,
    SettingsError,
    StepTimeoutError,
    UsageError,
    WorkerStoppedError,
)
from .events import CloudEvent, Event, Rejected, Sink, SinkUnavailable
from .findings import Finding
from .instance import (
    AlreadyFinished,
    Cancelled,
    CancelRequested,
    Change,
    Child,
    Compensating,
    Compensation,
    Deleted,
    Delivered,
    DuplicateSignal,
    Edited,
    ExecutionRecord,
    ExecutionStatus,
    Failure,
    Forked,
    Instance,
    JobState,
    NotEdited,
    NotRetried,
    Restored,
    Retried,
    StateChange,
    Status,
    Transition,
)
from .jobs import Job, job
from .limits import ConcurrencyLimit, RateLimit
from .machine import Machine, Step, step, upgrade
from .operations import QueueControl, QueueStatus, WorkerInfo
from .outcome import (
    Await,
    Cancel,
    Discard,
    Done,
    Next,
    Outcome,
    Retry,
    RetryAfter,
    ScheduleChildren,
    Sql,
    Stop,
    Transaction,
)
from .progress import Progress
from .reasons import Explanation
from .refs import Duplicate, Inserted, KeyTaken, Ref, Spec
from .retry import Backoff, backoff
from .schedules import Schedule, ScheduleRecord, Triggered
from .search import Completion, SearchCount, SearchPage, SearchTerm, Suggestion
from .signals import Inbox, Message, Signal
from .streams import Stream, StreamItem
from .timeline import TimelineEntry
from .worker import Worker

__all__ = [
    "AlreadyFinished",
    "AsyncClient",
    "AuditEvent",
    "Await",
    "Backoff",
    "Batch",
    "BatchCountError",
    "BatchGroup",
    "BatchPreview",
    "Cancel",
    "CancelRequested",
    "Cancelled",
    "Change",
    "Child",
    "Children",
    "Client",
    "CloudEvent",
    "CodecError",
    "Compensating",
    "Compensation",
    "Completion",
    "ConcurrencyLimit",
    "Context",
    "DatabaseError",
    "DecodeError",
    "DefinitionError",
    "Deleted",
    "Delivered",
    "Discard",
    "Done",
    "Duplicate",
    "DuplicateSignal",
    "Edge",
    "Edited",
    "EncodeError",
    "Event",
    "ExecutionRecord",
    "ExecutionStatus",
    "Explanation",
    "Failure",
    "Finding",
    "Forked",
    "GenDurableError",
    "Graph",
    "Inbox",
    "InboxFullError",
    "Inserted",
    "Instance",
    "InstanceCancelledError",
    "InstanceCollectedError",
    "InstanceFailedError",
    "InstanceUnfinishedError",
    "Job",
    "JobState",
    "KeyTaken",
    "KeyTakenError",
    "LeaseLostError",
    "LimitError",
    "Machine",
    "Message",
    "Next",
    "NoBatchError",
    "NoScheduleError",
    "NoTargetError",
    "Node",
    "NotDoneError",
    "NotEdited",
    "NotLoadedError",
    "NotRetried",
    "Outcome",
    "PauseTimeoutError",
    "Progress",
    "Queue",
    "QueueControl",
    "QueueStatus",
    "RateLimit",
    "Ref",
    "Rejected",
    "Restored",
    "Retried",
    "Retry",
    "RetryAfter",
    "Schedule",
    "ScheduleChildren",
    "ScheduleRecord",
    "SearchCount",
    "SearchError",
    "SearchPage",
    "SearchTerm",
    "Settings",
    "SettingsError",
    "Signal",
    "Sink",
    "SinkUnavailable",
    "Spec",
    "Sql",
    "StateChange",
    "Status",
    "Step",
    "StepTimeoutError",
    "Stop",
    "Stream",
    "StreamItem",
    "Suggestion",
    "TimelineEntry",
    "Transaction",
    "Transition",
    "Triggered",
    "UsageError",
    "Worker",
    "WorkerInfo",
    "WorkerStoppedError",
    "__version__",
    "backoff",
    "check",
    "graph",
    "job",
    "job_state",
    "migrate",
    "migrate_async",
    "step",
    "upgrade",
]

__version__ = VERSION

if not _TYPE_CHECKING:
    from ._dictionary import package_attribute as __getattr__  # noqa: F401
