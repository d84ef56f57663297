"""`gen-durable dash` in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit

import httpx
import pytest

from gen_durable.dashboard.serve import url_of
from tests.cli.conftest import Gd, output, refused
from tests.cli.program import exit_code, start
from tests.support.forkserver import Child

NOTHING = "postgresql://ann:hunter2@127.0.0.1:1/nothing"


@contextmanager
def dash(tmp_path: Path, *arguments: str, warns: str = "") -> Iterator[tuple[Child, TextIO]]:
    """`gen-durable dash` on a free port, and its standard output."""
    ours, its = os.pipe()
    process = start("dash", "--port=0", *arguments, output=its, errors=tmp_path / "errors")
    with os.fdopen(ours, encoding="utf-8") as output:
        try:
            yield process, output
        finally:
            process.kill()
    said = (tmp_path / "errors").read_text(encoding="utf-8")
    assert (warns in said) if warns else said == ""


def opened(line: str) -> str:
    found = re.fullmatch(r"Open: (http://\S+)\n?", line)
    assert found is not None, line
    return found[1]


def test_link_logs_in_once_and_ctrl_c_ends_open_streams(durable_dsn: str, tmp_path: Path) -> None:
    with dash(tmp_path, f"--dsn={durable_dsn}") as (process, lines):
        assert re.match(r"gen-durable \S+ dashboard on .+, schema gen_durable", next(lines))
        url = opened(next(lines))
        site = "http://" + urlsplit(url).netloc
        with httpx.Client(base_url=site, follow_redirects=True) as http:
            assert http.get(url).status_code == 200
            assert http.get("/api/session").json()["role"] == "admin"
            # Workers on the same machine go first.
            assert os.getpriority(os.PRIO_PROCESS, process.pid) == os.getpriority(os.PRIO_PROCESS, 0) + 5
            assert http.get("/api/session", headers={"host": "evil.example"}).status_code == 421
            with http.stream("GET", "/api/events?topics=queues") as stream:
                assert next(stream.iter_lines()).startswith("retry")
                began = time.monotonic()
                process.send(signal.SIGINT)
                assert exit_code(process) == 0
                assert time.monotonic() - began < 5
        assert lines.read() == ""


def test_link_is_not_printed_if_there_are_users(
    durable_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEN_DURABLE_DASH_TOKEN", "read:token-of-a-reader-0")
    users = tmp_path / "users"
    users.write_text("# people\n\nann:admin:correct horse\n")
    users.chmod(0o600)
    with dash(tmp_path, f"--users={users}", f"--dsn={durable_dsn}") as (process, lines):
        next(lines)
        url = opened(next(lines))
        assert urlsplit(url).query == ""
        for given, role in (
            ({"auth": ("ann", "correct horse")}, "admin"),
            ({"headers": {"authorization": "Bearer token-of-a-reader-0"}}, "read"),
        ):
            assert httpx.get(f"{url}api/session", **given).json()["role"] == role
        process.send(signal.SIGTERM)
        assert exit_code(process) == 0


def test_other_hosts_are_refused_at_an_address(durable_dsn: str, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:admin:correct horse\n")
    users.chmod(0o600)
    with dash(tmp_path, "--host=127.0.0.2", f"--users={users}", f"--dsn={durable_dsn}") as (process, lines):
        next(lines)
        url = opened(next(lines))
        for host, status in ((urlsplit(url).netloc, 200), ("evil.example", 421)):
            assert httpx.get(url, headers={"host": host}).status_code == status
        process.send(signal.SIGTERM)
        assert exit_code(process) == 0


@pytest.mark.parametrize("options", [(), ("--allow-host=shop.example",)])
def test_any_host_name_is_warned_about(durable_dsn: str, tmp_path: Path, options: tuple[str, ...]) -> None:
    users = tmp_path / "users"
    users.write_text("ann:admin:correct horse\n")
    users.chmod(0o600)
    arguments = ("--host=0.0.0.0", f"--users={users}", f"--dsn={durable_dsn}", *options)
    warns = "" if options else "warning: --host 0.0.0.0 without --allow-host"
    with dash(tmp_path, *arguments, warns=warns) as (process, lines):
        next(lines)
        url = opened(next(lines))
        status = httpx.get(url, headers={"host": "evil.example"}).status_code
        process.send(signal.SIGTERM)
        assert exit_code(process) == 0
    assert status == (421 if options else 200)


def test_other_address_without_authentication_is_refused(gd: Gd) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        message = refused(gd("dash", "--host", host))
        assert "--users FILE" in message


def test_url_of_a_wildcard_address_is_on_loopback() -> None:
    with socket.socket() as listening:
        listening.bind(("0.0.0.0", 0))
        assert url_of(listening).startswith("http://127.0.0.1:")


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        opened.listen()
        yield opened.getsockname()[1]


def test_port_in_use_is_named(gd: Gd, taken: int) -> None:
    message = refused(gd("dash", "--port", taken))
    assert f"port {taken}" in message
    assert "--port 0" in message


def test_unreachable_database_is_named_without_its_password(gd: Gd) -> None:
    code, out, err = output(gd("dash", "--port=0", f"--dsn={NOTHING}"))
    assert (code, out) == (2, "")
    assert "127.0.0.1" in err
    assert "hunter2" not in err
    assert "Traceback" not in err


def test_missing_tables_are_named(gd: Gd) -> None:
    assert "db migrate" in refused(gd("dash", "--port=0", "--schema=nothing"))


def test_missing_extra_is_named(gd: Gd, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("gen_durable.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "gen_durable[dash]" in refused(gd("dash"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"ann:admin\n", "line 1: write NAME:ROLE:PASSWORD"),
        (b"\nann:root:secret\n", "line 2: write NAME:ROLE:PASSWORD"),
        (b":admin:secret\n", "line 1"),
        (b"ann:admin:a1\nann:read:b2\n", "line 2: ann is there twice"),
        (b"# people\n", "has no users"),
        (b"ann:admin:\xff\n", "cannot read"),
    ],
)
def test_bad_users_file_is_refused(gd: Gd, tmp_path: Path, content: bytes, message: str) -> None:
    users = tmp_path / "users"
    users.write_bytes(content)
    users.chmod(0o600)
    assert message in refused(gd("dash", "--users", users))


def test_users_file_that_others_can_read_is_refused(gd: Gd, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("ann:admin:correct horse\n")
    users.chmod(0o604)
    message = refused(gd("dash", "--users", users))
    assert f"chmod o= {users}" in message
    assert "horse" not in message


@pytest.mark.parametrize(
    "token", ["short", "root:0123456789abcdef", "read:short", "0123456789abcdef:0123456789abcdef"]
)
def test_bad_token_is_refused(gd: Gd, monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("GEN_DURABLE_DASH_TOKEN", token)
    assert "0123456789abcdef" not in refused(gd("dash", "--port=0"))
