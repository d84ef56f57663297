"""Type variables that have defaults, and the marker for "not given".

With defaults (PEP 696) users may write `Machine`, `Context` or `Outcome` bare and still pass `mypy --strict`.
The interpreter has them from 3.13 on, checkers everywhere through `typing_extensions`: they read that import,
nobody executes it, and the package needs no dependency for it.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

__all__ = ["KEEP", "Keep", "PayloadT", "ResourcesT", "ResultT", "ResultT_co", "StateT", "T_co", "TypeVar"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    import typing

    def TypeVar(name, *, bound=None, covariant=False, default=None):  # noqa: N802, ANN001, ANN202 - plays a class
        return typing.TypeVar(name, bound=bound, covariant=covariant)


# Must stay invariant: checkers would widen a covariant state to `object` and then accept any wrong one.
StateT = TypeVar("StateT", default=Any)
ResultT = TypeVar("ResultT", default=Any)
ResultT_co = TypeVar("ResultT_co", covariant=True, default=Any)
PayloadT = TypeVar("PayloadT", default=Any)
ResourcesT = TypeVar("ResourcesT", default=Any)
# The value of a step that is called directly: an outcome, or a coroutine of one.
T_co = TypeVar("T_co", covariant=True, default=Any)


class Keep(enum.Enum):
    """Has one member, `KEEP`: the default of arguments whose `None` is a meaning of its own."""

    KEEP = "keep"

    def __repr__(self) -> str:
        """Read as it is written."""
        return self.name


KEEP: Final = Keep.KEEP
