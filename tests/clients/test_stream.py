"""stream, through both clients; the items are written by SQL."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from gen_durable import AsyncClient, Ref, Stream, StreamItem
from gen_durable._core.stream_cursor import StreamCursor
from gen_durable._db import streams
from gen_durable._db.pool import Database
from gen_durable.errors import DecodeError, NoTargetError, NotConnectedError, UsageError
from tests.clients.machines import Chat
from tests.support.waiting import until_true


async def append(
    db: Any, id: int, values: Iterable[str | None], stream: str = "tokens", seq: int = 1
) -> None:
    """Append items (JSON) or closes (`None`), as an execution at transition `seq` would."""
    await db.execute(
        """insert into gen_durable.stream_items
                  (instance_id, stream, position, step, step_seq, execution, attempt, number, value)
           select $1, $2, ord + coalesce((select max(position) from gen_durable.stream_items
                                           where instance_id = $1 and stream = $2), 0), 'answer', $4, 1, 0, ord, value::jsonb
             from unnest($3::text[]) with ordinality as item (value, ord)""",
        id,
        stream,
        list(values),
        seq,
    )


async def end(db: Any, id: int) -> None:
    await db.execute(
        "update gen_durable.gen_durable set status = 'done', step_seq = 1, finished_at = now() where id = $1",
        id,
    )


async def read(client: Any, *args: Any, **options: Any) -> list[StreamItem[Any]]:
    """All items of a stream, with the async or the blocking client."""
    if isinstance(client, AsyncClient):
        return [item async for item in client.stream(*args, **options)]
    return await asyncio.to_thread(lambda: list(client.blocking.stream(*args, **options)))


def values(items: Iterable[StreamItem[Any]]) -> list[Any]:
    return [item.value for item in items]


@pytest.mark.clause("STR-13")
async def test_stream_that_the_machine_of_a_reference_does_not_declare(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    await append(db, chat.id, ['"a"'], "debug")
    await end(db, chat.id)
    problem = (
        r"machine 'Chat' declares no stream 'tokns'; did you mean 'tokens'\? Give a declared stream \(tokens"
    )
    with pytest.raises(UsageError, match=problem):
        await read(client, chat, "tokns")
    with pytest.raises(UsageError, match=r"or Stream\('debug'\) for one that is not declared"):
        await read(client, chat, "debug")
    assert values(await read(client, chat, Stream("debug"))) == ["a"]
    assert values(await read(client, chat.id, "debug")) == ["a"]


async def test_pages_of_compressible_items_are_bounded(client: Any, db: Any, database: Database) -> None:
    """PostgreSQL compresses these items to about 1 percent."""
    chat = await client.insert(Chat, None)
    await append(db, chat.id, [f'"{"a" * 200_000}"'] * 20 + [f'"{"b" * 1_500_000}"'] + ['"c"'] * 3)
    cursor = StreamCursor(chat.id, Stream("tokens", str), 0)
    pages = []
    while cursor.after < 24:
        rows = await database.run(streams.read([cursor], 2000))
        pages.append([item.position for item in cursor.take(row for _, row in rows)])
    assert [len(page) for page in pages] == [5, 5, 5, 5, 1, 3]
    await end(db, chat.id)
    assert len(await read(client, chat, Chat.tokens)) == 24


@pytest.mark.clause("STR-8")
async def test_stream_ends_with_the_instance(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    await append(db, chat.id, ['"Hel"'])
    reading = asyncio.ensure_future(read(client, chat, Chat.tokens))
    await asyncio.sleep(0.05)
    await append(db, chat.id, ['"lo"'])
    await asyncio.sleep(0.05)
    assert not reading.done()
    await append(db, chat.id, ['"!"'])
    await end(db, chat.id)
    items = await reading
    assert values(items) == ["Hel", "lo", "!"]
    assert [item.position for item in items] == [1, 2, 3]
    first = items[0]
    assert (first.step, first.step_seq, first.attempt, first.execution) == ("answer", 1, 0, 1)
    assert first.created_at.tzinfo is not None


async def test_stream_takes_a_name_and_any_target(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None, correlation_key="chat:1")
    await append(db, chat.id, ['{"a": 1}'], "log")
    await append(db, chat.id, ['"x"'])
    await end(db, chat.id)
    for target in (chat, chat.id, "chat:1", Ref(Chat, "chat:1")):
        assert values(await read(client, target, Stream("log"))) == [{"a": 1}]
    assert values(await read(client, chat, Chat.tokens)) == ["x"]
    assert values(await read(client, chat, Stream("nothing"))) == []


async def test_after_continues_behind_an_item_or_position(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    await append(db, chat.id, ['"a"', '"b"', '"c"'])
    await end(db, chat.id)
    items = await read(client, chat, Chat.tokens)
    assert values(await read(client, chat, Chat.tokens, after=items[0])) == ["b", "c"]
    assert values(await read(client, chat, Chat.tokens, after=2)) == ["c"]
    assert values(await read(client, chat, Chat.tokens, after=99)) == []


@pytest.mark.clause("STR-8")
async def test_close_takes_effect_when_its_transition_commits(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    await append(db, chat.id, ['"a"', None])
    reading = asyncio.ensure_future(read(client, chat, Chat.tokens))
    await asyncio.sleep(0.1)
    assert not reading.done()
    await db.execute("update gen_durable.gen_durable set step_seq = 1")
    assert values(await reading) == ["a"]


async def test_items_after_a_close_open_the_stream_again(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    await append(db, chat.id, ['"a"', None])
    reading = asyncio.ensure_future(read(client, chat, Chat.tokens))
    await asyncio.sleep(0.1)
    # The next attempt, after a crash of the one that closed the stream.
    await append(db, chat.id, ['"b"'])
    await db.execute("update gen_durable.gen_durable set step_seq = 1")
    await asyncio.sleep(0.1)
    assert not reading.done()
    await append(db, chat.id, [None])
    assert values(await reading) == ["a", "b"]


async def test_long_streams_are_read_in_pages(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    await append(db, chat.id, [f'"{n}"' for n in range(4500)])
    await append(db, chat.id, [f'"{"x" * 600_000}"'] * 3, "large")
    await end(db, chat.id)
    assert values(await read(client, chat, Chat.tokens)) == [str(n) for n in range(4500)]
    assert len(await read(client, chat, Stream("large"))) == 3


async def test_stream_of_an_unknown_target_raises(client: Any) -> None:
    with pytest.raises(NoTargetError, match="cannot stream 'tokens': there is no instance 4711"):
        await read(client, 4711, Chat.tokens)
    with pytest.raises(NoTargetError, match="correlation_key 'k'"):
        await read(client, "k", Chat.tokens)


async def test_stream_of_a_removed_instance_raises(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    reading = asyncio.ensure_future(read(client, chat, Chat.tokens))
    await asyncio.sleep(0.05)
    await db.execute("delete from gen_durable.gen_durable")
    with pytest.raises(NoTargetError, match="retention or keep=False may have removed it"):
        await reading


async def test_item_of_another_type_raises_after_those_before_it(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        chat = await client.insert(Chat, None)
        await append(db, chat.id, ['"a"', "1"])
        items = client.stream(chat, Chat.tokens)
        assert (await anext(items)).value == "a"
        with pytest.raises(
            DecodeError, match=f"item 2 of stream 'tokens' of instance {chat.id} does not match str"
        ):
            await anext(items)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((1, 2), 'type int is not a stream; give a declared Stream or its name: Chat.tokens, or "tokens"'),
        ((1, ""), "the name of a stream"),
    ],
)
async def test_bad_streams_are_refused(client: Any, arguments: Any, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        await read(client, *arguments)


async def test_bad_positions_are_refused(client: Any) -> None:
    with pytest.raises(UsageError, match="after is -1"):
        await read(client, 1, "tokens", after=-1)
    with pytest.raises(UsageError, match="after is of type str"):
        await read(client, 1, "tokens", after="1")


async def test_reader_that_stops_early_leaves_nothing(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        chat = await client.insert(Chat, None)
        await append(db, chat.id, ['"a"', '"b"'])
        items = client.stream(chat, Chat.tokens)
        assert (await anext(items)).value == "a"
        await items.aclose()  # type: ignore[attr-defined]  # of the async generator
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                async for _ in client.stream(chat, Chat.tokens, after=2):
                    pass
        following = client._following
        assert following is not None
        assert not following._futures
        assert not following._readers
        poller = following._poller
        assert poller is not None
        await asyncio.wait_for(poller, 5)


async def test_streams_of_one_client_share_one_query(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        chats = [await client.insert(Chat, None) for _ in range(50)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(read(client, chat, Chat.tokens)) for chat in chats]
            following = client._following
            assert following is not None
            await until_true(lambda: len(following._futures) == 50)
            for chat in chats:
                await append(db, chat.id, ['"a"', '"b"'])
                await end(db, chat.id)
        assert [values(task.result()) for task in tasks] == [["a", "b"]] * 50
        assert following._poller is not None


async def test_closing_the_client_ends_its_readers(durable_dsn: str) -> None:
    async with AsyncClient(durable_dsn) as client:
        chat = await client.insert(Chat, None)
        reading = asyncio.ensure_future(read(client, chat, Chat.tokens))
        await asyncio.sleep(0.05)
    with pytest.raises(NotConnectedError, match=r"use it inside `async with AsyncClient\(...\)"):
        await reading


async def test_reader_that_comes_back_to_a_closed_client_gets_an_error(durable_dsn: str, db: Any) -> None:
    async with AsyncClient(durable_dsn) as client:
        chat = await client.insert(Chat, None)
        await append(db, chat.id, ['"a"'])
        reader = client.stream(chat, Chat.tokens)
        assert (await anext(reader)).value == "a"
    with pytest.raises(NotConnectedError):
        async with asyncio.timeout(5):
            await anext(reader)


@pytest.mark.clause("STR-3")
async def test_reader_survives_lost_connections(client: Any, db: Any) -> None:
    chat = await client.insert(Chat, None)
    reading = asyncio.ensure_future(read(client, chat, Chat.tokens))
    for n in range(5):
        await append(db, chat.id, [f'"{n}"', f'"{n}+"'])
        await asyncio.sleep(0.05)
        await db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
    await end(db, chat.id)
    assert values(await reading) == [text for n in range(5) for text in (str(n), f"{n}+")]
