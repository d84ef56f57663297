"""Output on a terminal."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import gen_durable
from gen_durable import Client, Schedule, Spec
from gen_durable.testing import Harness
from tests.cli.conftest import Gd
from tests.cli.machines import Checkout, Parcel
from tests.cli.program import exit_code, start
from tests.outbox.machines import Teller

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


Terminal = Callable[..., tuple[int, str]]


@pytest.fixture
def on_a_terminal(durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Run `gen-durable …` on a terminal of 100 columns; return exit code and output."""
    monkeypatch.setenv("GEN_DURABLE_DSN", durable_dsn)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")

    def call(*arguments: str, answer: str = "") -> tuple[int, str]:
        ours, theirs = pty.openpty()
        terminal = Path(os.ttyname(theirs))
        process = start(*arguments, output=theirs, errors=terminal, input=terminal)
        os.write(ours, answer.encode())
        seen, until = b"", time.monotonic() + 30
        while time.monotonic() < until:
            if not select.select([ours], [], [], 0.1)[0]:
                continue
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        os.close(ours)
        return exit_code(process), seen.decode()

    return call


def test_terminal_table_fits_the_screen(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {}, correlation_key="[red]" + "x" * 200)
    shop.drain()
    code, seen = on_a_terminal("ls")
    assert code == 0
    assert "\x1b[35mawaiting_signal\x1b[0m" in seen
    lines = COLOURS.sub("", seen).splitlines()
    assert lines[0].split()[:5] == ["ID", "MACHINE", "V", "STEP", "STATUS"]
    assert "[red]xxx" in lines[1]
    assert "…" in lines[1]
    assert max(map(len, lines)) <= 100


def test_wait_shows_progress_on_a_terminal(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    shop.drain()
    code, seen = on_a_terminal("wait", "1", "--timeout", "700ms")
    assert code == 3
    plain = COLOURS.sub("", seen)
    assert (
        "Checkout 1 has status awaiting_signal at step ship: waiting for signal payment"
        in plain.split("still")[0]
    )
    assert plain.rstrip().endswith(
        "Checkout 1 still has status awaiting_signal at step ship: waiting for signal payment"
    )


def test_confirmation_on_a_terminal(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    shop.insert(Checkout, {})
    code, seen = on_a_terminal("cancel", "1", "2", answer="y\n")
    assert code == 0
    assert "Cancel 2 instances (2 Checkout runnable)? [y/N]:" in seen
    assert "1: cancelled" in seen


def test_json_is_indented_on_a_terminal(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {"a": 1})
    code, seen = on_a_terminal("show", "1", "--json")
    assert code == 0
    assert '\r\n  "machine": "Checkout",\r\n' in seen


def test_progress_bar_for_many_instances(shop: Harness, on_a_terminal: Terminal) -> None:
    shop.insert_all([Spec(Checkout, {}) for _ in range(1200)])
    code, seen = on_a_terminal("cancel", "--where", "machine=Checkout", "--yes")
    assert code == 0
    assert "1200/1200" in COLOURS.sub("", seen)
    assert "1200 cancelled" in seen


def test_wait_shows_a_bar_of_the_progress(shop: Harness, sql: Any, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    sql.execute(
        """update gen_durable.gen_durable set progress = '{"done": 3, "total": 4, "message": "page 3"}'"""
    )
    code, seen = on_a_terminal("wait", "1", "--progress", "--timeout", "1s")
    assert code == 3
    plain = COLOURS.sub("", seen)
    assert re.search(r"start ━.* 3 of 4 \(75%\) .*page 3", plain), plain


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(0.5, 1, "0.5 of 1 (50%)"), (0.125, 0.5, "0.125 of 0.5 (25%)"), (7, "null", "7")],
)
def test_wait_shows_fractions_and_markup_of_the_progress(
    done: float, total: object, shown: str, shop: Harness, sql: Any, on_a_terminal: Terminal
) -> None:
    shop.insert(Checkout, {})
    sql.execute(
        "update gen_durable.gen_durable set progress ="
        f""" '{{"done": {done}, "total": {total}, "message": "read [/docs] [word] :tada:"}}'"""
    )
    code, seen = on_a_terminal("wait", "1", "--progress", "--timeout", "1s")
    assert code == 3
    plain = COLOURS.sub("", seen)
    assert f" {shown} " in plain
    assert "read [/docs] [word] :tada:" in plain


def test_watch_shows_a_table_of_the_latest_states(shop: Harness, sql: Any, on_a_terminal: Terminal) -> None:
    shop.insert(Checkout, {})
    shop.insert(Checkout, {})
    ending = threading.Timer(2, lambda: (shop.drain(), shop.cancel(1), shop.cancel(2)))
    ending.start()
    code, seen = on_a_terminal("watch", "1", "2")
    ending.join()
    assert code == 0
    plain = COLOURS.sub("", seen)
    assert plain.split()[:6] == ["ID", "MACHINE", "STEP", "STATUS", "ATTEMPT", "NOTE"]
    assert "1  step start execution 1: await" in plain
    assert [line.split()[3] for line in plain.splitlines()[-2:]] == ["cancelled", "cancelled"]


# rich fails on the first tag, drops the second one, and replaces the third word by a picture.
MARKUP = "[/docs/x] [word] :tada:"
# Commands, and a text of users before the markup.
LISTINGS = {
    "audit ls": "ada",
    "batches ls": "tidy",
    "batches show 1": "tidy",
    "explain 1": "in the post",
    "history 1": "pack",
    "ls": "order:1",
    "machines": "Parcel",
    "outbox ls": "first",
    "queues ls": "mail",
    "schedules ls": "night",
    "show 1": "in the post",
    "stats": "in the post",
    "stream 2 words": "hello",
    "wait 1": "in the post",
    "watch 1": "in the post",
    "workers": "w-1",
}
_TEXTS = """
    select table_name, column_name from information_schema.columns
    join information_schema.tables using (table_schema, table_name)
    where table_schema = 'gen_durable' and table_type = 'BASE TABLE' and data_type = 'text' and table_name <> 'limits'
        and column_name in ('actor', 'cancel_reason', 'correlation_key', 'error', 'fsm', 'host', 'last_error',
            'last_problem', 'locked_by', 'login', 'name', 'pause_reason', 'paused_by', 'queue', 'reason', 'runner', 'sink',
            'step', 'subject', 'to_step', 'type', 'worker')
"""


@pytest.fixture
def marked(shop: Harness, sql: Any, durable_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A database in which all texts of users contain markup, and output that is taken for a terminal."""
    shop.insert(Parcel, -1, correlation_key="order:1")
    shop.insert(Teller, {}, step="several", correlation_key="order:2")
    shop.insert(Checkout, {})
    shop.drain()
    with Client(durable_dsn) as client:
        client.put_schedule(Schedule("night", Spec(Parcel, 1), every=timedelta(hours=1)))
        client.pause_queue("mail", reason="tidy", actor="ada")
        client.cancel(3, reason="tidy", actor="ada")
        client.run_batch(client.start_batch("retry", ids=[2], reason="tidy"))
    sql.execute(
        "insert into gen_durable.stream_items (instance_id, stream, position, step, step_seq, execution, attempt,"
        " number, value) select 2, 'words', 1, 'last', 2, 2, 0, 1, to_jsonb(%s::text)",
        [f"hello {MARKUP}"],
    )
    sql.execute(
        "insert into gen_durable.workers (name, host, pid, version, schema_version, seen_at, expires_at, queues,"
        " prefixes, leaves_unknown, fsms, fsm_versions) select 'w-1', 'vm', 1, '1', 1, now(), now() + interval '1 h',"
        " '{}', '{}', true, '{}', '{}'"
    )
    for table, column in sql.execute(_TEXTS).fetchall():
        sql.execute(f"update gen_durable.{table} set {column} = {column} || %s", [f" {MARKUP}"])
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "500")
    return shop


@pytest.mark.parametrize("command", LISTINGS)
@pytest.mark.usefixtures("marked")
def test_command_prints_markup_in_texts_of_users_as_it_is(command: str, gd: Gd) -> None:
    result = gd(*command.split())
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert f"{LISTINGS[command]} {MARKUP}" in COLOURS.sub("", result.output)


def test_sources_open_consoles_without_markup() -> None:
    """Every other console or column would read `[/docs]` in a text of a user as markup."""
    folder = Path(gen_durable.__file__).parent
    allowed = {folder / "cli" / "terminal.py"}
    for path in [*folder.glob("cli/*.py"), *folder.glob("demo/*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "Console",
                "TextColumn",
                "Prompt.ask",
            ):
                assert path in allowed or "markup=False" in ast.unparse(node), f"{path.name}:{node.lineno}"
