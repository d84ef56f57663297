"""Clients and SQL functions measure payloads alike: the bytes of `state::text`."""

from __future__ import annotations

import json
import random
from typing import Any

import asyncpg
import msgspec
import pytest

from gen_durable import Context, Done, Inserted, Machine, Outcome, step
from gen_durable._core.measure import excess, stored_size
from gen_durable.errors import PayloadTooLargeError

LIMIT = 2**20
SIZES = "select octet_length(t::jsonb::text) as size from unnest($1::text[]) with ordinality as u (t, n) order by n"
# JSON that PostgreSQL formats differently.
FOREIGN = [
    ' [ 1 ,\t{ "a" : [ ] } ,\r\n"x , y : z" ] ',
    r'["\u0041\u00e9\u20ac\ud83d\ude00", "\/\\/\"\\u0041", "\u0001\u0008\u000c\u0022\u005c\u007f"]',
    "[1e16, 1E+2, 1.50e1, 1.5e-7, 0e5, 0e-5, 0.0e3, -1e3, -0e3, -0.0e1, 5e-324, 1.7976931348623157e308]",
    "[-0, -0.0, -0.00, 0, -0.01, -10, 1.10, 100.00]",
    '{"1e5": "-0.0, 1e5", "a:b": ": ,"}',
    '{"a": 1e2, "e": "2e9"}',
    '"1e300"',
]
FILLERS: dict[str, Any] = {
    "numbers": [1] * 200_000,
    "objects": [{"a": 1, "b": None}] * 20_000,
    "exponents": [1e300] * 1000,
    "fractions": [1.5e-7] * 20_000,
    "unicode": ["é€😀", '\x01\x1f\n\t"\\/'] * 10_000,
    "words": ["2e9", "a, b: c"] * 20_000,
    "negative zeros": [-0.0] * 100_000,
}


class Keep(Machine[list[Any], None]):
    @step
    async def start(self, ctx: Context[list[Any]]) -> Outcome[None]:
        return Done(None)


def anything(chance: random.Random, depth: int = 0) -> Any:
    match chance.randrange(9 if depth < 4 else 7):
        case 0:
            return None
        case 1:
            return chance.random() < 0.5
        case 2:
            return chance.choice([0, 1, -1, 10**15, -(10**18), chance.randrange(10**9)])
        case 3 | 4:
            number = chance.uniform(-1, 1) * 10.0 ** chance.randrange(-320, 308)
            return chance.choice(
                [number, 0.0, -0.0, 1e16, 1e22, 1e-5, 1e-4, 5e-324, float(chance.randrange(100))]
            )
        case 5 | 6:
            return "".join(chance.choices('ab e9é€😀\n\t\x01\x1f\x7f"\\/,:{}[]-0.1u', k=chance.randrange(12)))
        case 7:
            return [anything(chance, depth + 1) for _ in range(chance.randrange(5))]
        case _:
            return {
                f"{chance.choice('ab:,e1')}{n}": anything(chance, depth + 1)
                for n in range(chance.randrange(5))
            }


@pytest.mark.clause("LIM-12")
async def test_measured_size_is_that_of_postgresqls_text(db: Any) -> None:
    chance = random.Random(7)
    values = [anything(chance) for _ in range(3000)]
    texts = [msgspec.json.encode(value).decode() for value in values]
    texts += (
        [json.dumps(value) for value in values] + [json.dumps(value, indent=2) for value in values] + FOREIGN
    )
    sizes = [row["size"] for row in await db.fetch(SIZES, texts)]
    wrong = [
        (text, size, stored_size(text.encode()))
        for text, size in zip(texts, sizes, strict=True)
        if stored_size(text.encode()) != size
    ]
    assert wrong[:5] == []


@pytest.mark.clause("LIM-12")
@pytest.mark.parametrize("kind", FILLERS)
async def test_clients_and_sql_agree_at_the_bound(client: Any, db: Any, kind: str) -> None:
    def padded(count: int) -> list[Any]:
        return [FILLERS[kind], "x" * count]

    (row,) = await db.fetch(SIZES, [msgspec.json.encode(padded(0)).decode()])
    left = LIMIT - row["size"]
    assert left > 0
    fits, exceeds = padded(left), padded(left + 1)
    assert isinstance(await client.insert(Keep, fits), Inserted)
    with pytest.raises(PayloadTooLargeError, match=f"it is {LIMIT + 1} bytes of JSON, {LIMIT} are allowed"):
        await client.insert(Keep, exceeds)
    insert = "select id from gen_durable.insert('Keep', $1::text::jsonb, step => 'start')"
    assert await db.fetchval(insert, msgspec.json.encode(fits).decode()) is not None
    with pytest.raises(asyncpg.PostgresError, match=f"state has {LIMIT + 1} bytes of JSON"):
        await db.fetchval(insert, msgspec.json.encode(exceeds).decode())


@pytest.mark.parametrize(
    "raw", [b'"' + b"x" * 1000 + b'"', b"[" + b"1e308," * 200 + b"1]", b"[" + b"1," * 500 + b"1]"]
)
def test_measuring_shortcuts_do_not_change_the_result(raw: bytes) -> None:
    size = stored_size(raw)
    for limit in range(1, 2 * size, max(1, size // 500)):
        assert (excess(raw, limit) is not None) == (size > limit), limit
    assert excess(raw, size) is None
    assert excess(raw, size - 1) == size
