"""The site that `./run docs` builds shows every page and every public name."""

from __future__ import annotations

from pathlib import Path

from docs.site.build import API, ROOT_PAGES, StagedPages, broken_links, exports, navigation, pages, write_llms


def test_navigation_lists_every_page_once() -> None:
    listed = [page for _, names in navigation() for page in names]
    generated = [f"reference/api/{name}.md" for name in API]
    assert sorted(listed) == sorted([*pages().values(), *generated])


def test_api_reference_covers_every_exported_module() -> None:
    shown = [module for _, exporters, complete in API.values() for module in exporters + complete]
    assert set(exports()) <= set(shown)
    assert len(shown) == len(set(shown))


def test_llms_txt_links_every_page(tmp_path: Path) -> None:
    stage = StagedPages(tmp_path / "stage")
    stage.root.mkdir()
    stage.fill()
    write_llms(stage, tmp_path)
    index = (tmp_path / "llms.txt").read_text(encoding="utf-8")
    full = (tmp_path / "llms-full.txt").read_text(encoding="utf-8")
    for page in pages().values():
        text = (stage.docs / page).read_text(encoding="utf-8")
        assert f"]({page})" in index
        assert text in full
        assert (tmp_path / page).read_text(encoding="utf-8") == text
        assert "<!--" not in text
    for name in API:
        assert f"](reference/api/{name}/)" in index


def test_root_pages_exist() -> None:
    assert set(ROOT_PAGES) <= set(pages())


def test_link_check_finds_missing_files_and_anchors(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "index.html").write_text(
        '<h1 id="top">A</h1><a href="#top"></a><a href="../b.html"></a><a href="../#here"></a>'
        '<a href="https://example.org/x"></a><img src="no.png"><a href="#gone"></a>',
        encoding="utf-8",
    )
    (tmp_path / "index.html").write_text('<a href="a/#top">A</a><p id="there">', encoding="utf-8")
    assert sorted(broken_links(tmp_path)) == [
        "a/index.html: #gone (no such anchor)",
        "a/index.html: ../#here (no such anchor)",
        "a/index.html: ../b.html",
        "a/index.html: no.png",
    ]
