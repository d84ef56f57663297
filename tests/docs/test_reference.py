"""The reference pages are complete: every setting, command, option, error, outcome argument and `ctx` attribute."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.site.generate import COMMON_OPTIONS, REFERENCE, filled, pages_with_parts
from gen_durable import (
    Await,
    Context,
    Done,
    Next,
    Queue,
    Retry,
    ScheduleChildren,
    Settings,
    Stop,
    config,
    errors,
)
from gen_durable._dictionary import ENTRIES
from gen_durable.cli.root import root


def page(name: str) -> str:
    return (REFERENCE / f"{name}.md").read_text(encoding="utf-8")


def rows(name: str) -> list[list[str]]:
    """The first cells of the tables of a page, as the code that they name."""
    return [
        re.findall(r"`([^`]+)`", line.split(" | ")[0])
        for line in page(name).splitlines()
        if line.startswith("| ")
    ]


def first_cells(name: str) -> list[str]:
    return [code for cell in rows(name) for code in cell]


def test_every_setting_is_listed() -> None:
    listed = first_cells("settings")
    assert set(listed) >= {*Settings.__struct_fields__, *Queue.__struct_fields__}


def test_every_environment_variable_is_listed() -> None:
    source = inspect.getsource(config)
    variables = set(re.findall(r'"(GEN_DURABLE_[A-Z_]*[A-Z])"', source)) - {
        "GEN_DURABLE_DSN_SOURCE",  # set by programs that embed the command line
        config.SUPERVISED,
    }
    assert variables <= set(first_cells("settings"))


def test_every_error_is_listed() -> None:
    public = [name for name in errors.__all__ if inspect.isclass(getattr(errors, name))]
    assert sorted(each for each in first_cells("errors") if each in public) == sorted(public)


def test_every_argument_of_an_outcome_is_listed() -> None:
    text = page("outcomes")
    arguments = text[text.index("## Arguments") :]
    for outcome in (Next, Retry, Await, ScheduleChildren, Done, Stop):
        for name in outcome.__slots__:
            assert f"`{name}`" in arguments, f"{outcome.__name__}({name}=…)"


def test_every_attribute_of_the_context_is_listed() -> None:
    members = [
        name
        for name, member in vars(Context).items()
        if isinstance(member, property) or inspect.isfunction(member)
    ]
    public = {name for name in (*Context.__struct_fields__, *members) if not name.startswith("_")}
    assert {each.split("(")[0] for each in first_cells("context")} == public


def test_every_word_of_the_dictionary_is_listed() -> None:
    assert set(first_cells("dictionary")) == {entry.word for entry in ENTRIES}


def commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{path}{name} ")


@pytest.mark.parametrize(
    ("name", "command"), [*commands(root)], ids=lambda each: each if isinstance(each, str) else ""
)
def test_every_command_is_listed_with_its_options(name: str, command: click.Command) -> None:
    section = re.split(rf"^#+ {name}$", page("cli"), flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
    for option in command.params:
        if isinstance(option, click.Option) and option.opts[0] not in COMMON_OPTIONS:
            assert option.opts[0] in section, f"{name} {option.opts[0]}"


def test_every_listed_command_exists() -> None:
    text = page("cli")
    listed = re.findall(r"^#+ ([a-z]+(?: [a-z]+)?)$", text[text.index("<!-- generated") :], re.MULTILINE)
    assert sorted(listed) == sorted(name for name, _ in commands(root))


def test_generated_pages_are_found() -> None:
    found = [each.stem for each in pages_with_parts()]
    assert found == ["cli", "dashboard", "dictionary", "errors", "settings"]


@pytest.mark.parametrize("generated", pages_with_parts(), ids=lambda each: each.stem)
def test_generated_parts_are_up_to_date(generated: Path) -> None:
    text = generated.read_text(encoding="utf-8")
    assert filled(text) == text, "write the generated parts again: ./run docs"
