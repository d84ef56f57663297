"""One database per test module; tests use distinct keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gen_durable.testing._databases import Databases


@pytest.fixture(scope="module")
def dsn(durable_databases: Databases) -> Iterator[str]:
    with durable_databases.clean() as found:
        yield found
