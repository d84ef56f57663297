"""Definitions with `was=` and `@upgrade`, and which machine of a registry runs which version."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable import Context, DefinitionError, Done, Machine, Outcome, step, upgrade
from gen_durable._core.registry import Registry


def _same(state: int) -> int:
    return state


def machine(version: int, *from_versions: int, name: str = "M") -> type[Machine[int, int]]:
    """A machine of this version with upgrades from these."""
    upgrades = {f"from_{number}": upgrade(from_version=number)(_same) for number in from_versions}
    mixin: Any = type("Upgrades", (), upgrades)

    class Made(mixin, Machine[int, int], name=name, version=version):  # type: ignore[misc]  # made here
        @step(was=("old", "older"))
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            return Done(ctx.state)

    return Made


def test_former_names_are_read_from_the_step() -> None:
    definition = machine(1).__definition__
    assert definition.steps["run"].was == ("old", "older")
    assert definition.find_step("older") is definition.steps["run"]
    assert definition.find_step("run") is definition.steps["run"]
    assert definition.find_step("new") is None


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"was": "b"}, {}, "was= of step 'a' of machine 'Twice' names 'b', which is a step of the machine"),
        ({"was": "x"}, {"was": ["y", "x"]}, "was= of step 'b' .* names 'x', and so does step 'a'"),
        ({"was": ["x", "x"]}, {}, "was= of step 'a' .* names 'x', and so does step 'a'"),
        ({"was": ""}, {}, "was= of step 'a' of machine 'Twice'"),
    ],
)
def test_former_names_must_be_unique(first: dict[str, Any], second: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):

        class Twice(Machine[int, int]):
            @step(**first)
            async def a(self, ctx: Context[int]) -> Outcome[int]:
                return Done(1)

            @step(**second)
            async def b(self, ctx: Context[int]) -> Outcome[int]:
                return Done(1)


@pytest.mark.parametrize(
    ("version", "from_versions", "message"),
    [
        (2, (2,), "upgrade from version 2 of machine 'M' does not lead to its version, 2"),
        (3, (1,), r"ends at version 2: .* no upgrade from version 2; add .*from_version=2"),
        (4, (1, 3), "upgrade from version 1 of machine 'M' ends at version 2"),
        (2, (0,), "from_version"),
    ],
)
def test_upgrades_must_form_a_chain(version: int, from_versions: tuple[int, ...], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        machine(version, *from_versions)


def test_second_upgrade_from_a_version_is_rejected() -> None:
    with pytest.raises(DefinitionError, match="two upgrades from version 1: one and two"):

        class Twice(Machine[int, int], version=2):
            @upgrade(from_version=1)
            @staticmethod
            def one(state: int) -> int:
                return state

            @upgrade(from_version=1)
            @staticmethod
            def two(state: int) -> int:
                return state

            @step
            async def run(self, ctx: Context[int]) -> Outcome[int]:
                return Done(1)


async def _async(state: int) -> int:
    return state


@pytest.mark.parametrize("function", [_async, lambda self, state: state, len, Registry])
def test_upgrade_takes_a_plain_function_of_the_state(function: Any) -> None:
    with pytest.raises(DefinitionError):
        upgrade(from_version=1)(function)


def test_upgrade_can_be_called_and_may_be_inside_a_staticmethod() -> None:
    class One(Machine[int, int], version=2):
        @staticmethod
        @upgrade(from_version=1)
        def double(state: int) -> int:
            return state * 2

        @step
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            return Done(1)

    assert One.double(4) == 8
    assert One.__definition__.upgrades[1](4) == 8


def test_subclass_inherits_upgrades_of_its_own_machine_only() -> None:
    class Second(Machine[int, int], name="M", version=2):
        @upgrade(from_version=1)
        @staticmethod
        def some(state: int) -> int:
            return state

        @step
        async def run(self, ctx: Context[int]) -> Outcome[int]:
            return Done(1)

    class Third(Second, name="M", version=3):
        @upgrade(from_version=2)
        @staticmethod
        def more(state: int) -> int:
            return state

    class Other(Second, name="Other"):
        pass

    assert set(Third.__definition__.upgrades) == {1, 2}
    assert not Other.__definition__.upgrades


def test_registry_runs_old_versions_on_the_newest_machine_that_upgrades_them() -> None:
    two, four = machine(2, 1), machine(4, 1, 2, 3)
    for order in ([two, four], [four, two]):
        registry = Registry(order)
        versions = {version: registry.find("M", version).definition.version for version in range(1, 5)}
        assert versions == {1: 4, 2: 2, 3: 4, 4: 4}
        assert sorted(zip(*registry.keys, strict=True)) == [("M", n) for n in range(1, 5)]
        assert [machine.version for machine in registry] == [each.__definition__.version for each in order]
        assert registry.get("M", 5) is None
        assert registry.steps == [["run", "old", "older"]] * 4


@pytest.mark.parametrize(("given", "options"), [((_same,), {}), ((), {}), ((), {"from_version": "1"})])
def test_upgrade_without_a_version_says_how_to_write_it(given: Any, options: Any) -> None:
    with pytest.raises(DefinitionError, match=r"@upgrade got no version; write @upgrade\(from_version=1\)"):
        upgrade(*given, **options)


@pytest.mark.parametrize("option", ["was", "to"])
@pytest.mark.parametrize("given", [5, [5], ["a", None]])
def test_names_of_steps_are_texts(option: str, given: Any) -> None:
    options: Any = {option: given}
    with pytest.raises(DefinitionError, match=rf"{option} of a step is .*; give names of steps: {option}="):
        step(**options)
