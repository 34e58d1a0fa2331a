"""The entries of queues, as ``mqadmin queryCq`` asks for them: 321 (D6, K3)."""

from __future__ import annotations

import json
from pathlib import Path

from ternmq.broker.broker import Broker
from ternmq.broker.services.inspection import ENTRIES_MAX
from ternmq.names import HALF_TOPIC
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import ConsumeQueueEntries
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests_admin import ConsumeQueueQuery
from tests.broker.calls import Caller, dialled, settings, small_store

#: Java's hash of the tag «new».
NEW_CODE = 108960


async def ask(
    caller: Caller, topic: str, index: int = 0, count: int = 10, *, queue_id: int = 0, group: str = ""
) -> Response:
    header = ConsumeQueueQuery(topic=topic, queue_id=queue_id, index=index, count=count, consumer_group=group or None)
    return await caller.call(RequestCode.QUERY_CONSUME_QUEUE, header)


async def entries(
    caller: Caller, topic: str, index: int = 0, count: int = 10, *, group: str = ""
) -> ConsumeQueueEntries:
    response = await ask(caller, topic, index, count, group=group)
    assert response.code == ResponseCode.SUCCESS, response.remark
    return decode(response.body, ConsumeQueueEntries)


async def test_entries_say_where_records_lie(tmp_path: Path) -> None:
    """D6: also where the queue's file ends between them."""
    store = small_store(tmp_path, mapped_file_size_consume_queue=200)
    async with Broker(settings(), store) as broker, dialled(broker.address) as caller:
        for number in range(25):
            await caller.sent("orders", b"%d" % number, properties={"TAGS": "new"})
        found = await entries(caller, "orders", 5, 12)
        records = await caller.records("orders", 5, count_max=12)

    assert (0, 25) == (found.min_queue_index, found.max_queue_index)
    assert [(record.log_offset, record.size) for record in records] == [
        (entry.physic_offset, entry.physic_size) for entry in found.queue_data
    ]
    assert {NEW_CODE} == {entry.tags_code for entry in found.queue_data}
    assert not any(entry.eval for entry in found.queue_data), "no group was asked for"


async def test_an_answer_is_bounded(tmp_path: Path) -> None:
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        for _ in range(11):
            assert (await caller.send_batch("orders", [(b"", {})] * 100)).code == ResponseCode.SUCCESS
        assert ENTRIES_MAX == len((await entries(caller, "orders", 0, 2**31 - 1)).queue_data)
        assert [] == (await entries(caller, "orders", 0, -5)).queue_data


async def test_an_offset_outside_of_the_queue_is_told(tmp_path: Path) -> None:
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        await caller.sent("orders", b"1")
        for index in (1, -1, 2**63 - 1):
            response = await ask(caller, "orders", index)
            assert ResponseCode.SUCCESS == response.code
            assert f"Index {index} of 0@orders is not exist!" == response.remark
            assert (1, []) == (
                (found := decode(response.body, ConsumeQueueEntries)).max_queue_index,
                found.queue_data,
            )


async def test_what_is_not_there_or_not_shown_is_refused(tmp_path: Path) -> None:
    """J1: halves of transactions are shown to no caller."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        await caller.sent("orders", b"1")
        codes = [
            (await ask(caller, "nowhere")).code,
            (await ask(caller, "orders", queue_id=99)).code,
            (await ask(caller, "orders", queue_id=-1)).code,
            (await ask(caller, HALF_TOPIC)).code,
        ]

    assert [
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.QUERY_NOT_FOUND,
    ] == codes


async def test_the_filter_of_a_group_is_asked(tmp_path: Path) -> None:
    """K1: by tags; a group without members is told."""
    async with Broker(settings(), small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        for tag in ("new", "old"):
            await caller.sent("orders", b"1", properties={"TAGS": tag})
        await caller.heartbeat("billing", {"orders": "new"})
        found = await entries(caller, "orders", group="billing")
        offline = await entries(caller, "orders", group="absent")

    assert [True, False] == [entry.eval for entry in found.queue_data]
    assert found.subscription_data is not None
    assert "new" == found.subscription_data.sub_string
    assert "absent@orders is not online!" == offline.filter_data
    assert [False, False] == [entry.eval for entry in offline.queue_data]


async def test_units_and_their_maps_are_shown(tmp_path: Path) -> None:
    """K3: what an SQL filter sees beside the entry."""
    config = settings(enable_property_filter=True, enable_calc_filter_bit_map=True)
    store = small_store(tmp_path, enable_consume_queue_ext=True)
    async with Broker(config, store) as broker, dialled(broker.address) as caller:
        await caller.heartbeat("billing", {"orders": "price > 5"}, kind="SQL92")
        for price in ("1", "9"):
            await caller.sent("orders", b"1", properties={"price": price, "TAGS": "new"})
        found = await entries(caller, "orders", group="billing")

    assert [False, True] == [entry.eval for entry in found.queue_data]
    assert "price > 5" == json.loads(found.filter_data or "")["expression"]
    cheap, dear = found.queue_data
    assert NEW_CODE == json.loads(dear.extend_data_json or "")["tagsCode"]
    assert "1" not in (cheap.bit_map or "")
    assert "1" in (dear.bit_map or "")
