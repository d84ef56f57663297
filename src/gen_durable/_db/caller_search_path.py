"""Plans on a caller's session, whose search_path is the caller's.

With a schema on that path in which another role may create, an operator or a function of that role can take the place
of one of PostgreSQL's. A call of one of our functions looks up nothing on the path, and most verbs are such a call.
Every other statement runs on a pinned path, and the path is the caller's again afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from .connector import PINNED
from .failures import StatementError
from .plan import Call, Plan, Rows, Script, Statement

__all__ = ["CallersPath"]

T = TypeVar("T")

# In the caller's transaction: the end of it, or a rollback to a savepoint, brings the caller's path back.
_PIN: Final = Statement(
    "pin_path",
    "select pg_catalog.current_setting('search_path') as path,"
    f" pg_catalog.set_config('search_path', '{PINNED['search_path']}', true)",
)
_RESTORE: Final = Statement("restore_path", "select pg_catalog.set_config('search_path', :path::text, true)")
# Outside of one, in a transaction of our own. Not for the session: behind a pooler in transaction mode, the next
# statement may be run by another session.
_BEGIN: Final = Script(f"begin; set local search_path = {PINNED['search_path']}")
_BEGIN_ALL: Final = Script(_BEGIN.text.replace("begin", "begin isolation level read committed", 1))


class CallersPath:
    """Keeps the statements of one plan off the caller's path. Run `end` after the plan, however that ended."""

    def __init__(self, is_in_transaction: Callable[[], bool]) -> None:
        self._is_in_transaction = is_in_transaction
        self._path: str | None = None
        self._has_begun = False

    def around(self, plan: Plan[T], *, as_one: bool = False) -> Plan[T]:
        """The plan, with its statements on a pinned path; as one transaction, where that cannot be the caller's."""
        if as_one and not self._is_in_transaction():
            self._has_begun = True
            yield _BEGIN_ALL
            result = yield from plan
            yield Script("commit")
            self._has_begun = False
            return result
        return (yield from self._each(plan))

    def _each(self, plan: Plan[T]) -> Plan[T]:
        try:
            call = next(plan)
            while True:
                try:
                    rows = yield from self._pinned(call)
                except StatementError as error:
                    call = plan.throw(error)
                else:
                    call = plan.send(rows)
        except StopIteration as finished:
            result: T = finished.value
            return result

    def end(self) -> Plan[None]:
        """Undo what `around` has left: nothing, if no statement needed it."""
        if self._has_begun:
            self._has_begun = False
            yield Script("rollback")
        if self._path is not None:
            path, self._path = self._path, None
            yield _RESTORE(path=path)

    def _pinned(self, call: Call | Script) -> Plan[Rows]:
        if self._path is not None or (isinstance(call, Call) and call.statement.is_call):
            return (yield call)
        if self._is_in_transaction():
            self._path = (yield _PIN())[0]["path"]
            return (yield call)
        try:
            self._has_begun = True
            yield _BEGIN
            rows = yield call
            yield Script("commit")
            self._has_begun = False
        except StatementError:
            yield from self.end()
            raise
        return rows
