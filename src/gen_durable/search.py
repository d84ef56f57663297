"""`SearchPage`, `SearchCount` and `Completion`: what `client.search`, `search_count` and `complete` return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from .instance import Instance, Status

__all__ = ["Completion", "SearchCount", "SearchPage", "SearchTerm", "Suggestion"]


class SearchTerm(msgspec.Struct, frozen=True, kw_only=True):
    """One term of a search."""

    name: str
    """The name; of a value without a name, what it is: id, status, machine, step or key."""
    text: str
    words: str
    """What it selects: "at step ship"."""
    is_indexed: bool
    """Whether an index serves it. Others are checked on a bounded number of instances."""
    start: int
    """Its place in the text: characters from 0."""
    end: int


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page of instances, newest first."""

    items: tuple[Instance[Any, Any], ...]
    next: int | None
    """`before=` of the next page; `None`: there are no further instances."""
    bounded: int | None
    """How many of the newest instances were checked, if there are more; `None`: all of them."""
    terms: tuple[SearchTerm, ...]
    words: str
    """What the search selects: "failed instances of checkout at step ship whose error contains timeout"."""


class SearchCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many instances match, at a bounded cost."""

    count: int
    is_exact: bool
    """Otherwise `count` is a lower bound: only the newest 10,000 instances were checked."""
    by_status: Mapping[Status, int]


class Suggestion(msgspec.Struct, frozen=True):
    """A text that may stand at the cursor."""

    text: str
    help: str = ""


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Suggestions for the term under the cursor."""

    start: int
    """A suggestion replaces the text from here ..."""
    end: int
    """... to here."""
    suggestions: tuple[Suggestion, ...] = ()
