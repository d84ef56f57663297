"""Which queues and prefixes a worker serves: arguments, environment, defaults."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import Context, Done, Machine, Outcome, Queue, SettingsError, UsageError, Worker, job, step


@job("billing.charge.v1", queue="billing")
async def charge() -> None: ...


class Report(Machine[None, None]):
    @step
    async def run(self, ctx: Context[None]) -> Outcome[None]:
        return Done()


def served(**options: Any) -> tuple[dict[str, int], dict[str, int]]:
    """Queues and prefixes with their concurrency."""
    worker = Worker([charge, Report], **options)
    return (
        {name: queue.concurrency for name, queue in worker.served_queues.items()},
        {name: queue.concurrency for name, queue in worker.prefixes.items()},
    )


def test_default_queues_are_those_of_the_machines() -> None:
    assert served() == ({"billing": 10, "default": 10}, {})


def test_worker_with_prefixes_serves_only_given_queues() -> None:
    assert served(prefixes=["billing.", "media."]) == ({}, {"billing.": 10, "media.": 10})
    assert served(prefixes=["billing."], queues={"default": 3}) == ({"default": 3}, {"billing.": 10})


def test_concurrency_per_prefix() -> None:
    assert served(prefixes={"billing.": 5, "media.": Queue(concurrency=2)})[1] == {"billing.": 5, "media.": 2}
    assert served(prefixes=("billing.", "billing."))[1] == {"billing.": 10}
    assert served(prefixes=(name for name in ["a.", "b."]))[1] == {"a.": 10, "b.": 10}


@pytest.mark.clause("ROUTE-3")
@pytest.mark.parametrize("nothing", [[], (), {}])
def test_empty_prefixes_mean_default(nothing: Any) -> None:
    assert served(prefixes=nothing) == ({}, {"default.": 10})


@pytest.mark.clause("ROUTE-2", "ROUTE-3")
@pytest.mark.parametrize(
    ("text", "prefixes"),
    [
        ("billing.", ["billing."]),
        ("media.,email.", ["media.", "email."]),
        (" media. , email. ,", ["media.", "email."]),
        ("", ["default."]),
        (" , ", ["default."]),
    ],
)
def test_prefixes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, prefixes: list[str]
) -> None:
    monkeypatch.setenv("WORKER_TYPE_PREFIXES", text)
    assert served() == ({}, dict.fromkeys(prefixes, 10))


@pytest.mark.clause("ROUTE-2")
def test_gen_durable_prefixes_wins_over_its_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_TYPE_PREFIXES", "media.")
    monkeypatch.setenv("GEN_DURABLE_PREFIXES", "billing.,ops.")
    assert served() == ({}, dict.fromkeys(["billing.", "ops."], 10))
    monkeypatch.setenv("GEN_DURABLE_PREFIXES", "")
    assert served() == ({}, {"media.": 10})


@pytest.mark.clause("ROUTE-2")
def test_arguments_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_TYPE_PREFIXES", "media.")
    assert served(prefixes=["billing."]) == ({}, {"billing.": 10})
    assert served(queues={"default": 1}) == ({"default": 1}, {})


@pytest.mark.parametrize(
    "wrong",
    ["billing.", [""], [7], ["a\0"], ["x" * 256], ["\U0010ffff"], {"billing.": 0}, {"billing.": "many"}],
)
def test_invalid_prefixes_are_refused(wrong: Any) -> None:
    with pytest.raises((SettingsError, UsageError), match=r"prefix|concurrency"):
        served(prefixes=wrong)


def test_on_unknown_is_fail_or_leave() -> None:
    wrong: Any = "ignore"
    with pytest.raises(SettingsError, match="on_unknown must be 'fail' or 'leave', got 'ignore'"):
        Worker([charge], prefixes=["billing."], on_unknown=wrong)
