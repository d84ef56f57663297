"""Words of the specification and of other systems lead to the names of this one."""

from __future__ import annotations

import inspect
import keyword
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

import gen_durable
from gen_durable import (
    AsyncClient,
    Client,
    Context,
    Done,
    Instance,
    Machine,
    Outcome,
    Settings,
    Spec,
    Status,
    job,
    step,
)
from gen_durable import _verbs as verbs
from gen_durable._dictionary import ENTRIES, Entry, Place, did_you_mean
from gen_durable.refs import InsertOptions

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Plain(Machine[None]):
    @step
    async def only(self, ctx: Context[None]) -> Outcome:
        return Done()


@job("plain.v1")
def plain(payload: int) -> int:
    return payload


def context() -> Context[Any]:
    return Context(id=1, machine="Plain", version=1, step="only", attempt=0, step_seq=1, state=None)


def instance() -> Instance[Any, Any]:
    return Instance(
        id=1,
        machine="Plain",
        version=1,
        step="only",
        status=Status.RUNNABLE,
        state=None,
        inserted_at=NOW,
        updated_at=NOW,
        eligible_at=NOW,
    )


def given(word: str) -> dict[str, Any]:
    return {word: 1}


def define(word: str) -> object:
    class M(Machine[None], **given(word)): ...

    return M


def read_job(word: str) -> object:
    try:
        return getattr(plain, word)
    except AttributeError as error:
        if "did you mean" in str(error):
            raise
    return job("plain.v2", **given(word))


USES: Mapping[Place, Callable[[str], object]] = {
    "insert": lambda word: Spec(Plain, **given(word)),
    "filter": lambda word: list(verbs.count(Plain, {word: 1})),
    "machine": define,
    "step": lambda word: step(**given(word)),
    "job": read_job,
    "context": lambda word: getattr(context(), word),
    "instance": lambda word: getattr(instance(), word),
    "client": lambda word: getattr(Client(), word),
    "package": lambda word: getattr(gen_durable, word),
    "settings": lambda word: Settings(**given(word)),
    "status": lambda word: Spec(Plain, correlation_key="k", correlation_scope=[cast("Any", word)]),
}

NAMES: Mapping[Place, Collection[str]] = {
    "insert": {*InsertOptions.__annotations__, "args", "conn"},
    "filter": verbs.Filters.__annotations__,
    "machine": inspect.signature(Machine.__init_subclass__).parameters,
    "step": inspect.signature(step).parameters,
    "job": {*inspect.signature(job).parameters, *dir(plain)},
    "context": dir(Context),
    "instance": dir(Instance),
    "client": set(dir(AsyncClient)) & set(dir(Client)),
    "package": gen_durable.__all__,
    "settings": msgspec.structs.asdict(Settings()),
    "status": tuple(Status),
}


def label(entry: Entry) -> str:
    return f"{entry.place}-{entry.word}"


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_every_foreign_word_has_a_hint(entry: Entry) -> None:
    with pytest.raises((AttributeError, gen_durable.GenDurableError)) as caught:
        USES[entry.place](entry.word)
    shown = f"'{entry.ours}'" if entry.is_name else f"`{entry.ours}`"
    assert f"; did you mean {shown}?" in str(caught.value)


@pytest.mark.parametrize("entry", ENTRIES, ids=label)
def test_hinted_names_exist_and_foreign_words_do_not(entry: Entry) -> None:
    assert entry.word not in NAMES[entry.place]
    assert not entry.is_name or entry.ours in NAMES[entry.place]
    assert entry.word.isidentifier()
    assert not keyword.iskeyword(entry.word)


def test_foreign_word_has_one_meaning_per_place() -> None:
    counted = Counter((entry.word.lower(), entry.place) for entry in ENTRIES)
    assert [word for word, count in counted.items() if count > 1] == []


def test_foreign_word_used_in_another_place_has_a_hint() -> None:
    with pytest.raises(
        gen_durable.DefinitionError,
        match=r"machine 'M' has no option 'workflow_id'; did you mean `insert\(…, correlation_key=…\)`\?",
    ):
        define("workflow_id")


def test_spelling_does_not_matter() -> None:
    assert did_you_mean("actor", ("queue",), "insert") == "", "a decorator is not what an option means"
    assert did_you_mean("ScheduleChilds", (), "package") == "; did you mean 'ScheduleChildren'?"
    assert did_you_mean("partition-key", ("queue", "concurrency-key")) == "; did you mean 'concurrency-key'?"
    assert did_you_mean("LEASE_TTL", ("LEASE",)) == "; did you mean 'LEASE'?"


def test_names_of_the_user_are_compared_by_spelling() -> None:
    assert did_you_mean("shp", ["ship", "charge"]) == "; did you mean 'ship'?"
    assert did_you_mean("elephant", ["ship", "charge"]) == ""
    assert did_you_mean("replay", ["ship", "charge"]) == ""


def test_import_of_a_foreign_name_has_a_hint() -> None:
    with pytest.raises(
        ImportError, match=r"cannot import name 'Replay' from 'gen_durable'; did you mean 'Retry'\?"
    ):
        exec("from gen_durable import Replay")


def test_python_suggests_similar_names_and_adds_nothing_to_ours() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import gen_durable; gen_durable.Mahcine"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.strip().endswith("has no attribute 'Mahcine'. Did you mean: 'Machine'?")
    with pytest.raises(AttributeError) as caught:
        context().partition_key  # type: ignore[attr-defined]  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("partition_key", None)


def test_missing_attribute_raises_attribute_error() -> None:
    assert not hasattr(context(), "elephant")
    assert not hasattr(gen_durable, "elephant")
    assert not hasattr(gen_durable, "replay")


def test_environment_variable_is_hinted_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEN_DURABLE_LEASE_TTL", "90s")
    with pytest.raises(gen_durable.SettingsError, match=r"did you mean 'GEN_DURABLE_LEASE'\?"):
        Settings.load()
