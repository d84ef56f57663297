"""One database for each module here: what a test looks at it tells from the rest by its keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gen_durable.testing._databases import Databases


@pytest.fixture(scope="module")
def dsn(durable_databases: Databases) -> Iterator[str]:
    with durable_databases.clean() as found:
        yield found
