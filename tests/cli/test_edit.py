"""`gen-durable edit`."""

from __future__ import annotations

import json
from typing import Any, get_args

import psycopg
import pytest

from gen_durable.cli.edit import _REFUSALS
from gen_durable.instance import EditRefusal
from gen_durable.testing import Harness
from tests.cli.conftest import Gd, output, parsed, refused
from tests.cli.machines import BIG, Checkout, Parcel


def _answer(monkeypatch: pytest.MonkeyPatch, *texts: str | None) -> list[str]:
    """Let the editor save these texts, one after the other; return what it was given."""
    shown: list[str] = []
    rest = iter(texts)

    def edit(text: str, extension: str) -> str | None:
        assert extension == ".json"
        shown.append(text)
        return next(rest)

    monkeypatch.setattr("click.edit", edit)
    return shown


@pytest.mark.clause("EDT-1", "CLI-2")
def test_edit_opens_the_editor_shows_the_difference_and_asks(
    gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = shop.insert(Checkout, {"order": 1, "note": "x"})
    shown = _answer(monkeypatch, json.dumps({"order": BIG}), json.dumps({"order": BIG}))
    question = f'- $.note: "x"\n~ $.order: 1 -> {BIG}\nEdit Checkout 1 (runnable, step start)? [y/N]: '
    declined = gd("edit", 1, answer="n\n")
    assert output(declined) == (1, "", f"{question}n\nnothing was changed\n")
    assert json.loads(shown[0]) == {"order": 1, "note": "x"}
    assert output(gd("edit", 1, answer="y\n")) == (0, "1: edited, runnable\n", f"{question}y\n")
    found = shop.get(ref)
    assert found is not None
    assert (found.state, found.step_seq) == ({"order": BIG}, 1)


def test_invalid_json_can_be_edited_again(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(Checkout, {"order": 1})
    shown = _answer(monkeypatch, '{"order": 2', '{"order": 2}')
    done = gd("edit", 1, answer="\ny\n")
    assert done.exit_code == 0
    assert "the state is invalid" in done.stderr
    assert shown[1] == '{"order": 2'


def test_unchanged_state_is_not_written(gd: Gd, shop: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.insert(Checkout, {"order": 1})
    _answer(monkeypatch, None)
    assert output(gd("edit", 1)) == (1, "", "nothing was changed: the state is the same\n")
    assert output(gd("edit", 1, "--state", '{"order": 1}')) == (
        1,
        "",
        "nothing was changed: the state is the same\n",
    )


@pytest.mark.clause("EDT-1", "EDT-6")
def test_step_and_state_can_be_options(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Checkout, {"order": 1}, correlation_key="order:1")
    asked = gd("edit", "order:1", "--step", "ship", answer="y\n")
    assert output(asked) == (
        0,
        "1: edited, runnable\n",
        "step: start -> ship\nEdit Checkout 1 (runnable, step start)? [y/N]: y\n",
    )
    done = gd(
        *("edit", 1, "--state", "-", "--yes", "--json", "--reason", "wrong order", "--actor", "eve"),
        answer='{"order": 2}',
    )
    assert parsed(done) == {"edited": True, "id": 1, "step_seq": 2, "status": "runnable"}
    assert done.stderr == ""
    row = sql.execute("select event, actor, reason from gen_durable.audit_events order by id desc").fetchone()
    assert row == ("edited", "eve", "wrong order")
    shown = gd("edit", 1, "--state", '{"note": "x"}', "--yes", "--no-validate")
    assert output(shown) == (0, "1: edited, runnable\n", '- $.order: 2\n+ $.note: "x"\n')


@pytest.mark.clause("EDT-4")
def test_edit_says_why_it_was_refused(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Parcel, 1)
    shop.drain()
    assert gd("edit", 1, "--state", "2", "--yes").stdout == (
        "1: not changed: it is done; `retry` continues a cancelled instance, `fork` starts a new one\n"
    )
    shop.insert(Checkout, {})
    stale = gd("edit", 2, "--step", "ship", "--expected-step-seq", 7, "--yes", "--json")
    assert (stale.exit_code, parsed(stale)) == (
        1,
        {"edited": False, "id": 2, "why": "moved", "status": "runnable", "step_seq": 0},
    )
    sql.execute("update gen_durable.gen_durable set status = 'executing', lease_token = 1 where id = 2")
    assert output(gd("edit", 2, "--step", "ship", "--yes"))[:2] == (
        1,
        "2: not changed: a step is executing; repeat the command when it has ended\n",
    )
    assert refused(gd("edit", 9, "--step", "ship")).startswith("no instance has id 9")


@pytest.mark.clause("UNDO-16")
def test_edit_names_each_refusal(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    assert _REFUSALS.keys() == set(get_args(EditRefusal))
    shop.insert(Checkout, {})
    sql.execute("""update gen_durable.gen_durable set compensation = '{"end": {"status": "failed"}}'""")
    assert output(gd("edit", 1, "--step", "ship", "--yes"))[:2] == (
        1,
        "1: not changed: it runs undo steps, or has run them, so it takes no other step; "
        "`retry --step` continues a failed one\n",
    )


@pytest.mark.clause("EDT-2")
def test_edit_checks_the_registered_schema(gd: Gd, shop: Harness, sql: psycopg.Connection[Any]) -> None:
    shop.insert(Parcel, 1)
    sql.execute(
        'update gen_durable.machines set steps = \'["pack"]\', state_schema = \'{"type": "integer"}\''
    )
    assert "expected integer, got string" in refused(gd("edit", 1, "--state", '"x"', "--yes"))
    assert "has no step 'pac'; did you mean 'pack'" in refused(gd("edit", 1, "--step", "pac", "--yes"))
    assert gd("edit", 1, "--state", '"x"', "--yes", "--no-validate").exit_code == 0


@pytest.mark.clause("CLI-6")
def test_retry_and_insert_check_the_registered_schema(
    gd: Gd, shop: Harness, sql: psycopg.Connection[Any]
) -> None:
    sql.execute(
        "update gen_durable.machines set steps = '[\"pack\"]', state_schema = '{\"type\": \"integer\"}' where fsm = 'Parcel'"
    )
    problem = "expected integer, got string"
    assert problem in refused(gd("insert", "Parcel", '"x"'))
    assert "has no step 'pac'" in refused(gd("insert", "Parcel", "1", "--step", "pac"))
    assert shop.count() == 0
    assert gd("insert", "Parcel", '"x"', "--no-validate").exit_code == 0
    shop.drain()
    assert shop.count(Parcel, status="failed") == 1
    assert problem in refused(gd("retry", 1, "--state", '"y"'))
    assert problem in refused(gd("retry", "--where", "machine=Parcel", "--state", '"y"', "--yes"))
    assert "has no step 'pac'" in refused(gd("retry", 1, "--step", "pac"))
    assert shop.count(Parcel, status="failed") == 1
    assert output(gd("retry", 1, "--state", "2", "--step", "pack")) == (0, "1: retried\n", "")
