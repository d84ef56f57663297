"""Settings: defaults, ranges, and precedence of file, environment and arguments."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gen_durable.config import (
    Queue,
    Settings,
    environment_dsn,
    environment_home,
    environment_pg_bin,
    environment_pg_user,
    parse_duration,
)
from gen_durable.errors import SettingsError


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("GEN_DURABLE_"):
            monkeypatch.delenv(name)


@pytest.mark.clause("CFG-3", "CFG-4")
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"schema": "Shop"}, r"settings.schema must match \[a-z_\]"),
        ({"schema": ""}, "settings.schema must match"),
        ({"schema": "a" * 49}, "settings.schema must match"),
        ({"schema": "shop\n"}, "settings.schema must match"),
        ({"schema": 'x"; drop table y; --'}, "settings.schema must match"),
        ({"schema": 7}, "settings.schema must match"),
        ({"schema": "pg_jobs"}, "settings.schema must not begin with pg_"),
        (
            {"lease": 60},
            "settings.lease must be a timedelta, got 60; use timedelta.seconds=60. or timedelta.milliseconds=60.",
        ),
        ({"lease": timedelta(0)}, "settings.lease must be at least 1ms, got 0s"),
        ({"lease": timedelta(days=4000)}, "settings.lease must be at most 3650d"),
        (
            {"heartbeat": timedelta(seconds=31)},
            r"heartbeat must be at most half of settings.lease \(1m\), got 31s",
        ),
        ({"poll_interval": timedelta(0)}, "settings.poll_interval must be at least"),
        (
            {"min_poll_interval": timedelta(seconds=2)},
            "min_poll_interval must be at most settings.poll_interval",
        ),
        ({"reap_interval": timedelta(seconds=-1)}, "settings.reap_interval must be at least"),
        ({"drain_timeout": timedelta(seconds=-1)}, "settings.drain_timeout must be at least 0s"),
        (
            {"loop_blocked_after": timedelta(seconds=-1)},
            "settings.loop_blocked_after must be at least 0s",
        ),
        ({"crash_limit": 0}, "settings.crash_limit must be at least 1, got 0"),
        ({"threads": True}, "settings.threads must be a whole number, got True"),
        ({"max_payload": 2**28}, "settings.max_payload must be at most 268435455"),
        ({"max_children": 1.5}, "settings.max_children must be a whole number, got 1.5"),
        ({"executions": "some"}, "settings.executions must be all, failures or off, got 'some'"),
        ({"executions": True}, "settings.executions must be all, failures or off, got True"),
        ({"executions": None}, "settings.executions must be all, failures or off, got None"),
        ({"pooler": "session"}, "settings.pooler must be none or transaction, got 'session'"),
        ({"audit": "some"}, "settings.audit must be off, failures or all"),
        ({"alerts": "x" * 256}, "settings.alerts must be the name of a sink"),
        ({"pooler": None}, "settings.pooler must be none or transaction, got None"),
    ],
)
def test_setting_out_of_range_is_rejected_by_its_full_name(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(**given)


@pytest.mark.clause("CFG-3")
def test_heartbeat_of_half_the_lease_is_accepted() -> None:
    assert Settings(lease=timedelta(seconds=2), heartbeat=timedelta(seconds=1)).heartbeat == timedelta(
        seconds=1
    )


def test_defaults_record_all_executions_and_assume_no_pooler() -> None:
    assert (Settings().executions, Settings().pooler) == ("all", "none")


@pytest.mark.parametrize("level", ["all", "failures", "off"])
def test_execution_level_may_come_from_environment_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'[tool.gen_durable]\nexecutions = "{level}"\npooler = "transaction"\n')
    settings = Settings.load(file)
    assert (settings.executions, settings.pooler) == (level, "transaction")
    monkeypatch.setenv("GEN_DURABLE_EXECUTIONS", "off")
    monkeypatch.setenv("GEN_DURABLE_POOLER", "none")
    settings = Settings.load(file)
    assert (settings.executions, settings.pooler) == ("off", "none")


def test_invalid_execution_level_is_rejected_from_any_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[tool.gen_durable]\nexecutions = false\n")
    with pytest.raises(SettingsError, match=r"settings\.executions must be all, failures or off, got False"):
        Settings.load(file)
    monkeypatch.setenv("GEN_DURABLE_POOLER", "pgbouncer")
    with pytest.raises(SettingsError, match=r"settings\.pooler must be none or transaction, got 'pgbouncer'"):
        Settings.load()


def test_settings_are_immutable() -> None:
    settings: Any = Settings()
    with pytest.raises(AttributeError):
        settings.lease = timedelta(seconds=1)


@pytest.mark.clause("CFG-4", "PICK-6")
@pytest.mark.parametrize("concurrency", [0, -1, 1.5, True, "10"])
def test_queue_concurrency_must_be_positive(concurrency: Any) -> None:
    with pytest.raises(SettingsError, match=r"queue\.concurrency must be"):
        Queue(concurrency=concurrency)


@pytest.mark.clause("CFG-2")
def test_arguments_override_environment_overrides_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('[tool.gen_durable]\nlease = "30s"\nheartbeat = "10s"\nthreads = 4\nschema = "shop"\n')
    monkeypatch.setenv("GEN_DURABLE_THREADS", "8")
    monkeypatch.setenv("GEN_DURABLE_LEASE", "1m30s")
    settings = Settings.load(file, lease=timedelta(seconds=50))
    assert settings == Settings(
        lease=timedelta(seconds=50), heartbeat=timedelta(seconds=10), threads=8, schema="shop"
    )


def test_settings_are_checked_after_merging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_LEASE", "10s")
    with pytest.raises(SettingsError, match=r"settings\.heartbeat must be at most half"):
        Settings.load(heartbeat=timedelta(seconds=6))
    assert Settings.load(heartbeat=timedelta(seconds=5)).lease == timedelta(seconds=10)


def test_default_heartbeat_is_a_third_of_the_lease() -> None:
    assert Settings().renew_after() == timedelta(seconds=20)
    assert Settings(lease=timedelta(seconds=3)).renew_after() == timedelta(seconds=1)


def test_defaults_apply(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text("[project]\nname = 'shop'\n")
    assert Settings.load(file) == Settings.load() == Settings()


@pytest.mark.clause("CFG-4")
def test_unknown_argument_is_rejected_with_a_hint() -> None:
    with pytest.raises(SettingsError, match=r"settings\.leese is not a setting; did you mean 'lease'\?"):
        Settings.load(leese=timedelta(1))


def test_unknown_variable_is_rejected_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_HARTBEAT", "10s")
    expected = r"GEN_DURABLE_HARTBEAT is not a setting; did you mean 'GEN_DURABLE_HEARTBEAT'\?"
    with pytest.raises(SettingsError, match=expected):
        Settings.load()


def test_unknown_key_of_the_file_is_rejected_with_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[tool.gen_durable]\nthread = 4\n")
    with pytest.raises(
        SettingsError, match=r"settings\.toml: tool\.gen_durable\.thread is not a setting.*'threads'"
    ):
        Settings.load(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.gen_durable]\nlease = 60\n", 'lease must be a duration like "90s" or "1m30s", got 60'),
        ("[tool.gen_durable]\nlease = 'soon'\n", "lease must be a duration: 'soon' is not a duration"),
        ("[tool.gen_durable]\nthreads = 'many'\n", "threads must be a whole number, got 'many'"),
        ("[tool.gen_durable]\nthreads = 1.5\n", "settings.threads must be a whole number, got 1.5"),
        ("[tool]\ngen_durable = 3\n", "tool.gen_durable must be a table"),
        ("[tool", "is not valid TOML"),
    ],
)
def test_malformed_file_is_rejected(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=message):
        Settings.load(file)


def test_missing_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.toml cannot be read: No such file"):
        Settings.load(tmp_path / "none.toml")


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_LEASE", "")
    monkeypatch.setenv("GEN_DURABLE_DSN", "")
    assert Settings.load() == Settings()
    assert environment_dsn() is None


def test_other_gen_durable_variables_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = (environment_dsn, environment_home, environment_pg_bin, environment_pg_user)
    assert [one() for one in read] == [None] * 4
    monkeypatch.setenv("GEN_DURABLE_DSN", "postgresql://db/shop")
    monkeypatch.setenv("GEN_DURABLE_HOME", "/var/lib/shop")
    monkeypatch.setenv("GEN_DURABLE_PG_BIN", "/usr/lib/postgresql/16/bin")
    monkeypatch.setenv("GEN_DURABLE_PG_USER", "postgres")
    monkeypatch.setenv("GEN_DURABLE_PREFIXES", "billing.")
    monkeypatch.setenv("GEN_DURABLE_TEST_CHAOS_SEED", "7")
    assert Settings.load() == Settings()
    assert [one() for one in read] == [
        "postgresql://db/shop",
        Path("/var/lib/shop"),
        Path("/usr/lib/postgresql/16/bin"),
        "postgres",
    ]


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90s", timedelta(seconds=90)),
        ("1m30s", timedelta(seconds=90)),
        ("500ms", timedelta(milliseconds=500)),
        ("2h", timedelta(hours=2)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        ("0.5s", timedelta(milliseconds=500)),
        ("0s", timedelta(0)),
        (" 5m ", timedelta(minutes=5)),
    ],
)
def test_duration_is_parsed(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "90", "s", "1s1m", "-5s", "5 s", "1e3s", "1h1h", "٣s", "inf s", "9" * 400 + "d"]
)
def test_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration; write|too long"):
        parse_duration(text)


@settings(max_examples=40)
@given(st.integers(0, 10**9))
def test_milliseconds_are_parsed_exactly(milliseconds: int) -> None:
    seconds, rest = divmod(milliseconds, 1000)
    assert parse_duration(f"{seconds}s{rest}ms") == timedelta(milliseconds=milliseconds)
