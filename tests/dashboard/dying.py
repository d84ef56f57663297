"""A dashboard that kills its process at one moment of a request, like SIGKILL from outside.

As a program: `python -m tests.dashboard.dying DSN MOMENT PATH BODY-AS-JSON`. It sends the request with the key "k" as the user
ann. Moments: `stored` (the answer is stored, and not committed), `committed` (it is committed, and not sent), `cascade`
(the first generation of a cascade is cancelled).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

from gen_durable import AsyncClient
from gen_durable._db import control, requests
from gen_durable._db.plan import Plan
from gen_durable.dashboard import create_app
from gen_durable.dashboard.idempotency import answer_once
from tests.dashboard.conftest import TOKENS, http_as

KEY: Final = "k"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dies_after(plan: Callable[..., Plan[Any]]) -> Callable[..., Plan[Any]]:
    def dying(*given: Any, **named: Any) -> Plan[Any]:
        yield from plan(*given, **named)
        _die()

    return dying


async def _answer_and_die(*given: Any) -> Any:
    await answer_once(*given)
    _die()


async def main(dsn: str, moment: str, path: str, body: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if moment == "stored":
            patch.setattr(requests, "store", _dies_after(requests.store))
        elif moment == "cascade":
            patch.setattr(control, "unfinished_children", _dies_after(control.unfinished_children))
        else:
            patch.setattr("gen_durable.dashboard.endpoints.answer_once", _answer_and_die)
        async with AsyncClient(dsn) as client, http_as(create_app(client, tokens=TOKENS), "admin") as http:
            answer = await http.post(path, json=json.loads(body), headers={"idempotency-key": KEY})
            sys.stdout.write(answer.text)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
