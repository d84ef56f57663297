"""Sinks for HTTP, NATS JetStream and Redis streams. Each needs an extra: `http`, `nats` or `redis`."""

from .addresses import ForbiddenAddressError
from .http import HttpSink, HttpStatusError, Mode
from .nats import NatsSink
from .redis import RedisSink
from .signing import SignatureError, bound_secret, sign, verify

__all__ = [
    "ForbiddenAddressError",
    "HttpSink",
    "HttpStatusError",
    "Mode",
    "NatsSink",
    "RedisSink",
    "SignatureError",
    "bound_secret",
    "sign",
    "verify",
]
