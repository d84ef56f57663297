"""Answers with an error status, as RFC 9457 describes them."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.responses import Response

from .._db.failures import StatementError, is_data, is_outage, is_repairable
from .._db.sqlstates import QUERY_CANCELED
from ..errors import (
    CodecError,
    DatabaseError,
    GenDurableError,
    KeyTakenError,
    LimitError,
    NoBatchError,
    NoScheduleError,
    NoTargetError,
    SearchError,
    UnknownStepError,
    UsageError,
)

__all__ = ["FAILED", "Problem", "ProblemError", "answer", "at_field", "problem_of"]


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong with a request, or why it cannot be answered."""

    status: int
    title: str
    detail: str = ""
    fix: str = ""
    """What to do about it."""
    type: str = "about:blank"
    facts: dict[str, Any] = {}
    """The values of `detail`, for programs. `field`: the one of the body that is wrong, if that is known."""


FAILED: Final = Problem(status=500, title="The dashboard failed", fix="The log of its process has the error.")
"""A bug. Its text may contain data, so it is only logged."""


class ProblemError(Exception):
    """Answer with a problem."""

    def __init__(
        self, status: int, title: str, detail: str = "", fix: str = "", facts: dict[str, Any] | None = None
    ) -> None:
        super().__init__(detail or title)
        self.problem = Problem(status=status, title=title, detail=detail, fix=fix, facts=facts or {})


_STATUSES: Final[tuple[tuple[type[GenDurableError], int, str], ...]] = (
    (NoTargetError, 404, "There is no such instance"),
    (NoScheduleError, 404, "There is no such schedule"),
    (NoBatchError, 404, "There is no such batch"),
    (LimitError, 422, "The limit does not allow this"),
    (KeyTakenError, 409, "The key is taken"),
    (CodecError, 422, "The value does not fit its type"),
    (UsageError, 422, "The request is not valid"),
    (DatabaseError, 503, "The database does not answer"),
)


_RETRY_AFTER: Final = {503: "5", 429: "60"}


def problem_of(error: Exception) -> Problem | None:
    """Describe an error of the library or the database; `None` for others, which are bugs."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, StatementError):
        return _of_statement(error)
    if isinstance(error, GenDurableError):
        for kind, status, title in _STATUSES:
            if isinstance(error, kind):
                if isinstance(error, UsageError):
                    facts = {"start": error.start, "end": error.end} if isinstance(error, SearchError) else {}
                    return Problem(
                        status=status, title=title, detail=error.problem, fix=error.advice, facts=facts
                    )
                return Problem(status=status, title=title, detail=str(error), facts=_field_of(error))
        return Problem(status=409, title="The change was refused", detail=str(error), facts=_field_of(error))
    return None


def at_field(error: GenDurableError, field: str | None) -> Exception:
    """Return an error as a problem of this field of the body; the same error if the field is not known."""
    problem = problem_of(error)
    if problem is None or field is None:
        return error
    facts = {**problem.facts, "field": field}
    return ProblemError(problem.status, problem.title, problem.detail, problem.fix, facts)


def _field_of(error: GenDurableError) -> dict[str, Any]:
    match error:
        case UnknownStepError():
            return {"field": "step"}
        case CodecError(what=what):
            return {"field": "payload" if "payload" in what else "state"}
    return {}


def _of_statement(error: StatementError) -> Problem | None:
    if error.sqlstate == QUERY_CANCELED:
        return Problem(
            status=504,
            title="The query took too long",
            detail="The database stopped it, so that it does not delay workers.",
            fix="Narrow the search, or try again.",
        )
    if is_outage(error):
        return Problem(
            status=503, title="The database does not answer", detail=f"database unreachable: {error.message}"
        )
    if is_repairable(error):
        return Problem(status=503, title="The database refuses the query", detail=str(error))
    if is_data(error):
        return Problem(status=422, title="The database refuses a value", detail=error.message)
    return None


def answer(problem: Problem) -> Response:
    """Return a problem as a response."""
    headers = {"retry-after": _RETRY_AFTER[problem.status]} if problem.status in _RETRY_AFTER else {}
    return Response(
        msgspec.json.encode(problem), problem.status, headers, media_type="application/problem+json"
    )
