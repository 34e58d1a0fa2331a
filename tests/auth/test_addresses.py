"""White lists: which addresses a pattern names (N1; protocol/features.md, section 1.1)."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.auth.addresses import AddressPattern
from ternmq.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("", [], ["10.1.2.3", "::1", ""]),
        ("  ", [], ["10.1.2.3"]),
        ("*", ["10.1.2.3", "fe80::1"], []),
        ("*.*.*.*", ["10.1.2.3", "fe80::1"], []),
        ("*:*:*:*:*:*:*:*", ["10.1.2.3", "fe80::1"], []),
        ("10.1.2.3", ["10.1.2.3", "::ffff:10.1.2.3"], ["10.1.2.30", "10.1.2.4", "fe80::1", "no address", ""]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.1", "110.1.2.1"]),
        ("10.1.*", ["10.1.2.0", "10.1.255.255"], ["10.2.3.1"]),
        ("10.*.*.*", ["10.1.2.0"], ["11.1.2.0"]),
        # RocketMQ does not look at the last part here.
        ("10.*.*.7", ["10.1.2.7"], ["10.1.2.8"]),
        ("10.1.5-7.*", ["10.1.5.1", "10.1.7.9"], ["10.1.4.1", "10.1.8.1", "10.1.57.1"]),
        ("10.1.2.1-100", ["10.1.2.1", "10.1.2.100"], ["10.1.2.0", "10.1.2.101"]),
        ("10.1.2.{3, 4,9}", ["10.1.2.3", "10.1.2.4", "10.1.2.9"], ["10.1.2.34", "10.1.2.5"]),
        ("10.1.2.3,10.1.2.4", ["10.1.2.3", "10.1.2.4"], ["10.1.2.5"]),
        ("10.1.2.{3,4}, 10.9.*.*", ["10.1.2.4", "10.9.1.1"], ["10.1.2.5"]),
        ("FE80::1", ["fe80::1", "fe80:0:0:0:0:0:0:1"], ["fe80::2", "10.1.2.3"]),
        ("::1", ["::1"], ["::2", "1::"]),
        ("1050:0:0:0:5:600:300c:*", ["1050::5:600:300c:1", "1050::5:600:300c:ffff"], ["1050::5:600:300d:1"]),
        ("1050:*", ["1050::1", "1050:9:9:9:9:9:9:9"], ["1051::1"]),
        ("fe80::*", ["fe80::1", "fe80::ffff"], ["fe80::1:1"]),
        ("5::7:6:1-200:*", ["5::7:6:1:9", "5::7:6:200:9"], ["5::7:6:201:9", "5::7:6:0:9"]),
        ("5::7:6:1:{1,a}", ["5::7:6:1:1", "5::7:6:1:a"], ["5::7:6:1:2"]),
        ("fe80::1,10.1.2.*", ["fe80::1", "10.1.2.9"], ["fe80::2"]),
    ],
)
def test_a_pattern_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    parsed = AddressPattern.parse(pattern)

    assert matching == [address for address in matching + others if parsed.matches(address)]


@pytest.mark.parametrize(
    "pattern",
    [
        "10",
        "10.1.2",
        "10.1.2.3.4",
        "10.1.2.256",
        "10.1.2.3/8",
        "*.1.2.3",
        "10.1.9-5.*",
        "10.1.2.-5",
        "10.1.2.5-",
        "10.1.2.1-2-3",
        "10.1.{2,3}.4",
        "10.1.2.{3",
        "10.1.2.{}",
        "10.1.2.3,",
        ",",
        "host.example",
        "10.1.2.٣",
        "fe80::1::2",
        "fe80:1",
        "fe80::10000",
        "*::1",
        "1:2:3:4:5:6:7:8:9",
        "1:2:3:4:5:6:7::8:9",
        "x" * 5000,
    ],
)
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="invalid address pattern"):
        AddressPattern.parse(pattern)


@given(st.ip_addresses())
def test_every_address_is_a_pattern_for_itself_alone(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    parsed = AddressPattern.parse(str(address.exploded))

    assert parsed.matches(str(address))
    assert not parsed.matches("203.0.113.77") or str(address).endswith("203.0.113.77")


@given(st.text("0123456789abcdef.:*-{}, x", max_size=40))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    try:
        parsed = AddressPattern.parse(text)
    except ConfigError:
        return
    parsed.matches("10.1.2.3")
    parsed.matches("fe80::1")
