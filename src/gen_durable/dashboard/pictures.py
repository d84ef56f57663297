"""Draw the graphs that workers have stored, once for each content."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from .._graph.drawing import Direction, Drawing, draw
from .._graph.model import Graph
from .._graph.picture import Tab, picture

__all__ = ["Picture", "graph_of", "picture_of", "small_picture_of", "tabs_of"]

_log: Final = logging.getLogger("gen_durable.dashboard")
_decode: Final = msgspec.json.Decoder(Graph).decode


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A graph, drawn from top to bottom and from left to right. Pages show the one that fits larger."""

    down: Drawing
    right: Drawing


@lru_cache(maxsize=500)
def graph_of(text: str) -> Graph | None:
    """Decode a stored graph. `None` if a newer release wrote it in another form."""
    try:
        return _decode(text)
    except msgspec.DecodeError:
        _log.warning("a stored graph cannot be decoded", exc_info=True)
        return None


@lru_cache(maxsize=500)
def tabs_of(text: str | None) -> Mapping[str, tuple[Tab, ...]]:
    """Return the waits above each step of a stored graph, in the order of its picture."""
    graph = None if text is None else graph_of(text)
    boxes = {} if graph is None else picture(graph, with_figures=True).boxes
    return {id: tuple(box.tabs) for id, box in boxes.items()}


# The time grows with the size of the graph: 10 to 50 ms for usual ones.
_drawn: Final = lru_cache(maxsize=500)(
    lambda text, direction, observed: _draw(graph_of(text), direction, observed)
)


def _draw(graph: Graph | None, direction: Direction, observed: tuple[tuple[str, str], ...]) -> Drawing | None:
    return None if graph is None else draw(graph, direction, observed)


async def picture_of(text: str | None, observed: tuple[tuple[str, str], ...] = ()) -> Picture | None:
    """Draw a stored graph in both directions. `observed`: committed transitions; those that it lacks are added."""
    if text is None:
        return None
    down = await asyncio.to_thread(_drawn, text, "down", observed)
    right = await asyncio.to_thread(_drawn, text, "right", observed)
    return None if down is None or right is None else Picture(down=down, right=right)


async def small_picture_of(text: str | None) -> Drawing | None:
    """Draw a stored graph from left to right, for a card."""
    return None if text is None else await asyncio.to_thread(_drawn, text, "right", ())
