"""The guides name defaults, findings and reasons as the code has them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import get_args

import pytest

from gen_durable import Settings
from gen_durable.reasons import Reason
from tests.docs.pages import PAGES, ROOT, Page

TEXT = (ROOT / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")
DOCTOR = (ROOT / "src" / "gen_durable" / "_db" / "doctor.py").read_text(encoding="utf-8")
# `retention_failed` (7 days), `drain_timeout` (25 s)
DEFAULT = re.compile(r"`(?:settings\.)?(\w+)` \((\d+) (days?|minutes?|seconds?|ms|s|MiB)\)")
UNITS = {"day": 86400, "minute": 60, "second": 1, "s": 1, "ms": 0.001, "MiB": 1 << 20}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_defaults_match_settings(page: Page) -> None:
    settings = Settings()
    for name, number, unit in DEFAULT.findall(page.text):
        if hasattr(settings, name):
            value = getattr(settings, name)
            seconds = value.total_seconds() if isinstance(value, timedelta) else value
            assert seconds == pytest.approx(int(number) * UNITS[unit if unit in UNITS else unit[:-1]]), name


def test_every_finding_of_doctor_is_documented() -> None:
    codes = set(re.findall(r'code="([a-z.]+)"', DOCTOR))
    assert codes
    assert {code for code in codes if f"`{code}`" not in TEXT} == set()


def test_every_reason_is_documented() -> None:
    tags = [reason.__struct_config__.tag for reason in get_args(Reason)]
    assert [tag for tag in tags if f"| `{tag}` |" not in TEXT] == []
