"""Address check of webhooks: resolve the host name once, refuse private addresses, connect to the checked address."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Final, TypeAlias

from ..errors import GenDurableError

__all__ = ["ForbiddenAddressError", "resolve"]

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
# Not `is_global` of the standard library: its answer depends on the version of Python, and 3.11 has gaps.
# These are whole blocks of the IANA special-purpose registries, even where a part of a block is globally reachable.
_NOT_PUBLIC_4: Final = tuple(
    ipaddress.IPv4Network(block)
    for block in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba Cloud's metadata service is 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform services: a public number, but the host answers
        "169.254.0.0/16",  # link-local; the metadata services of most clouds are 169.254.169.254
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocol assignments; Oracle Cloud's metadata service is 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
# Global unicast. Outside it are loopback, link-local, unique local, site-local and multicast addresses.
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # IETF protocol assignments; Teredo (2001::/32) contains IPv4 addresses
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: contains IPv4 addresses
        "3fff::/20",  # documentation
    )
)
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class ForbiddenAddressError(GenDurableError):
    """The host name of a sink resolves to an address that is not public. Pass `private=True` to allow that."""

    host: str
    address: str

    def __init__(self, host: str, address: str) -> None:
        super().__init__(host, address)
        self.host = host
        self.address = address

    def __str__(self) -> str:
        return (
            f"'{self.host}' resolves to {self.address}, which is not a public address; "
            "to allow it, pass private=True"
        )


async def resolve(host: str, port: int, *, private: bool) -> str:
    """Return the address to connect to.

    Raises:
        ForbiddenAddressError: at least one address of the host is not public, and `private` is false.
        OSError: the name cannot be resolved.
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
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in block for block in _NOT_PUBLIC_4)
    # An embedded IPv4 address: IPv4-mapped, or NAT64 in networks without IPv4.
    if address.ipv4_mapped is not None:
        return _is_public(address.ipv4_mapped)
    if address in _NAT64:
        return _is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _GLOBAL_UNICAST and not any(address in block for block in _NOT_PUBLIC_6)
