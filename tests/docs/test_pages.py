"""Every page of documentation does what it says; `pages` tells how one is run."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from gen_durable.testing._databases import Databases
from tests.docs.pages import PAGES, ROOT, RUN, SHOWN, Page, Reading

# No snippet of these pages has to run: the index, the glossary, and the pages about how the project is built.
PROSE = ("docs/README.md", "docs/performance.md", "docs/get-started/glossary.md", "docs/internals/")
# They need a Django site: tests/docs/test_frameworks.py and test_django_recipe.py run them.
ELSEWHERE = ("docs/guides/frameworks.md", "docs/recipes/django.md")
# Blocks that cannot run, each with its reason above it.
NOT_RUN = {
    "README.md": 3,
    "docs/get-started/install.md": 1,
    "docs/get-started/quickstart.md": 4,
    "docs/guides/dashboard-deploy.md": 2,
    "docs/guides/dashboard-develop.md": 1,
    "docs/guides/dashboard-operate.md": 1,
    "docs/guides/frameworks.md": 1,
    "docs/guides/graph.md": 1,
    "docs/guides/outbox.md": 1,
    "docs/guides/repairing.md": 1,
    "docs/guides/watching.md": 1,
    "docs/internals/failure-lab.md": 2,
    "docs/recipes/agent-in-a-browser.md": 1,
    "docs/recipes/celery-task.md": 2,
    "docs/reference/cli.md": 1,
    "docs/reference/sql.md": 3,
    "docs/reference/telemetry.md": 1,
}


@pytest.mark.clause("EVT-1", "EVT-9", "FLOW-16", "SQL-6")
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not page.name.startswith(PROSE + ELSEWHERE)],
    ids=lambda page: page.path.stem,
)
async def test_snippets_of_the_page_run(
    page: Page,
    durable_dsn: str,
    direct_dsn: str,
    durable_databases: Databases,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert any(block.runs for block in page.blocks), "a page without a snippet that runs"
    reading = Reading(page, tmp_path, durable_databases, monkeypatch)
    await reading.run(durable_dsn, direct_dsn)
    assert reading.promise_count, "nothing is promised: write `# →` and what comes back"


async def test_wrong_comment_in_a_page_is_found(
    durable_dsn: str, durable_databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for block in (
        "python\n1 + 1  # → 3",
        "python\nint('1')  # ✗ invalid literal",
        "python\ndef test_it(durable):\n    durable.assert_done(1)",
        'python title="test_it.py"\nasync def test_it(async_durable):\n    assert not await async_durable.drain()',
        "sh\ngen-durable ls --status unheard-of",
        "sh\ngen-durable db status\n# → of another age",
        "sh\nls",
        "sql\nselect 1;\n-- → 2",
        "sql\nselect 1;\n-- ✗ no such thing",
    ):
        page = Page(ROOT / "docs" / "wrong.md", f"```{block}\n```\n")
        assert [each.runs for each in page.blocks] == [True]
        with pytest.raises((AssertionError, pytest.fail.Exception)):
            await Reading(page, tmp_path, durable_databases, monkeypatch).run(durable_dsn, durable_dsn)


def test_blocks_that_do_not_run_are_counted() -> None:
    assert Counter(page.name for page in PAGES for block in page.blocks if block.reason) == NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_run_or_marked(page: Page) -> None:
    assert len(re.findall(r"^\s*```", page.text, re.MULTILINE)) == 2 * len(page.blocks)
    for block in page.blocks:
        assert block.reason or block.language in RUN + SHOWN, (
            f"line {block.line}: a block of {block.language!r}"
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_have_targets(page: Page) -> None:
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.text):
        target = page.path.parent / link if link else page.path
        assert target.exists(), link
        if anchor and target.suffix == ".md":  # the fragment of an image selects the light or the dark theme
            assert anchor in _anchors(target.read_text(encoding="utf-8")), f"{link}#{anchor}"


def _anchors(text: str) -> set[str]:
    """The anchors that a forge and the site give to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_index_names_every_page() -> None:
    (index,) = [page for page in PAGES if page.name == "docs/README.md"]
    pages = [
        page.name
        for page in PAGES
        if not page.name.startswith(("README.md", "docs/README.md", "docs/internals/adr/"))
    ]
    assert [name for name in pages if f"({name.removeprefix('docs/')})" not in index.text] == []


def test_readme_begins_with_the_quickstart() -> None:
    (first, *_) = [block.text for block in PAGES[0].blocks if block.language == "python"]
    assert first == (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8")


def test_readme_shows_the_example_shop() -> None:
    assert PAGES[0].files()["shop.py"] == (ROOT / "examples" / "shop.py").read_text(encoding="utf-8")


def test_glossary_defines_each_term_once() -> None:
    text = (ROOT / "docs" / "get-started" / "glossary.md").read_text(encoding="utf-8")
    terms = re.findall(r"^\| \*\*(.+?)\*\* \|", text, re.MULTILINE)
    assert len(terms) == len(set(terms)) > 50
