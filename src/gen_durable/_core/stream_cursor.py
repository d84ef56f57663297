"""Where a reader of a stream is, and what its next rows say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic

from .._typing import ItemT
from ..errors import NoTargetError
from ..streams import Stream, StreamItem
from .codec import decode

__all__ = ["StreamCursor"]


class StreamCursor(Generic[ItemT]):
    """The place of one reader in one stream of an instance."""

    def __init__(self, id: int, stream: Stream[ItemT], after: int) -> None:
        self.id = id
        self.stream = stream.name
        self.after = after
        """The position that was read last."""
        self.closing: int | None = None
        """The transition that closes the stream after that position; `None`: none does."""
        self.is_over = False
        """Whether nothing follows: the instance has ended, or the stream is closed."""
        self._item_type = stream.item_type

    def take(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[StreamItem[ItemT]]:
        """Yield the items of the next rows of this stream, and move behind them.

        Raises:
            DecodeError: an item does not fit the type of the stream.
            NoTargetError: the instance does not exist.
        """
        row: Mapping[str, Any] | None = None
        for row in rows:
            if row["is_missing"]:
                raise NoTargetError(self.id, f"stream '{self.stream}'")
            if row["position"] is None:
                continue
            self.after = row["position"]
            self.closing = row["step_seq"] if row["value"] is None else None
            if row["value"] is not None:
                what = f"item {self.after} of stream '{self.stream}' of instance {self.id}"
                yield StreamItem(
                    position=row["position"],
                    value=decode(row["value"], self._item_type, what),
                    step=row["step"],
                    step_seq=row["step_seq"],
                    attempt=row["attempt"],
                    execution=row["execution"],
                    created_at=row["created_at"],
                )
        if row is not None:
            # A page may end before the stream does. Once the instance has ended, a page without items is the last one.
            has_all = row["position"] is None and row["has_ended"]
            is_closed = self.closing is not None and row["committed_seq"] >= self.closing
            self.is_over = has_all or is_closed
