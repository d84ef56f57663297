"""The engine's SQL, unchanged or mutated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gen_durable._db import (
    admission,
    batches,
    changes,
    collect,
    commit,
    control,
    insert,
    lease,
    machines,
    migrate,
    outbox,
    pick,
    schedules,
    signals,
    step_data,
    streams,
    workers,
)
from gen_durable._db.plan import Statement, in_schema

_STATEMENTS: Final[Mapping[str, Statement]] = {
    name: statement
    for module in (
        admission,
        batches,
        changes,
        collect,
        commit,
        control,
        insert,
        lease,
        machines,
        outbox,
        pick,
        schedules,
        signals,
        step_data,
        streams,
        workers,
    )
    for name, statement in module._SQL.items()
}
SCHEMA: Final = "schema"
"""The place of a change to the schema, where a statement's name would stand."""

_BODY: Final = re.compile(r"(?<=as \$\$).*?(?=\$\$;)", re.DOTALL)

# An AFTER trigger: a BEFORE trigger would lock rows earlier than the engine does and hide its races. Only a retry, of
# the row or its parent, may change an ended row's status; an edit may change its other columns.
_WATCH: Final = """
create function gen_durable.watch() returns trigger language plpgsql as $$
declare
  place text;
begin
  get diagnostics place = pg_context;
  if new.status = old.status and old.collected_at is null and new.collected_at is not null then
    return null;
  end if;
  if place ~ 'function (\\S+\\.)?retry_rows\\('
     or place ~ 'function (\\S+\\.)?edit_row\\(' and new.status = old.status
     or new.deleted_at is distinct from old.deleted_at and new.status = old.status then
    return null;
  end if;
  raise exception 'instance % was % and is now %', old.id, old.status, new.status using errcode = 'GDT01';
end $$;
create trigger watch after update on gen_durable.gen_durable for each row
  when (old.status in ('done', 'failed', 'cancelled')) execute function gen_durable.watch();
create table gen_durable.effects (instance_id bigint not null);
create function gen_durable.pause(place int) returns void language sql as $$
  select pg_advisory_lock(place, pg_backend_pid()), pg_advisory_unlock(place, pg_backend_pid())
$$;
"""


class Change(NamedTuple):
    """A piece of the engine's SQL, and its replacement."""

    where: str
    """The name of a statement, or `SCHEMA`."""
    old: str
    new: str

    def apply(self, text: str) -> str:
        if self.old not in text:
            raise LookupError(f"{self.where} no longer says {self.old!r}: the test must follow the product")
        return text.replace(self.old, self.new)


class Product:
    """The statements and the schema, unchanged or mutated."""

    def __init__(self, schema: str, changes: Iterable[Change] = ()) -> None:
        self.schema = schema
        self._changed: dict[str, str] = {}
        self._ddl = "\n".join(map(migrate.up, migrate._INCREMENTS))
        for change in changes:
            if change.where == SCHEMA:
                self._ddl = change.apply(self._ddl)
            else:
                before = self._changed.get(change.where, _STATEMENTS[change.where].text)
                self._changed[change.where] = change.apply(before)

    def text(self, statement: Statement) -> str:
        return in_schema(self._changed.get(statement.name, statement.text), self.schema)

    def ddl(self) -> str:
        """The schema, with a trigger on ended rows and the tables of the scenarios."""
        return in_schema(self._ddl + _WATCH, self.schema)

    def frame(self) -> str:
        """The schema without function bodies; it is not changed after installation."""
        return _BODY.sub("", self._ddl)

    def bodies(self) -> list[str]:
        """The bodies of its functions."""
        return _BODY.findall(in_schema(self._ddl, self.schema))


def number(statement: str, parameter: str) -> str:
    """The `$n` of a parameter."""
    return f"${_STATEMENTS[statement].parameters.index(parameter) + 1}"
