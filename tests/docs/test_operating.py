"""docs/guides/operating.md names the defaults as they are."""

from __future__ import annotations

import re

from gen_durable import Settings
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / "guides" / "operating.md").read_text(encoding="utf-8")


def test_the_defaults_are_what_the_page_says() -> None:
    settings = Settings()
    said = re.findall(r"^\| `(\w+)` \| (\d+) (day|days|minute) \|", TEXT, re.MULTILINE)
    assert said
    for name, number, unit in said:
        seconds = int(number) * {"day": 86400, "days": 86400, "minute": 60}[unit]
        assert getattr(settings, name).total_seconds() == seconds, name
