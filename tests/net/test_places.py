"""Limits by address, of both kinds (N1, B5)."""

from __future__ import annotations

import pytest

from ternmq.net.limits import Limits, Usage
from ternmq.net.places import place_of


@pytest.mark.parametrize(
    ("ip", "place"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:0:1:ffff::1", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::1", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_a_place_is_an_address_or_a_network_of_ipv6(ip: str, place: str) -> None:
    assert place == place_of(ip)


class Connection:
    """The part that is counted."""

    def __init__(self, ip: str) -> None:
        self.remote_ip = ip
        self.address = f"[{ip}]:1"

    def left_bytes(self) -> int:
        return 0

    def recount(self) -> None: ...

    def abort(self) -> None: ...


async def test_connections_of_one_network_of_ipv6_are_limited_together(caplog: pytest.LogCaptureFixture) -> None:
    usage = Usage(Limits(max_connections_per_address=2))
    strangers = [Connection(f"2001:db8::{number}") for number in range(1, 4)]

    assert [True, True, False] == [usage.opened(each) for each in strangers]
    assert "2 connections from 2001:db8::/64 are open already" in caplog.text
    assert usage.opened(Connection("2001:db8:0:1::1"))
    usage.closed(strangers[0])
    assert usage.opened(strangers[2])
