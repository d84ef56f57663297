"""A naive worker on the same tables: it leases a job, applies its effect, and marks the job as done.

The effect is not tied to the lease: no token, no common transaction. Run it as `python -m tests.engine.effects.naive_worker DSN NAME`,
or with FILE as third argument: then it stalls with the leased job until that file exists.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

import asyncpg

from tests.support.crashing_workers import print_json
from tests.support.ledger import BOOK

_LEASE: Final = """
update gen_durable.gen_durable
   set status = 'executing', lease_token = 0, locked_by = $1, lease_expires_at = clock_timestamp() + interval '0.5 s',
       execution = execution + 1
 where id = (select id from gen_durable.gen_durable
              where status = 'runnable' or status = 'executing' and lease_expires_at < clock_timestamp()
              order by id limit 1 for update skip locked)
returning id, execution"""
_FINISH: Final = """
update gen_durable.gen_durable
   set status = 'done', lease_token = null, lease_expires_at = null, locked_by = null, finished_at = clock_timestamp()
 where id = $1"""


async def _main(dsn: str, name: str, file: str = "") -> None:
    conn = await asyncpg.connect(dsn)
    while (job := await conn.fetchrow(_LEASE, name)) is None:
        await asyncio.sleep(0.02)
    print_json(leased=f"{job['id']}:{job['execution']}")
    while file and not Path(file).exists():
        await asyncio.sleep(0.02)
    await conn.execute(BOOK, f"{job['id']}:1", name)
    print_json(applied=f"{job['id']}:1")
    await conn.execute(_FINISH, job["id"])
    await conn.close()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
