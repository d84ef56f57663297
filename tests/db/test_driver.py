"""What connections of one process tell each other."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from gen_durable._db.pool import connect


async def test_only_the_first_connection_asks_about_types(
    durable_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = "select $1::bigint[] as ids, $2::interval[] as delays"
    first = await connect(durable_dsn)
    await first.fetchrow(arrays, [1], [])
    await first.close()

    async def asked(*_: Any) -> None:
        raise AssertionError("it asks again")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    second = await connect(durable_dsn)
    assert tuple(await second.fetchrow(arrays, [1, 2], [])) == ([1, 2], [])
    with pytest.raises(AssertionError, match="it asks again"):
        await second.fetch("select $1::gen_durable.durable_status[]", [])
    await second.close()
