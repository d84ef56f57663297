"""A blocking client that is used before and after a fork: `python -m tests.clients.forking DSN`.

It prints the id that each process got for each of its instances, one JSON object per line.
"""

from __future__ import annotations

import json
import os
import sys

from gen_durable import Client
from tests.clients.machines import Number


def main(dsn: str) -> None:
    with Client(dsn) as client:
        client.insert(Number, 0)
        children = []
        for process in range(1, 5):
            if (pid := os.fork()) == 0:
                ids = {process * 10 + n: client.insert(Number, process * 10 + n).id for n in range(3)}
                sys.stdout.write(json.dumps(ids) + "\n")
                sys.stdout.flush()
                os._exit(0)
            children.append(pid)
        for pid in children:
            os.waitpid(pid, 0)
        assert client.count(Number) == 13, "its own connection still works"


if __name__ == "__main__":
    main(sys.argv[1])
