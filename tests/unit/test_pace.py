"""A figure of the dashboard that takes long to read is read less often."""

from __future__ import annotations

import pytest

from gen_durable.dashboard.pace import Pace, pause_after


@pytest.mark.parametrize(
    ("took", "pause"), [(0.0, 1.0), (0.005, 1.0), (0.0125, 2.5), (0.025, 5.0), (60.0, 5.0)]
)
def test_reads_take_half_a_percent_of_the_time(took: float, pause: float) -> None:
    assert pause_after(took, 1.0) == pytest.approx(pause)


def test_pause_is_never_shorter_than_the_interval() -> None:
    assert pause_after(0.1, 10.0) == 10.0


def test_single_slow_read_does_not_lengthen_the_pause() -> None:
    pace = Pace(0.5)
    assert [pace.next(took) for took in (0.01, 0.001, 0.01, 0.01, 0.001)] == [0.5, 0.5, 0.5, 2.0, 0.5]
