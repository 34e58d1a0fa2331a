"""Where a caller is, for limits by address (N1, B5).

A machine has one address of IPv4, and as many of IPv6 as it wants: who has one has all others of its network, the first
64 bits. So addresses of IPv6 count by their network.
"""

from __future__ import annotations

from ipaddress import IPv6Address


def place_of(ip: str) -> str:
    """What is counted as one place: an address of IPv4, a network of IPv6."""
    if ":" not in ip:
        return ip
    try:
        address = IPv6Address(ip)
    except ValueError:
        return ip
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return f"{IPv6Address(address.packed[:8] + bytes(8))}/64"
