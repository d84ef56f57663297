"""Exponential backoff with jitter."""

from __future__ import annotations

from gen_durable._backoff import backoff_seconds


def test_backoff_doubles_up_to_its_cap() -> None:
    for tries in range(40):
        full = min(30.0, 0.5 * 2**tries)
        assert all(full / 2 <= backoff_seconds(tries, base=0.5, cap=30.0) <= full for _ in range(20))
