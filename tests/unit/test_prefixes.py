"""A prefix of names as a range: from the prefix to the smallest string above all names with it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gen_durable._db.pick import prefix_upper_bound
from gen_durable.errors import UsageError

LAST = "\U0010ffff"


@pytest.mark.parametrize(
    ("prefix", "end"),
    [
        ("billing.", "billing/"),
        ("a", "b"),
        ("a_", "a`"),
        ("100%", "100&"),
        ("é", "ê"),
        ("\ud7ff", "\ue000"),  # surrogates are between them
        (f"a{LAST}", "b"),
        (f"a{LAST}{LAST}", "b"),
        (f"{LAST}a", f"{LAST}b"),
    ],
)
def test_end_of_a_prefix_range(prefix: str, end: str) -> None:
    assert prefix_upper_bound(prefix) == end


@pytest.mark.parametrize("prefix", [LAST, LAST * 3])
def test_prefix_of_the_last_character_has_no_end(prefix: str) -> None:
    with pytest.raises(UsageError, match="has no upper bound; use a prefix with another character"):
        prefix_upper_bound(prefix)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5)


@given(texts.filter(lambda text: text.strip(LAST)), texts, texts)
def test_range_contains_exactly_the_names_with_the_prefix(prefix: str, rest: str, other: str) -> None:
    """Names compare as bytes, as under the collation "C"."""
    low, high = prefix.encode(), prefix_upper_bound(prefix).encode()
    assert low <= (prefix + rest).encode() < high
    assert (low <= other.encode() < high) is other.startswith(prefix)
