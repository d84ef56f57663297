"""The checks of the demo: each finds one planted fault."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gen_durable.demo.checks import Evidence, checks
from gen_durable.demo.ledger import Print
from gen_durable.demo.machines import Order, Parcel, Receipt, Shipped
from gen_durable.instance import ExecutionRecord, ExecutionStatus, Instance, Status

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def checkout(id: int, **changed: Any) -> Instance[Order, Receipt]:
    given: dict[str, Any] = {
        "step": "close",
        "step_seq": 3,
        "state": Order(id, 2, "", ["start", "pack"], 500),
        "stored_result": Receipt(500, [f"{id}/1", f"{id}/2"], ["start", "pack", "close"]),
    }
    return instance(id, "demo.checkout", **given | changed)


def shipment(id: int, parent: int, number: int, **changed: Any) -> Instance[Parcel, Shipped]:
    given: dict[str, Any] = {
        "step": "hand_over",
        "step_seq": 2,
        "state": Parcel(parent, number, "", ["label"]),
        "stored_result": Shipped(f"{parent}/{number}", ["label", "hand_over"]),
        "parent_id": parent,
    }
    return instance(id, "demo.shipment", **given | changed)


def instance(id: int, machine: str, **given: Any) -> Instance[Any, Any]:
    given = {"status": Status.DONE, **given}
    return Instance(
        id=id, machine=machine, version=1, inserted_at=NOW, updated_at=NOW, eligible_at=NOW, **given
    )


def execution(id: int, step_seq: int, *, pid: int = 101, is_lost: bool = False) -> ExecutionRecord:
    return ExecutionRecord(
        exec_id=f"{id}:{step_seq}",
        job_id=id,
        attempt=step_seq,
        status=ExecutionStatus.ABORTED if is_lost else ExecutionStatus.DONE,
        step="label",
        step_seq=step_seq,
        step_attempt=0,
        outcome="lease" if is_lost else "next",
        lease_owner=f"host:{pid}:abc",
    )


def executions() -> list[ExecutionRecord]:
    """Executions of two checkouts and four shipments; the killed worker began two of them."""
    return [
        *(execution(id, seq) for id in (1, 2) for seq in (1, 2, 3)),
        *(execution(id, seq) for id in (3, 4, 5, 6) for seq in (1, 2)),
        *(execution(id, 1, pid=100, is_lost=True) for id in (3, 4)),
    ]


GOOD = Evidence(
    sent={1: 500, 2: 500},
    parcels=2,
    checkouts=[checkout(1), checkout(2)],
    shipments=[shipment(3, 1, 1), shipment(4, 1, 2), shipment(5, 2, 1), shipment(6, 2, 2)],
    prints=[Print(3, "3:1", 100), Print(3, "3:1", 101), *(Print(id, f"{id}:1", 101) for id in (4, 5, 6))],
    killed_pid=100,
    killed_ids=frozenset({3}),
    executions=executions(),
)


def test_all_checks_hold() -> None:
    assert [check.claim for check in checks(GOOD)] == [
        "2 checkouts inserted, 2 done: nothing was lost",
        "4 shipments, exactly 2 per checkout: no fan-out was committed twice",
        "14 transitions committed, each by one execution, in order",
        "€ 10.00 paid, every payment counted once",
        "2 running steps were lost with the killed worker (1 had printed their label); "
        "the other worker ran all of them again",
        "5 labels printed, 1 of them repeated, with the same idempotency key",
    ]
    assert all(check.holds for check in checks(GOOD))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        pytest.param({"checkouts": [checkout(1)]}, "checkout 2 is missing", id="lost checkout"),
        pytest.param(
            {"checkouts": [checkout(1), checkout(2, status=Status.AWAITING_CHILDREN, step="close")]},
            "demo.checkout 2 has status awaiting_children at step 'close': no error",
            id="unfinished",
        ),
        pytest.param(
            {"shipments": [*GOOD.shipments, shipment(7, 1, 1), shipment(8, 1, 2)]},
            "checkout 1 has parcels [1, 1, 2, 2]",
            id="fan-out twice",
        ),
        pytest.param({"shipments": GOOD.shipments[:2]}, "checkout 2 has no parcels", id="fan-out never"),
        pytest.param(
            {"checkouts": [checkout(1, step_seq=4), checkout(2)]},
            "demo.checkout 1 committed 4 transitions: start, pack, close",
            id="transition twice",
        ),
        pytest.param(
            {
                "shipments": [
                    *GOOD.shipments[:3],
                    shipment(6, 2, 2, stored_result=Shipped("", ["label", "label", "hand_over"])),
                ]
            },
            "demo.shipment 6 committed 2 transitions: label, label, hand_over",
            id="step twice",
        ),
        pytest.param({"sent": {1: 500, 2: 250}}, "checkout 2 has 500 cents, paid 250", id="paid twice"),
        pytest.param({"killed_ids": frozenset({3, 9})}, "shipment 9 was not run again", id="not revived"),
        pytest.param(
            {"executions": [*executions(), execution(4, 2)]},
            "transition 2 of instance 4 was committed by 2 executions",
            id="committed twice",
        ),
        pytest.param(
            {"executions": [*executions(), execution(4, 3)]},
            "transition 3 of instance 4 was committed by 1 executions",
            id="one too many",
        ),
        pytest.param(
            {"executions": executions()[1:]},
            "transition 1 of instance 1 was committed by 0 executions",
            id="no record",
        ),
        pytest.param(
            {"executions": [*executions(), execution(4, 9, pid=100, is_lost=True)]},
            "step label of instance 4 was not run again",
            id="a lost lease",
        ),
        pytest.param({"prints": GOOD.prints[:4]}, "shipment 6 has no label", id="no label"),
        pytest.param(
            {"prints": [*GOOD.prints, Print(4, "4:2", 101)]},
            "shipment 4 printed with 2 keys",
            id="another key",
        ),
    ],
)
def test_each_check_finds_its_fault(changed: dict[str, Any], fault: str) -> None:
    found = checks(msgspec.structs.replace(GOOD, **changed))
    assert fault in [fault for check in found for fault in check.faults]
