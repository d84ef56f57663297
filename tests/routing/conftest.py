from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_prefixes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ignore prefixes that the environment sets."""
    for variable in ("GEN_DURABLE_PREFIXES", "WORKER_TYPE_PREFIXES"):
        monkeypatch.delenv(variable, raising=False)
