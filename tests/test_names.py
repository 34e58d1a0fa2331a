"""Names that the system gives a meaning (D1, E2, F9)."""

from __future__ import annotations

import pytest

from ternmq import names
from ternmq.errors import InvalidName


def test_both_forms_of_pops_retry_topics_are_topics() -> None:
    """F9: a plus is for the second form alone."""
    assert "%RETRY%g_orders" == names.check_topic(names.pop_retry_topic("g", "orders"))
    assert "%RETRY%g+orders" == names.check_topic(names.pop_retry_topic_v2("g", "orders"))


@pytest.mark.parametrize(
    "topic", ["a+b", "%RETRY%+orders", "%RETRY%g+", "%RETRY%g+a+b", "%DLQ%g+orders", "%RETRY%g+a b"]
)
def test_a_plus_elsewhere_is_refused(topic: str) -> None:
    """E2"""
    with pytest.raises(InvalidName, match="not allowed"):
        names.check_topic(topic)
