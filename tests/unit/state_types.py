"""Types of states for the tests of the codec."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec


class Line(msgspec.Struct):
    sku: str
    price: float
    note: str | None = None


class Order(msgspec.Struct):
    id: int
    lines: list[Line] = []


class Tree(msgspec.Struct):
    children: list[Tree] = []


@dataclass
class Point:
    x: int
    y: float | None = None
