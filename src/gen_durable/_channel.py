"""How a running step talks to its worker.

Independent of the event loop and the database: the runtime implements it, and `Context` uses it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, NoReturn, Protocol

from .errors import UsageError
from .progress import Progress

__all__ = ["CLOSE", "NO_CHANNEL", "Channel"]

CLOSE: Final = object()
"""Published instead of an item: closes the stream."""


class Channel(Protocol):
    """The channel from the steps of an executor to their worker.

    All steps share one channel, so each call names the execution that makes it. Its lease token and `step_seq` guard
    every write.
    """

    def wait(self, call: Coroutine[Any, Any, Any], method: str, /) -> Any:
        """Run a call of this channel on the event loop, and wait for its result. For methods of steps in threads."""

    def report(self, execution: Any, progress: Progress, /) -> None:
        """Keep how far a step is, until the worker stores it. From any thread."""

    def checkpoint(self, execution: Any, value: object, /) -> Coroutine[Any, Any, None]:
        """Encode the checkpoint of a step; return the call that stores it."""

    def last_checkpoint(self, execution: Any, /) -> Any:
        """Decode the last checkpoint of a step; `None` if there is none."""

    def publish(self, execution: Any, stream: Any, item: object, /) -> Coroutine[Any, Any, None]:
        """Encode an item; return the call that publishes it. `CLOSE` closes the stream."""

    def publish_sync(self, execution: Any, stream: Any, item: object, /) -> None:
        """Publish an item. For steps in threads."""


class _NoChannel:
    def wait(self, call: Coroutine[Any, Any, Any], method: str, /) -> NoReturn:
        call.close()
        raise _no_worker()

    def report(self, execution: Any, progress: Progress, /) -> NoReturn:
        raise _no_worker()

    def checkpoint(self, execution: Any, value: object, /) -> NoReturn:
        raise _no_worker()

    def last_checkpoint(self, execution: Any, /) -> None:
        return None

    def publish(self, execution: Any, stream: Any, item: object, /) -> NoReturn:
        raise _no_worker()

    publish_sync = publish


def _no_worker() -> UsageError:
    return UsageError("this context belongs to no worker", "make it with gen_durable.testing.context(state)")


NO_CHANNEL: Final = _NoChannel()
"""The channel of a context that no worker has made."""
