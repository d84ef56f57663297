from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment of whoever runs the tests says about prefixes is not meant for them."""
    monkeypatch.delenv("WORKER_TYPE_PREFIXES", raising=False)
