"""Read-only models of the tables, for the admin and for reports.

The migrations of gen_durable create the tables; Django does not manage them.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from ...errors import UsageError
from .conf import read

__all__ = ["AuditEvent", "Execution", "Instance", "OutboxEvent", "table"]


def table(name: str) -> str:
    """Return the quoted name of a table or view with its schema. Django does not quote a quoted name again."""
    return f'"{read().settings.schema}"."{name}"'


def _refuse(*_: Any, **__: Any) -> Any:
    raise UsageError(
        "the models of gen_durable are read-only",
        "use DjangoClient or `manage.py gen_durable`",
    )


class _ReadOnly(models.QuerySet):
    update = delete = create = bulk_create = bulk_update = _refuse
    get_or_create = update_or_create = aupdate = adelete = acreate = _refuse
    abulk_create = abulk_update = aget_or_create = aupdate_or_create = _refuse


class _Row(models.Model):
    objects = _ReadOnly.as_manager()

    class Meta:
        abstract = True
        managed = False
        default_permissions = ("view",)

    save = delete = asave = adelete = _refuse


class Instance(_Row):
    """An instance."""

    id = models.BigIntegerField(primary_key=True)
    fsm = models.TextField("machine")
    fsm_version = models.IntegerField("version")
    step = models.TextField()
    status = models.TextField()
    queue = models.TextField()
    priority = models.SmallIntegerField()
    attempt = models.IntegerField("attempt, from 0")
    step_seq = models.BigIntegerField("transitions")
    crash_count = models.IntegerField("crashes")
    correlation_key = models.TextField(null=True)
    concurrency_key = models.TextField(null=True)
    parent_id = models.BigIntegerField("parent", null=True)
    schedule = models.TextField(null=True)
    locked_by = models.TextField("worker", null=True)
    state = models.TextField()
    result = models.TextField(null=True)
    last_error = models.TextField(null=True)
    cancel_reason = models.TextField(null=True)
    cancelled_by = models.TextField(null=True)
    inserted_at = models.DateTimeField()
    eligible_at = models.DateTimeField("due at")
    updated_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True)
    deleted_at = models.DateTimeField(null=True)

    class Meta(_Row.Meta):
        db_table = table("snapshots")
        ordering = ("-id",)
        # Roles of the dashboard.
        permissions = (
            ("operate_instance", "Can change instances and queues in the dashboard"),
            ("administer_instance", "Can do everything in the dashboard"),
        )

    def __str__(self) -> str:
        return f"{self.fsm} {self.id}"


class Execution(_Row):
    """An execution: one leased attempt at one step."""

    exec_id = models.TextField(primary_key=True)
    job_id = models.BigIntegerField("instance")
    attempt = models.IntegerField("execution")
    step = models.TextField()
    step_seq = models.BigIntegerField()
    status = models.TextField()
    outcome = models.TextField(null=True)
    to_step = models.TextField("next step", null=True)
    cause = models.TextField(null=True)
    lease_owner = models.TextField("worker", null=True)
    leased_at = models.DateTimeField(null=True)
    lease_expires_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    error = models.TextField(null=True)

    class Meta(_Row.Meta):
        db_table = table("gen_durable_executions")

    def __str__(self) -> str:
        return str(self.exec_id)


class OutboxEvent(_Row):
    """An event of the outbox."""

    id = models.BigIntegerField(primary_key=True)
    instance_id = models.BigIntegerField("instance")
    step_seq = models.BigIntegerField()
    n = models.IntegerField()
    sink = models.TextField()
    type = models.TextField()
    subject = models.TextField()
    data = models.JSONField()
    attempts = models.IntegerField()
    last_error = models.TextField(null=True)
    created_at = models.DateTimeField()
    next_at = models.DateTimeField()
    published_at = models.DateTimeField(null=True)
    dead_at = models.DateTimeField(null=True)

    class Meta(_Row.Meta):
        db_table = table("outbox")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.type} {self.subject}"


class AuditEvent(_Row):
    """What happened to an instance, queue, limit or schedule, with actor and reason."""

    id = models.BigIntegerField(primary_key=True)
    instance_id = models.BigIntegerField("instance", null=True)
    subject = models.TextField(null=True)
    event = models.TextField()
    actor = models.TextField(null=True)
    login = models.TextField(null=True)
    reason = models.TextField(null=True)
    data = models.JSONField(null=True)
    created_at = models.DateTimeField()

    class Meta(_Row.Meta):
        db_table = table("audit_events")
        ordering = ("-id",)

    def __str__(self) -> str:
        return f"{self.event} {self.subject or self.instance_id}"
