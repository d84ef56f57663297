"""Names given to a worker are checked in its constructor."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Outcome, Settings, Worker, step
from gen_durable.errors import SettingsError, UsageError

BAD_NAMES: list[tuple[Any, str]] = [
    ("", "is empty; give 1 to 255 bytes"),
    ("x" * 256, "is 256 bytes long; give at most 255 bytes"),
    ("é" * 128, "is 256 bytes long"),
    ("ma\0il", "contains a NUL character"),
    ("\ud800", "contains a lone surrogate"),
    (7, "is of type int; give a str"),
    (None, "is of type NoneType; give a str"),
    (b"mail", "is of type bytes; give a str"),
]


class Checkout(Machine[None, None]):
    @step
    async def only(self, ctx: Context[None]) -> Outcome[None]:
        return Done(None)


async def publish(event: Any) -> None:
    raise AssertionError("this worker is never opened")


@pytest.mark.parametrize(("name", "problem"), BAD_NAMES)
def test_invalid_queue_prefix_and_sink_names_are_rejected(name: Any, problem: str) -> None:
    for what, given in (
        ("the name of a queue in queues=", {"queues": {"default": 1, name: 1}}),
        ("a prefix in prefixes=", {"prefixes": {"default.": 1, name: 1}}),
        ("a prefix in prefixes=", {"prefixes": ["default.", name]}),
        ("the name of a sink in sinks=", {"sinks": {"default": publish, name: publish}}),
    ):
        options: dict[str, Any] = given
        with pytest.raises(UsageError, match=problem) as refused:
            Worker([Checkout], **options)
        assert str(refused.value).startswith(what)


@pytest.mark.parametrize("prefixes", [7, True, [["billing."]]])
def test_prefixes_of_a_wrong_type_are_rejected(prefixes: Any) -> None:
    with pytest.raises(UsageError, match="prefixes="):
        Worker([Checkout], prefixes=prefixes)


@pytest.mark.parametrize(("name", "problem"), [bad for bad in BAD_NAMES if bad[0] != ""])
def test_invalid_alert_sink_is_rejected(name: Any, problem: str) -> None:
    with pytest.raises(SettingsError, match=f"settings.alerts must be the name of a sink: .* {problem}"):
        Settings(alerts=name)


@pytest.mark.parametrize("source", [7, None, "/a\nb"])
def test_invalid_event_source_is_rejected(source: Any) -> None:
    with pytest.raises(SettingsError, match=r"settings\.event_source must be a URI"):
        Settings(event_source=source)
