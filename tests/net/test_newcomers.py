"""Connections that have not said who they are (N1, B5)."""

from __future__ import annotations

from ternmq.net.newcomers import Newcomers


def test_of_too_many_the_oldest_of_the_busiest_address_goes() -> None:
    newcomers = Newcomers[str](3)
    for one, ip in (("slave", "10.0.0.1"), ("a", "10.0.0.2"), ("b", "10.0.0.2")):
        assert newcomers.add(one, ip) is None
    assert "a" == newcomers.add("c", "10.0.0.2")
    assert "b" == newcomers.add("other", "10.0.0.3")
    assert ["slave", "c", "other"] == list(newcomers)


def test_an_address_that_has_no_others_loses_its_own_oldest() -> None:
    newcomers = Newcomers[int](2)
    lost = [newcomers.add(number, "10.0.0.1") for number in range(5)]
    assert [None, None, 0, 1, 2] == lost


def test_those_that_are_known_or_closed_do_not_count() -> None:
    newcomers = Newcomers[int](1)
    for number in range(100):
        assert newcomers.add(number, f"10.0.0.{number}") is None
        newcomers.discard(number)
        newcomers.discard(number)
    assert 0 == len(newcomers)
    assert 0 == len(newcomers._by_place), "nothing is kept of addresses that are gone"


def test_the_addresses_of_one_network_of_ipv6_are_one() -> None:
    """A program has 2**64 of them: its connections close each other, and not those of another machine."""
    newcomers = Newcomers[str](3)
    newcomers.add("slave", "2001:db8:0:1::5")
    lost = [newcomers.add(f"stranger {number}", f"2001:db8:0:2::{number:x}") for number in range(5)]
    assert [None, None, "stranger 0", "stranger 1", "stranger 2"] == lost
    assert "slave" in newcomers
