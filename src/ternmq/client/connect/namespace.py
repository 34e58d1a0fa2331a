"""Namespaces: tenants share brokers by a prefix to topic and group names (RocketMQ's ``NamespaceUtil``).

``orders`` in the namespace ``shop`` is ``shop%orders`` on the wire, its group's retries are ``%RETRY%shop%group``.
System topics belong to everybody and stay as they are. Applications see names without the prefix.
"""

from __future__ import annotations

from ternmq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic


def wrap(namespace: str, name: str) -> str:
    """The name on the wire.

    >>> wrap("shop", "orders"), wrap("shop", "%RETRY%group"), wrap("", "orders")
    ('shop%orders', '%RETRY%shop%group', 'orders')
    """
    if not namespace or not name or is_system_topic(name):
        return name
    prefix, rest = _split(name)
    if rest.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{rest}"


def unwrap(namespace: str, name: str) -> str:
    """The name as the application knows it.

    >>> unwrap("shop", "shop%orders"), unwrap("shop", "%RETRY%shop%group")
    ('orders', '%RETRY%group')
    """
    if not namespace:
        return name
    prefix, rest = _split(name)
    return prefix + rest.removeprefix(f"{namespace}%")


def _split(name: str) -> tuple[str, str]:
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name
