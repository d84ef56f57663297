from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gen_durable.cli.failure import Failure
from gen_durable.cli.targets import load
from gen_durable.errors import DefinitionError
from gen_durable.schedules import Schedule
from gen_durable.worker import Worker

APP = """
from gen_durable import Context, Done, Machine, Outcome, Worker, step
from neighbour import Imported

class First(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)

class Second(First, name="second"):
    pass

both = [First, Second()]
worker = Worker([First])
nothing = []
number = 42
mixed = (First, "Second")
"""
NEIGHBOUR = """
from gen_durable import Context, Done, Machine, Outcome, step

class Imported(Machine[int, int]):
    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user project as the current directory. Its modules are removed from sys.modules afterwards."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "neighbour.py").write_text(NEIGHBOUR)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("app", "neighbour"):  # another test may have left its own
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def names(target: str) -> list[str]:
    machines = load(target)
    assert not isinstance(machines, Worker)
    return [(each if isinstance(each, type) else type(each)).__name__ for each in machines]


@pytest.mark.parametrize("place", ["app.py", "app"])
def test_file_means_the_machines_it_defines_or_imports(place: str) -> None:
    assert names(place) == ["Imported", "First", "Second"]


def test_all_narrows_what_a_file_exposes(directory: Path) -> None:
    with (directory / "app.py").open("a") as file:
        file.write('__all__ = ["Second", "number"]\n')
    assert names("app.py") == ["Second"]


def test_machine_with_two_names_counts_once(directory: Path) -> None:
    (directory / "twice.py").write_text("from neighbour import Imported\nOther = Imported\n")
    assert names("twice.py") == ["Imported"]


MADE = """
from gen_durable import Context, Done, Machine, Outcome, step
from neighbour import Imported

class Base(Machine[int, int]):
    pass

class Configured(Machine[int, int]):
    def __init__(self, place: str = "default") -> None:
        self.place = place

    def __eq__(self, other: object) -> bool:  # an object of it is not hashable
        return self is other

    @step
    async def run(self, ctx: Context[int]) -> Outcome[int]:
        return Done(ctx.state)

class Sub(Configured, name="sub"):
    pass

base = Base()
configured = again = Configured("real")
"""


def test_machine_object_replaces_its_class(directory: Path) -> None:
    (directory / "made.py").write_text(MADE)
    loaded = load("made.py")
    assert isinstance(loaded, list)
    assert names("made.py") == ["Imported", "Sub", "Configured"]
    assert getattr(loaded[-1], "place", None) == "real"


def test_all_that_names_only_the_class_keeps_it(directory: Path) -> None:
    (directory / "made.py").write_text(f'{MADE}\n__all__ = ["Configured"]\n')
    loaded = load("made.py")
    assert isinstance(loaded, list)
    assert [isinstance(each, type) for each in loaded] == [True]


SCHEDULED = """
from datetime import timedelta
from gen_durable import Schedule, Spec
from app import First, Second, Imported

each = Schedule("each", Spec(First, 1), every=timedelta(hours=1))
other = Schedule("other", Spec(Imported, 1), every=timedelta(hours=2))
machines = [First, Second]
with_schedule = [First, each]
"""


def test_variable_keeps_the_schedules_of_its_machines(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "timed.py").write_text(SCHEDULED)
    loaded = load("timed.py:machines")
    assert isinstance(loaded, list)
    assert [each.name for each in loaded if isinstance(each, Schedule)] == ["each"]
    said = "warning: schedule other is not stored: timed.py:machines does not have its machine Imported\n"
    assert capsys.readouterr().err == said
    assert names("timed.py:with_schedule") == ["First", "Schedule"]
    assert capsys.readouterr().err == ""
    assert names("timed.py") == ["First", "Second", "Imported", "Schedule", "Schedule"]


@pytest.mark.parametrize("place", ["app.py", "app", "./app.py"])
def test_target_names_a_variable(place: str) -> None:
    assert names(f"{place}:First") == ["First"]
    assert names(f"{place}:both") == ["First", "Second"]
    assert names(f"{place}:Imported") == ["Imported"]
    assert isinstance(load(f"{place}:worker"), Worker)


def test_file_of_a_package_is_imported_as_its_module(directory: Path) -> None:
    package = directory / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text(NEIGHBOUR)
    (package / "app.py").write_text("from .parts import Imported\nmachines = [Imported]\n")
    assert names("shop/app.py:machines") == ["Imported"]
    assert names("shop.app:machines") == ["Imported"]


def test_file_imports_modules_of_its_directory(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "elsewhere").mkdir()
    monkeypatch.chdir(directory / "elsewhere")
    assert names("../app.py") == ["Imported", "First", "Second"]


def test_file_does_not_hide_a_standard_module(directory: Path) -> None:
    import queue

    (directory / "queue.py").write_text(NEIGHBOUR)
    assert names("queue.py") == ["Imported"]
    assert sys.modules["queue"] is queue


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("missing.py", r"file .*missing\.py does not exist"),
        ("missing.module", r"module missing\.module not found from "),
        ("app.missing:x", r"module app\.missing not found"),
        ("app.py:wroker", "app.py has no 'wroker'; did you mean 'worker'?"),
        ("app.py:nothing", "app.py:nothing is empty. Give a machine"),
        ("app.py:number", "app.py:number contains a value of type int. Give a machine"),
        ("app.py:mixed", "app.py:mixed contains a value of type str. Give a machine"),
    ],
)
def test_invalid_targets(target: str, message: str) -> None:
    with pytest.raises(Failure, match=message) as raised:
        load(target)
    assert "\n" not in raised.value.message


def test_file_without_machines(directory: Path) -> None:
    (directory / "empty.py").write_text("import neighbour\n")
    with pytest.raises(
        Failure, match=r"empty\.py has no machine. If a variable holds them, name it: empty\.py:machines"
    ):
        load("empty.py")


def test_import_error_shows_only_user_frames(directory: Path) -> None:
    (directory / "broken.py").write_text("def fail():\n    return 1 / 0\n\nfail()\n")
    with pytest.raises(Failure) as raised:
        load("broken.py")
    assert raised.value.message.startswith("broken.py cannot be imported:\nTraceback")
    assert raised.value.message.endswith("ZeroDivisionError: division by zero")
    assert "targets.py" not in raised.value.message
    assert "importlib" not in raised.value.message


def test_missing_dependency_of_a_target(directory: Path) -> None:
    (directory / "needy.py").write_text("import something_that_nobody_has\n")
    for target in ("needy.py", "needy"):
        with pytest.raises(Failure, match="No module named 'something_that_nobody_has'"):
            load(target)


def test_definition_error_is_shown(directory: Path) -> None:
    (directory / "wrong.py").write_text(
        "from gen_durable import Machine, step\nclass Wrong(Machine[int, int]):\n    @step\n    def run(self): ...\n"
    )
    with pytest.raises(DefinitionError):
        load("wrong.py")


def test_worker_beside_the_machines_is_named_when_they_run(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "served.py").write_text(
        "from gen_durable import Worker\nfrom app import First\n\nmine = Worker([First])\n"
    )
    assert names("served.py") == ["First"]
    assert capsys.readouterr().err == ""
    load("served.py", to_run=True)
    said = "warning: the Worker of served.py is not used, only its machines; to run it: served.py:mine\n"
    assert capsys.readouterr().err == said
    assert isinstance(load("served.py:mine", to_run=True), Worker)
    assert capsys.readouterr().err == ""
