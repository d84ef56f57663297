"""What is not public is refused, however it is written."""

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
    ],
)
async def test_private_addresses(host: str) -> None:
    with pytest.raises(ForbiddenAddressError, match="not a public address"):
        await resolve(host, 443, private=False)


@pytest.mark.parametrize("host", ["1.1.1.1", "2606:4700:4700::1111", "::ffff:101:101"])
async def test_public_addresses(host: str) -> None:
    assert await resolve(host, 443, private=False) == host


async def test_private_ones_if_that_is_meant() -> None:
    assert await resolve("127.0.0.1", 80, private=True) == "127.0.0.1"
