"""The pytest plugin. It is there wherever gen_durable is installed, and does nothing until a fixture is asked for.

Databases are made on the server of `GEN_DURABLE_DSN`, whose role needs CREATEDB; without one, on an embedded server for
tests that all projects and all processes of pytest-xdist share.
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
    """Where databases come from; a test that needs several says `with durable_databases.fresh() as dsn`."""
    with Databases() as databases:
        yield databases


@pytest.fixture
def durable_settings() -> Settings:
    """The settings of the harnesses: those of the environment. Define a fixture of this name to choose others."""
    return Settings.load()


@pytest.fixture
def durable_dsn(durable_databases: Databases, durable_settings: Settings) -> Generator[str]:
    """The DSN of an empty database for this test alone, with our tables in it."""
    with durable_databases.clean(durable_settings.schema) as dsn:
        yield dsn


@pytest.fixture
def durable(durable_dsn: str, durable_settings: Settings) -> Generator[Harness]:
    """A blocking client of an empty database, with `drain`, a clock and assertions: `gen_durable.testing.Harness`."""
    with Harness(durable_dsn, settings=durable_settings) as harness:
        yield harness


@pytest.fixture
def async_durable(durable_dsn: str, durable_settings: Settings) -> Generator[AsyncHarness]:
    """The same for async tests, under whichever plugin runs them: `gen_durable.testing.AsyncHarness`."""
    with AsyncHarness(durable_dsn, settings=durable_settings) as harness:
        yield harness
