"""The terms of a search: their names, the values that they take, and what these mean."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Final, TypeAlias

import msgspec

from .._checks import MAX_DELAY, checked_id, checked_int, checked_key, checked_moment, checked_name
from .._dictionary import did_you_mean
from ..config import parse_duration
from ..errors import SearchError, UsageError
from ..instance import LIVE_STATUSES, STATUS_WORDS, TERMINAL_STATUSES, Status, statuses_of
from .query import Query, Term, Value, cut, scan, shown

__all__ = [
    "OF_ROW",
    "STATUS_VALUES",
    "TERMS",
    "Bound",
    "Meaning",
    "Numbers",
    "Scalars",
    "TermInfo",
    "Texts",
    "meaning_of",
    "parse",
    "statuses_of_values",
    "with_names",
]


class Texts(msgspec.Struct, frozen=True):
    """Equal to one of `texts`, or with one of `parts`: a prefix of a machine, a part of an error."""

    texts: tuple[str, ...]
    parts: tuple[str, ...] = ()


class Numbers(msgspec.Struct, frozen=True):
    """In one of these ranges, both ends included."""

    ranges: tuple[tuple[int, int], ...]


class Bound(msgspec.Struct, frozen=True):
    """Before or after a time; a duration is counted back from now."""

    value: datetime | timedelta
    is_after: bool
    """Whether the time of a matching row is after this one."""
    is_included: bool


class Scalars(msgspec.Struct, frozen=True):
    """Equal to one of these JSON values, as text."""

    values: tuple[str, ...]


Meaning: TypeAlias = Texts | Numbers | Bound | Scalars


class TermInfo(msgspec.Struct, frozen=True):
    """A term that exists."""

    name: str
    read: Callable[[Term], Meaning]
    example: str
    help: str


_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d{0,99})(?:\.\d{1,100})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_COMPARISON: Final = re.compile(r"([A-Za-z]+)[~<>=]")
_NAME: Final = re.compile(r"-?(\w+)[:.]")
_CONSTANTS: Final = ("true", "false", "null")
_WORDS: Final = ("live", "ended", "waiting", "due", "later", "retrying", "gated", "compensating", "deleted")
_GROUPS: Final[Mapping[str, tuple[Status, ...]]] = {
    "live": LIVE_STATUSES,
    "ended": TERMINAL_STATUSES,
    "waiting": (Status.AWAITING_SIGNAL, Status.AWAITING_CHILDREN),
}
# Words that also depend on other columns, and the statuses that their rows may have.
OF_ROW: Final[Mapping[str, tuple[Status, ...]]] = {
    "due": (Status.RUNNABLE,),
    "later": (Status.RUNNABLE,),
    "retrying": (Status.RUNNABLE,),
    "gated": (Status.RUNNABLE,),
    "compensating": LIVE_STATUSES,
    "deleted": tuple(Status),
}
STATUS_VALUES: Final = (*STATUS_WORDS, *_WORDS)


def parse(text: str) -> Query:
    """Read a search. A number without a name becomes an `id:`, a word of a status a `status:`.

    Raises:
        SearchError: a term is unknown, or has a value that it does not take.
    """
    try:
        terms = scan(text).terms
    except SearchError as error:
        raise _with_example(text, error) from None
    query = Query(tuple(_named(term) for term in terms))
    for term in query.terms:
        meaning_of(term)
    _check_repeats(query.terms)
    return query


def _with_example(text: str, error: SearchError) -> SearchError:
    """Return an error about a missing value with the example of its term."""
    named = _NAME.match(text, error.start)
    info = TERMS.get(named[1].lower()) if named and error.problem.endswith("a value is missing") else None
    if info is None:
        return error
    return SearchError(error.problem, f"write for example {info.example}", error.start, error.end)


def with_names(query: Query, machines: Iterable[str], steps: Iterable[str]) -> Query:
    """Give each value without a name one: a registered machine, else a step of one, else a key.

    Raises:
        SearchError: the search has that term already.
    """
    known_machines, known_steps = frozenset(machines), frozenset(steps)

    def name_of(text: str) -> str:
        return "machine" if text in known_machines else "step" if text in known_steps else "key"

    terms = []
    for term in query.terms:
        if not term.name:
            (value,) = term.values
            # In quotes, so that a `*` is not a prefix.
            term = msgspec.structs.replace(
                term, name=name_of(value.text), values=(Value(value.text, is_quoted=True),)
            )
            meaning_of(term)
        terms.append(term)
    _check_repeats(terms)
    return Query(tuple(terms))


def meaning_of(term: Term) -> Meaning:
    """Return what the values of a term mean.

    Raises:
        SearchError: the term is unknown, or does not take these values.
    """
    if not term.name:
        return Texts(tuple(_checked(term, checked_key, value, "the text") for value in term.values))
    info = TERMS.get(term.name)
    if info is None:
        raise _unknown(term)
    return info.read(term)


def statuses_of_values(words: Iterable[str]) -> tuple[frozenset[Status], frozenset[str]]:
    """Return the statuses that these words of `status:` mean, and those words that depend on other columns too."""
    statuses: set[Status] = set()
    of_row: set[str] = set()
    for word in words:
        if word in OF_ROW:
            of_row.add(word)
        else:
            statuses.update(_GROUPS.get(word) or statuses_of(word) or ())
    return frozenset(statuses), frozenset(of_row)


def _named(term: Term) -> Term:
    if term.name:
        return term
    (value,) = term.values
    if term.is_negated:
        raise _error(term, "a value without a name cannot be negated", "name the term: -status:failed")
    if value.operator:
        raise _error(term, "a comparison has no name", 'write for example age:>1h or error:~"timed out"')
    if value.is_quoted:
        return term
    if (found := _COMPARISON.match(value.text)) and found[1].lower() in TERMS:
        raise _error(
            term, "the colon is missing", f"write {found[1].lower()}:{cut(value.text[found.end(1) :])}"
        )
    if value.text.isascii() and value.text.isdecimal():
        return msgspec.structs.replace(term, name="id")
    if value.text in STATUS_VALUES:
        return msgspec.structs.replace(term, name="status")
    return term


def _check_repeats(terms: Iterable[Term]) -> None:
    given: set[tuple[str, tuple[str, ...]]] = set()
    for term in terms:
        key = (term.name, term.path)
        if not term.name or term.is_negated or any(value.operator for value in term.values):
            continue
        if key in given:
            raise _error(
                term, f"'{'.'.join((term.name, *term.path))}' is given twice", "write alternatives as a,b,c"
            )
        given.add(key)


# Names that other systems or other parts of this one use.
_MEANT: Final[Mapping[str, str]] = {
    "correlation_key": "key",
    "unique_key": "key",
    "idempotency_key": "key",
    "concurrency_key": "concurrency",
    "rate_limit": "limit",
    "is": "status",
    "locked_by": "worker",
    "signal": "awaits",
    "last_error": "error",
    "fsm": "machine",
    "type": "machine",
    "created": "inserted",
    "inserted_at": "inserted",
}


def _unknown(term: Term) -> SearchError:
    name = term.name
    meant = _MEANT.get(name)
    hint = f"; did you mean '{meant}'?" if meant else did_you_mean(name, tuple(TERMS))
    key = "" if meant else f"for a key with a colon, write key:{cut(str(term).removeprefix('-'))}; "
    return _error(term, f"there is no term '{cut(name)}'{hint}", f"{key}the terms are {', '.join(TERMS)}")


def _error(term: Term, problem: str, advice: str) -> SearchError:
    return SearchError(f"{shown(str(term), term.start)}: {problem}", advice, term.start, term.end)


def _placed(term: Term, error: UsageError) -> SearchError:
    return error if isinstance(error, SearchError) else _error(term, error.problem, error.advice)


def _checked(term: Term, check: Callable[[str, str], str], value: Value, what: str) -> str:
    try:
        return check(value.text, what)
    except UsageError as error:
        raise _placed(term, error) from None


def _no_operator(term: Term) -> None:
    for value in term.values:
        if value.operator:
            raise _error(
                term, f"'{term.name}' takes no '{value.operator}'", "remove it, or write the value in quotes"
            )


def _read_names(term: Term) -> Texts:
    _no_operator(term)
    return Texts(tuple(_checked(term, checked_name, value, term.name) for value in term.values))


def _read_keys(term: Term) -> Texts:
    _no_operator(term)
    return Texts(tuple(_checked(term, checked_key, value, term.name) for value in term.values))


def _read_machines(term: Term) -> Texts:
    _no_operator(term)
    texts, prefixes = [], []
    for value in term.values:
        name = _checked(term, checked_name, value, "machine")
        if value.is_quoted or "*" not in name:
            texts.append(name)
        elif name.index("*") < len(name) - 1 or name == "*":
            raise _error(term, "'*' is only allowed after a prefix", "write for example machine:shop.*")
        else:
            prefixes.append(name[:-1])
    return Texts(tuple(texts), tuple(prefixes))


def _read_statuses(term: Term) -> Texts:
    _no_operator(term)
    for value in term.values:
        if value.text not in STATUS_VALUES:
            hint = did_you_mean(value.text, STATUS_VALUES, "status")
            raise _error(
                term,
                f"'{cut(value.text)}' is not a status{hint}",
                f"the statuses are {', '.join(STATUS_VALUES)}",
            )
    return Texts(tuple(value.text for value in term.values))


def _read_error(term: Term) -> Texts:
    texts: list[str] = []
    parts: list[str] = []
    for value in term.values:
        if value.operator not in ("", "~"):
            raise _error(
                term, f"'error' takes no '{value.operator}'", "write error:~text or error:ValueError"
            )
        if not value.text:
            raise _error(term, "the text is empty", "write error:~text or error:ValueError")
        (parts if value.operator else texts).append(value.text)
    return Texts(tuple(texts), tuple(parts))


def _read_fingerprints(term: Term) -> Texts:
    _no_operator(term)
    for value in term.values:
        if not re.fullmatch(r"[0-9a-f]{12}", value.text):
            problem = f"'{cut(value.text)}' is not a fingerprint: 12 digits from 0 to f"
            raise _error(term, problem, "copy it from the page Failures of the dashboard")
    return Texts(tuple(value.text for value in term.values))


def _read_ids(term: Term) -> Texts:
    """Ids as texts: they are only compared for equality."""
    _no_operator(term)
    for value in term.values:
        try:
            checked_id(_whole(term, value))
        except UsageError as error:
            raise _placed(term, error) from None
    return Texts(tuple(str(int(value.text)) for value in term.values))


def _numbers(least: int, most: int) -> Callable[[Term], Numbers]:
    def read(term: Term) -> Numbers:
        ranges = []
        for value in term.values:
            try:
                number = checked_int(_whole(term, value), term.name, least, most)
            except UsageError as error:
                raise _placed(term, error) from None
            match value.operator:
                case "":
                    ranges.append((number, number))
                case ">":
                    ranges.append((number + 1, _MAX))
                case ">=":
                    ranges.append((number, _MAX))
                case "<":
                    ranges.append((-_MAX, number - 1))
                case "<=":
                    ranges.append((-_MAX, number))
                case _:
                    raise _error(
                        term, f"'{term.name}' takes no '~'", f"write for example {TERMS[term.name].example}"
                    )
        return Numbers(tuple(ranges))

    return read


def _whole(term: Term, value: Value) -> int:
    if not re.fullmatch(r"-?\d{1,19}", value.text, re.ASCII):
        raise _error(
            term,
            f"'{cut(value.text)}' is not a whole number",
            f"write for example {TERMS[term.name].example}",
        )
    return int(value.text)


def _read_duration(term: Term) -> Bound:
    value = _compared(term)
    try:
        duration = parse_duration(value.text)
    except ValueError:
        problem = f"'{cut(value.text)}' is not a duration"
        raise _error(term, problem, "write for example 90s, 15m, 2h or 3d") from None
    if duration > MAX_DELAY:
        raise _error(term, "the duration is longer than 100 years", "give less")
    # Older than a duration is before a time.
    return Bound(duration, is_after="<" in value.operator, is_included="=" in value.operator)


def _read_moment(term: Term) -> Bound:
    value = _compared(term)
    try:
        moment = _moment(value.text)
    except ValueError:
        raise _error(
            term,
            f"'{cut(value.text)}' is not a time",
            "write for example inserted:>2026-11-01 or inserted:>2026-11-01T09:00Z",
        ) from None
    except UsageError as error:
        raise _placed(term, error) from None
    return Bound(moment, is_after=">" in value.operator, is_included="=" in value.operator)


def _moment(text: str) -> datetime:
    """Read a date or a time; without a zone it is in UTC."""
    try:
        read = datetime.combine(date.fromisoformat(text), time())
    except ValueError:
        read = datetime.fromisoformat(text)
    return checked_moment(read if read.utcoffset() is not None else read.replace(tzinfo=UTC), "the time")


def _compared(term: Term) -> Value:
    example = TERMS[term.name].example
    if len(term.values) > 1:
        raise _error(term, f"'{term.name}' takes one value", f"write for example {example}")
    (value,) = term.values
    if value.operator in ("", "~"):
        raise _error(term, f"'{term.name}' needs a comparison", f"write for example {example}")
    return value


def _read_scalars(term: Term) -> Scalars:
    _no_operator(term)
    return Scalars(tuple(_scalar(value) for value in term.values))


def _scalar(value: Value) -> str:
    is_json = not value.is_quoted and (value.text in _CONSTANTS or _NUMBER.fullmatch(value.text))
    return value.text if is_json else json.dumps(value.text)


def _infos(*infos: TermInfo) -> Mapping[str, TermInfo]:
    return {info.name: info for info in infos}


TERMS: Final = _infos(
    TermInfo(
        "machine", _read_machines, "machine:checkout", "Machine; machine:shop.* for a prefix of the name."
    ),
    TermInfo("step", _read_names, "step:ship", "Current step."),
    TermInfo("status", _read_statuses, "status:failed", "Status, or a group: live, ended, waiting, due, …"),
    TermInfo("key", _read_keys, "key:order:42", "Correlation key, unique key or idempotency key."),
    TermInfo("id", _read_ids, "id:42", "Id."),
    TermInfo("queue", _read_names, "queue:mail", "Queue."),
    TermInfo(
        "error", _read_error, "error:~timeout", "Part of the last error (~), or its class or whole text."
    ),
    TermInfo(
        "fingerprint",
        _read_fingerprints,
        "fingerprint:3fa90c21b7d4",
        "Group of failures, as the dashboard shows it.",
    ),
    TermInfo("state", _read_scalars, "state.order:42", "Value in the state."),
    TermInfo("age", _read_duration, "age:>1h", "Time since the insert."),
    TermInfo("stuck", _read_duration, "stuck:>10m", "Live, and time since the last change."),
    TermInfo("ended", _read_duration, "ended:<1h", "Time since the end: done, failed or cancelled."),
    TermInfo("inserted", _read_moment, "inserted:>2026-11-01", "Time of the insert."),
    TermInfo("attempt", _numbers(0, 2**31), "attempt:>3", "Attempt at the current step; the first is 1."),
    TermInfo("awaits", _read_names, "awaits:paid", "Signal that it waits for."),
    TermInfo("worker", _read_names, "worker:host-1", "Worker that executes it."),
    TermInfo("version", _numbers(1, 2**31 - 1), "version:2", "Version of the machine."),
    TermInfo("priority", _numbers(-(2**15), 2**15 - 1), "priority:<0", "Priority; lower runs earlier."),
    TermInfo("concurrency", _read_keys, "concurrency:tenant:7", "Concurrency key."),
    TermInfo("limit", _read_keys, "limit:crm", "Rate limit, or one of its partitions: limit:crm:7."),
    TermInfo("parent", _read_ids, "parent:42", "Id of the parent."),
    TermInfo("schedule", _read_names, "schedule:nightly", "Schedule that inserted it."),
)
