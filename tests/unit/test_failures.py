"""Exceptions as stored errors."""

from __future__ import annotations

import asyncio
import json
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

import gen_durable
from gen_durable._core.codec import decode
from gen_durable._core.failures import failure_json, traceback_text
from gen_durable._runtime.executor import _with_timeout
from gen_durable.errors import DecodeError, StepTimeoutError

PACKAGE = Path(gen_durable.__file__).parent


def caught(call: Any, *args: Any) -> BaseException:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - whatever it is
        call(*args)
    return raised.value


def facts(error: BaseException, attempt: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(failure_json(error, attempt, "charge"))
    return found


def inner(password: str) -> NoReturn:
    secret = f"the password is {password}"
    raise PermissionError(13, "refused", secret[:3])


def outer(password: str) -> NoReturn:
    hidden = [password]
    inner(hidden[0])


def test_stored_error_has_type_message_traceback_attempt_and_step() -> None:
    error = caught(outer, "hunter2")
    found = facts(error, 4)
    assert list(found) == ["type", "message", "traceback", "attempt", "step"]
    assert (found["type"], found["message"], found["attempt"]) == (
        "PermissionError",
        "[Errno 13] refused: 'the'",
        4,
    )
    assert [line.rpartition(" in ")[2] for line in found["traceback"][-2:]] == ["outer", "inner"]
    assert all(line.startswith(f"{__file__}:") for line in found["traceback"][-2:])


def test_stored_error_has_no_local_variables() -> None:
    assert "hunter2" not in failure_json(caught(outer, "hunter2"), 0, "charge")


def places(error: BaseException) -> list[str]:
    """The functions of the stored frames, outermost first."""
    text = traceback_text(error).splitlines()
    return [line.rpartition(" in ")[2] for line in text if line.startswith("  File ")]


def fail_twice(password: str) -> NoReturn:
    try:
        outer(password)
    except PermissionError as error:
        raise LookupError("no way in") from error


async def as_a_step(call: Any, *args: Any) -> None:
    """Call it with a frame of the engine above the user's, as an executor does."""
    await _with_timeout(StepTimeoutError("m", "s", timedelta(seconds=9)), as_awaitable(call, *args))


async def as_awaitable(call: Any, *args: Any) -> None:
    call(*args)


def raised_in_a_step(call: Any, *args: Any) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011 - whatever it is
        asyncio.run(as_a_step(call, *args))
    return raised.value


def test_traceback_omits_engine_frames_above_user_code() -> None:
    error = raised_in_a_step(fail_twice, "hunter2")
    assert "in _with_timeout" in "".join(traceback.format_exception(error))
    text = traceback_text(error)
    assert "in _with_timeout" not in text
    assert text.endswith("LookupError: no way in")
    cause = places(error)[:3]
    assert cause == ["fail_twice", "outer", "inner"]
    assert places(error)[-2:] == ["as_awaitable", "fail_twice"]


def test_traceback_of_a_group_omits_engine_frames_in_every_part() -> None:
    inside = raised_in_a_step(outer, "hunter2")
    text = traceback_text(ExceptionGroup("two", [inside, ValueError("the other")]))
    assert "in outer" in text
    assert "in _with_timeout" not in text


def test_traceback_keeps_the_frame_that_raised_an_engine_error() -> None:
    assert places(caught(decode, "{", int, "the state"))[-2:] == ["caught", "decode"]
    error = caught(decode, "{", int, "the state")
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
        error.__traceback__ = error.__traceback__.tb_next
    assert places(error)[-1:] == ["decode"]


def test_engine_frames_are_cut() -> None:
    error = caught(decode, "{", int, "the state")
    assert isinstance(error, DecodeError)
    assert not [line for line in facts(error)["traceback"] if line.startswith(f"{PACKAGE}/")]


def test_frames_of_a_package_with_our_prefix_are_kept(tmp_path: Path) -> None:
    """For example `gen_durable_billing` next to `gen_durable`."""
    neighbour = f"{PACKAGE}_billing/jobs.py"
    space: dict[str, Any] = {}
    exec(compile("def fail():\n    raise ValueError('no')", neighbour, "exec"), space)
    assert facts(caught(space["fail"]))["traceback"][-1] == f"{neighbour}:2 in fail"


def test_innermost_frames_are_kept() -> None:
    def deep(depth: int) -> NoReturn:
        if depth:
            deep(depth - 1)
        inner("hunter2")

    lines = facts(caught(deep, 100))["traceback"]
    assert len(lines) == 20
    assert lines[-1].endswith(" in inner")


def test_recursion_error_is_stored() -> None:
    def endless() -> NoReturn:
        endless()

    found = facts(caught(endless))
    assert (found["type"], len(found["traceback"])) == ("RecursionError", 20)


def test_characters_postgresql_rejects_are_escaped() -> None:
    space: dict[str, Any] = {}
    exec(compile("def fail(): raise ValueError('a\\0\\ud800')", "odd\ud800.py", "exec"), space)
    text = failure_json(caught(space["fail"]), 0, "charge")
    found = json.loads(text)
    assert found["message"] == r"a\x00\ud800"
    assert found["traceback"][-1] == r"odd\ud800.py:1 in fail"
    assert "\0" not in text
    assert r"\u0000" not in text
    text.encode()


@pytest.mark.parametrize("original", ["", "x" * 100_000])
def test_messages_are_truncated(original: str) -> None:
    message = facts(ValueError(original))["message"]
    assert len(message) <= 8000
    assert original.startswith(message[:-1])


class Mute(Exception):  # noqa: N818 - it says nothing
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_exception_whose_str_raises_is_shown_by_type() -> None:
    assert facts(Mute()) == {
        "type": "Mute",
        "message": "(str() of this exception raised)",
        "traceback": [],
        "attempt": 0,
        "step": "charge",
    }
