"""The pytest plugin with the fixtures. pytest loads it wherever gen_durable is installed.

Databases are created on the server of `GEN_DURABLE_DSN`, whose role needs CREATEDB. Without it, on an embedded server
for tests, which all projects and all pytest-xdist processes share.
"""

from __future__ import annotations

from collections.abc import Generator

import pytest

from ..config import Settings
from ._databases import Databases
from ._harness import AsyncHarness, Harness

__all__ = ["async_durable", "durable", "durable_databases", "durable_dsn", "durable_settings"]


@pytest.fixture(scope="session")
def durable_databases() -> Generator[Databases]:
    """Creates test databases: `with durable_databases.fresh() as dsn` for a test that needs several."""
    with Databases() as databases:
        yield databases


@pytest.fixture
def durable_settings() -> Settings:
    """The settings of the harnesses, from the environment. Override the fixture to change them."""
    return Settings.load()


@pytest.fixture
def durable_dsn(durable_databases: Databases, durable_settings: Settings) -> Generator[str]:
    """The DSN of an empty, migrated database of this test."""
    with durable_databases.clean(durable_settings.schema) as dsn:
        yield dsn


@pytest.fixture
def durable(durable_dsn: str, durable_settings: Settings) -> Generator[Harness]:
    """A blocking client of an empty database, with `drain`, a clock and assertions: `gen_durable.testing.Harness`."""
    with Harness(durable_dsn, settings=durable_settings) as harness:
        yield harness


@pytest.fixture
def async_durable(durable_dsn: str, durable_settings: Settings) -> Generator[AsyncHarness]:
    """The same for async tests, with any async plugin: `gen_durable.testing.AsyncHarness`."""
    with AsyncHarness(durable_dsn, settings=durable_settings) as harness:
        yield harness
