"""The parts of the reference that are generated from the code: `./run docs` writes them into the pages.

A page marks such a part with `<!-- generated: NAME -->` and `<!-- end of NAME -->`.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import click

from gen_durable import Queue, Settings, errors
from gen_durable._checks import duration_text
from gen_durable._dictionary import ENTRIES
from gen_durable.cli.root import root
from gen_durable.dashboard.endpoints import endpoints
from gen_durable.dashboard.live import topics

ROOT: Final = Path(__file__).parents[2]
REFERENCE: Final = ROOT / "docs" / "reference"
# Options that most commands have; the page explains them once.
COMMON_OPTIONS: Final = ("--dsn", "--settings", "--schema", "--pooler", "--json")


def write_pages() -> None:
    """Bring the generated parts of all pages up to date."""
    for page in pages_with_parts():
        text = page.read_text(encoding="utf-8")
        if (updated := filled(text)) != text:
            page.write_text(updated, encoding="utf-8")
            print(f"updated {page.relative_to(ROOT)}")


def pages_with_parts() -> list[Path]:
    """Return the pages of the reference that have a generated part."""
    return [page for page in sorted(REFERENCE.glob("*.md")) if _PART.search(page.read_text(encoding="utf-8"))]


def filled(text: str) -> str:
    """Return the text of a page with its generated parts up to date."""
    return _PART.sub(
        lambda found: f"{found['begin']}\n{PARTS[found['name']]().strip()}\n\n{found['end']}", text
    )


def settings_table() -> str:
    """Return a table of all settings."""
    return _fields_table(Settings, "setting")


def queue_table() -> str:
    """Return a table of the fields of `Queue`."""
    return _fields_table(Queue, "field")


def _fields_table(kind: type, title: str) -> str:
    docs, values = _attribute_docs(kind), kind()
    rows = [(f"`{name}`", _default(getattr(values, name)), docs[name]) for name in kind.__struct_fields__]  # type: ignore[attr-defined]
    return _table((title, "default", "meaning"), rows)


def _default(value: object) -> str:
    if isinstance(value, timedelta):
        return f"`{duration_text(value)}`"
    if isinstance(value, bool):
        return "`on`" if value else "`off`"
    return "none" if value in (None, "") else f"`{value}`"


def error_table() -> str:
    """Return a table of all errors, each below its base class."""
    rows: list[tuple[str, ...]] = []

    def visit(kind: type[Exception]) -> None:
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        rows.append((f"`{kind.__name__}`", bases, _first_paragraph(kind.__doc__)))
        for child in sorted(kind.__subclasses__(), key=lambda each: each.__name__):
            if child.__name__ in errors.__all__:
                visit(child)

    visit(errors.GenDurableError)
    return _table(("error", "subclass of", "meaning"), rows)


def dictionary_tables() -> str:
    """Return a table for each other vocabulary: its words, and the names here."""
    shown = []
    for source in dict.fromkeys(entry.source for entry in ENTRIES):
        title = source[0].upper() + source[1:]
        rows = [
            (f"`{entry.word}`", f"`{entry.code}`", entry.note) for entry in ENTRIES if entry.source == source
        ]
        shown.append(f"## {title}\n\n" + _table(("word", "here", "note"), list(dict.fromkeys(rows))))
    return "\n".join(shown)


def command_reference() -> str:
    """Return a section for each command: usage, help, arguments and options."""
    return "\n".join(_commands(root, "gen-durable", 2))


def endpoint_table() -> str:
    """Return a table of the endpoints of the dashboard."""
    every = sorted(endpoints.values(), key=lambda one: (one.path, one.method))
    return _table(
        ("endpoint", "role", "what it does"),
        [(f"`{one.method} /api{one.path}`", f"`{one.role}`", one.summary) for one in every],
    )


def topic_table() -> str:
    """Return a table of the live topics of the dashboard."""
    rows = []
    for one in sorted(topics.values(), key=lambda one: one.name):
        name = f"{one.name}:…" if one.takes else one.name
        rows.append((f"`{name}`", f"{one.every:g} s"))
    return _table(("topic", "polled every"), rows)


def _commands(group: click.Group, path: str, level: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        full = f"{path} {name}"
        context = click.Context(command, info_name=full)
        usage = " ".join(each for each in command.collect_usage_pieces(context) if each != "[OPTIONS]")
        body = [
            f"{'#' * level} {full.removeprefix('gen-durable ')}\n",
            f"`{full} {usage}`".replace(" `", "`") + "\n",
        ]
        body.append(_help_text(command.help or "") + "\n")
        own = [
            each
            for each in command.params
            if isinstance(each, click.Option) and each.opts[0] not in COMMON_OPTIONS
        ]
        options = [each for each in own if each.name not in Settings.__struct_fields__]
        if options:
            body.append(_table(("option", "meaning"), [_option(each, context) for each in options]))
        if len(own) > len(options):
            given = ", ".join(f"`{each.opts[0]}`" for each in own if each not in options)
            body.append(f"Settings as options: {given}. See [settings](settings.md).\n")
        yield "\n".join(body)
        if isinstance(command, click.Group):
            yield from _commands(command, full, level + 1)


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    names, meaning = option.get_help_record(context) or (", ".join(option.opts), option.help or "")
    return f"`{names}`", meaning.replace("|", "\\|")


def _help_text(text: str) -> str:
    """Return the help of a command as Markdown; a backspace marks a paragraph that keeps its lines."""
    paragraphs = []
    for paragraph in inspect.cleandoc(text).split("\f")[0].split("\n\n"):
        if paragraph.startswith("\b\n"):
            paragraphs.append(f"```text\n{textwrap.dedent(paragraph[2:])}\n```")
        else:
            paragraphs.append(paragraph.replace("<", "&lt;"))
    return "\n\n".join(paragraphs)


def _attribute_docs(kind: type) -> dict[str, str]:
    """Return the first paragraph of the docstring below each annotated attribute of a class."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101
    docs: dict[str, str] = {}
    for here, below in zip(body.body, [*body.body[1:], None], strict=True):
        if isinstance(here, ast.AnnAssign) and isinstance(here.target, ast.Name):
            text = (
                below.value.value
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                else ""
            )
            docs[here.target.id] = " ".join(inspect.cleandoc(str(text)).split())
    return docs


def _first_paragraph(text: str | None) -> str:
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())


def _table(titles: Iterable[str], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [tuple(titles), tuple("---" for _ in titles), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


PARTS: Final[dict[str, Callable[[], Any]]] = {
    "settings": settings_table,
    "queue": queue_table,
    "errors": error_table,
    "dictionary": dictionary_tables,
    "commands": command_reference,
    "endpoints": endpoint_table,
    "topics": topic_table,
}
_PART: Final = re.compile(
    r"(?P<begin><!-- generated: (?P<name>\w+) -->).*?(?P<end><!-- end of (?P=name) -->)", re.DOTALL
)
