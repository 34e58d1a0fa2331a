"""One directory, opened by TernMQ and by RocketMQ in turn: what one wrote the other serves, adds to and closes (C11).

The way goes TernMQ → RocketMQ → TernMQ → RocketMQ, with every kind of record there is. The last one is killed while a
producer sends; TernMQ goes on with that and is killed itself; then RocketMQ has to recover. File sizes are those of
``tests.store.killed``: a few hundred messages fill segments, queue files and index files.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.config import ProducerConfig
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.send.producer import Producer
from ternmq.env import Env, SystemClock
from ternmq.errors import NetworkError, SendFailed, StoreLocked
from ternmq.message import Message, MessageQueue, SendReceipt
from ternmq.names import HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC, is_system_topic, retry_topic
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig
from ternmq.store.inspect.verify import verify
from ternmq.store.read.reader import LogReader
from ternmq.store.store import Draft, GetStatus, MessageStore
from ternmq.wire.compress import compress, decompress
from ternmq.wire.ids import offset_id
from ternmq.wire.properties import join, parse
from ternmq.wire.record import Record, Sysflag, pack_host, unpack_record
from tests.interop import jvm, rocketmq
from tests.interop.java import Event, Java
from tests.store.killed import body_of, config_for
from tests.store.small import RECORDED, RecordedStore, draft, log_queues_index, quiet_store, unpack_stores
from tests.store.test_killed import put_until_killed

pytestmark = pytest.mark.interop

BROKER: Final = "broker-a"
TOPIC: Final = "exchange"
GROUP: Final = "readers"
KILLED_TOPIC: Final = "orders"  # what ``tests.store.killed`` writes to
SERVED: Final = (TOPIC, retry_topic(GROUP), KILLED_TOPIC)
BATCH_TOPIC: Final = "batches"
#: Where delayed messages go when they are due.
DELAYED_TO: Final = MessageQueue(TOPIC, BROKER, 1)

Place = tuple[str, int, int]


# --- What is in the directory -------------------------------------------------------------------------------------


class Directory:
    """A store that changes hands. All brokers listen on one port: message ids carry it."""

    def __init__(self, path: Path, version: str, config: StoreConfig, name_server: NameServer) -> None:
        self.version = version
        self.config = config
        self.root = config.store_path_root_dir
        self.port = rocketmq.free_port(neighbours=(-2, 1))
        self.names = f"127.0.0.1:{name_server.port}"
        self._path = path

    def records(self) -> list[Record]:
        """All records of the log, also those that no queue has."""
        return [*LogReader(self.root)]

    def messages(self, topics: Iterable[str] = SERVED) -> dict[Place, Event]:
        """What consumers of these topics must get, by its place."""
        return {
            (record.topic, record.queue_id, record.queue_offset): as_java(record)
            for record in self.records()
            if record.topic in topics and not record.sysflag & Sysflag.PREPARED
        }

    @property
    def java(self) -> Java:
        return Java(self.version, self._path)

    @asynccontextmanager
    async def in_rocketmq(self) -> AsyncIterator[rocketmq.Server]:
        """A RocketMQ broker on this directory; the block stops or kills it, or else it is stopped."""
        with ExitStack() as stack:
            context = rocketmq.broker(
                self.version,
                self._path,
                namesrv=self.names,
                name=BROKER,
                port=self.port,
                settings=settings_of(self.config),
            )
            yield await asyncio.to_thread(stack.enter_context, context)
            await asyncio.to_thread(stack.close)

    def in_ternmq(self) -> Broker:
        config = BrokerConfig(
            listen_port=self.port, broker_ip1="127.0.0.1", broker_name=BROKER, namesrv_addr=self.names
        )
        return Broker(config, self.config, Env())

    def store(self, store_host: str = "127.0.0.1") -> MessageStore:
        """The directory without a broker around it."""
        return MessageStore.open(self.config, store_host=pack_host(store_host, self.port), clock=SystemClock())


@pytest.fixture(params=jvm.mostly("5.2.0"))
async def directory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Directory]:
    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        yield Directory(tmp_path, request.param, config_for(tmp_path / "store"), name_server)


def settings_of(config: StoreConfig) -> dict[str, object]:
    """Place and file sizes of a store, as RocketMQ's settings."""
    return {
        "storePathRootDir": config.store_path_root_dir,
        "storePathCommitLog": config.log_paths.writable[0],
        "mappedFileSizeCommitLog": config.mapped_file_size_commit_log,
        "mappedFileSizeConsumeQueue": config.mapped_file_size_consume_queue,
        "maxHashSlotNum": config.max_hash_slot_num,
        "maxIndexNum": config.max_index_num,
    }


def as_java(record: Record) -> Event:
    """A record in the words of ``Events.message``, as far as it is the same from either server."""
    return {
        "body": decompress(record.body, record.sysflag),
        "properties": parse(record.properties),
        "logOffset": record.log_offset,
        "sysFlag": record.sysflag,
        "reconsumeTimes": record.reconsume_times,
        "bornTimestamp": record.born_time_ms,
        "storeTimestamp": record.store_time_ms,
    }


async def drained(directory: Directory, topics: Sequence[str] = SERVED) -> dict[Place, Event]:
    """What a Java consumer pulls from all queues, in the form of ``Directory.messages``; it commits how far it came."""
    events = await directory.java.pull(directory.names, group=GROUP, topic=",".join(topics), commit=True)
    added = ("MIN_OFFSET", "MAX_OFFSET")
    found = {}
    for event in events:
        if event["event"] == "message":
            kept = {name: value for name, value in event["properties"].items() if name not in added}
            fields = {name: event[name] for name in ("body", "logOffset", "sysFlag", "reconsumeTimes")}
            times = {name: event[name] for name in ("bornTimestamp", "storeTimestamp")}
            place = (event["topic"], event["queueId"], event["queueOffset"])
            assert place not in found
            found[place] = {**fields, **times, "properties": kept}
    return found


async def bodies_of(consumer: PullConsumer, topics: Iterable[str]) -> dict[Place, bytes]:
    """The same by our own client."""
    pulled: dict[Place, bytes] = {}
    for topic in topics:
        for queue in await consumer.queues(topic):
            queue_offset, end = 0, await consumer.max_offset(queue)
            while queue_offset < end:
                result = await consumer.pull(queue, queue_offset)
                pulled |= {(topic, queue.queue_id, one.queue_offset): one.body for one in result.messages}
                queue_offset = result.next_offset
    return pulled


# --- Writing in TernMQ --------------------------------------------------------------------------------------------


async def write_as_broker(directory: Directory) -> None:
    """Messages by a producer, topics, groups and offsets: a broker's directory."""
    async with directory.in_ternmq(), Admin(directory.names) as admin:
        await admin.topics.create(TOPIC, queues=2)
        await admin.topics.create(KILLED_TOPIC, queues=4)
        await admin.topics.create(retry_topic(GROUP), queues=1)
        async with Producer("shop", name_servers=directory.names) as producer:
            for number in range(500):
                tags = "" if number % 3 else "标签"
                await producer.send(Message(TOPIC, b"%d " % number * 100, tags=tags, keys=(f"k{number}", "all")))
            await producer.send_batch([Message(TOPIC, b"batch %d" % one, keys=f"b{one}") for one in range(10)])
            await producer.send(Message(TOPIC, b"z" * 20_000, keys="large", properties={"城市": "杭州"}))
            await producer.send(Message(TOPIC, b"delayed here", delay_level=3), queue=DELAYED_TO)
        async with PullConsumer(GROUP, name_servers=directory.names) as consumer:
            await consumer.commit(MessageQueue(TOPIC, BROKER, 0), 17)


def write_as_store(directory: Directory) -> dict[str, bytes]:
    """Every other kind of record; returns the bodies of those that no consumer gets, by their offset ids."""
    born_v6 = pack_host("2001:db8::7", 40_000)
    hidden: dict[str, bytes] = {}
    with directory.store() as store:

        def put(topic: str, queue_id: int, body: bytes, sysflag: int = 0, **properties: str) -> int:
            now_ms = SystemClock().now_ms()
            text = join({"UNIQ_KEY": f"U{store.written:031X}", "WAIT": "true", **properties})
            retries = 2 if topic.startswith("%RETRY%") else 0
            prepared = half if sysflag & Sysflag.COMMIT else 0
            placed = store.put(Draft(topic, queue_id, body, text, now_ms, born_v6, 3, sysflag, retries, prepared))
            if topic not in SERVED or sysflag & Sysflag.PREPARED:
                hidden[offset_id(pack_host("127.0.0.1", directory.port), placed.log_offset)] = body
            return placed.log_offset

        half = 0
        put(TOPIC, 0, b"from IPv6", KEYS="v6")
        for kind in (Sysflag.ZLIB, Sysflag.LZ4, Sysflag.ZSTD):
            data, bits = compress(b"packed " * 500, kind)
            put(TOPIC, 1, data, bits, KEYS="packed")
        # Waits in the schedule topic, for a second and for two hours.
        put(SCHEDULE_TOPIC, 0, b"delayed", DELAY="1", REAL_TOPIC=TOPIC, REAL_QID="1", KEYS="delayed")
        put(SCHEDULE_TOPIC, 17, b"much later", DELAY="18", REAL_TOPIC=TOPIC, REAL_QID="0")
        # A transaction that was committed, with its half and the note that it is settled; and 4.3's way to store them.
        transaction = {"TRAN_MSG": "true", "PGROUP": "shop", "REAL_TOPIC": TOPIC, "REAL_QID": "0"}
        half = put(HALF_TOPIC, 0, b"in a transaction", 0, **transaction)
        put(TOPIC, 0, b"in a transaction", Sysflag.COMMIT, **transaction)
        put(OP_HALF_TOPIC, 0, b"0", TAGS="d")
        put(TOPIC, 0, b"prepared", Sysflag.PREPARED, KEYS="prepared")
        put(TOPIC, 0, b"rolled back", Sysflag.ROLLBACK)
        put(retry_topic(GROUP), 0, b"once more", RETRY_TOPIC=TOPIC, ORIGIN_MESSAGE_ID="U1", DELAY="3")
        if directory.version >= "5":
            # Long topics are records of the second version, which 4.9 takes for the end of the log.
            put(retry_topic("g" * 200), 0, b"long topic", KEYS="long")
    with directory.store("::1") as store:
        store.put(Draft(TOPIC, 1, b"stored at IPv6", join({"UNIQ_KEY": "U6", "KEYS": "v6"}), 1, born_v6))
    return hidden


# --- From hand to hand --------------------------------------------------------------------------------------------


@pytest.mark.timeout(240)  # a clean stop of 5.2.0 alone takes 18 s
async def test_a_directory_goes_from_hand_to_hand(directory: Directory) -> None:
    """C11: TernMQ → RocketMQ → TernMQ → RocketMQ, killed while it takes messages → TernMQ, killed → RocketMQ."""
    await write_as_broker(directory)
    hidden = write_as_store(directory)
    await rocketmq_serves_and_adds(directory, hidden)
    derived_files_equal_a_fresh_fold(directory)
    assert [] == verify(directory.root).findings
    await ternmq_serves_and_adds(directory)
    acknowledged = await rocketmq_serves_and_is_killed(directory)
    ternmq_has(directory, acknowledged)
    orders = put_until_killed(directory.root, 7, lines=2000)
    await rocketmq_has(directory, orders)


async def rocketmq_serves_and_adds(directory: Directory, hidden: dict[str, bytes]) -> None:
    """Every message by pull, by key and by id; new ones; and a stop as an operator does it."""
    java, names = directory.java, directory.names
    written = directory.messages()
    keys = {"k0": 1, "k499": 1, "b9": 1, "large": 1, "v6": 2, "packed": 3}
    async with directory.in_rocketmq() as broker:
        with pytest.raises(StoreLocked):
            directory.store()

        served, found = await asyncio.gather(
            drained(directory), java.query(names, topic=TOPIC, keys=[*keys], ids=[*hidden])
        )

        assert written == {place: served[place] for place in written}
        by_key, by_id = found[: -len(hidden)], found[-len(hidden) :]
        assert keys == Counter(key for message in by_key for key in message["keys"].split() if key != "all")
        assert [*hidden.values()] == [message["body"] for message in by_id]
        await rocketmq_adds(directory)
        await asyncio.to_thread(broker.stop, 60)
    assert not (directory.root / "abort").exists()


async def rocketmq_adds(directory: Directory) -> None:
    names = directory.names
    if directory.version >= "5":
        # Queues of a kind that TernMQ does not write: were it to make its own for this topic, RocketMQ would not start.
        attribute = ("-r", "1", "-w", "1", "-a", "+queue.type=BatchCQ")
        await directory.java.admin(names, "updateTopic", "-c", "DefaultCluster", "-t", BATCH_TOPIC, *attribute)
    async with directory.java.producer(names, compressOver=1000) as producer:
        await producer.send(topic=BATCH_TOPIC, count=10, mode="batch", body="batch of RocketMQ 5")
        await producer.send(topic=TOPIC, count=100, key="java", tags="标签", body="by Java")
        await producer.send(topic=TOPIC, count=10, mode="batch", key="batch", body="batch by Java")
        await producer.send(topic=TOPIC, count=1, key="java-large", bodyBytes=30_000)
        await producer.send(topic="made-by-rocketmq", count=3)
    async with (
        Producer("shop", name_servers=names) as ours,
        PullConsumer("waiters", name_servers=names) as consumer,
    ):
        await ours.send(Message(TOPIC, b"delayed there", delay_level=1), queue=DELAYED_TO)
        # Those that waited in TernMQ's directory come, too.
        await arrived(consumer, {b"delayed", b"delayed here", b"delayed there"})
        # And this one waits when the directory changes hands again.
        await ours.send(Message(TOPIC, b"delayed across", delay_level=3), queue=DELAYED_TO)


async def arrived(consumer: PullConsumer, missing: set[bytes]) -> None:
    """Wait for delayed messages."""
    queue_offset = 0
    while missing:
        result = await consumer.pull(DELAYED_TO, queue_offset)
        missing -= {message.body for message in result.messages}
        queue_offset = result.next_offset


def derived_files_equal_a_fresh_fold(directory: Directory) -> None:
    """C5: queues and index that two kinds of brokers wrote in turn are what TernMQ makes of the log alone."""
    root, config = directory.root, directory.config
    fold = root.parent / "fold"
    shutil.copytree(root, fold, ignore=shutil.ignore_patterns("consumequeue", "index", "timer*"))
    with quiet_store(dataclasses.replace(config, store_path_root_dir=fold)):
        pass
    assert log_queues_index(fold)[1:] == log_queues_index(root)[1:]
    shutil.rmtree(fold)


async def ternmq_serves_and_adds(directory: Directory) -> None:
    """Messages, topics, groups and offsets of both; the files that are not TernMQ's stay as they are."""
    foreign = {path: path.read_bytes() for path in directory.root.glob("config/*time*")}
    topics = (*SERVED, "made-by-rocketmq")
    written = directory.messages(topics)
    async with directory.in_ternmq(), PullConsumer(GROUP, name_servers=directory.names) as consumer:
        pulled = await bodies_of(consumer, topics)
        assert {place: message["body"] for place, message in written.items()} == {
            place: pulled[place] for place in written
        }
        await arrived(consumer, {b"delayed across"})
        pulled = await bodies_of(consumer, [TOPIC])
        # I1: it was delivered once, by either server.
        delayed = Counter(body for body in pulled.values() if body.startswith(b"delayed"))
        assert Counter([b"delayed", b"delayed here", b"delayed there", b"delayed across"]) == delayed
        # What Java's consumer had committed at RocketMQ.
        assert 252 <= (await consumer.committed(MessageQueue(TOPIC, BROKER, 0)) or 0)
        async with Admin(directory.names) as admin:
            assert [b"by Java-7"] == [message.body for message in await admin.messages.by_key(TOPIC, "java-7")]
        async with Producer("shop", name_servers=directory.names) as producer:
            for number in range(50):
                await producer.send(Message(TOPIC, b"again %d" % number, keys=f"again{number}"))
    assert foreign == {path: path.read_bytes() for path in foreign}


async def rocketmq_serves_and_is_killed(directory: Directory) -> list[SendReceipt]:
    """Returns what it had acknowledged when it died."""
    written = directory.messages()
    acknowledged: list[SendReceipt] = []
    config = ProducerConfig(retries=0, send_timeout_ms=2_000)
    async with directory.in_rocketmq() as broker:
        served = await drained(directory)
        assert written == {place: served[place] for place in written}

        async def send_until_it_dies(producer: Producer, sender: int) -> None:
            with contextlib.suppress(NetworkError, SendFailed):
                while True:
                    body = b"%d %d" % (sender, len(acknowledged))
                    acknowledged.append(await producer.send(Message(TOPIC, body * 50, keys="crash")))
                    if len(acknowledged) == 1000:
                        broker.process.kill()

        async with Producer("shop", name_servers=directory.names, config=config) as producer:
            await asyncio.gather(*(send_until_it_dies(producer, sender) for sender in range(8)))
    return acknowledged


def ternmq_has(directory: Directory, acknowledged: list[SendReceipt]) -> None:
    """C8: and goes on, and closes."""
    with quiet_store(directory.config) as store:
        for receipt in acknowledged:
            result = store.get(TOPIC, receipt.queue.queue_id, receipt.queue_offset, count_max=1)
            assert GetStatus.FOUND is result.status
            assert receipt.message_id == parse(unpack_record(result.buffers[0]).properties)["UNIQ_KEY"]
        store.put(draft(TOPIC, 0, b"after the crash"))
    assert [] == verify(directory.root).findings


async def rocketmq_has(directory: Directory, acknowledged: list[tuple[int, int, int, int]]) -> None:
    """C8: what TernMQ had acknowledged when it was killed, and all that came before."""
    async with directory.in_rocketmq() as broker:
        written = directory.messages()
        served = await drained(directory, (*SERVED, BATCH_TOPIC))
        broker.kill()
    # RocketMQ throws the newest index file away when it recovers, and indexes only what it reads again.
    assert {fault.kind for fault in verify(directory.root).faults} <= {"index-missing"}
    batch = [message["body"] for place, message in served.items() if place[0] == BATCH_TOPIC]
    assert [b"batch of RocketMQ 5-%d" % number for number in range(10)] == batch
    assert written == {place: message for place, message in served.items() if place[0] != BATCH_TOPIC}
    for queue_id, queue_offset, log_offset, number in acknowledged:
        message = served[KILLED_TOPIC, queue_id, queue_offset]
        assert (log_offset, body_of(number)) == (message["logOffset"], message["body"])


# --- Recorded directories -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
async def test_a_recorded_directory_goes_back_to_rocketmq(name: str, tmp_path: Path) -> None:
    """C11: TernMQ opened it and added to it; RocketMQ of the version that wrote it serves all of that."""
    unpack_stores(tmp_path / "unpacked")
    recorded = RecordedStore(tmp_path / "unpacked", name, tmp_path)
    # Not all of the system's own topics have a route until they are used again.
    queues = [(topic, queue_id) for topic, queue_id in recorded.queues if not is_system_topic(topic)]
    topics = {topic for topic, _ in queues}
    bodies = {
        (record.topic, record.queue_id, record.queue_offset): decompress(record.body, record.sysflag)
        for record in LogReader(recorded.root)
        if record.topic in topics
    }
    with quiet_store(recorded.config, clock=SystemClock()) as store:
        for topic, queue_id in queues:
            placed = store.put(draft(topic, queue_id, b"by TernMQ"))
            bodies[topic, queue_id, placed.queue_offset] = b"by TernMQ"

    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        directory = Directory(tmp_path, name.split("-")[1], recorded.config, name_server)
        async with directory.in_rocketmq() as broker, PullConsumer(GROUP, name_servers=directory.names) as consumer:
            served = await bodies_of(consumer, topics)
            broker.kill()

    assert bodies == {place: served[place] for place in bodies}
