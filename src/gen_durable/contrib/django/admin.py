"""Read-only admin pages of the tables. To change something, use the client or the command line."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin
from django.core.paginator import Paginator
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join

from .models import AuditEvent, Execution, Instance, OutboxEvent

__all__ = ["AuditEventAdmin", "InstanceAdmin", "OutboxEventAdmin"]

# Rows are counted up to this number only: the tables may have millions of rows.
_MAX_COUNT: Final = 10_000
_LATEST: Final = 50


class _Pages(Paginator):
    @property
    def count(self) -> int:
        return int(self.object_list.order_by()[:_MAX_COUNT].count())


class _ReadOnlyAdmin(admin.ModelAdmin):
    paginator = _Pages
    show_full_result_count = False
    list_per_page = 50
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Instance)
class InstanceAdmin(_ReadOnlyAdmin):
    """Instances, each with its latest executions and audit events."""

    list_display = ("id", "fsm", "step", "status", "queue", "correlation_key", "inserted_at", "finished_at")
    search_fields = ("correlation_key__exact", "fsm__exact")
    search_help_text = "A correlation key, or the name of a machine."
    readonly_fields = ("executions", "audit")

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Allow filters in the URL, `?status=failed&queue=mail`. A sidebar with all values would need a table scan."""
        return lookup in ("status", "queue", "fsm", "step", "parent_id", "schedule")

    @admin.display(description="latest executions")
    def executions(self, instance: Instance) -> Any:
        """Return an HTML table of the latest ones."""
        latest = Execution.objects.filter(job_id=instance.id).order_by("-attempt")[:_LATEST]
        return _rows(
            (e.attempt, e.step, e.status, e.outcome, e.leased_at, e.finished_at, e.error) for e in latest
        )

    @admin.display(description="latest audit events")
    def audit(self, instance: Instance) -> Any:
        """Return an HTML table of the latest ones."""
        latest = AuditEvent.objects.filter(instance_id=instance.id).order_by("-id")[:_LATEST]
        return _rows((e.created_at, e.event, e.actor, e.login, e.reason) for e in latest)


@admin.register(OutboxEvent)
class OutboxEventAdmin(_ReadOnlyAdmin):
    """Events of the outbox."""

    list_display = ("id", "type", "subject", "sink", "attempts", "created_at", "published_at", "dead_at")
    search_fields = ("subject__exact", "type__exact")


@admin.register(AuditEvent)
class AuditEventAdmin(_ReadOnlyAdmin):
    """Audit events."""

    list_display = ("id", "event", "instance_id", "subject", "actor", "login", "reason", "created_at")
    search_fields = ("event__exact", "actor__exact")


def _rows(rows: Any) -> Any:
    cells = (
        format_html_join("", "<td>{}</td>", (("" if value is None else value,) for value in row))
        for row in rows
    )
    return format_html("<table>{}</table>", format_html_join("", "<tr>{}</tr>", ((row,) for row in cells)))
