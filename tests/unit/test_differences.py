"""Differences between two JSON values."""

from __future__ import annotations

from typing import Any

import pytest

from gen_durable._core.differences import differences
from gen_durable.instance import StateChange


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [StateChange("$.a", "changed", 1, 2)]),
        ({"a": 1}, {"b": 1}, [StateChange("$.a", "removed", 1), StateChange("$.b", "added", None, 1)]),
        ([1, 2], [1, 3, 4], [StateChange("$[1]", "changed", 2, 3), StateChange("$[2]", "added", None, 4)]),
        ([1, 2], [1], [StateChange("$[1]", "removed", 2)]),
        ({"a": {"b-c": [None]}}, {"a": {"b-c": [0]}}, [StateChange('$.a["b-c"][0]', "changed", None, 0)]),
        (1, True, [StateChange("$", "changed", 1, True)]),
        ({"a": 1}, [1], [StateChange("$", "changed", {"a": 1}, [1])]),
    ],
)
def test_differences_name_the_changed_parts(before: Any, after: Any, expected: list[StateChange]) -> None:
    assert list(differences(before, after)) == expected
