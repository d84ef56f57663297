from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import click
import msgspec
import pytest

from gen_durable.cli.options import (
    duration,
    load_settings,
    moment,
    moment_or_age,
    prefix,
    queue,
    target,
)
from gen_durable.cli.worker import worker
from gen_durable.config import Queue, Settings
from gen_durable.errors import SettingsError


@pytest.mark.parametrize(
    ("text", "name", "concurrency"),
    [("default=10", "default", 10), ("a=b=3", "a=b", 3), ("mail", "mail", 10)],
)
def test_queue_option(text: str, name: str, concurrency: int) -> None:
    assert queue(text) == (name, Queue(concurrency=concurrency))


@pytest.mark.parametrize(
    ("text", "name", "concurrency"),
    [("billing.", "billing.", 10), ("media.=20", "media.", 20), ("a=b.", None, 0)],
)
def test_prefix_option(text: str, name: str | None, concurrency: int) -> None:
    if name is None:
        with pytest.raises(click.BadParameter, match=r"for example billing\. or media\.=20"):
            prefix(text)
    else:
        assert prefix(text) == (name, Queue(concurrency=concurrency))


@pytest.mark.parametrize(
    ("text", "value"),
    [("42", 42), ("0042", 42), ("order:42", "order:42"), ("4_2", "4_2"), ("-1", "-1"), ("٤٢", "٤٢")],
)
def test_target_of_digits_is_an_id(text: str, value: int | str) -> None:
    assert target(text) == value


def test_time_is_iso_8601_with_offset() -> None:
    assert moment("2026-01-31T09:00Z") == datetime(2026, 1, 31, 9, tzinfo=UTC)
    assert moment("2026-01-31 10:00:00+01:00") == datetime(2026, 1, 31, 9, tzinfo=UTC)
    assert moment_or_age("1h30m") == timedelta(minutes=90)
    assert moment_or_age("2026-01-31T09:00Z") == datetime(2026, 1, 31, 9, tzinfo=UTC)
    with pytest.raises(
        click.BadParameter, match="'2026-01-31T09:00' has no time zone; write 2026-01-31T09:00Z"
    ):
        moment("2026-01-31T09:00")
    with pytest.raises(click.BadParameter, match="write 2026-12-31T00:00Z or 2026-12-31T00:00") as refused:
        moment("2026-12-31")
    for advised in re.findall(r"\S+[Z0]$|\S+Z", refused.value.message):
        moment(advised)


@pytest.mark.parametrize("text", ["=3", "default=", "default=0", "default=-1", "default=many", "=", ""])
def test_invalid_queue_option(text: str) -> None:
    with pytest.raises(click.BadParameter, match="for example default=10"):
        queue(text)


def test_invalid_duration() -> None:
    with pytest.raises(click.BadParameter, match="write for example 90s"):
        duration("90")


def test_every_setting_is_an_option_of_the_worker() -> None:
    options = {name for parameter in worker.params for name in parameter.opts}
    fields = [field.name for field in msgspec.structs.fields(Settings)]
    assert {"--" + name.replace("_", "-") for name in fields} <= options


def test_help_of_settings_is_their_docstring() -> None:
    context = click.Context(worker)
    shown = {each.name: (each.get_help_record(context) or ("", ""))[1] for each in worker.params}
    for field in msgspec.structs.fields(Settings):
        meaning = re.sub(r"Default: .*", "", shown[field.name]).strip()
        assert re.fullmatch(r"[A-Z][^`…]{10,}[.]", meaning), field.name
    assert (
        shown["threads"]
        == "Maximum number of plain def steps that run at once in one worker process. Default: 32."
    )
    assert (
        shown["alerts"] == "Sink that receives an event for each instance that fails; empty disables alerts."
    )
    assert shown["concurrency"].endswith("0 means no limit. Default: none.")
    assert shown["gc"].endswith("at least one worker should. Default: --gc.")


def test_missing_option_keeps_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_THREADS", "7")
    settings = load_settings(
        None, {"threads": None, "lease": timedelta(seconds=2), "heartbeat": timedelta(seconds=1)}
    )
    assert (settings.threads, settings.lease) == (7, timedelta(seconds=2))


def test_contradicting_settings() -> None:
    with pytest.raises(SettingsError, match=r"settings\.heartbeat"):
        load_settings(None, {"lease": timedelta(seconds=2), "heartbeat": timedelta(seconds=2)})


def test_help_of_settings_shows_choices_and_defaults() -> None:
    output = " ".join(worker.get_help(click.Context(worker)).split())
    assert "at most half of the lease. Default: a third of each lease." in output
    assert "--executions [all|failures|off] Which executions are recorded" in output
    assert "--pooler [none|transaction] Connection pooler in front of PostgreSQL" in output
    assert "Default: ." not in output
