"""Hooks on the consumption of a broker (E8), over real sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.hooks import ConsumptionHook
from ternmq.errors import ConfigError
from tests.broker.calls import dialled, settings, small_store


class Notes(ConsumptionHook):
    """What it heard."""

    def __init__(self) -> None:
        self.all: list[tuple[object, ...]] = []

    def delivered(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        self.all.append(("delivered", group, topic, messages, size_bytes > 0))

    def sent_back(self, group: str, topic: str, size_bytes: int, *, is_dead: bool) -> None:
        self.all.append(("sent back", group, topic, size_bytes, is_dead))


class Fails(ConsumptionHook):
    def delivered(self, group: str, topic: str, messages: int, size_bytes: int) -> None:
        raise ValueError("a bug")

    def sent_back(self, group: str, topic: str, size_bytes: int, *, is_dead: bool) -> None:
        raise ValueError("a bug")


MADE: list[Notes] = []


def notes() -> Notes:
    MADE.append(Notes())
    return MADE[-1]


def nothing() -> object:
    return object()


async def test_hooks_hear_what_goes_out_and_what_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """E8: those given to the broker and those that its settings name; one that fails harms neither others nor reads."""
    given = Notes()
    config = settings(consume_hooks=f"{__name__}:notes")
    async with (
        Broker(config, small_store(tmp_path), hooks=[Fails(), given]) as broker,
        dialled(broker.address) as caller,
    ):
        await caller.heartbeat("readers", {"orders": "*"})
        await caller.sent("orders", b"123")
        (record,) = await caller.records("orders")
        assert 0 == (await caller.send_back("readers", record.log_offset)).code
        assert 0 == (await caller.send_back("readers", record.log_offset, delay_level=-1)).code

    heard = [note for note in given.all if note[1] == "readers"]
    assert [
        ("delivered", "readers", "orders", 1, True),
        ("sent back", "readers", "orders", 3, False),
        ("sent back", "readers", "orders", 3, True),
    ] == heard
    assert given.all == MADE[-1].all
    assert "the consumption hook Fails failed: ValueError: a bug" in caplog.text


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("no.module:x", "cannot make no.module:x of consumeHooks"),
        (f"{__name__}:missing", "cannot make"),
        (f"{__name__}:nothing", "has no method delivered"),
    ],
)
def test_a_hook_that_cannot_be_made_stops_the_start(tmp_path: Path, name: str, complaint: str) -> None:
    """E8"""
    with pytest.raises(ConfigError, match=complaint):
        Broker(settings(consume_hooks=name), small_store(tmp_path))
    with pytest.raises(ConfigError, match="expected module:factory"):
        BrokerConfig(consume_hooks="os.system('x')")
