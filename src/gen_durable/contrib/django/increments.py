"""Operations for Django migrations: one increment of the schema, and the unmanaged models."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ModelState

from ..._db import migrate
from ..._db.plan import Plan
from ..._schema import run_on
from . import models
from .conf import read

__all__ = ["Increment", "Views"]


class Increment(Operation):
    """Apply or revert one increment in the schema and database that the setting `GEN_DURABLE` names.

    Does nothing if the schema already has the version, for example after `gen-durable db migrate`.
    """

    reversible = True
    reduces_to_sql = True

    def __init__(self, version: int) -> None:
        self.version = version

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Do nothing: the models are unmanaged."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Apply the increment."""
        self._migrate(app_label, schema_editor, self.version - 1, self.version)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Revert the increment, with the data of its tables."""
        self._migrate(app_label, schema_editor, self.version, self.version - 1)

    def describe(self) -> str:
        return f"Schema of gen_durable: increment {self.version}"

    def _migrate(self, app_label: str, schema_editor: Any, current: int, to: int) -> None:
        conn = schema_editor.connection
        conf = read()
        schema = conf.settings.schema
        if conn.alias != conf.database or not router.allow_migrate(conn.alias, app_label):
            return
        if schema_editor.collect_sql:  # manage.py sqlmigrate writes BEGIN and COMMIT itself
            text = migrate.script(schema, current, to).strip().removeprefix("begin;").removesuffix("commit;")
            schema_editor.collected_sql.append(text.strip())
        else:
            run_on(conn, _step(schema, current, to), schema)


class Views(Operation):
    """The unmanaged models in their current form; changes of the models change no table."""

    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Add the models to the state that `makemigrations` compares."""
        for model in (models.Instance, models.Execution, models.OutboxEvent, models.AuditEvent):
            state.add_model(ModelState.from_model(model))

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Do nothing."""

    database_backwards = database_forwards

    def describe(self) -> str:
        return "Models over the tables of gen_durable"


def _step(schema: str, current: int, to: int) -> Plan[None]:
    """Migrate from one version to the next, unless the schema is already there or beyond."""
    found = (yield from migrate.status(schema)).version or 0
    if found < to if current < to else found > to:
        yield from migrate.migrate(schema, to)
