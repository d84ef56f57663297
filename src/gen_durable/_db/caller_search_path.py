"""Run plans on a caller's session without resolving names on the caller's search_path.

If another role may create objects in a schema of that path, its functions and operators can shadow those of
PostgreSQL. A call of one of our functions resolves nothing on the path; most verbs are such a call. Every other
statement runs on a pinned path, and the path of the caller is restored afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from .connector import PINNED
from .failures import StatementError
from .plan import Call, Plan, Rows, Script, Statement, only

__all__ = ["on_pinned_path"]

T = TypeVar("T")

# In the caller's transaction. COMMIT, ROLLBACK or ROLLBACK TO SAVEPOINT restores the caller's path as well. The server
# keeps the path of the caller: a cancelled statement may have pinned the path, and its reply is lost.
_PATH_OF_CALLER: Final = "gen_durable_pool.path_of_caller"
_PIN: Final = Statement(
    "pin_path",
    f"select pg_catalog.set_config('{_PATH_OF_CALLER}', pg_catalog.current_setting('search_path'), true),"
    f" pg_catalog.set_config('search_path', '{PINNED['search_path']}', true)",
)
# Does nothing if the path is not pinned.
_RESTORE: Final = Statement(
    "restore_path",
    "select pg_catalog.set_config('search_path',"
    f" coalesce(pg_catalog.current_setting('{_PATH_OF_CALLER}', true), '{PINNED['search_path']}'), true)"
    f" where pg_catalog.current_setting('search_path') operator(pg_catalog.=) '{PINNED['search_path']}'",
)
# Outside a transaction, in one of our own. SET for the session would not do: behind a pooler in transaction mode,
# another session may run the next statement.
_BEGIN: Final = Script(f"begin; set local search_path = {PINNED['search_path']}")
_BEGIN_READ_COMMITTED: Final = Script(_BEGIN.text.replace("begin", "begin isolation level read committed", 1))


def on_pinned_path(plan: Plan[T], is_in_transaction: Callable[[], bool], *, as_one: bool = False) -> Plan[T]:
    """Run a plan with its statements on a pinned search_path, and restore the path of the caller.

    Args:
        plan: the plan.
        is_in_transaction: whether the next statement is part of a transaction of the caller.
        as_one: run the plan as one transaction: the caller's, or one of its own outside of that.
    """
    if as_one and not is_in_transaction():
        return (yield from _in_transaction(_BEGIN_READ_COMMITTED, plan))
    pinned = _Pinned(is_in_transaction)
    try:
        result = yield from pinned.run(plan)
        yield from pinned.restore()
    except BaseException:
        # A failed transaction accepts no statement, and its end restores the path.
        with suppress(StatementError):
            yield from pinned.restore()
        raise
    return result


class _Pinned:
    """Pins the path before the first statement that needs it."""

    def __init__(self, is_in_transaction: Callable[[], bool]) -> None:
        self._is_in_transaction = is_in_transaction
        self._is_pinned = False

    def run(self, plan: Plan[T]) -> Plan[T]:
        try:
            call = next(plan)
            while True:
                try:
                    rows = yield from self._execute(call)
                except BaseException as error:  # noqa: BLE001 - raised again by the plan
                    call = plan.throw(error)
                else:
                    call = plan.send(rows)
        except StopIteration as finished:
            result: T = finished.value
            return result

    def restore(self) -> Plan[None]:
        if self._is_pinned:
            yield _RESTORE()
            self._is_pinned = False

    def _execute(self, call: Call | Script) -> Plan[Rows]:
        if self._is_pinned or (isinstance(call, Call) and call.statement.is_call):
            return (yield call)
        if self._is_in_transaction():
            self._is_pinned = True
            yield _PIN()
            return (yield call)
        return (yield from _in_transaction(_BEGIN, only(call)))


def _in_transaction(begin: Script, plan: Plan[T]) -> Plan[T]:
    try:
        yield begin
        result = yield from plan
        yield Script("commit")
    except BaseException:
        with suppress(StatementError):
            yield Script("rollback")
        raise
    return result
