"""Addresses that are not public are refused, in any notation."""

from __future__ import annotations

import pytest

from gen_durable.sinks.addresses import ForbiddenAddressError, resolve


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "::127.0.0.1",
        "::ffff:0:7f00:1",
        "64:ff9b:1::7f00:1",
        "fec0::1",
        "fe80::1",
        "fc00::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2130706433",
        "0x7f000001",
        "127.1",
        # Python 3.11 calls these global.
        "192.0.0.1",
        "192.0.0.8",
        "192.0.0.192",
        "192.88.99.1",
        "3fff::1",
        "2001:1::1",
        "64:ff9b:1::1",
        # Metadata and platform services of clouds.
        "168.63.129.16",
        "100.100.100.200",
        "fd00:ec2::254",
        # Private addresses in other forms: mapped, NAT64, 6to4, Teredo.
        "::ffff:10.0.0.1",
        "::ffff:168.63.129.16",
        "::ffff:192.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::a83f:8110",
        "2002:0a00:0001::1",
        "2002:a83f:8110::1",
        "2001:0:0a00:1::1",
        "2001:0:4136:e378:8000:63bf:f5ff:fffe",
        "198.18.0.1",
        "203.0.113.1",
        "198.51.100.1",
        "192.0.2.1",
        "240.0.0.1",
        "2001:db8::1",
        "100::1",
        "5f00::1",
        "ff02::1",
    ],
)
async def test_private_addresses_are_refused(host: str) -> None:
    with pytest.raises(ForbiddenAddressError, match="not a public address"):
        await resolve(host, 443, private=False)


@pytest.mark.parametrize(
    "host",
    ["1.1.1.1", "168.63.129.17", "193.0.0.1", "2606:4700:4700::1111", "::ffff:101:101", "64:ff9b::101:101"],
)
async def test_public_addresses_are_allowed(host: str) -> None:
    assert await resolve(host, 443, private=False) == host


async def test_private_true_allows_private_addresses() -> None:
    assert await resolve("127.0.0.1", 80, private=True) == "127.0.0.1"
