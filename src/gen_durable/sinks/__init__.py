"""Sinks that publish events over the wire. Each needs its extra: `http`, `nats`, `redis`."""

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
