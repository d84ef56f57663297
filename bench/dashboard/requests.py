"""Requests to every endpoint of the API that reads, and every topic, with parameters that make them read much."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from gen_durable.dashboard import api as api
from gen_durable.dashboard.endpoints import Endpoint, endpoints
from gen_durable.dashboard.live import topics

from .population import LARGE

__all__ = ["MACHINE", "Request", "gets", "searches", "topics_with_names"]

MACHINE: Final = "shop.checkout"
_DONE: Final = 800_000
# One search per way to find instances: by an index, and by a check of the newest 10,000.
searches: Final = (
    "",
    "status:failed",
    "status:done",
    "status:runnable",
    "status:live",
    "status:ended",
    "status:due",
    "status:later",
    "status:gated",
    "status:retrying",
    "status:compensating",
    "status:deleted",
    "status:waiting",
    "-status:done",
    "machine:shop.checkout",
    "machine:shop.* status:failed",
    "-machine:shop.checkout",
    "machine:shop.checkout step:assess status:awaiting_signal",
    "step:capture",
    "queue:gpu",
    "-queue:checkout status:done",
    "key:order:400000",
    "id:42,43",
    f"parent:{LARGE}",
    "schedule:catalog-refresh",
    "concurrency:tenant:7",
    "limit:crm",
    "error:~timeout",
    "error:~nothing",
    'status:failed error:~"postcode"',
    "state.email:customer5@example.org",
    "state.card:visa machine:shop.checkout status:done",
    "attempt:>1",
    "priority:10",
    "awaits:payment_confirmed",
    "worker:worker-1",
    "stuck:>10m",
    "status:failed ended:<1h",
    "fingerprint:3fa90c21b7d4",
    "age:<1h",
    "age:>7d",
    "inserted:>2026-01-01",
    "version:1 status:failed",
)
# By path: the values of parameters, one mapping per request. `{}`: none.
_RANGES: Final = ("15m", "1h", "6h", "24h", "7d")
_INSTANCES: Final = ("42", str(_DONE), str(LARGE))
_PARAMETERS: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "/machines/{name}": [{"name": MACHINE}, {"name": MACHINE, "version": "1"}],
    "/machines/{name}/census": [{"name": MACHINE, "version": "1"}, {"name": "media.resize"}],
    "/machines/{name}/rates": [
        {"name": MACHINE, "range": one, "version": "1", "step": "authorize"} for one in _RANGES
    ],
    "/machines/{name}/errors": [{"name": MACHINE, "version": "1"}],
    "/instances": [
        *({"q": one} for one in searches),
        {"limit": "500"},
        {"q": "status:done", "before": str(_DONE), "limit": "500"},
        {"q": "error:~timeout", "before": str(_DONE)},
    ],
    "/instances/counts": [{"q": one} for one in searches],
    "/instances/{id}": [{"id": one} for one in _INSTANCES],
    "/instances/{id}/state": [{"id": one} for one in _INSTANCES],
    "/complete": [
        {},
        *(
            {"q": one}
            for one in (
                "mach",
                "machine:",
                "step:",
                "queue:",
                "status:",
                "worker:",
                "concurrency:ten",
                "key:order:4",
            )
        ),
        {"q": "machine:shop status:failed", "at": "12"},
    ],
    "/jump": [{"q": "shop"}, {"q": str(_DONE)}, {"q": "order:400000"}, {"q": "nothing"}],
    "/audit": [
        {},
        *({"who": one} for one in ("people", "trouble")),
        {"who": "people", "before": "100000", "limit": "500"},
        {"actor": "unknown"},
        {"event": "cancelled", "subject": "queue:imports"},
        {"instance": str(LARGE), "limit": "500"},
    ],
    "/outbox/events": [
        {},
        *({"state": one} for one in ("pending", "published", "dead")),
        {"sink": "kafka", "before": "100000", "limit": "500"},
        {"sink": "nothing", "state": "published"},
        {"type": "nothing"},
        {"instance": str(LARGE)},
    ],
    "/batches/preview": [
        *({"verb": one} for one in ("cancel", "retry", "delete", "restore")),
        {"verb": "retry", "q": "status:failed error:~timeout"},
        {"verb": "retry", "q": "machine:shop.shipment status:failed"},
        {"verb": "cancel", "ids": ",".join(map(str, range(1, 1000)))},
        {
            "verb": "cancel",
            "q": "status:awaiting_children",
            "cascade": "true",
            "force": "true",
            "undo": "false",
        },
    ],
    "/batches/{id}": [{"id": "1"}, {"id": "200"}],
    "/overview": [{"range": one} for one in _RANGES],
}
_TOPICS: Final[Mapping[str, Sequence[str]]] = {
    "machine": [f"{MACHINE}@1", "media.resize"],
    "instance": ["42", str(LARGE)],
    "overview": _RANGES,
}


class Request(NamedTuple):
    """A request of one endpoint."""

    path: str
    """Of the endpoint, for the report."""
    url: str


def gets() -> Iterator[Request]:
    """Yield the requests of all endpoints.

    Raises:
        LookupError: an endpoint has a parameter that no request gives.
    """
    for (method, path), one in endpoints.items():
        if method != "GET":
            continue
        given = _PARAMETERS.get(path, [{}])
        missing = {*one.in_path, *one.in_query} - {name for values in given for name in values}
        if missing:
            raise LookupError(
                f"bench/dashboard/requests.py has no value for {', '.join(sorted(missing))} of {path}"
            )
        yield from (Request(path, _url(one, values)) for values in given)


def topics_with_names() -> Iterator[str]:
    """Yield every topic, with names if it takes one.

    Raises:
        LookupError: there is no name for a topic.
    """
    for name, topic in topics.items():
        if topic.takes and name not in _TOPICS:
            raise LookupError(f"bench/dashboard/requests.py has no name for the topic {name}")
        yield from (f"{name}:{each}" for each in _TOPICS[name]) if topic.takes else [name]


def _url(one: Endpoint, values: Mapping[str, str]) -> str:
    path = one.path
    for name in one.in_path:
        path = path.replace(f"{{{name}}}", quote(values[name], safe=""))
    query = {name: value for name, value in values.items() if name not in one.in_path}
    return f"/api{path}{'?' if query else ''}{urlencode(query)}"
