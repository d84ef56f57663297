"""`python -m tests.embedded.visitor HOME IDLE_STOP`: a client that prints the pid of its server, and runs until it is killed."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import psycopg

from gen_durable.embedded import EmbeddedPostgres


def main(home: str, idle_stop: str) -> None:
    server = EmbeddedPostgres(Path(home), idle_stop=timedelta(seconds=float(idle_stop)))
    with psycopg.connect(server.ensure()) as connection:
        row = connection.execute("select pg_postmaster_start_time()::text").fetchone()
    os.write(1, f"{server.ensure()} {row}\n".encode())  # one write: others write to the same pipe
    signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
