"""Insert rows directly, in the state that a test needs."""

from __future__ import annotations

from typing import Any, Final

EVERY: Final = "{runnable,executing,awaiting_signal,awaiting_children,done,failed,cancelled}"
_ENDED: Final = ("done", "failed", "cancelled")


async def put(db: Any, status: str = "runnable", *, days: float = 0, **columns: Any) -> int:
    """Insert an instance; an ended one ended this many days ago. A value that begins with `=` is SQL."""
    values: dict[str, Any] = {"fsm": "A", "step": "s", "status": status, "state": '{"n": 1}', **columns}
    if status in _ENDED:
        values.setdefault("finished_at", f"=now() - interval '{days} days'")
    if status == "executing":
        values = {"lease_token": 7, "lease_expires_at": "=now() + interval '1 h'", "execution": 1, **values}
    texts = [f"{each[1:]}" if str(each).startswith("=") else _literal(each) for each in values.values()]
    id: int = await db.fetchval(
        f"insert into gen_durable.gen_durable ({', '.join(values)}) values ({', '.join(texts)}) returning id"
    )
    return id


async def ids(db: Any) -> list[int]:
    rows = await db.fetch("select id from gen_durable.gen_durable order by id")
    return [row["id"] for row in rows]


async def count(db: Any, table: str) -> int:
    number: int = await db.fetchval(f"select count(*) from gen_durable.{table}")
    return number


def _literal(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else f"'{value}'"
