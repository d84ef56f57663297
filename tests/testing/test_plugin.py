"""The pytest plugin, in a separate pytest run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import pytest
    from gen_durable import Context, Done, Machine, Outcome, step
    from gen_durable.testing import AsyncHarness, Harness

    class Hello(Machine[str, str]):
        @step
        async def greet(self, ctx: Context[str]) -> Outcome[str]:
            return Done("hello " + ctx.state)

    def note(dsn):
        with open("dsns", "a") as file:
            print(dsn, file=file)

    @pytest.mark.parametrize("who", ["ada", "bob"])
    def test_blocking(durable: Harness, who):
        note(durable.dsn)
        hello = durable.insert(Hello, who)
        durable.drain()
        assert durable.assert_done(hello) == f"hello {who}"

    def test_that_fails(durable: Harness):
        note(durable.dsn)
        durable.assert_done(durable.insert(Hello, "eve"))

    @pytest.mark.asyncio
    async def test_async(async_durable: AsyncHarness):
        note(async_durable.dsn)
        hello = await async_durable.insert(Hello, "ada")
        await async_durable.drain()
        assert async_durable.assert_done(hello) == "hello ada"
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def check(result: pytest.RunResult, path: Path) -> None:
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        ["*Hello 1 is not done; it has status runnable at step 'greet', drain() runs it*"]
    )
    dsns = (path / "dsns").read_text(encoding="utf-8").split()
    assert len(dsns) == 4
    for dsn in dsns:
        with pytest.raises(psycopg.OperationalError, match="does not exist"):
            psycopg.connect(dsn)


@pytest.fixture
def users(pytester: pytest.Pytester) -> pytest.Pytester:
    """A project with tests of its own."""
    pytester.makepyfile(TESTS)
    pytester.makeini(
        "[pytest]\nasyncio_mode = strict\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error"
    )
    return pytester


def test_user_tests_run_and_clean_up(users: pytest.Pytester) -> None:
    check(users.runpytest_inprocess("-n", "0"), users.path)


def test_user_tests_run_with_xdist(users: pytest.Pytester) -> None:
    check(users.runpytest_subprocess("-n", "2"), users.path)


def test_plugin_can_be_disabled(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass\ndef test_missing(durable): pass")
    result = pytester.runpytest_inprocess("-p", "no:gen_durable", "-p", "no:asyncio")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*fixture 'durable' not found*"])


def test_loading_the_plugin_imports_no_driver() -> None:
    done = python(
        "import sys, threading, gen_durable.testing.plugin\n"
        "print([m for m in ('asyncpg', 'psycopg') if m in sys.modules], threading.active_count())"
    )
    assert (done.stdout, done.stderr) == ("[] 1\n", "")


def test_async_harness_needs_no_psycopg() -> None:
    done = python(
        "import sys\nsys.modules['psycopg'] = None\n"
        "import asyncio\nfrom gen_durable.testing._databases import Databases\n"
        "from gen_durable.testing import AsyncHarness, Harness\nfrom tests.testing.machines import Parcel\n"
        "async def main():\n"
        "    with Databases() as databases, databases.fresh() as dsn:\n"
        "        async with AsyncHarness(dsn) as harness:\n"
        "            parcel = await harness.insert(Parcel, 1)\n"
        "            await harness.drain()\n"
        "            print(harness.assert_done(parcel))\n"
        "        with Harness(dsn): pass\n"
        "asyncio.run(main())"
    )
    assert done.stdout == "parcel 1\n"
    assert "the blocking Client needs psycopg" in done.stderr
