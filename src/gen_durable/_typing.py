"""Type variables that have defaults, and the marker for "not given".

With defaults (PEP 696) users may write `Machine`, `Context` or `Outcome` bare and still pass `mypy --strict`.
Type variables have defaults at run time from Python 3.13 on. Type checkers read the import of `typing_extensions`,
which never executes, so the package does not depend on it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

__all__ = [
    "KEEP",
    "ItemT",
    "Keep",
    "PayloadT",
    "ResourcesT",
    "ResultT",
    "ResultT_co",
    "StateT",
    "T_co",
    "TypeVar",
]

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    import typing

    def TypeVar(name, *, bound=None, covariant=False, default=None):  # noqa: N802, ANN001, ANN202 - named like the class that it replaces
        return typing.TypeVar(name, bound=bound, covariant=covariant)


# Must be invariant: type checkers would widen a covariant state to `object` and accept any wrong one.
StateT = TypeVar("StateT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ResultT_co = TypeVar("ResultT_co", covariant=True, default=Any)
PayloadT = TypeVar("PayloadT", default=Any)
ItemT = TypeVar("ItemT", default=Any)
ResourcesT = TypeVar("ResourcesT", default=Any)
# The return value of a step: an outcome, or a coroutine of one.
T_co = TypeVar("T_co", covariant=True, default=Any)


class Keep(enum.Enum):
    """The type of `KEEP`, the default of arguments for which `None` is a value."""

    KEEP = "keep"

    def __repr__(self) -> str:
        return self.name


KEEP: Final = Keep.KEEP
