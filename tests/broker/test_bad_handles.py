"""Handles that no broker gave out: whatever their numbers are, they cost little and end nothing (F9)."""

from __future__ import annotations

import base64
import itertools
import json
from pathlib import Path
from typing import Any

from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import AckMessage, ChangeInvisibleTime
from tests.broker.calls import serving
from tests.broker.popping import popped

NUMBERS = ("0", "-1", "999", "x", "", str(2**63), "9" * 5000, "1e9", "²")


async def test_a_handle_of_any_numbers_is_answered_and_changes_nothing(tmp_path: Path) -> None:
    """Point 3: ack and change, with each field in turn as no broker writes it."""
    async with serving(tmp_path) as broker:
        await broker.sent("orders", b"0")
        [message] = await popped(broker, "orders", invisible_ms=1 << 38)
        fields = message.handle.text.split(" ")
        codes = set()
        for place, number in itertools.product(range(8), NUMBERS):
            handle = " ".join([*fields[:place], number, *fields[place + 1 :]])
            # Queue and offset of the message are taken from the header, so a wrong one there is no concern.
            if place in (2, 4, 5, 6, 7):
                handle = " ".join(["7", *handle.split(" ")[1:]])
            place_fields: dict[str, Any] = {
                "consumer_group": "poppers",
                "topic": "orders",
                "queue_id": 0,
                "extra_info": handle,
            }
            for offset, invisible_ms in ((0, 0), (0, -(2**63)), (2**63 - 1, 2**63 - 1)):
                codes.add(
                    (await broker.call(RequestCode.ACK_MESSAGE, AckMessage(**place_fields, queue_offset=offset))).code
                )
                header = ChangeInvisibleTime(**place_fields, queue_offset=offset, invisible_ms=invisible_ms)
                codes.add((await broker.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)).code)
        # SYSTEM_ERROR: an invisible time that the header cannot have.
        assert codes <= {
            ResponseCode.SUCCESS,
            ResponseCode.SYSTEM_ERROR,
            ResponseCode.INVALID_PARAMETER,
            ResponseCode.NO_MESSAGE,
        }
        assert [] == await popped(broker, "orders"), "the message is still hidden, and not acked"


async def test_a_batch_of_acks_names_no_more_messages_than_a_pop_has(tmp_path: Path) -> None:
    """Point 3: 32,768 bits for each of many check points would hold the broker for a minute."""
    async with serving(tmp_path) as broker:
        await broker.sent("orders", b"0")
        ack = {"c": "poppers", "t": "orders", "r": "²", "so": -(2**70), "q": -5, "rq": 999, "pt": 1, "it": 1}

        async def code(bits: bytes) -> int:
            body = {"brokerName": "broker-a", "acks": [ack | {"b": base64.b64encode(bits).decode()}]}
            return (await broker.call(RequestCode.BATCH_ACK_MESSAGE, None, json.dumps(body).encode())).code

        assert ResponseCode.INVALID_PARAMETER == await code(b"\xff" * 4096)
        assert ResponseCode.INVALID_PARAMETER == await code(b"\xff" * 5)
        assert ResponseCode.SUCCESS == await code(b"\xff" * 4)
