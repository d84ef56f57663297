"""Changes with the header `Idempotency-Key`: a request that is sent again gets the first answer, and changes nothing.

The key, the answer and the change are stored by one transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request

from .._db import requests
from .._db.failures import StatementError, is_race
from .._db.sqlstates import LOCK_NOT_AVAILABLE
from .access import User
from .board import Board
from .problems import ProblemError

__all__ = ["KEY_PATTERN", "answer_once", "digest_of", "key_of"]

KEY_PATTERN: Final = "^[!-~]{1,255}$"
_TRIES: Final = 5
_LONGEST_PAUSE: Final = 0.2


def key_of(request: Request) -> str | None:
    """Return the key of a request, `None` without one.

    Raises:
        ProblemError: 422, it is not valid.
    """
    key = request.headers.get("idempotency-key")
    if key is None or re.fullmatch(KEY_PATTERN, key):
        return key
    raise ProblemError(
        422,
        "The Idempotency-Key is not valid",
        f"{key[:255]!r} has {len(key)} characters, or a space, or one that is not ASCII.",
        "Send 1 to 255 visible ASCII characters, for example a UUID.",
    )


def digest_of(method: str, path: str, parameters: Mapping[str, Any], body: bytes) -> bytes:
    """Return what tells a request from others with the same key.

    Of the body as it was sent: another version of the library may know more fields, and answers as well.
    """
    return hashlib.sha256(msgspec.json.encode([method, path, parameters]) + body).digest()


async def answer_once(
    board: Board, user: User, key: str, digest: bytes, change: Callable[[Board], Awaitable[Any]]
) -> tuple[bytes, bool]:
    """Make a change, or return the answer of the earlier request with this key.

    Args:
        board: of the dashboard.
        user: the sender. Keys of other users are other keys.
        key: from the header.
        digest: of the request.
        change: makes the change by the client of the board that it gets, which is bound to one transaction. Called
            again after a lost race.

    Returns:
        The answer as JSON, and whether it is that of an earlier request.

    Raises:
        ProblemError: 409, the earlier request is in progress; 422, it was a different one.
    """
    # Few at a time: each holds a connection, also while it waits for an earlier one with its key.
    async with board.transactions:
        for _ in range(_TRIES - 1):
            try:
                return await _answer(board, user, key, digest, change)
            except StatementError as error:
                if not is_race(error):
                    raise
            await asyncio.sleep(random.uniform(0, _LONGEST_PAUSE))
        return await _answer(board, user, key, digest, change)


async def _answer(
    board: Board, user: User, key: str, digest: bytes, change: Callable[[Board], Awaitable[Any]]
) -> tuple[bytes, bool]:
    async with board.transaction() as bound:
        try:
            earlier = await bound.change(requests.claim(user.name, key, digest))
        except StatementError as error:
            if error.sqlstate != LOCK_NOT_AVAILABLE:
                raise
            raise ProblemError(
                409,
                "The first request is in progress",
                f"{user.name} has sent another request with the Idempotency-Key {key!r}; it has not ended yet.",
                "Send this request again later, with the same key.",
            ) from None
        if earlier is not None:
            if not earlier.is_same:
                raise ProblemError(
                    422,
                    "The Idempotency-Key belongs to another request",
                    f"{user.name} sent {key!r} at {earlier.answered_at:%Y-%m-%d %H:%M:%S%z} "
                    "with another path or body. That request made its change; this one made none.",
                    "Look at what that request has changed. Send a different request with a new key.",
                )
            return earlier.answer.encode(), True
        content = msgspec.json.encode(await change(bound))
        await bound.change(requests.store(user.name, key, content.decode()))
    return content, False
