"""Backoff: growth, cap, jitter, no overflow."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen_durable.errors import OptionError
from gen_durable.retry import Backoff, backoff

SECOND = timedelta(seconds=1)


def test_delays_double_up_to_the_cap() -> None:
    policy = Backoff(base=SECOND, cap=10 * SECOND, jitter=0)
    assert [policy(attempt) / SECOND for attempt in range(6)] == [1, 2, 4, 8, 10, 10]


def test_default_backoff_begins_with_a_second() -> None:
    assert all(SECOND <= backoff(0) <= 1.5 * SECOND for _ in range(50))


@settings(max_examples=40)
@given(
    attempt=st.integers(0, 2**63),
    base=st.timedeltas(timedelta(0), timedelta(days=365)),
    cap=st.timedeltas(timedelta(0), timedelta(days=365)),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
)
def test_delay_is_within_the_jitter(
    attempt: int, base: timedelta, cap: timedelta, factor: float, jitter: float
) -> None:
    delay = Backoff(base=base, cap=cap, factor=factor, jitter=jitter)(attempt)
    plain = Backoff(base=base, cap=cap, factor=factor, jitter=0)(attempt)
    slack = timedelta(microseconds=1)
    assert plain - slack <= delay <= plain * (1 + jitter) + slack
    assert timedelta(0) <= plain <= cap


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_attempts": 0},
        {"max_attempts": 1.5},
        {"max_attempts": True},
        {"base": 1},
        {"base": timedelta(seconds=-1)},
        {"cap": timedelta(days=366)},
        {"factor": 0.5},
        {"factor": float("nan")},
        {"factor": 101},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
    ids=str,
)
def test_invalid_policy_is_rejected(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(OptionError, match=rf"^{name} of this Backoff is .*; (give|use) "):
        Backoff(**wrong)
