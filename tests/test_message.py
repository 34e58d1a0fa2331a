"""Messages that applications make (E1)."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
import pprint

import pytest

from ternmq import Message


def test_a_message_is_a_value() -> None:
    """E1: equal to its copies and not hashable, and each has properties of its own."""
    message = Message("orders", b"one", keys=("a", "b"), properties={"colour": "red"})
    assert message == copy.deepcopy(message) == pickle.loads(pickle.dumps(message))
    assert message != Message("orders", b"one")
    with pytest.raises(TypeError):
        hash(message)
    Message("orders", b"one").properties["colour"] = "blue"
    assert {} == Message("orders", b"two").properties


def test_the_functions_of_dataclasses_take_a_message() -> None:
    """E1: as programs copied messages when this was a dataclass."""
    message = Message("orders", b"one", tags="new")
    assert Message("orders", b"two", tags="new") == dataclasses.replace(message, body=b"two")
    assert list(dataclasses.asdict(message)) == [one.name for one in dataclasses.fields(message)]


def test_the_collector_does_not_visit_messages() -> None:
    """E6: of a thousand in a list, a quarter of the time of ``send_batch`` went to it."""
    assert not gc.is_tracked(Message("orders", b"one"))


class Order(Message, gc=False):
    order_id: str = "7"


def test_a_subclass_is_copied_with_its_own_fields() -> None:
    """E1"""
    order = Order("orders", b"one", order_id="9")
    assert Order("orders", b"two", order_id="9") == dataclasses.replace(order, body=b"two")
    assert dataclasses.fields(Order)[-1].default == "7"


def test_a_message_can_be_printed_by_pprint() -> None:
    """E1: which asks each dataclass how it is shown."""
    assert "orders" in pprint.pformat(Message("orders", b"x" * 200))
