"""The entries of a queue, as tools look at them: 321 (D6). The rules are in ``services.inspection``."""

from __future__ import annotations

import base64

import msgspec

from ternmq.broker.flow import QUERY
from ternmq.broker.services.inspection import Inspection, SeenEntry
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.config import UNIT_BYTES
from ternmq.store.derived.queue_ext import Unit
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.stats import ConsumeQueueEntries, ConsumeQueueEntry
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import ConsumeQueueQuery


class QueueHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, inspection: Inspection) -> None:
        self._inspection = inspection

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.QUERY_CONSUME_QUEUE: Route(
                self.entries, QUERY, Rule(Action.SUB, topic="topic", group="consumerGroup")
            ),
        }

    def entries(self, _peer: Peer, request: Request[ConsumeQueueQuery]) -> Reply:
        """Entries of a queue; with a group, what it subscribes to and which of them its filter lets pass.

        RocketMQ tells the latter for entries with a unit only.
        """
        header = request.fields
        found = self._inspection.queue(
            header.topic, header.queue_id, header.index, count_max=header.count, group=header.consumer_group or ""
        )
        body = ConsumeQueueEntries(
            queue_data=[_entry(seen) for seen in found.entries],
            min_queue_index=found.min_offset,
            max_queue_index=found.max_offset,
            subscription_data=found.subscription,
            filter_data=encode(found.filter).decode() if found.filter is not None else found.trouble or None,
        )
        is_outside = not found.entries and header.count > 0
        remark = f"Index {header.index} of {header.queue_id}@{header.topic} is not exist!" if is_outside else None
        return Reply(remark=remark, body=encode(body))


def _entry(seen: SeenEntry) -> ConsumeQueueEntry:
    entry = seen.entry
    note = None
    if entry.is_filler:
        note = "no message has this queue offset"
    elif entry.has_address and entry.unit is None:
        note = f"Cq extend not exist!addr: {entry.field}"
    return ConsumeQueueEntry(
        physic_offset=entry.log_offset,
        physic_size=entry.size,
        tags_code=entry.field,
        extend_data_json=_unit_text(entry.unit) if entry.unit is not None else None,
        bit_map=_bits_text(entry.unit.bits) if entry.unit is not None and entry.unit.bits else None,
        eval=seen.may_pass,
        msg=note,
    )


def _unit_text(unit: Unit) -> str:
    """Under the names of RocketMQ's ``CqExtUnit``."""
    fields = {
        "bitMapSize": len(unit.bits),
        "filterBitMap": base64.b64encode(unit.bits).decode(),
        "msgStoreTime": unit.store_time_ms,
        "size": UNIT_BYTES + len(unit.bits),
        "tagsCode": unit.tags_code,
    }
    return msgspec.json.encode(fields).decode()


def _bits_text(bits: bytes) -> str:
    """Bit 0 is the last character."""
    return "".join(f"{byte:08b}" for byte in reversed(bits))
