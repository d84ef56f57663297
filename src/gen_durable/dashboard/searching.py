"""Searches of the dashboard: hidden values cannot be searched, and a search with another status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final

from .._core.query import Query, Term, shown
from .._core.query_terms import parse
from ..errors import SearchError
from .problems import ProblemError
from .redaction import HIDDEN, Redact

__all__ = ["checked", "hidden_selection", "hides", "statuses_in", "with_status"]

_SOME_TEXT: Final = "a value"


def checked(text: str, redact: Redact) -> Query:
    """Read a search.

    Raises:
        SearchError: it is not one.
        ProblemError: it asks for a value that is hidden. The answer would tell what it is.
    """
    query = parse(text)
    for term in query.terms:
        if term.name == "state" and _is_hidden(term, redact):
            place = shown(text[term.start : term.end], term.start)
            raise ProblemError(
                422,
                "Hidden values cannot be searched",
                f"{place}: the dashboard hides this value",
                "Remove the term, or search with the command line.",
                {"start": term.start, "end": term.end},
            )
    return query


def hides(text: str, redact: Redact) -> bool:
    """Whether a stored search contains a value that is hidden."""
    try:
        checked(text, redact)
    except ProblemError:
        return True
    except SearchError:  # stored by another version
        return "state" in text.lower()
    return False


def hidden_selection(data: Mapping[str, Any], redact: Redact) -> dict[str, Any]:
    """Hide the search and the filter of a batch in an audit event, if they contain a value that is hidden."""
    found = dict(data)
    if isinstance(where := found.get("where"), str) and hides(where, redact):
        found["where"] = HIDDEN
    chosen = found.get("filter")
    conditions = chosen.get("conditions", ()) if isinstance(chosen, dict) else ()
    if any(_hides(each["values"].get("path") or (), (), redact) for each in conditions):
        found["filter"] = HIDDEN
    return found


def _is_hidden(term: Term, redact: Redact) -> bool:
    return _hides(term.path, [value.text for value in term.values], redact)


def _hides(path: Sequence[str], texts: Iterable[str], redact: Redact) -> bool:
    """Whether the state hides one of these texts, or any text, at a path."""
    return any(_at(redact(_nested(path, text)), path) != text for text in (_SOME_TEXT, *texts))


def _nested(path: Sequence[str], value: Any) -> Any:
    return reduce(lambda inner, key: {key: inner}, reversed(path), value)


def _at(value: Any, path: Sequence[str]) -> Any:
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value


def statuses_in(query: Query) -> list[str]:
    """Return the words of `status:` that are not negated."""
    return [value.text for term in query.terms if _is_status(term) for value in term.values]


def with_status(text: str, query: Query, status: str) -> str:
    """Return the search with this status instead of those that it has; empty: any."""
    others = [text[term.start : term.end] for term in query.terms if not _is_status(term)]
    return " ".join([*others, *([f"status:{status}"] if status else [])])


def _is_status(term: Term) -> bool:
    return term.name == "status" and not term.is_negated
