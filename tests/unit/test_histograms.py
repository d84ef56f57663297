"""Histograms of durations and their quantiles."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gen_durable._core.histograms import BUCKETS, bound_of, quantile

MS = timedelta(milliseconds=1)


def bucket_of(seconds: float) -> int:
    return min(int(seconds * 1000).bit_length(), BUCKETS - 1)


@given(st.floats(0, 4000))
def test_duration_is_below_the_bound_of_its_bucket(seconds: float) -> None:
    bucket = bucket_of(seconds)
    assert int(seconds * 1000) * MS < bound_of(bucket)
    assert bucket == 0 or int(seconds * 1000) * MS >= bound_of(bucket - 1)


def test_quantile_without_durations_is_none() -> None:
    assert quantile([], 0.5) is None
    assert quantile([0, None, 0], 0.99) is None


@given(st.lists(st.floats(0, 4000), min_size=1, max_size=50), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_quantile_is_off_by_a_factor_of_two_at_most(durations: list[float], share: float) -> None:
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bucket_of(duration)] += 1
    found = quantile(counts, share)
    assert found is not None
    exact = sorted(durations)[max(0, -int(-share * len(durations) // 1) - 1)]
    bucket = bucket_of(exact)
    assert (bound_of(bucket - 1) if bucket else timedelta(0)) <= found <= bound_of(bucket)
