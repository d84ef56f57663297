"""Where a webhook may go: names are resolved once, what is not public is refused, and that very address is used."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final, TypeAlias

from ..errors import GenDurableError

__all__ = ["ForbiddenAddressError", "resolve"]

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
# All that is routed between networks; beside it are local ones, and IPv4 in forms that nobody should send to.
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")


class ForbiddenAddressError(GenDurableError):
    """A name leads into a private network, and this sink may not go there."""

    host: str
    address: str

    def __init__(self, host: str, address: str) -> None:
        super().__init__(host, address)
        self.host = host
        self.address = address

    def __str__(self) -> str:
        return (
            f"'{self.host}' leads to {self.address}, which is not a public address; "
            "if that is meant, say private=True"
        )


async def resolve(host: str, port: int, *, private: bool) -> str:
    """The address to connect to.

    Raises:
        ForbiddenAddressError: one of its addresses is not public. One is enough: who could choose between them?
        OSError: the name is not known.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    if not private:
        for address in addresses:
            if not _is_public(address):
                raise ForbiddenAddressError(host, str(address))
    return str(addresses[0])


def _is_public(address: _Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        # An IPv4 address in the clothes of IPv6 is what it is underneath.
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is not None:
            return _is_public(inner)
        if address in ipaddress.IPv6Network("64:ff9b::/96"):
            return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast
