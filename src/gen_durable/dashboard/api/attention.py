"""What needs attention: findings of the doctor, paused queues, and the largest groups of failures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import msgspec

from ... import _verbs
from ..._db.plan import Plan
from ...findings import Finding, Severity
from ...operations import QueueStatus
from ...rates import EdgeRates
from ..board import Board
from ..endpoints import get
from ..instance_actions import Action, resume_of
from .failures import FailureGroup, FailuresPage, failure_groups

__all__ = ["attention"]

_MOST_GROUPS: Final = 3
# A group whose last failure is older is a notice, and one in which all failures since are a `Stop` in the code.
_RECENT: Final = timedelta(hours=1)
# The page that shows a finding, by the first word of its code, and the title of that page.
_PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "batch": ("/batches", "Batches"),
    "key": ("/queues", "Queues"),
    "lease": ("/workers", "Workers"),
    "limit": ("/queues", "Queues"),
    "outbox": ("/outbox", "Outbox"),
    "queue": ("/queues", "Queues"),
    "schedule": ("/schedules", "Schedules"),
    "worker": ("/workers", "Workers"),
}


class AttentionItem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that needs attention."""

    code: str
    """The check that found it, or `failures`."""
    severity: Severity
    what: str
    names: Sequence[str] = ()
    """The names in `what`, in their order."""
    detail: str = ""
    """What to do about it, or the error."""
    since: datetime | None = None
    """When it began; of failures, the last one."""
    page: str
    """The path of the page that shows it."""
    title: str
    """The title of that page."""
    action: Action | None = None
    """The change that ends it."""


class AttentionPage(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that needs attention, problems first."""

    items: Sequence[AttentionItem]


@get("/attention", every=15, summary="Problems and notices, with the pages that show them")
async def attention(board: Board) -> AttentionPage:
    """Return what needs attention."""
    findings = await board.findings()
    if any(finding.code == "schema.version" for finding in findings):
        return AttentionPage(items=[_item(finding) for finding in findings])
    failures = await board.cached("failures", 2.0, failure_groups)
    return await board.cached("attention", 10.0, lambda: _attention(findings, failures))


def _attention(findings: Sequence[Finding], failures: FailuresPage) -> Plan[AttentionPage]:
    queues = yield from _verbs.queues()
    failing, edges = [], dict[str, Sequence[EdgeRates]]()
    for group in failures.groups[:_MOST_GROUPS]:
        if group.machine not in edges:
            edges[group.machine] = yield from _verbs.edge_rates(group.machine, _RECENT)
        stops = [one for one in edges[group.machine] if one.step == group.step and one.outcome == "stop"]
        causes = {one.cause for one in stops}
        is_alarm = failures.at - group.last_at < _RECENT and causes != {"stop"}
        failing.append(_failing(group, "problem" if is_alarm else "notice"))
    items = [*failing, *map(_item, findings), *_paused(queues)]
    items = [one for one in items if one.code != "queue.paused" or one.action is not None]
    return AttentionPage(items=sorted(items, key=lambda one: one.severity != "problem"))


def _failing(group: FailureGroup, severity: Severity) -> AttentionItem:
    return AttentionItem(
        code="failures",
        severity=severity,
        what=f"{group.count} of {group.machine} failed at {group.step}",
        names=[str(group.count), group.machine, group.step],
        detail=group.example,
        since=group.last_at,
        page=f"/instances?q={quote(group.q)}",
        title="Instances",
    )


def _paused(queues: Sequence[QueueStatus]) -> Iterator[AttentionItem]:
    for queue in queues:
        if queue.is_paused:
            by = f" by {queue.paused_by}" if queue.paused_by else ""
            due = f"{queue.due} instance{'' if queue.due == 1 else 's'} due" if queue.due else "nothing due"
            yield AttentionItem(
                code="queue.paused",
                severity="notice",
                what=f"queue {queue.name} is paused{by}; {due}",
                names=[queue.name],
                since=queue.paused_at,
                page="/queues",
                title="Queues",
                action=resume_of(queue.name),
            )


def _item(finding: Finding) -> AttentionItem:
    facts: Mapping[str, Any] = finding.facts
    what, detail = finding.what, finding.fix
    since = facts.get("seen_at", facts.get("since"))
    page, title = _PAGES.get(finding.code.partition(".")[0], ("/system", "System"))
    match finding.code:
        case "worker.silent" if "worker" in facts:
            what = f"worker {facts['worker']} stopped without a clean shutdown"
        case "outbox.dead" if "sink" in facts:
            count = facts["count"]
            what = f"{count} dead letter{'' if count == 1 else 's'} for sink {facts['sink']}"
            detail, page = facts["last_error"] or detail, "/outbox?state=dead"
        case "machine.unknown" | "machine.steps_differ" | "step.unknown" if "machine" in facts:
            page, title = f"/m/{quote(facts['machine'], safe='')}", "Machine"
    names = [
        facts[name]
        for name in ("step", "queue", "worker", "machine", "sink")
        if isinstance(facts.get(name), str)
    ]
    return AttentionItem(
        code=finding.code,
        severity=finding.severity,
        what=what,
        names=names,
        # A command stays as it is.
        detail=detail if detail.startswith("gen-durable") else detail[:1].upper() + detail[1:],
        since=since if isinstance(since, datetime) else None,
        page=page,
        title=title,
    )
