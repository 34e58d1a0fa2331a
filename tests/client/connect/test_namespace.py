"""Namespaces as prefixes of names."""

from __future__ import annotations

import pytest

from ternmq.client.connect.namespace import unwrap, wrap


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("orders", "shop%orders"),
        ("%RETRY%group", "%RETRY%shop%group"),
        ("%DLQ%group", "%DLQ%shop%group"),
        ("shop%orders", "shop%orders"),
        ("TBW102", "TBW102"),
        ("rmq_sys_wheel_timer", "rmq_sys_wheel_timer"),
    ],
)
def test_names_get_their_namespace_once_and_system_topics_never(name: str, wrapped: str) -> None:
    assert wrapped == wrap("shop", name)


@pytest.mark.parametrize("name", ["orders", "%RETRY%group", "%DLQ%group", "TBW102"])
def test_applications_see_the_name_they_gave(name: str) -> None:
    assert name == unwrap("shop", wrap("shop", name))
    assert name == unwrap("", wrap("", name))
