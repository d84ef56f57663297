"""Hidden values stay hidden in states that cannot be decoded, and an edit keeps them or is refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from gen_durable import AsyncClient
from gen_durable.dashboard import Dashboard, Redact, hide_secrets
from gen_durable.dashboard.problems import ProblemError
from gen_durable.dashboard.redaction import HIDDEN, restored, without_defaults
from tests.dashboard.machines import Checkout, Order

CANARY = "hunter2-canary"


@pytest.mark.parametrize(
    "key",
    [
        *(
            "password",
            "passwords",
            "password_hash",
            "db_password_old",
            "PWD",
            "db_pwd",
            "access_token",
            "apiKey",
        ),
        *("api-key", "x-api-key", "X-API-Key", "APIKey", "API_KEYS", "access_key", "accessKeyId"),
        *("aws_access_key_id", "AWS_SECRET_ACCESS_KEY", "private-key", "privateKeyPem", "signingKey"),
        *(
            "credit_card",
            "creditCardNumber",
            "credit-card",
            "card-number",
            "cardNo",
            "pan",
            "card_pan",
            "cvv2",
        ),
        *("bearer", "bearer_auth", "jwt", "idJwt", "otp", "totp", "otp_code", "pin", "card_pin", "pinCode"),
        *("passcode", "Passcode", "session_id", "sessionId", "sessionid", "SESSION-ID", "ssn", "user_pass"),
        *("tokens", "access_tokens", "refreshToken", "set-cookie", "client.secret", "iban"),
    ],
)
def test_values_of_these_keys_are_hidden(key: str) -> None:
    assert hide_secrets({"a": [{key: CANARY}]}) == {"a": [{key: HIDDEN}]}


@pytest.mark.parametrize(
    "key",
    [
        *("passenger", "passport", "compass_course", "compass", "bypass", "author", "number", "keyboard"),
        *(
            "key",
            "keys",
            "primary_key",
            "correlation_key",
            "monkey",
            "pinned",
            "pins",
            "spin",
            "opinion",
            "shipping",
        ),
        *("max_tokens", "promptTokens", "total_tokens", "token_count", "token_type", "tokens_per_second"),
        *(
            "session",
            "sessions",
            "card",
            "cards",
            "card_type",
            "className",
            "classname",
            "company",
            "span",
            "panel",
        ),
        *(
            "expansion",
            "bearing",
            "forbearer",
            "accessibility",
            "private",
            "api",
            "api_url",
            "stop",
            "option",
        ),
    ],
)
def test_values_of_other_keys_are_shown(key: str) -> None:
    assert hide_secrets({key: "x"}) == {key: "x"}


def test_number_of_tokens_is_shown() -> None:
    assert hide_secrets({"tokens": 512, "token": 512}) == {"tokens": 512, "token": HIDDEN}


def test_default_values_are_removed_from_schemas_but_not_properties() -> None:
    inner = {"type": "string", "default": CANARY}
    schema = {"$defs": {"default": inner}, "properties": {"default": inner}, "anyOf": [inner]}
    plain = {"type": "string"}
    expected = {"$defs": {"default": plain}, "properties": {"default": plain}, "anyOf": [plain]}
    assert without_defaults(schema) == expected


@pytest.mark.parametrize("depth", [600, 3000])
async def test_secrets_beside_a_deep_value_are_hidden(
    http: httpx.AsyncClient, client: AsyncClient, db: Any, depth: int
) -> None:
    """SQL producers can nest values more deeply than Python decodes or calls functions."""
    order = await client.insert(Checkout, Order(1))
    text = json.dumps({"password": CANARY, "deep": 0}).replace("0", "[" * depth + "]" * depth)
    await db.execute("update gen_durable.gen_durable set state = $1::text::jsonb", text)
    await client.signal(order, "other")
    await db.execute("update gen_durable.signals set payload = $1::text::jsonb", text)
    for path in ("", "/state"):
        answer = await http.get(f"/api/instances/{order.id}{path}")
        assert answer.status_code == 200, answer.text
        assert CANARY not in answer.text
        assert HIDDEN in answer.text
    stored = await db.fetchval("select state from gen_durable.gen_durable")
    body = {"expected_step_seq": 0, "state": json.dumps(HIDDEN)}
    if depth == 3000:
        assert (await http.post(f"/api/instances/{order.id}/edit", json=body)).status_code == 422
    assert await db.fetchval("select state from gen_durable.gen_durable") == stored


STORED = {"password": "p", "cards": [{"n": 1, "pan": "a"}, {"n": 2, "pan": "b"}], "token": {"id": 7}}


def others(value: Any) -> Any:
    """Show a mask of the password, and no cards."""
    return {key: "***" if key == "password" else inner for key, inner in value.items() if key != "cards"}


def card(n: int, pan: str = HIDDEN) -> dict[str, Any]:
    return {"n": n, "pan": pan}


@pytest.mark.parametrize(
    ("redact", "edit", "expected"),
    [
        (hide_secrets, {}, {}),
        (hide_secrets, {"x": 1}, {"x": 1}),
        (hide_secrets, {"password": "new"}, {"password": "new"}),
        (hide_secrets, {"cards": [card(1)]}, {"cards": [card(1, "a")]}),
        (hide_secrets, {"cards": [card(2), card(1)]}, {"cards": [card(2, "b"), card(1, "a")]}),
        (hide_secrets, {"cards": [card(5), card(2)]}, {"cards": [card(5, "a"), card(2, "b")]}),
        (
            hide_secrets,
            {"cards": [card(1), card(2), card(3, "c")]},
            {"cards": [*STORED["cards"], card(3, "c")]},
        ),
        (others, {}, {}),
        (others, {"token": 8}, {"token": 8}),
    ],
)
def test_edit_keeps_what_is_not_shown(redact: Redact, edit: Any, expected: Any) -> None:
    assert restored({**redact(STORED), **edit}, STORED, redact) == {**STORED, **expected}


@pytest.mark.parametrize(
    "edit",
    [
        {"cards": [card(5)]},
        {"cards": [card(1), card(2), card(3)]},
        {"new_password": HIDDEN},
        {"cards": {"0": card(1)}},
        {"x": [HIDDEN]},
    ],
)
def test_hidden_value_without_a_stored_one_is_refused(edit: Any) -> None:
    with pytest.raises(ProblemError, match="stands where no value"):
        restored({**hide_secrets(STORED), **edit}, STORED, hide_secrets)


def test_items_that_look_the_same_are_not_confused() -> None:
    stored = [{"pan": "a"}, {"pan": "b"}]
    assert restored(hide_secrets(stored), stored, hide_secrets) == stored
    with pytest.raises(ProblemError):
        restored([{"pan": HIDDEN}], stored, hide_secrets)
    assert restored([True, {"pan": HIDDEN}], [1, {"pan": "a"}], hide_secrets)[0] is True


async def test_fork_has_the_hidden_values_of_its_transition(
    http: httpx.AsyncClient, client: AsyncClient
) -> None:
    order = await client.insert(Checkout, Order(1, password="first"))
    for n, password in enumerate(("second", "third")):
        await client.edit(order, state=Order(1, password=password), expected_step_seq=n)
    for at, password in ((0, "first"), (1, "second"), (2, "third")):
        state = json.dumps({"number": 9, "amount": 1, "card": "visa", "password": HIDDEN})
        answer = await http.post(f"/api/instances/{order.id}/fork", json={"at": at, "state": state})
        assert answer.status_code == 200, answer.text
        forked = await client.get(answer.json()["id"])
        assert forked is not None
        assert (forked.state["number"], forked.state["password"]) == (9, password)


async def test_search_of_a_batch_for_a_hidden_value_is_hidden(
    dashboard: Dashboard, http: httpx.AsyncClient, client: AsyncClient
) -> None:
    """The command line may search for it."""
    await client.insert(Checkout, Order(1, password=CANARY))
    batch = await client.start_batch("cancel", where=f"state.password:{CANARY}")
    other = await client.start_batch("cancel", where="state.number:1")
    for path in ("/audit", "/batches", f"/batches/{batch.id}"):
        answer = await http.get(f"/api{path}")
        assert answer.status_code == 200
        assert CANARY not in answer.text
        assert "hidden" in answer.text
    rows = {row["id"]: row["q"] for row in (await http.get("/api/batches")).json()["items"]}
    assert rows == {batch.id: None, other.id: "state.number:1"}
    stopped = await http.post(f"/api/batches/{batch.id}/stop", json={})
    assert CANARY not in stopped.text
    stream = dashboard._board.live.stream(["batches"], "ann")
    await anext(stream)
    async with asyncio.timeout(20):
        message = (await anext(stream)).decode()
    await stream.aclose()
    assert "instances by a hidden value" in message
    assert CANARY not in message
