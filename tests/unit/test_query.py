"""The search syntax: forms, errors, and the words of a search."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable._core.query import MAX_LENGTH, MAX_TERMS, Query, Term, Value, quoted, scan
from gen_durable._core.query_terms import (
    STATUS_VALUES,
    TERMS,
    Numbers,
    Scalars,
    Texts,
    meaning_of,
    parse,
    with_names,
)
from gen_durable._core.query_words import in_words, term_in_words
from gen_durable.errors import SearchError

ALL = "machine:checkout step:ship status:failed error:~timeout key:order:42 state.order:42 age:>1h"


def test_terms_have_names_values_and_positions() -> None:
    terms = parse(ALL).terms
    assert [term.name for term in terms] == ["machine", "step", "status", "error", "key", "state", "age"]
    assert [ALL[term.start : term.end] for term in terms] == ALL.split()
    assert [value.text for term in terms for value in term.values] == [
        "checkout",
        "ship",
        "failed",
        "timeout",
        "order:42",
        "42",
        "1h",
    ]
    assert (terms[3].values[0].operator, terms[6].values[0].operator) == ("~", ">")


@pytest.mark.parametrize(
    ("text", "term"),
    [
        (
            "-status:a,b",
            Term(name="status", values=(Value("a"), Value("b")), is_negated=True, start=0, end=11),
        ),
        (" STATUS:x", Term(name="status", values=(Value("x"),), start=1, end=9)),
        ('key:"a b",c', Term(name="key", values=(Value("a b", is_quoted=True), Value("c")), start=0, end=11)),
        (r'x:"a\"\\"', Term(name="x", values=(Value('a"\\', is_quoted=True),), start=0, end=9)),
        ('x:""', Term(name="x", values=(Value("", is_quoted=True),), start=0, end=4)),
        ("state.a.0.b:1", Term(name="state", path=("a", "0", "b"), values=(Value("1"),), start=0, end=13)),
        ('state."a.b".c:1', Term(name="state", path=("a.b", "c"), values=(Value("1"),), start=0, end=15)),
        ("state:1", Term(name="state", values=(Value("1"),), start=0, end=7)),
        ('x:>="2 3"', Term(name="x", values=(Value("2 3", ">=", is_quoted=True),), start=0, end=9)),
        ("order-42", Term(name="", values=(Value("order-42"),), start=0, end=8)),
        ("a\u00a0", Term(name="", values=(Value("a"),), start=0, end=1)),
    ],
)
def test_forms_of_terms(text: str, term: Term) -> None:
    assert scan(text).terms == (term,)


def test_empty_search_has_no_terms() -> None:
    assert parse("") == parse(" \t\n") == Query()
    assert in_words(Query()) == "instances"


@pytest.mark.parametrize(
    ("text", "problem", "place"),
    [
        (
            "staus:failed",
            "staus:failed (position 1): there is no term 'staus'; did you mean 'status'? ",
            (0, 12),
        ),
        ("a order:42", "order:42 (position 3): there is no term 'order'", (2, 10)),
        ("order:42", "For a key with a colon, write key:order:42; the terms are machine, step", (0, 8)),
        ("correlation_key:x", "did you mean 'key'?", (0, 17)),
        ("task_queue:x", "did you mean 'queue'?", (0, 12)),
        ("status:fialed", "'fialed' is not a status; did you mean 'failed'?", (0, 13)),
        ("status:completed", "did you mean 'done'?", (0, 16)),
        ("status:failed status:done", "'status' is given twice; write alternatives as a,b,c", (14, 25)),
        ("failed status:done", "'status' is given twice", (7, 18)),
        ("state.a:1 state.a:2", "'state.a' is given twice", (10, 19)),
        ("age>1h", "the colon is missing; write age:>1h", (0, 6)),
        ("status=failed", "the colon is missing; write status:=failed", (0, 13)),
        ("age:1h", "'age' needs a comparison; write for example age:>1h", (0, 6)),
        ("age:>1h,>2h", "'age' takes one value", (0, 11)),
        ("age:>1", "'1' is not a duration", (0, 6)),
        ("stuck:>200000d", "longer than 100 years", (0, 14)),
        (
            "fingerprint:3FA9",
            "'3FA9' is not a fingerprint: 12 digits from 0 to f; copy it from the page Failures of the dashboard",
            (0, 16),
        ),
        ("attempt:>x", "'x' is not a whole number; write for example attempt:>3", (0, 10)),
        ("attempt:~3", "'attempt' takes no '~'", (0, 10)),
        ("priority:99999", "give a number from -32768 to 32767", (0, 14)),
        ("id:0", "the id is 0", (0, 4)),
        ("id:99999999999999999999", "is not a whole number", (0, 23)),
        ("inserted:>2026-13-01", "'2026-13-01' is not a time", (0, 20)),
        ("inserted:>0001-01-01", "out of range", (0, 20)),
        ("key:>x", "'key' takes no '>'", (0, 6)),
        ("error:>x", "'error' takes no '>'", (0, 8)),
        ('error:~""', "the text is empty", (0, 9)),
        ("machine:sh*p", "'*' is only allowed after a prefix", (0, 12)),
        ("machine:*", "'*' is only allowed after a prefix", (0, 9)),
        ("queue:" + "x" * 256, "queue is 256 bytes long; give at most 255 bytes", (0, 262)),
        ("-checkout", "a value without a name cannot be negated", (0, 9)),
        ("a,b", "values without a name cannot have alternatives", (0, 3)),
        (">3", "a comparison has no name", (0, 2)),
        ("key:", "key: (position 1): a value is missing", (0, 4)),
        ("key:a,", "a value is missing", (0, 6)),
        ("age:>", "age:> (position 1): a value is missing; write for example age:>1h", (0, 5)),
        ("-stuck:<", "a value is missing; write for example stuck:>10m", (0, 8)),
        (":x", "the name of the term is missing", (0, 2)),
        ("state.:1", "a key of the state is missing", (0, 8)),
        ("state.a", "a path in the state has no value", (0, 7)),
        ('key:"a b', 'a quote is not closed; add the closing "', (0, 8)),
        ('key:a"b"', "a quote is inside a value", (0, 8)),
        ('key:"a"b', "a quote is inside a value", (0, 8)),
        (r'key:"a\n"', "a backslash in quotes", (0, 9)),
        ("a\0b", "the search contains a NUL character; remove it", (1, 2)),
        ("a \ud800", "the search contains a lone surrogate", (2, 3)),
    ],
)
def test_errors_name_the_term_its_place_and_the_problem(
    text: str, problem: str, place: tuple[int, int]
) -> None:
    with pytest.raises(SearchError) as raised:
        parse(text)
    assert problem in str(raised.value)
    assert (raised.value.start, raised.value.end) == place


@pytest.mark.parametrize(
    "text",
    [
        "x" * (MAX_LENGTH + 1),
        "a " * (MAX_TERMS + 1),
        "status:done " * 10_000,
        "key:" + "a," * 4_000 + "a",
        '"' * MAX_LENGTH,
        "\\" * MAX_LENGTH + ":",
        "state" + "." * (MAX_LENGTH - 5),
        "-" * MAX_LENGTH + ":x",
        "id:" + "9" * 9_000,
        "age:>" + "9" * 9_000 + "d",
        "\U0001f9ff" * 9_000 + ":x",
    ],
    ids=lambda text: text[:10],
)
def test_hostile_searches_get_a_short_error_soon(text: str) -> None:
    began = time.monotonic()
    with pytest.raises(SearchError) as raised:
        parse(text)
    assert time.monotonic() - began < 1
    assert len(str(raised.value)) < 500


def test_errors_show_control_characters_escaped() -> None:
    with pytest.raises(SearchError, match=r"a\\x1b\[31m:x \(position 1\)"):
        parse("a\x1b[31m:x")


_WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Z", "C"], exclude_characters='",~<>:\\.-*'), min_size=1
)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
_VALUES = st.builds(Value, _WORDS, st.sampled_from(["", "~", ">", ">=", "<", "<="])).filter(
    lambda value: not (value.operator in {"<", ">"} and value.text.startswith("="))  # read as <= and >=
) | st.builds(Value, _TEXTS, st.sampled_from(["", "~", ">="]), st.just(value=True))


@st.composite
def scanned(draw: st.DrawFn) -> Query:
    """A query with any names, as the scanner returns it."""
    terms = []
    place = 0
    for _ in range(draw(st.integers(0, 5))):
        name = draw(st.sampled_from(["", "state", *TERMS, "x"]))
        path = tuple(draw(st.lists(_TEXTS, max_size=3))) if name == "state" else ()
        values = tuple(draw(st.lists(_VALUES, min_size=1, max_size=3 if name else 1)))
        term = Term(
            name=name, path=path, values=values, is_negated=draw(st.booleans()), start=place, end=place
        )
        end = place + len(str(term))
        terms.append(msgspec.structs.replace(term, end=end))
        place = end + 1
    return Query(tuple(terms))


@given(scanned())
def test_a_printed_query_is_read_back(query: Query) -> None:
    assert scan(str(query)) == query


@given(st.text(max_size=60) | st.text('":,-.~<>\\ astekyu1', max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        query = parse(text)
    except SearchError as error:
        place = (error.start, error.end)
    else:
        assert parse(str(query)) == scan(str(query))
        assert in_words(query)
        place = (0, 0)
    assert 0 <= place[0] <= place[1] <= max(len(text), place[0] + 1)


def test_values_without_a_name() -> None:
    assert str(parse("42 failed")) == "id:42 status:failed"
    unnamed = parse('shop ship "order:42"')
    assert [term.name for term in unnamed.terms] == ["", "", ""]
    named = with_names(unnamed, ["shop"], ["shop", "ship"])
    assert [term.name for term in named.terms] == ["machine", "step", "key"]
    assert [term.start for term in named.terms] == [0, 5, 10]
    assert meaning_of(with_names(parse("a*"), ["a*"], []).terms[0]) == Texts(("a*",))
    with pytest.raises(SearchError, match="'machine' is given twice"):
        with_names(parse("machine:x shop"), ["shop"], [])


@pytest.mark.parametrize(
    ("text", "scalar"),
    [
        ("42", "42"),
        ("-1.5e3", "-1.5e3"),
        ("true", "true"),
        ("null", "null"),
        ("True", '"True"'),
        ("007", '"007"'),
        ("NaN", '"NaN"'),
        ("1e9999", '"1e9999"'),
        ('"42"', '"42"'),
        ("x", '"x"'),
    ],
)
def test_values_of_the_state_are_json_scalars_or_text(text: str, scalar: str) -> None:
    assert meaning_of(parse(f"state.a:{text}").terms[0]) == Scalars((scalar,))


def test_numbers_are_ranges() -> None:
    top = 2**63 - 1
    ranges = meaning_of(parse("attempt:3,>5,>=7,<2,<=1").terms[0])
    assert ranges == Numbers(((3, 3), (6, top), (7, top), (-top, 1), (-top, 1)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "status:failed machine:checkout step:ship error:~timeout",
            "failed instances of checkout at step ship whose error contains timeout",
        ),
        ("age:>1h queue:mail,sms", "instances in queue mail or sms that are more than 1h old"),
        (
            '-status:done attempt:>3 state.a.b:"x"',
            'instances that are not done and whose attempt is more than 3 and whose state.a.b is "x"',
        ),
        ("machine:a,b,c,d,e", "instances of a, b, c or 2 others"),
        ("-error:~x,Foo", "instances whose error does not contain x and is not Foo"),
        (
            "inserted:>=2026-11-01 awaits:paid",
            "instances inserted at or after 2026-11-01 that wait for signal paid",
        ),
        ("status:failed ended:<1h", "failed instances that ended less than 1h ago"),
        ("stuck:>10m -key:a", "instances without key a that are live and unchanged for more than 10m"),
    ],
)
def test_searches_in_words(text: str, words: str) -> None:
    assert in_words(parse(text)) == words


def test_every_term_has_an_example_and_words() -> None:
    for info in TERMS.values():
        (term,) = parse(info.example).terms
        assert term.name == info.name
        assert term_in_words(term)
        assert info.help.endswith((".", "…"))
    assert len(set(STATUS_VALUES)) == len(STATUS_VALUES)


def test_quoted_texts_are_read_back() -> None:
    assert scan(f"key:{quoted(chr(92) + chr(34))}").terms[0].values[0].text == '\\"'
