"""A search in words: "failed instances of checkout at step ship whose error contains timeout"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from .query import Query, Term, Value, cut

__all__ = ["in_words", "term_in_words"]

_COMPARED: Final[Mapping[str, str]] = {
    "": "",
    ">": "more than ",
    ">=": "at least ",
    "<": "less than ",
    "<=": "at most ",
}
_TIMES: Final[Mapping[str, str]] = {">": "after", ">=": "at or after", "<": "before", "<=": "at or before"}
_MOST: Final = 3


def in_words(query: Query) -> str:
    """Describe what a search selects."""
    statuses = [term for term in query.terms if term.name == "status" and not term.is_negated]
    others = [term for term in query.terms if term not in statuses]
    adjective = " and ".join(_any_of(term.values) for term in statuses)
    words = f"{adjective} instances" if adjective else "instances"
    phrases = sorted((_PHRASES[term.name](term) for term in others), key=_is_clause)
    return words + "".join(
        f"{' and' if number and _is_clause(phrases[number - 1]) else ''} {phrase}"
        for number, phrase in enumerate(phrases)
    )


def term_in_words(term: Term) -> str:
    """Describe one term."""
    return _PHRASES[term.name](term)


def _is_clause(phrase: str) -> bool:
    return phrase.startswith(("whose", "that"))


def _of(preposition: str) -> Callable[[Term], str]:
    return lambda term: f"{'not ' if term.is_negated else ''}{preposition} {_any_of(term.values)}"


def _whose(what: str) -> Callable[[Term], str]:
    return lambda term: f"whose {what} is {_not(term)}{_any_of(term.values)}"


def _machine(term: Term) -> str:
    names = _either(cut(value.text) for value in term.values)
    return f"{'not ' if term.is_negated else ''}of {names}"


def _error(term: Term) -> str:
    parts = [cut(value.text) for value in term.values if value.operator]
    texts = [cut(value.text) for value in term.values if not value.operator]
    does, is_ = ("does not contain", "is not") if term.is_negated else ("contains", "is")
    both = " and " if term.is_negated else " or "
    return "whose error " + both.join(
        [f"{does} {_either(parts)}"] * bool(parts) + [f"{is_} {_either(texts)}"] * bool(texts)
    )


def _key(term: Term) -> str:
    return f"{'without' if term.is_negated else 'with'} key {_any_of(term.values)}"


def _state(term: Term) -> str:
    path = ".".join(term.path)
    return f"whose {cut(f'state.{path}') if path else 'state'} is {_not(term)}{_either(map(_scalar, term.values))}"


def _scalar(value: Value) -> str:
    return f'"{cut(value.text)}"' if value.is_quoted else cut(value.text)


def _age(term: Term) -> str:
    return f"that are {_not(term)}{_compared(term.values[0], 'old')}"


def _stuck(term: Term) -> str:
    return f"that are {_not(term)}live and unchanged for {_compared(term.values[0])}"


def _ended(term: Term) -> str:
    does = "did not end" if term.is_negated else "ended"
    return f"that {does} {_compared(term.values[0])} ago"


def _inserted(term: Term) -> str:
    (value,) = term.values
    return f"{_not(term)}inserted {_TIMES[value.operator]} {cut(value.text)}"


def _awaits(term: Term) -> str:
    return f"that {'do not wait' if term.is_negated else 'wait'} for signal {_any_of(term.values)}"


def _status(term: Term) -> str:
    return f"that are {_not(term)}{_any_of(term.values)}"


def _text(term: Term) -> str:
    return f"of machine, at step or with key {_any_of(term.values)}"


def _not(term: Term) -> str:
    return "not " if term.is_negated else ""


def _any_of(values: Iterable[Value]) -> str:
    return _either(_compared(value) for value in values)


def _compared(value: Value, suffix: str = "") -> str:
    return f"{_COMPARED.get(value.operator, '')}{cut(value.text)}{suffix and f' {suffix}'}"


def _either(words: Iterable[str]) -> str:
    given = list(words)
    if len(given) > _MOST + 1:
        given[_MOST:] = [f"{len(given) - _MOST} others"]
    return " or ".join([", ".join(given[:-1]), given[-1]] if len(given) > 1 else given)


_PHRASES: Final[Mapping[str, Callable[[Term], str]]] = {
    "": _text,
    "machine": _machine,
    "step": _of("at step"),
    "status": _status,
    "key": _key,
    "id": _whose("id"),
    "queue": _of("in queue"),
    "error": _error,
    "fingerprint": _whose("failure fingerprint"),
    "state": _state,
    "age": _age,
    "stuck": _stuck,
    "ended": _ended,
    "inserted": _inserted,
    "attempt": _whose("attempt"),
    "awaits": _awaits,
    "worker": _of("executed by worker"),
    "version": _of("of version"),
    "priority": _whose("priority"),
    "concurrency": _whose("concurrency key"),
    "limit": _of("under rate limit"),
    "parent": _of("with parent"),
    "schedule": _of("of schedule"),
}
