"""Fire times in words."""

from __future__ import annotations

from datetime import timedelta

import pytest

from gen_durable.dashboard.cron_words import in_words


@pytest.mark.parametrize(
    ("cron", "words"),
    [
        ("* * * * *", "every minute"),
        ("*/5 * * * *", "every 5 minutes"),
        ("0 * * * *", "every hour"),
        ("15 * * * *", "every hour, 15 m past"),
        ("0 */6 * * *", "every 6 hours"),
        ("30 2 * * *", "daily at 02:30"),
        ("0 3,15 * * *", "daily at 03:00 and 15:00"),
        ("0,30 8,9 * * *", "daily at 08:00, 08:30, 09:00 and 09:30"),
        ("0 8 * * MON", "Mondays at 08:00"),
        ("0 8 * * 1-5", "Monday to Friday at 08:00"),
        ("0 8 * * sat,7", "Saturdays and Sundays at 08:00"),
        ("0 0 1 * *", "monthly on day 1 at 00:00"),
        ("0 0 1,15 * *", "monthly on day 1 and 15 at 00:00"),
        ("0 0 1 1 *", "yearly on 1 January at 00:00"),
        *(
            (same, same)
            for same in ("0 0 1 * MON", "*/7 3 * * *", "0 8 * * 1#2", "0 0 L * *", "30 0 8 * * *")
        ),
        *((same, same) for same in ("0 8 * * MON-FRI,SUN", "0 0 1,2 1 *", "0 8 * * 9", "1-5 * * * *")),
    ],
)
def test_cron_in_words(cron: str, words: str) -> None:
    assert in_words(cron, None) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (1, "every second"),
        (45, "every 45 seconds"),
        (60, "every minute"),
        (5400, "every 90 minutes"),
        (86400, "every day"),
        (1.5, "every 1.5 seconds"),
    ],
)
def test_interval_in_words(seconds: float, words: str) -> None:
    assert in_words(None, timedelta(seconds=seconds)) == words
