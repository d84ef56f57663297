"""PgBouncer in transaction mode, in front of the server that tests use."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

PROGRAM: Final = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING: Final = "pgbouncer is not installed (on Debian: apt-get install pgbouncer)"

# Fewer server connections than clients, and round robin: consecutive transactions of a client use different sessions, so
# a dependency on session state shows soon. PgBouncer refuses startup parameters that it does not know.
_CONFIGURATION: Final = """\
[databases]
* = host={host} port={port}

[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {directory}
auth_type = trust
auth_file = {directory}/users
pool_mode = transaction
default_pool_size = 5
max_client_conn = 500
server_round_robin = 1
admin_users = {user}
log_connections = 0
log_disconnections = 0
"""


class Bouncer:
    """A PgBouncer that runs inside `with`."""

    def __init__(self, server: str) -> None:
        self._server = conninfo_to_dict(server)
        self.directory = Path(tempfile.mkdtemp(prefix="gd-")).resolve()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        server = {"host": "localhost", "port": 5432, "user": "postgres", **self._server}
        self._write("pgbouncer.ini", _CONFIGURATION.format(directory=self.directory, **server))
        self._write("users", f'"{server["user"]}" "{server.get("password", "")}"\n')
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.directory)

    def start(self) -> None:
        """Start it as an account that can enter the socket directory of the server, because it refuses to run as root."""
        assert PROGRAM is not None
        switch: list[str] = []
        if (account := self._account()) is not None:
            switch = ["-u", account.pw_name]
            for path in (self.directory, *self.directory.iterdir()):
                os.chown(path, account.pw_uid, account.pw_gid)
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [PROGRAM, "-q", *switch, self.directory / "pgbouncer.ini"], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 10
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.directory / "log").read_text())
            time.sleep(0.02)

    def stop(self) -> None:
        """Stop at once; all connections are closed."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(10)
            self._process = None

    def in_front_of(self, dsn: str) -> str:
        """The DSN of the same database through this PgBouncer."""
        given = conninfo_to_dict(dsn)
        user = quote(str(given.get("user", "postgres")))
        return f"postgresql://{user}@/{given['dbname']}?host={quote(str(self.directory), safe='/')}&port=6432"

    def show(self, what: str) -> list[dict[str, Any]]:
        """Run a SHOW command of its console: `show("servers")`."""
        # The console supports neither transactions nor parameters.
        with (
            psycopg.connect(
                self.in_front_of("dbname=pgbouncer"), autocommit=True, row_factory=psycopg.rows.dict_row
            ) as console,
            psycopg.ClientCursor(console) as cursor,
        ):
            return cursor.execute(f"show {what}").fetchall()

    def _write(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)

    def _answers(self) -> bool:
        try:
            self.show("version")
        except psycopg.OperationalError:
            return False
        return True

    def _account(self) -> pwd.struct_passwd | None:
        if os.geteuid() != 0:
            return None
        host = str(self._server.get("host", ""))
        return pwd.getpwuid(Path(host).stat().st_uid) if host.startswith("/") else pwd.getpwnam("nobody")
