"""`python -m tests.embedded.client HOME IDLE_STOP MANNER`: prints its DSN once it is attached, and runs until it is killed."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

from gen_durable.embedded import EmbeddedPostgres


def main(home: str, idle_stop: str, manner: str) -> None:
    server = EmbeddedPostgres(Path(home), idle_stop=timedelta(seconds=float(idle_stop)))
    _say(server.ensure())
    match manner:
        case "keeps":
            server.keep()
            _say("kept")
        case "drops the object":
            del server
            gc.collect()
            _say("dropped")
        case "has children":
            forked = os.fork()
            if forked == 0:
                time.sleep(60)
                os._exit(0)
            started = subprocess.Popen(["sleep", "60"], close_fds=False)
            _say(f"{forked} {started.pid}")
        case "has a child that is a client" if os.fork() == 0:
            _say(f"{server.ensure()} {os.getpid()}")
            time.sleep(60)
            os._exit(0)
    signal.pause()


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
