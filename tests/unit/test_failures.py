"""What is kept of an exception."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest

import gen_durable
from gen_durable._core.codec import decode
from gen_durable._core.failures import failure_json
from gen_durable.errors import DecodeError

PACKAGE = Path(gen_durable.__file__).parent


def caught(call: Any, *args: Any) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - whatever it is
        call(*args)
    return raised.value


def facts(error: BaseException, attempt: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(failure_json(error, attempt))
    return found


def inner(password: str) -> NoReturn:
    secret = f"the password is {password}"
    raise PermissionError(13, "refused", secret[:3])


def outer(password: str) -> NoReturn:
    hidden = [password]
    inner(hidden[0])


def test_type_message_place_and_attempt() -> None:
    error = caught(outer, "hunter2")
    found = facts(error, 4)
    assert list(found) == ["type", "message", "traceback", "attempt"]
    assert (found["type"], found["message"], found["attempt"]) == (
        "PermissionError",
        "[Errno 13] refused: 'the'",
        4,
    )
    assert [line.rpartition(" in ")[2] for line in found["traceback"][-2:]] == ["outer", "inner"]
    assert all(line.startswith(f"{__file__}:") for line in found["traceback"][-2:])


def test_no_local_is_told() -> None:
    assert "hunter2" not in failure_json(caught(outer, "hunter2"), 0)


def test_frames_of_the_engine_are_cut() -> None:
    error = caught(decode, "{", int, "the state")
    assert isinstance(error, DecodeError)
    assert not [line for line in facts(error)["traceback"] if line.startswith(f"{PACKAGE}/")]


def test_frames_of_a_neighbour_whose_name_begins_like_ours_are_not(tmp_path: Path) -> None:
    """As `gen_durable_billing` beside `gen_durable` in one directory."""
    neighbour = f"{PACKAGE}_billing/jobs.py"
    space: dict[str, Any] = {}
    exec(compile("def fail():\n    raise ValueError('no')", neighbour, "exec"), space)
    assert facts(caught(space["fail"]))["traceback"][-1] == f"{neighbour}:2 in fail"


def test_of_many_frames_the_innermost_are_kept() -> None:
    def deep(depth: int) -> NoReturn:
        if depth:
            deep(depth - 1)
        inner("hunter2")

    lines = facts(caught(deep, 100))["traceback"]
    assert len(lines) == 20
    assert lines[-1].endswith(" in inner")


def test_endless_recursion_is_told_like_any() -> None:
    def endless() -> NoReturn:
        endless()

    found = facts(caught(endless))
    assert (found["type"], len(found["traceback"])) == ("RecursionError", 20)


def test_what_the_database_cannot_hold_is_written_out() -> None:
    space: dict[str, Any] = {}
    exec(compile("def fail(): raise ValueError('a\\0\\ud800')", "odd\ud800.py", "exec"), space)
    text = failure_json(caught(space["fail"]), 0)
    found = json.loads(text)
    assert found["message"] == r"a\x00\ud800"
    assert found["traceback"][-1] == r"odd\ud800.py:1 in fail"
    assert "\0" not in text
    assert r"\u0000" not in text
    text.encode()


@pytest.mark.parametrize("said", ["", "x" * 100_000])
def test_messages_are_as_long_as_a_list_of_failures_can_bear(said: str) -> None:
    message = facts(ValueError(said))["message"]
    assert len(message) <= 8000
    assert said.startswith(message[:-1])


class Mute(Exception):  # noqa: N818 - it says nothing
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_that_cannot_speak_is_known_by_its_type() -> None:
    assert facts(Mute()) == {
        "type": "Mute",
        "message": "(its text could not be read)",
        "traceback": [],
        "attempt": 0,
    }
