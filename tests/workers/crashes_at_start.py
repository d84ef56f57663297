"""A supervised program whose worker process exits at its start, before slow imports.

`python -m tests.workers.crashes_at_start DSN`.
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
    from tests.workers.supervised_worker import Sleeper

    logging.basicConfig(level=logging.INFO)
    Worker([Sleeper], dsn=dsn).run(processes=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
