"""An instance of version 1: old workers commit states of version 1, new workers upgrade it to version 2."""

from __future__ import annotations

from typing import Any

from gen_durable.outcome import Sql
from tests.interleavings.actions import cancel, flush_picked, flush_with_effect, lease_some, reap
from tests.interleavings.invariants import require
from tests.interleavings.scenario import End, Scenario
from tests.interleavings.session import flush
from tests.interleavings.world import leased, outcome

_OLD = '{"v": 1}'
_NEW: dict[str, Any] = {"version": 2, "payload": '{"v": 2}'}
_KINDS = ("next", "continue", "retry", "await")


def old_commit_and_upgrade(kind: Any) -> Scenario:
    """An old worker comes back after its lease has expired, while a new worker upgrades the instance."""

    def check(end: End) -> None:
        _check_version(end)
        is_committed = bool(end.result("F").committed())
        # A kept lease can still be reaped until a heartbeat renews it.
        require(
            is_committed != (1 in end.result("R").ids) or (kind == "continue" and is_committed),
            "outcome and reaper both won",
        )

    return Scenario(
        name=f"old worker's commit({kind}) × reap × upgrade",
        sample=90,
        setup=[leased(1, state=_OLD)],
        sessions={
            "F": [flush(outcome(1, kind, payload=_OLD, **_extra(kind)))],
            "R": [reap()],
            "K": [lease_some(8, worker="w2"), flush_picked(kind, **_NEW, **_extra(kind))],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def late_upgrade_and_old_commit(kind: Any) -> Scenario:
    """A new worker comes back after its lease has expired, while an old worker continues the instance."""

    def check(end: End) -> None:
        _check_version(end)
        is_committed = bool(end.result("F").committed())
        require(is_committed != (1 in end.result("R").ids), "outcome and reaper both won")

    return Scenario(
        name=f"late upgrade({kind}) × reap × old worker's pick and commit",
        sample=90,
        setup=[leased(1, state=_OLD)],
        sessions={
            "F": [flush(outcome(1, kind, **_NEW, **_extra(kind)))],
            "R": [reap()],
            "K": [lease_some(8, worker="w2"), flush_picked("next", payload=_OLD)],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def upgrade_and_cancel(kind: Any, *, has_effect: bool = False) -> Scenario:
    """A cancel wins over an upgrade: state and version stay as they were."""
    entry = outcome(1, kind, effect=Sql("select 1") if has_effect else None, **_NEW, **_extra(kind))

    def check(end: End) -> None:
        _check_version(end)
        if end.after.status(1) == "cancelled" and not end.result("F").committed():
            require(end.after.instances[1]["fsm_version"] == 1, "a cancelled outcome upgraded the instance")

    return Scenario(
        name=f"upgrade({kind}{', with an effect' * has_effect}) × cancel",
        setup=[leased(1, state=_OLD)],
        sessions={"F": [flush_with_effect(entry) if has_effect else flush(entry)], "C": [cancel(1)]},
        check=check,
    )


def unchanged_state(kind: Any) -> Scenario:
    """An outcome of the new code that leaves the stored state leaves the version, so an old worker can continue."""

    def check(end: End) -> None:
        _check_version(end)
        require(end.after.instances[1]["fsm_version"] == 1, "upgraded without a state")

    return Scenario(
        name=f"new worker's commit({kind}, stored state) × reap × old worker's pick",
        setup=[leased(1, state=_OLD)],
        sessions={
            "F": [flush(outcome(1, kind, payload=None))],
            "R": [reap()],
            "K": [lease_some(8, worker="w2")],
        },
        check=check,
        never_wait=frozenset({"R"}),
    )


def _extra(kind: str) -> dict[str, Any]:
    return {"awaits": ("go",)} if kind == "await" else {}


def _check_version(end: End) -> None:
    row = end.after.instances[1]
    require(row["state"]["v"] == row["fsm_version"], "the state does not fit the version")


SCENARIOS = [
    *(old_commit_and_upgrade(kind) for kind in _KINDS),
    *(late_upgrade_and_old_commit(kind) for kind in ("next", "retry")),
    *(upgrade_and_cancel(kind) for kind in _KINDS),
    upgrade_and_cancel("next", has_effect=True),
    *(unchanged_state(kind) for kind in ("retry", "release", "stop", "defer")),
]
