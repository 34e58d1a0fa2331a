"""The sink's parts on real brokers, without Spark: what memory versions cannot show (U2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

import pyarrow as pa
import pytest

from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.client.config import ProducerConfig
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.outgoing import Outgoing
from ternmq.client.send.sender import Sender
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import MessagesLost, NetworkError, RouteMissing
from ternmq.message import MessageQueue, SendReceipt, SendStatus
from ternmq.names import SCHEDULE_TOPIC, SPARK_GROUP
from ternmq.spark.runtime.cluster import Bounds, ClusterClient, cluster_at
from ternmq.spark.sink.ledger import Ledger
from ternmq.spark.sink.ledger_entries import LEDGER_TOPIC, RunIdentity, SinkWork, Staged
from ternmq.spark.sink.logs import AppendData, ClusterLogs, NotSafe, Stored, read_one
from ternmq.spark.sink.publish import Committer, check_timed
from ternmq.spark.sink.rows import Chunk, Packer
from ternmq.spark.sink.staging import Ship, Shipping, Stage, StoredUnsafely, Straight, new_id, writable
from ternmq.types import Buffer
from ternmq.wire.batch import pack_messages
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Reply
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import SendReply
from tests.client.scripted import scripted_cluster

TIMEOUT_MS = 20_000


class Broken(Exception):
    """The process is gone."""


class Sink:
    """What executors and driver do, on one cluster."""

    def __init__(self, name_servers: str) -> None:
        self.cluster: ClusterClient = cluster_at(name_servers)
        self.logs: ClusterLogs = ClusterLogs(self.cluster, retry_timeout_ms=TIMEOUT_MS)

    def ship(
        self, batch: pa.RecordBatch, topic: str, *, straight: bool = False, chunk_bytes: int = 500
    ) -> list[Staged]:
        packer = Packer(
            topic=topic,
            partition=0,
            chunk_bytes=chunk_bytes,
            drops_reserved=False,
            queues_of=lambda name: writable(self.cluster, self.logs, name, timeout_ms=TIMEOUT_MS),
            new_id=lambda: new_id(self.cluster.instance),
        )
        ship: Ship = Stage(self.logs, timeout_ms=TIMEOUT_MS).ship
        if straight:
            ship = Straight(self.logs, timeout_ms=TIMEOUT_MS).ship
        # Little room, so that it waits.
        shipping = Shipping(self.cluster, ship, bytes_max=1_500)
        try:
            for chunk in [*packer.add(batch), *packer.rest()]:
                shipping.put(chunk)
            return shipping.finish()
        finally:
            shipping.close()

    def commit(self, work: SinkWork, staged: Sequence[Staged], on_step: Callable[[str], None] = lambda _: None) -> None:
        ids = self.cluster.instance.unique_ids
        ledger = Ledger(self.logs, work, RunIdentity(), new_id=ids.next, timeout_ms=TIMEOUT_MS)
        committer = Committer(self.logs, ledger, at_once=3, timeout_ms=TIMEOUT_MS, on_step=on_step)
        self.cluster.run(committer.commit(staged))

    def write(self, topic: str, batch: int, given: pa.RecordBatch) -> None:
        """One micro-batch of a query of that name."""
        self.commit(SinkWork(topic, batch), self.ship(given, topic, chunk_bytes=2_000))

    def bodies(self, *topics: str) -> list[bytes]:
        """All that queues of these topics hold."""

        async def read() -> list[bytes]:
            found: list[Stored] = []
            for topic in topics:
                for queue in (await self.cluster.instance.routes.of(topic)).to_read:
                    bounds = await self.logs.bounds(queue)
                    async for stored in self.logs.read(queue, bounds.first, bounds.end):
                        found += stored
            return sorted(one.body for one in found)

        return self.cluster.run(read())


@pytest.fixture(scope="module")
def brokers() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2) as running:
        yield running


@pytest.fixture
def sink(brokers: EmbeddedCluster) -> Sink:
    return Sink(brokers.name_servers)


def create(brokers: EmbeddedCluster, topic: str) -> None:
    with SyncAdmin(brokers.name_servers) as admin:
        admin.topics.create(topic, queues=2)


def rows(count: int, *, delay_level: int = 0) -> pa.RecordBatch:
    keys = [f"k{number % 3}" if number % 2 else None for number in range(count)]
    return pa.record_batch(
        {
            "body": pa.array(numbered(count), pa.binary()),
            "sharding_key": keys,
            "delay_level": pa.array([delay_level if number % 4 == 0 else 0 for number in range(count)], pa.int32()),
        }
    )


def numbered(count: int) -> list[bytes]:
    return [b"%05d" % number for number in range(count)]


def test_a_commit_that_breaks_off_at_each_step_is_finished_by_the_next(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2: on sockets and files, with rows that wait at their broker; order of keys included."""
    create(brokers, "steps")
    steps: list[str] = []
    sink.commit(SinkWork("count", 0), sink.ship(rows(40, delay_level=18), "steps"), steps.append)
    expected = sink.bodies("steps", SCHEDULE_TOPIC)
    assert numbered(40) == expected
    for number in range(len(steps)):
        left = list(range(number))

        def break_off(_: str, left: list[int] = left) -> None:
            if not left:
                raise Broken
            left.pop()

        work = SinkWork("steps", number)
        with pytest.raises(Broken):
            sink.commit(work, sink.ship(rows(40, delay_level=18), "steps"), break_off)
        # Another run has other chunks.
        sink.commit(work, sink.ship(rows(40, delay_level=18), "steps", chunk_bytes=900))
        expected = sorted(expected + numbered(40))
        assert expected == sink.bodies("steps", SCHEDULE_TOPIC), f"step {number}, {steps[number]}"


def test_an_answer_that_is_lost_does_not_double_a_chunk(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2: the broker has it, and says so too late; a torn batch is completed."""
    create(brokers, "answers")

    class Deaf(ClusterLogs):
        """Loses the answer to every second send to the topic, and of every fourth all rows but the first."""

        sends = 0

        async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
            if queue.topic == "answers":
                self.sends += 1
                if self.sends % 4 == 1 and parcel.is_batch:
                    await super().append(queue, AppendData(_first_row(parcel.body), is_batch=True))
                    raise NetworkError("torn")
                at = await super().append(queue, parcel)
                if self.sends % 2:
                    raise NetworkError("lost")
                return at
            return await super().append(queue, parcel)

    sink.logs = deaf = Deaf(sink.cluster, retry_timeout_ms=TIMEOUT_MS)
    sink.commit(SinkWork("answers", 0), sink.ship(rows(60), "answers"))
    assert numbered(60) == sink.bodies("answers")
    assert deaf.sends > 4


def _first_row(batch: Buffer) -> Buffer:
    size = int.from_bytes(bytes(batch[:4]), "big")
    return batch[:size]


def test_straight_chunks_need_no_commit(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2: ``delivery=at-least-once``."""
    create(brokers, "straight")
    assert [] == sink.ship(rows(40, delay_level=1), "straight", straight=True)
    found = sink.bodies("straight", SCHEDULE_TOPIC)
    assert set(numbered(40)) <= set(found)


@pytest.mark.parametrize("status", [one for one in SendStatus if one is not SendStatus.OK])
async def test_stored_is_not_safe(status: SendStatus, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 11: such an answer is an error, unless it is accepted; tasks that send straight fail by it."""
    answer = Reply(ResponseCode[status.value], header=SendReply(message_id="ID", queue_id=0, queue_offset=5))
    async with scripted_cluster() as cluster:
        cluster.broker.answers.extend([answer] * 4)

        def use() -> None:
            there = cluster_at(cluster.name_servers)
            strict, lenient = (
                ClusterLogs(there, retry_timeout_ms=TIMEOUT_MS, accepts_unsafe=accepts) for accepts in (False, True)
            )
            queue = MessageQueue("orders", "broker-a", 0)
            with pytest.raises(NotSafe, match=f"orders@broker-a:0 stored a message with the status {status.value}"):
                there.run(strict.append(queue, AppendData(b"1")))
            for _ in range(2):
                assert 5 == there.run(lenient.append(queue, AppendData(b"1")))
            straight = Straight(strict, timeout_ms=TIMEOUT_MS)
            chunk = Chunk("0" * 28, "orders", None, 0, 1, pack_messages([(0, b"1", "")]), 0)
            with pytest.raises(StoredUnsafely, match=f"{status.value}.* set the option unsafeWrites to accept"):
                there.run(straight.ship(chunk))

        await asyncio.to_thread(use)
        assert 4 == len(cluster.broker.sends)
    assert 1 == caplog.text.count("It is accepted because of the option unsafeWrites")


def test_a_chunk_that_is_not_safe_in_the_stage_is_waited_for_and_not_staged_again(
    brokers: EmbeddedCluster, sink: Sink
) -> None:
    """Issue 13, point 11: a small record behind it shows when it is."""
    create(brokers, "waited")

    class Slaveless(ClusterLogs):
        """A broker whose slave is away for the first few sends."""

        chunks = others = 0

        async def append_anywhere(self, topic: str, parcel: AppendData) -> tuple[MessageQueue, int]:
            queue, at = await super().append_anywhere(topic, parcel)
            self.chunks += 1
            raise NotSafe(SendReceipt(SendStatus.SLAVE_NOT_AVAILABLE, "", "", queue, at))

        async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
            at = await super().append(queue, parcel)
            self.others += 1
            if self.others % 3:
                raise NotSafe(SendReceipt(SendStatus.SLAVE_NOT_AVAILABLE, "", "", queue, at))
            return at

    logs, sink.logs = sink.logs, (slaveless := Slaveless(sink.cluster, retry_timeout_ms=TIMEOUT_MS))
    staged = sink.ship(rows(20), "waited", chunk_bytes=100_000)
    assert (len(staged), 3 * len(staged)) == (slaveless.chunks, slaveless.others)
    sink.logs = logs
    sink.commit(SinkWork("waited", 0), staged)
    assert numbered(20) == sink.bodies("waited")


def test_a_body_that_does_not_decompress_ends_no_commit(brokers: EmbeddedCluster, sink: Sink) -> None:
    """Issue 13, point 11: neither in the ledger, under the right key, nor among the rows of a topic."""
    create(brokers, "packed")

    def break_off(step: str) -> None:
        if step == "decided":
            raise Broken

    with pytest.raises(Broken):
        sink.commit(SinkWork("packed", 0), sink.ship(rows(20), "packed"), break_off)

    async def spoil() -> None:
        sender = Sender(sink.cluster.instance, SPARK_GROUP, ProducerConfig(), ())
        for topic in (LEDGER_TOPIC, "packed"):
            for queue in await sink.logs.writable(topic):
                text = "UNIQ_KEY\x01u\x02KEYS\x01packed/0\x02TAGS\x01decision\x02"
                outgoing = Outgoing((Message(topic, b""),), topic, "", b"not packed", text, 0)
                outgoing.sysflag = Sysflag.COMPRESSED
                await sender.deliver(outgoing, pick=partial(_always, queue), timeout_ms=TIMEOUT_MS)

    sink.cluster.run(spoil())
    sink.commit(SinkWork("packed", 0), sink.ship(rows(20), "packed"))
    assert numbered(20) == [body for body in sink.bodies("packed") if body]


def _always(queue: MessageQueue, _: TopicRoute) -> MessageQueue:
    return queue


def test_queues_are_logs(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2: what is appended is at its place; the index gives hints; what is not there is told."""
    create(brokers, "logs")
    queue = MessageQueue("logs", "broker-b", 1)

    async def use() -> None:
        logs = sink.logs
        text = "UNIQ_KEY\x01u\x02KEYS\x01q/1\x02TAGS\x01mark\x02"
        assert 0 == await logs.append(queue, AppendData(b"zip me" * 1_000, text, is_text=True))
        assert 1 == await logs.append(queue, AppendData(b"two"))
        first, second = await read_one(logs, queue, 0), await read_one(logs, queue, 1)
        assert ("u", "q/1", "mark", b"zip me" * 1_000) == (first.unique_key, first.keys, first.tags, first.body)
        assert ("", "", b"two") == (second.keys, second.tags, second.body)
        assert Bounds(0, 2) == await logs.bounds(queue)
        assert 0 == await logs.hint(queue, "q/1", "mark")
        assert None is await logs.hint(queue, "q/2", "mark")
        assert None is await logs.hint(queue, "q/1", "done")
        assert None is await logs.hint(MessageQueue("logs", "broker-a", 1), "q/1", "mark")
        with pytest.raises(MessagesLost):
            async for _ in logs.read(queue, 1, 5):
                pass
        with pytest.raises(RouteMissing):
            await logs.writable("nowhere")

    sink.cluster.run(use())


def test_rows_may_have_a_time_where_brokers_know_delivery_times(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2, I2: ours do; others are in ``test_sink_rocketmq``. Each is stored once, wherever a commit breaks."""
    create(brokers, "timed")
    sink.cluster.run(check_timed(sink.logs, "timed"))
    due = datetime.now(UTC) + timedelta(hours=1)
    batch = pa.record_batch(
        {"body": numbered(40), "deliver_time": pa.array([due] * 40, pa.timestamp("us", tz="UTC"))},
    )
    with SyncAdmin(brokers.name_servers) as admin:
        for number, step in enumerate(["decided", "chunk", "published"], 1):

            def break_off(passed: str, step: str = step) -> None:
                if passed == step:
                    raise Broken

            work = SinkWork("timed", number)
            with pytest.raises(Broken):
                sink.commit(work, sink.ship(batch, "timed"), break_off)
            sink.commit(work, sink.ship(batch, "timed"))
            assert number * 40 == sum(admin.delays.stats("timed").hours.values()), step


def test_the_ledger_is_in_the_topic_for_people_to_read(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2: found by the key ``query/batch``; the last entry of each broker says that all is done."""
    create(brokers, "read")
    sink.commit(SinkWork("look", 7), sink.ship(rows(5), "read"))
    with SyncAdmin(brokers.name_servers) as admin:
        entries = admin.messages.by_key(LEDGER_TOPIC, "look/7")
    assert ["mark"] * 4 + ["decision", "done", "done"] == [entry.tags for entry in entries]


def test_rows_of_others_between_ours_are_nobodys(brokers: EmbeddedCluster, sink: Sink) -> None:
    """U2: messages of other producers in the same queues count for nothing."""
    create(brokers, "shared")
    with SyncProducer("others", name_servers=brokers.name_servers) as producer:
        for number in range(50):
            producer.send(Message("shared", b"theirs %d" % number))

        def break_off(step: str) -> None:
            if step == "decided":
                raise Broken

        with pytest.raises(Broken):
            sink.commit(SinkWork("shared", 0), sink.ship(rows(20), "shared"), break_off)
        for number in range(50):
            producer.send(Message("shared", b"theirs %d" % number))
    sink.commit(SinkWork("shared", 0), sink.ship(rows(20), "shared"))
    assert numbered(20) == [body for body in sink.bodies("shared") if not body.startswith(b"theirs")]
    assert 120 == len(sink.bodies("shared"))
