"""Units beside the queues, and a log on several disks: directories that TernMQ and RocketMQ open in turn (C1, C3)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.send.producer import Producer
from ternmq.env import Env
from ternmq.filter.bloom import BloomFilter, filter_name
from ternmq.message import Message, MessageQueue
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.derived.queue_ext import ADDRESS_MAX, Unit
from ternmq.store.store import MessageStore
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import parse
from ternmq.wire.record import Record, unpack_record
from tests.interop import jvm, rocketmq
from tests.interop.java import Java
from tests.store.killed import config_for
from tests.store.small import files, quiet_store

pytestmark = pytest.mark.interop

BROKER: Final = "broker-a"
TOPIC: Final = "layouts"
QUEUES: Final = 2
UNIT_FILE_BYTES: Final = 2000


class Shared:
    """A directory, and the brokers that take turns at it."""

    def __init__(self, path: Path, version: str, names: str, **calculating: object) -> None:
        self.version = version
        self.names = names
        self.root = path / "store"
        self.config = dataclasses.replace(
            config_for(self.root),
            store_path_commit_log=(path / "disk2", path / "disk1"),
            enable_consume_queue_ext=True,
            mapped_file_size_consume_queue_ext=UNIT_FILE_BYTES,
        )
        self._path = path
        self._calculating = calculating

    @property
    def java(self) -> Java:
        return Java(self.version, self._path)

    @asynccontextmanager
    async def in_rocketmq(self) -> AsyncIterator[rocketmq.Server]:
        config = self.config
        settings: dict[str, object] = {
            "storePathRootDir": self.root,
            "storePathCommitLog": ",".join(map(str, config.store_path_commit_log)),
            "readOnlyCommitLogStorePaths": ",".join(map(str, config.read_only_commit_log_store_paths)),
            "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
            "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
            "maxHashSlotNum": config.max_hash_slot_num,
            "maxIndexNum": config.max_index_num,
            "enableConsumeQueueExt": "true",
            "mappedFileSizeConsumeQueueExt": UNIT_FILE_BYTES,
            **self._calculating,
        }
        with ExitStack() as stack:
            context = rocketmq.broker(self.version, self._path, namesrv=self.names, name=BROKER, settings=settings)
            broker = await asyncio.to_thread(stack.enter_context, context)
            yield broker
            # What it says when an entry's unit is not where the address points to.
            assert "onsume queue extend" not in broker.log()
            await asyncio.to_thread(stack.close)

    def in_ternmq(self) -> Broker:
        config = BrokerConfig(
            listen_port=0,
            broker_ip1="127.0.0.1",
            broker_name=BROKER,
            namesrv_addr=self.names,
            enable_property_filter=True,
            enable_calc_filter_bit_map=bool(self._calculating),
        )
        return Broker(config, self.config, Env())


@pytest.fixture
async def names() -> AsyncIterator[str]:
    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        yield f"127.0.0.1:{name_server.port}"


async def send(names: str, count: int, first: int = 0) -> None:
    async with Producer("shop", name_servers=names) as producer:
        for number in range(first, first + count):
            queue = MessageQueue(TOPIC, BROKER, number % QUEUES)
            tags, key = "red" if number % 3 else "blue", f"k{number}"
            await producer.send(Message(TOPIC, b"%d" % number * 300, tags=tags, keys=key), queue=queue)


async def pulled(names: str, tags: str) -> list[bytes]:
    """Bodies of the messages with these tags, in the order of their queues, as the broker chooses them."""
    found = []
    async with PullConsumer("readers", name_servers=names) as consumer:
        for queue_id in range(QUEUES):
            queue, queue_offset = MessageQueue(TOPIC, BROKER, queue_id), 0
            end = await consumer.max_offset(queue)
            while queue_offset < end:
                result = await consumer.pull(queue, queue_offset, tags=tags)
                found += [message.body for message in result.messages]
                queue_offset = result.next_offset
    return found


def bodies(tags: str, count: int) -> list[bytes]:
    return [
        b"%d" % number * 300
        for queue_id in range(QUEUES)
        for number in range(count)
        if number % QUEUES == queue_id and tags in ("*", "red" if number % 3 else "blue")
    ]


def units(store: MessageStore) -> Iterator[tuple[Record, Unit]]:
    """Each record of the topic's queues, and the unit beside its entry."""
    for queue_id in range(QUEUES):
        queue = store._queues.get(TOPIC, queue_id)
        assert queue is not None
        assert queue.ext is not None
        for number in range(queue.min_offset, queue.next_offset):
            entry = queue.entry(number)
            assert entry is not None
            log_offset, size, field = entry
            data = store.record_at(log_offset, size)
            assert data is not None
            assert field <= ADDRESS_MAX
            unit = queue.ext.read(field)
            assert unit is not None
            yield unpack_record(data), unit


def check_layout(shared: Shared) -> None:
    """Segments lie where the rule puts them; queues and units are those of a fresh fold."""
    config = shared.config
    for path in (path for directory in config.store_path_commit_log for path in directory.iterdir()):
        if path.parent not in config.read_only_commit_log_store_paths:
            expected = config.log_paths.of_new(int(path.name), segment_bytes=config.mapped_file_size_commit_log)
            assert expected == path
    fold = shared.root.parent / "fold"
    fresh = dataclasses.replace(config, store_path_root_dir=fold, message_index_enable=False)
    with quiet_store(fresh) as store:
        for record, unit in units(store):
            tags = java_hash(parse(record.properties)["TAGS"])
            assert (tags, record.store_time_ms, b"") == (unit.tags_code, unit.store_time_ms, unit.bits)
    for name in ("consumequeue", "consumequeue_ext"):
        assert files(fold / name / TOPIC) == files(shared.root / name / TOPIC)
    shutil.rmtree(fold)


@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_units_and_several_disks_go_from_hand_to_hand(version: str, names: str, tmp_path: Path) -> None:
    """C1, C3, C11: TernMQ → RocketMQ → TernMQ → RocketMQ, which is killed → TernMQ. Units are equal, byte for byte."""
    shared = Shared(tmp_path, version, names)
    async with shared.in_ternmq(), Admin(names) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
        await send(names, 400)
    check_layout(shared)

    async with shared.in_rocketmq() as broker:
        for tags in ("red", "blue", "*"):
            assert bodies(tags, 400) == await pulled(names, tags)
        await send(names, 400, first=400)
        assert bodies("red", 800) == await pulled(names, "red")
        await asyncio.to_thread(broker.stop)
    check_layout(shared)

    async with shared.in_ternmq():
        assert bodies("blue", 800) == await pulled(names, "blue")
        await send(names, 200, first=800)
    check_layout(shared)

    async with shared.in_rocketmq() as broker:
        assert bodies("red", 1000) == await pulled(names, "red")
        await send(names, 200, first=1000)
        assert bodies("blue", 1200) == await pulled(names, "blue")
        broker.kill()
    # The switch is off now: addresses are still understood.
    shared.config = dataclasses.replace(shared.config, enable_consume_queue_ext=False)
    async with shared.in_ternmq():
        assert bodies("red", 1200) == await pulled(names, "red")
        await send(names, 100, first=1200)
        assert bodies("red", 1300) == await pulled(names, "red")


async def test_bit_maps_go_from_hand_to_hand(names: str, tmp_path: Path) -> None:
    """C3, K3, K4: RocketMQ → TernMQ → RocketMQ. Maps have the same bits; both know the filter by its file."""
    shared = Shared(tmp_path, "4.9.4", names, enableCalcFilterBitMap="true")
    group, bloom = "sql-readers", BloomFilter.sized(error_percent=20, names=32)

    async def sent_and_read() -> None:
        async with shared.java.consumer(names, group=group, topic=TOPIC, sql="n > 5") as consumer:
            await consumer.allocated(TOPIC, QUEUES)
            async with Producer("shop", name_servers=names) as producer:
                for number in range(40):
                    await producer.send(Message(TOPIC, b"x", properties={"n": str(number % 10)}))
            messages = await consumer.messages(16)
            assert {"6", "7", "8", "9"} == {message["properties"]["n"] for message in messages}

    def filter_of() -> tuple[str, int]:
        table = json.loads((shared.root / "config" / "consumerFilter.json").read_text())["filterDataByTopic"]
        data = table[TOPIC]["groupFilterData"][group]
        return data["expression"], data["bornTime"]

    async with shared.in_rocketmq() as broker:
        async with Admin(names) as admin:
            await admin.topics.create(TOPIC, queues=QUEUES)
        await sent_and_read()
        await asyncio.to_thread(broker.stop)
    known = filter_of()
    async with shared.in_ternmq():
        await sent_and_read()
    assert known == filter_of()

    with quiet_store(shared.config) as store:
        found = list(units(store))
    positions = bloom.positions(filter_name(group, TOPIC))
    assert 80 == len(found)
    for record, unit in found:
        wants = int(parse(record.properties)["n"]) > 5
        assert (bloom.bits([positions] if wants else []), wants) == (unit.bits, bloom.tester(positions)(unit.bits))
    async with shared.in_rocketmq() as broker:
        await sent_and_read()
        broker.kill()


async def test_a_read_only_disk_takes_no_segment_of_either(names: str, tmp_path: Path) -> None:
    """C1: both read what is there, and write elsewhere."""
    shared = Shared(tmp_path, "5.2.0", names)
    async with shared.in_ternmq(), Admin(names) as admin:
        await admin.topics.create(TOPIC, queues=QUEUES)
        await send(names, 700)
    shared.config = dataclasses.replace(
        shared.config,
        store_path_commit_log=(tmp_path / "disk1", tmp_path / "disk2", tmp_path / "disk3"),
        read_only_commit_log_store_paths=(tmp_path / "disk1",),
    )
    before = {path.name for path in (tmp_path / "disk1").iterdir()}
    async with shared.in_rocketmq() as broker:
        assert bodies("*", 700) == await pulled(names, "*")
        await send(names, 700, first=700)
        broker.kill()
    async with shared.in_ternmq():
        await send(names, 700, first=1400)
        assert bodies("*", 2100) == await pulled(names, "*")
    assert before == {path.name for path in (tmp_path / "disk1").iterdir()}
    assert len(list((tmp_path / "disk3").iterdir())) > 1
