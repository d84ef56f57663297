"""Errors, causes, logs and the command line never show a password."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from click.testing import CliRunner

from gen_durable import AsyncClient, Client, Worker
from gen_durable._db.address import resolve_dsn, resolve_dsn_blocking, shown
from gen_durable._db.dsn import DsnError, described, fields_of, redacted, without_password
from gen_durable.cli.root import root
from gen_durable.errors import UnreachableError
from tests.clients.machines import Number

# Parts of a password; the DSNs below put special characters between them.
PARTS = ("Zq7wx", "kP3vB")
WORD = "".join(PARTS)
SLASH, AT, HASH, QUERY, COLON = (separator.join(PARTS) for separator in "/@#?:")
SPACE, QUOTE, BACKSLASH, PERCENT = (separator.join(PARTS) for separator in (" ", "'", "\\", "%zz"))
ALL = quote(f"{SLASH}{AT}{HASH}{QUERY}{COLON}{SPACE}{QUOTE}", safe="")

FORMS = {
    "URI": f"postgresql://app:{WORD}@127.0.0.1:1/shop",
    "postgres scheme": f"postgres://app:{WORD}@127.0.0.1:1/shop",
    "percent-encoded": f"postgresql://app:{ALL}@127.0.0.1:1/shop",
    "bad percent-encoding": f"postgresql://app:{PERCENT}@127.0.0.1:1/shop",
    "raw slash": f"postgresql://app:{SLASH}@127.0.0.1:1/shop",
    "raw at sign": f"postgresql://app:{AT}@127.0.0.1:1/shop",
    "raw hash": f"postgresql://app:{HASH}@127.0.0.1:1/shop",
    "raw question mark": f"postgresql://app:{QUERY}@127.0.0.1:1/shop",
    "raw colon": f"postgresql://app:{COLON}@127.0.0.1:1/shop",
    "raw space": f"postgresql://app:{SPACE}@127.0.0.1:1/shop",
    "raw quote": f"postgresql://app:{QUOTE}@127.0.0.1:1/shop",
    "raw backslash": f"postgresql://app:{BACKSLASH}@127.0.0.1:1/shop",
    "colon is percent-encoded": f"postgresql://app%3A{WORD}@127.0.0.1:1/shop",
    "no at sign": f"postgresql://app:{WORD}127.0.0.1/shop",
    "no host": f"postgresql://app:{WORD}/shop",
    "digits, then a slash": f"postgresql://app:12/{WORD}@127.0.0.1/shop",
    "password only": f"postgresql://:{WORD}@127.0.0.1:1/shop",
    "password in the query": f"postgresql://app@127.0.0.1:1/shop?password={WORD}",
    "PASSWORD in the query": f"postgresql://app@127.0.0.1:1/shop?PASSWORD={WORD}",
    "sslpassword in the query": f"postgresql://app@127.0.0.1:1/shop?sslpassword={WORD}",
    "query without a value": f"postgresql://app@127.0.0.1:1/shop?{WORD}",
    "several hosts": f"postgresql://app:{WORD}@127.0.0.1:1,localhost:1/shop",
    "IPv6": f"postgresql://app:{WORD}@[::1]:1/shop",
    "Unix socket": f"postgresql://app:{WORD}@/shop?host=/nowhere",
    "Unix socket as host": f"postgresql://app:{WORD}@%2Fnowhere/shop",
    "bad port": f"postgresql://app:{WORD}@127.0.0.1:port/shop",
    "large port": f"postgresql://app:{WORD}@127.0.0.1:99999999/shop",
    "no such host": f"postgresql://app:{WORD}@nowhere.invalid/shop",
    "bad sslmode": f"postgresql://app:{WORD}@127.0.0.1:1/shop?sslmode=bogus",
    "unknown parameter": f"postgresql://app:{WORD}@127.0.0.1:1/shop?nonsense=1",
    "wrong scheme": f"mysql://app:{WORD}@127.0.0.1:1/shop",
    "SQLAlchemy's scheme": f"postgresql+asyncpg://app:{WORD}@127.0.0.1:1/shop",
    "one slash": f"postgresql:/app:{WORD}@127.0.0.1:1/shop",
    "no scheme": f"app:{WORD}@127.0.0.1:1/shop",
    "command": f'psql "postgresql://app:{WORD}@127.0.0.1:1/shop"',
    "pairs": f"host=127.0.0.1 port=1 user=app password={WORD} dbname=shop",
    "pairs with spaces": f"host = 127.0.0.1 port = 1 user = app password = {WORD}",
    "quoted": f"host=127.0.0.1 port=1 password='{SPACE}' user=app",
    "quoted, with a quote": f"host=127.0.0.1 port=1 password='{PARTS[0]}\\'{PARTS[1]}' user=app",
    "backslash": f"host=127.0.0.1 port=1 password={PARTS[0]}\\ {PARTS[1]} user=app",
    "space that is not quoted": f"host=127.0.0.1 port=1 user=app password={SPACE}",
    "quote that does not end": f"host=127.0.0.1 port=1 password='{SPACE} user=app",
    "pairs with a bad port": f"host=127.0.0.1 port=x user=app password={WORD}",
    "URI as dbname": f"host=127.0.0.1 port=1 dbname=postgresql://app:{WORD}@127.0.0.1:1/shop",
    "service that does not exist": f"service=nowhere password={WORD}",
    "a bare word": WORD,
}
each_form = pytest.mark.parametrize("dsn", FORMS.values(), ids=FORMS)


@pytest.fixture(autouse=True)
def own_service_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "none"))


def is_clean(text: str) -> bool:
    return not any(part in text for part in (*PARTS, quote(WORD)))


def everything(error: BaseException) -> Iterator[str]:
    """Everything that a log or an error tracker can show of an error."""
    seen: list[BaseException] = []
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or one in seen:
            continue
        seen.append(one)
        yield from (str(one), repr(one), repr(one.args), repr(vars(one)))
        yield "".join(traceback.format_exception_only(one))
        left += [one.__cause__, one.__context__]


async def opened(kind: str, dsn: Any) -> None:
    if kind == "Client":

        def open_client() -> None:
            with Client(dsn):
                pass

        await asyncio.to_thread(open_client)
        return
    async with Worker([Number], dsn=dsn) if kind == "Worker" else AsyncClient(dsn):
        pass


@pytest.mark.parametrize("is_function", [False, True], ids=["text", "function"])
@pytest.mark.parametrize("kind", ["AsyncClient", "Client", "Worker"])
@each_form
async def test_errors_hide_the_password(
    dsn: str, kind: str, is_function: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    def function() -> str:
        return dsn

    with pytest.raises(UnreachableError) as raised:
        await opened(kind, function if is_function else dsn)
    texts = list(everything(raised.value))
    assert [text for text in texts if not is_clean(text)] == []
    assert is_clean(caplog.text)
    assert str(raised.value).startswith("cannot reach PostgreSQL at ")
    assert is_clean(repr(AsyncClient(dsn)) + repr(Client(dsn)) + repr(Worker([Number], dsn=dsn)))


@each_form
def test_command_line_hides_the_password(dsn: str) -> None:
    for command in (["ls"], ["doctor"], ["db", "status"], ["db", "url"]):
        ran = CliRunner().invoke(root, [*command, "--dsn", dsn])
        assert is_clean(ran.output), command
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception


@each_form
def test_description_hides_the_password(dsn: str) -> None:
    assert is_clean(described(dsn))
    assert is_clean(shown(dsn))


@pytest.mark.parametrize("asks", [resolve_dsn, resolve_dsn_blocking], ids=["async", "blocking"])
async def test_errors_of_a_dsn_function_hide_the_password(asks: Callable[[Any], Any]) -> None:
    def function() -> str:
        raise ValueError(f"cannot use {FORMS['URI']}, password: {SPACE}")

    with pytest.raises(OSError, match=r"function\(\) raised ValueError: cannot use") as raised:
        if asks is resolve_dsn:
            await resolve_dsn(function)
        else:
            await asyncio.to_thread(resolve_dsn_blocking, function)
    assert all(map(is_clean, everything(raised.value)))


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        ("postgresql://app:x@db:5432/shop", "postgresql://app@db:5432/shop"),
        ("postgresql://app:x@a:1,b:2/shop?target_session_attrs=any", "postgresql://app@a:1,b:2/shop"),
        ("postgresql://app:x@[::1]:5432/shop", "postgresql://app@[::1]:5432/shop"),
        (
            "postgresql:///shop?host=/run/pg&port=5433&user=app",
            "postgresql://app@/shop?host=/run/pg&port=5433",
        ),
        ("host=db port=5432 user='app' password='a b' dbname=shop", "postgresql://app@db:5432/shop"),
        ("postgresql://app%40corp:x@db/shop", "postgresql://app%40corp@db/shop"),
        ("service=prod", "postgresql://?service=prod"),
        ("postgresql://", "postgresql://"),
        ("mysql://app:x@db/shop", "an invalid DSN"),
    ],
)
def test_description_has_the_other_dsn_fields(dsn: str, text: str) -> None:
    assert described(dsn) == text


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("mysql://db/shop", "must begin with postgresql://"),
        (f"postgresql://app:{SLASH}@db/shop", "is not valid|percent-encode"),
        (f"postgresql://app:{HASH}@db/shop", "percent-encode"),
        ("postgresql://db:port/shop", "the port after its colon"),
        ("host=db my words", "neither a URI nor a list of key=value pairs"),
    ],
)
def test_malformed_dsn_error_hides_the_password(dsn: str, reason: str) -> None:
    with pytest.raises(DsnError, match=reason):
        fields_of(dsn)
    assert is_clean(redacted(f'invalid port "{dsn}"', dsn))


@pytest.mark.parametrize(
    ("dsn", "text"),
    [
        ("postgresql://app:x@db/shop?sslmode=require", "postgresql://app@db/shop?sslmode=require"),
        ("host=db password='a b' options='-c jit=off'", "host=db options='-c jit=off'"),
        ("postgresql://app@a,b/shop?password=x&port=1", "postgresql://app@a,b/shop?port=1"),
    ],
)
def test_dsn_without_password_is_unchanged(dsn: str, text: str) -> None:
    assert without_password(dsn) == text


def test_driver_messages_keep_other_text() -> None:
    dsn = f"postgresql://app:{WORD}@db/shop?sslmode=bogus"
    message = 'invalid sslmode value: "bogus"; password authentication failed for user "app"'
    assert redacted(message, dsn) == message
    assert redacted(f"invalid token {WORD}", dsn) == "invalid token ***"
