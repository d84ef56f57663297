"""Every clause has a test, every mark names a clause, and the conformance table is current."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.conformance import (
    COMMAND,
    ROOT,
    SPEC,
    TABLE,
    Tag,
    clauses,
    current,
    proofs_of,
    render,
    tags,
)

CLAUSES = clauses(SPEC.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tagged() -> list[Tag]:
    """All clause marks."""
    return tags(ROOT / "tests")


def test_every_clause_has_a_test(tagged: list[Tag]) -> None:
    proofs = proofs_of(tagged)
    assert [clause.id for clause in CLAUSES if clause.id not in proofs] == []


def test_every_mark_names_a_clause_on_a_test_that_runs(tagged: list[Tag]) -> None:
    known = {clause.id for clause in CLAUSES}
    unknown = [f"{tag.path}: {tag.test} names {tag.clause}" for tag in tagged if tag.clause not in known]
    assert unknown == []
    assert [f"{tag.path}: {tag.test}" for tag in tagged if not tag.is_proof] == []


def test_clause_ids_are_unique() -> None:
    assert [id for id, count in Counter(clause.id for clause in CLAUSES).items() if count > 1] == []


def test_conformance_table_is_up_to_date() -> None:
    written = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    assert written == current(), f"docs/internals/conformance.md is out of date; write it again: {COMMAND}"


def test_clauses_are_read_with_their_section_and_source() -> None:
    text = "## 1 One\n\n- **A-1** It is so. It\n  is.\n  *(spec 1; [differs](x.md))*\n- **A-2** And so. *(plan)*\n"
    first, second = clauses(text)
    assert (first.id, first.section, first.source) == ("A-1", "1 One", "spec 1; differs")
    assert (first.statement, first.text, second.source) == ("It is so.", "It is so. It is.", "plan")


@pytest.mark.parametrize("item", ["- **A-1** No source.", "- **A1** No number. *(spec)*"])
def test_malformed_clause_is_rejected(item: str) -> None:
    with pytest.raises(ValueError, match="not '- "):
        clauses(item)


def test_skipped_tests_do_not_prove_a_clause(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "@pytest.mark.clause('A-1', 'A-2')\ndef test_a(): ...\n"
        "@pytest.mark.xfail(reason='no')\n@pytest.mark.clause('A-3')\nasync def test_b(): ...\n"
    )
    found = tags(tmp_path)
    assert [(tag.clause, tag.test, tag.is_proof) for tag in found] == [
        ("A-1", "test_a", True),
        ("A-2", "test_a", True),
        ("A-3", "test_b", False),
    ]
    assert set(proofs_of(found)) == {"A-1", "A-2"}


def test_clause_named_by_a_variable_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text("@pytest.mark.clause(ID)\ndef test_a(): ...\n")
    with pytest.raises(TypeError, match="names a clause by ID"):
        tags(tmp_path)


def test_conformance_table_lists_tests_by_file(tagged: list[Tag]) -> None:
    (clause,) = clauses("## 1 One\n\n- **A-1** This | that. *(spec 1)*")
    found = [tag for tag in tagged if tag.clause == CLAUSES[0].id][:1]
    text = render([clause], {"A-1": found})
    assert f"| A-1 | This \\| that. | `{found[0].path}`: {found[0].test} | spec 1 |" in text
