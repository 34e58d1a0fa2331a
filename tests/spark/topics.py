"""What tests do with topics: fill them, read them with Spark, and compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, DataFrameReader, Row, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from ternmq import Message, MessageQueue, SyncAdmin, SyncProducer
from ternmq.client.blocking.loop_thread import loop_thread
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.outgoing import prepare
from ternmq.client.send.sender import Sender
from ternmq.wire.record import Sysflag


@dataclass(slots=True, frozen=True)
class Topics:
    """A session and a cluster."""

    spark: SparkSession
    name_servers: str

    def create(self, topic: str, *, queues: int = 2) -> None:
        with SyncAdmin(self.name_servers) as admin:
            admin.topics.create(topic, queues=queues)

    def send(
        self, topic: str, bodies: Iterable[bytes], *, tags: Sequence[str] = (), queue: MessageQueue | None = None
    ) -> None:
        """One message a body, with the tags in turn and the body as key."""
        with SyncProducer("tests", name_servers=self.name_servers) as producer:
            for number, body in enumerate(bodies):
                tag = tags[number % len(tags)] if tags else ""
                key = body.decode(errors="replace")[:20]
                producer.send(Message(topic, body, tags=tag, keys=key), queue=queue)

    def reader(self, **options: object) -> DataFrameReader:
        reader = self.spark.read.format("ternmq").option("nameServers", self.name_servers)
        return reader.options(**{name: str(value) for name, value in options.items()})

    def read(self, topic: str, **options: object) -> DataFrame:
        return self.reader(topic=topic, **options).load()

    def stream(self, **options: object) -> DataStreamReader:
        reader = self.spark.readStream.format("ternmq").option("nameServers", self.name_servers)
        return reader.options(**{name: str(value) for name, value in options.items()})


def send_undecompressable(name_servers: str, topic: str) -> None:
    """A message whose body says that it is compressed, and is not."""

    async def send() -> None:
        async with ClientInstance(ClientConfig(name_servers)) as instance:
            outgoing = prepare(Message(topic, b"not zlib"), message_id=instance.unique_ids.next())
            outgoing.sysflag |= Sysflag.COMPRESSED
            await Sender(instance, "tests", ProducerConfig(), ()).deliver(outgoing, timeout_ms=60_000)

    loop_thread().run(send())


def bodies_of(rows: Iterable[Row]) -> list[bytes]:
    """The bodies in order of their text."""
    return sorted(bytes(row["body"]) for row in rows)


def numbered(count: int, *, start: int = 0) -> list[bytes]:
    return [f"{number:05}".encode() for number in range(start, start + count)]
