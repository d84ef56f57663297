"""A program that works in one process, which dies at its start, before it has imported anything dear.

`python -m tests.workers.broken DSN`.
"""

from __future__ import annotations

import json
import os
import sys


def main(dsn: str) -> None:
    if "GEN_DURABLE_SUPERVISED" in os.environ:
        print(json.dumps({"broken": True}), flush=True)  # noqa: T201
        sys.exit(3)
    import logging

    from gen_durable import Worker
    from tests.workers.victims import Sleeper

    logging.basicConfig(level=logging.INFO)
    Worker([Sleeper], dsn=dsn).run(processes=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
