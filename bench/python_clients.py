"""The Python clients that ``bench.python_peers`` compares: each way to send and to consume, once per client.

A way is a coroutine of a ``Run``. What it does before ``run.begin()`` and after ``run.end()`` does not count. All send
bodies of 200 bytes and wait for the broker's word; consumers acknowledge what they got.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from ternmq import Message, Producer, ProducerConfig, PushConsumer, StartPosition, SyncProducer, SyncPushConsumer

BODY: Final = bytes(range(200))
IN_FLIGHT: Final = 256
BATCH: Final = 500
#: The topic, stream or subject with a backlog, and the one that is sent to.
BACKLOG: Final = "backlog"
SENT: Final = "sent"
TIMED: Final = "timed"
#: Messages a second where latencies are measured.
PACE: Final = 500


class Run:
    """One measurement of ``count`` messages."""

    def __init__(self, address: str, count: int) -> None:
        self.address = address
        self.count = count
        self.group = f"bench-{time.time_ns()}"
        self.left = count
        self.latencies_ms: list[float] = []
        self._began = self._ended = (0.0, 0.0)

    def begin(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        self._ended = time.perf_counter(), time.process_time()

    def result(self) -> dict[str, float]:
        if self.latencies_ms:
            ordered = sorted(self.latencies_ms)
            return {"p50_ms": ordered[len(ordered) // 2], "p99_ms": ordered[len(ordered) * 99 // 100]}
        wall_s, cpu_s = (ended - began for began, ended in zip(self._began, self._ended, strict=True))
        return {"rate": self.count / wall_s, "cpu_us": cpu_s * 1e6 / self.count}

    async def one_by_one(self, send: Callable[[], Awaitable[object]]) -> None:
        for _ in range(100):
            await send()
        self.begin()
        for _ in range(self.count):
            await send()
        self.end()

    async def in_flight(self, send: Callable[[], Awaitable[object]], tasks: int = IN_FLIGHT) -> None:
        numbers = iter(range(self.count))

        async def sender() -> None:
            for _ in numbers:
                await send()

        await send()
        self.begin()
        await asyncio.gather(*(sender() for _ in range(tasks)))
        self.end()

    async def in_lists(self, send: Callable[[int], Awaitable[object]], size: int = BATCH) -> None:
        """Two senders, each with one list after the other."""
        numbers = iter(range(0, self.count, size))

        async def sender() -> None:
            for _ in numbers:
                await send(size)

        await send(size)
        self.begin()
        await asyncio.gather(sender(), sender())
        self.end()

    def got(self, count: int = 1) -> bool:
        """Messages came; whether these were the last. The clock starts with the first."""
        if self.left == self.count:
            self.begin()
        self.left -= count
        if self.left <= 0 < self.left + count:
            self.end()
        return self.left <= 0

    async def paced(self, send: Callable[[bytes], Awaitable[object]], arrived: asyncio.Event) -> None:
        """Send ``PACE`` messages a second that say when they were sent, until all have arrived."""
        start = time.perf_counter()
        pending: set[asyncio.Future[object]] = set()
        for number in itertools.count():
            if arrived.is_set():
                break
            await asyncio.sleep(max(0.0, start + number / PACE - time.perf_counter()))
            sent = asyncio.ensure_future(send(b"%020d" % time.perf_counter_ns() + BODY[20:]))
            pending.add(sent)
            sent.add_done_callback(pending.discard)
        await asyncio.gather(*pending)

    def timed(self, body: bytes, arrived: asyncio.Event) -> None:
        """A message of ``paced`` has reached its handler. The first second, or half, of them is not counted."""
        self.left -= 1
        if self.left < self.count - min(PACE, self.count // 2):
            self.latencies_ms.append((time.perf_counter_ns() - int(body[:20])) / 1e6)
        if self.left <= 0:
            arrived.set()


Way = Callable[[Run], Coroutine[Any, Any, None]]


# --- TernMQ ----------------------------------------------------------------------------------------------------------


async def tern_one(run: Run) -> None:
    async with Producer("bench", name_servers=run.address) as producer:
        await run.one_by_one(lambda: producer.send(Message(SENT, BODY)))


async def tern_flight(run: Run) -> None:
    async with Producer("bench", name_servers=run.address) as producer:
        await run.in_flight(lambda: producer.send(Message(SENT, BODY)))


async def tern_auto(run: Run) -> None:
    config = ProducerConfig(auto_batch=True)
    async with Producer("bench", name_servers=run.address, config=config) as producer:
        await run.in_flight(lambda: producer.send(Message(SENT, BODY)))


async def tern_lists(run: Run) -> None:
    async with Producer("bench", name_servers=run.address) as producer:
        await run.in_lists(lambda size: producer.send_batch([Message(SENT, BODY) for _ in range(size)]))


async def tern_consume(run: Run) -> None:
    ended = asyncio.Event()

    async def on_messages(messages: list[object]) -> None:
        if run.got(len(messages)):
            ended.set()

    consumer = PushConsumer(run.group, on_messages, name_servers=run.address, start=StartPosition.FIRST, batch_max=32)
    consumer.subscribe(BACKLOG)
    async with consumer:
        await ended.wait()


async def tern_each(run: Run) -> None:
    consumer = PushConsumer(run.group, name_servers=run.address, start=StartPosition.FIRST)
    consumer.subscribe(BACKLOG)
    async with consumer:
        async for _ in consumer:
            if run.got():
                break


async def tern_latency(run: Run) -> None:
    arrived = asyncio.Event()

    async def on_message(message: Any) -> None:
        run.timed(message.body, arrived)

    # A group that is new to a young topic begins at its first message, as with RocketMQ: one of an earlier run.
    topic = f"{TIMED}-{run.group}"
    consumer = PushConsumer(run.group, on_message, name_servers=run.address)
    consumer.subscribe(topic)
    async with Producer("bench", name_servers=run.address) as producer, consumer:
        await producer.send(Message(topic, b"%020d" % time.perf_counter_ns()))
        await consumer.ready()
        await run.paced(lambda body: producer.send(Message(topic, body)), arrived)


async def tern_sync_one(run: Run) -> None:
    def work() -> None:
        with SyncProducer("bench", name_servers=run.address) as producer:
            producer.send(Message(SENT, BODY))
            run.begin()
            for _ in range(run.count):
                producer.send(Message(SENT, BODY))
            run.end()

    await asyncio.to_thread(work)


async def tern_sync_each(run: Run) -> None:
    def work() -> None:
        with SyncPushConsumer(run.group, name_servers=run.address, start=StartPosition.FIRST) as consumer:
            consumer.subscribe(BACKLOG)
            for _ in consumer:
                if run.got():
                    break

    await asyncio.to_thread(work)


# --- aiokafka --------------------------------------------------------------------------------------------------------


async def aiokafka_one(run: Run) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=run.address, acks=1) as producer:
        await run.one_by_one(lambda: producer.send_and_wait(SENT, BODY))


async def aiokafka_flight(run: Run) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=run.address, acks=1) as producer:
        await run.in_flight(lambda: producer.send_and_wait(SENT, BODY))


async def aiokafka_lists(run: Run) -> None:
    from aiokafka import AIOKafkaProducer

    partitions = itertools.cycle(range(4))

    async def send(size: int) -> None:
        batch = producer.create_batch()
        for _ in range(size):
            assert batch.append(key=None, value=BODY, timestamp=None) is not None
        await (await producer.send_batch(batch, SENT, partition=next(partitions)))

    async with AIOKafkaProducer(bootstrap_servers=run.address, acks=1, max_batch_size=1 << 20) as producer:
        await run.in_lists(send)


async def aiokafka_consume(run: Run) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        BACKLOG, bootstrap_servers=run.address, group_id=run.group, auto_offset_reset="earliest"
    )
    async with consumer:
        async for _ in consumer:
            if run.got():
                break
        await consumer.commit()


async def aiokafka_latency(run: Run) -> None:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

    arrived = asyncio.Event()

    async def consume() -> None:
        async for message in consumer:
            run.timed(message.value, arrived)
            if arrived.is_set():
                break

    consumer = AIOKafkaConsumer(TIMED, bootstrap_servers=run.address, group_id=run.group, auto_offset_reset="latest")
    async with AIOKafkaProducer(bootstrap_servers=run.address, acks=1) as producer, consumer:
        for partition in consumer.assignment():
            await consumer.position(partition)
        consuming = asyncio.create_task(consume())
        await run.paced(lambda body: producer.send_and_wait(TIMED, body), arrived)
        await consuming


# --- confluent-kafka -------------------------------------------------------------------------------------------------


def _confluent_send(run: Run, in_flight: int) -> None:
    from confluent_kafka import Producer as ConfluentProducer

    # Its default of 5 ms is made for many messages, and would be all that a lone one waits for.
    settings = {"linger.ms": 0} if in_flight == 1 else {}
    producer = ConfluentProducer({"bootstrap.servers": run.address, "acks": 1, **settings})
    open_sends = 0

    def sent(error: object, _: object) -> None:
        nonlocal open_sends
        assert error is None, error
        open_sends -= 1

    producer.produce(SENT, BODY)
    producer.flush()
    run.begin()
    for _ in range(run.count):
        while open_sends >= in_flight:
            producer.poll(1)
        open_sends += 1
        producer.produce(SENT, BODY, on_delivery=sent)
        producer.poll(0)
    producer.flush()
    run.end()


async def confluent_one(run: Run) -> None:
    await asyncio.to_thread(_confluent_send, run, 1)


async def confluent_flight(run: Run) -> None:
    await asyncio.to_thread(_confluent_send, run, IN_FLIGHT)


async def confluent_lists(run: Run) -> None:
    """As many as its own queue takes."""
    await asyncio.to_thread(_confluent_send, run, 50_000)


async def confluent_consume(run: Run) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer

    def work() -> None:
        consumer = ConfluentConsumer(
            {"bootstrap.servers": run.address, "group.id": run.group, "auto.offset.reset": "earliest"}
        )
        consumer.subscribe([BACKLOG])
        while True:
            messages = consumer.consume(500, 1.0)
            if messages and run.got(len(messages)):
                break
        consumer.close()

    await asyncio.to_thread(work)


async def confluent_latency(run: Run) -> None:
    from confluent_kafka import Consumer as ConfluentConsumer
    from confluent_kafka import Producer as ConfluentProducer

    arrived = asyncio.Event()
    assigned = threading.Event()

    def consume() -> None:
        consumer = ConfluentConsumer(
            {"bootstrap.servers": run.address, "group.id": run.group, "auto.offset.reset": "latest"}
        )
        consumer.subscribe([TIMED], on_assign=lambda *_: assigned.set())
        while not arrived.is_set():
            message = consumer.poll(1.0)
            if message is not None:
                assert message.error() is None, message.error()
                run.timed(message.value() or b"", arrived)
        consumer.close()

    async def send(body: bytes) -> None:
        producer.produce(TIMED, body)
        producer.poll(0)

    # As for lone sends: its default of 5 ms would be nearly all that is measured.
    producer = ConfluentProducer({"bootstrap.servers": run.address, "acks": 1, "linger.ms": 0})
    consuming = asyncio.create_task(asyncio.to_thread(consume))
    await asyncio.to_thread(assigned.wait)
    await run.paced(send, arrived)
    await consuming


# --- redis-py, streams -----------------------------------------------------------------------------------------------


def _redis(run: Run) -> Any:
    from redis.asyncio import Redis

    host, port = run.address.split(":")
    return Redis(host=host, port=int(port), max_connections=2 * IN_FLIGHT)


async def redis_one(run: Run) -> None:
    async with _redis(run) as client:
        await run.one_by_one(lambda: client.xadd(SENT, {"b": BODY}))


async def redis_lists(run: Run) -> None:
    """A pipeline; redis-py has no other way to have many on their way on one connection."""

    async def send(size: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for _ in range(size):
            pipeline.xadd(SENT, {"b": BODY})
        await pipeline.execute()

    async with _redis(run) as client:
        await run.in_lists(send, IN_FLIGHT)


async def redis_consume(run: Run) -> None:
    async with _redis(run) as client:
        await client.xgroup_create(BACKLOG, run.group, id="0")
        while True:
            ((_, entries),) = await client.xreadgroup(run.group, "one", {BACKLOG: ">"}, count=500)
            await client.xack(BACKLOG, run.group, *[entry[0] for entry in entries])
            if run.got(len(entries)):
                break


async def redis_latency(run: Run) -> None:
    arrived = asyncio.Event()

    async def consume() -> None:
        while not arrived.is_set():
            for _, entries in await client.xreadgroup(run.group, "one", {TIMED: ">"}, count=100, block=1_000):
                for _, fields in entries:
                    run.timed(fields[b"b"], arrived)
                await client.xack(TIMED, run.group, *[entry[0] for entry in entries])

    async with _redis(run) as client:
        await client.xgroup_create(TIMED, run.group, id="$", mkstream=True)
        consuming = asyncio.create_task(consume())
        await run.paced(lambda body: client.xadd(TIMED, {"b": body}), arrived)
        await consuming


# --- nats-py, JetStream ----------------------------------------------------------------------------------------------


async def _nats(run: Run) -> tuple[Any, Any]:
    import nats

    client = await nats.connect(f"nats://{run.address}")
    stream: Any = client.jetstream(publish_async_max_pending=2 * IN_FLIGHT)
    for name in (BACKLOG, SENT, TIMED):
        await stream.add_stream(name=name, subjects=[name])
    return client, stream


async def nats_one(run: Run) -> None:
    client, stream = await _nats(run)
    await run.one_by_one(lambda: stream.publish(SENT, BODY))
    await client.close()


async def nats_flight(run: Run) -> None:
    client, stream = await _nats(run)
    await run.in_flight(lambda: stream.publish(SENT, BODY))
    await client.close()


async def nats_consume(run: Run) -> None:
    client, stream = await _nats(run)
    subscription = await stream.pull_subscribe(BACKLOG, durable=run.group)
    while True:
        messages = await subscription.fetch(200)
        for message in messages:
            await message.ack()
        if run.got(len(messages)):
            break
    await client.close()


async def nats_latency(run: Run) -> None:
    arrived = asyncio.Event()

    async def on_message(message: Any) -> None:
        run.timed(message.data, arrived)
        await message.ack()

    client, stream = await _nats(run)
    from nats.js.api import DeliverPolicy

    await stream.subscribe(TIMED, durable=run.group, cb=on_message, manual_ack=True, deliver_policy=DeliverPolicy.NEW)
    await run.paced(lambda body: stream.publish(TIMED, body), arrived)
    await client.close()


# --- aio-pika, quorum queues -----------------------------------------------------------------------------------------


async def _rabbit(run: Run) -> tuple[Any, Any, dict[str, Any]]:
    """A connection, a channel whose sends are confirmed, and the queues by name."""
    import aio_pika

    connection = await aio_pika.connect(f"amqp://guest:guest@{run.address}/")
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=BATCH)
    kind: Any = {"x-queue-type": "quorum"}
    queues = {name: await channel.declare_queue(name, durable=True, arguments=kind) for name in (BACKLOG, SENT, TIMED)}
    return connection, channel, queues


def _rabbit_send(channel: Any, queue: str, body: bytes) -> Awaitable[object]:
    import aio_pika

    message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    sent: Awaitable[object] = channel.default_exchange.publish(message, routing_key=queue)
    return sent


async def rabbit_one(run: Run) -> None:
    connection, channel, _ = await _rabbit(run)
    await run.one_by_one(lambda: _rabbit_send(channel, SENT, BODY))
    await connection.close()


async def rabbit_flight(run: Run) -> None:
    connection, channel, _ = await _rabbit(run)
    await run.in_flight(lambda: _rabbit_send(channel, SENT, BODY))
    await connection.close()


async def rabbit_consume(run: Run) -> None:
    """Acknowledged and gone: the backlog is filled anew for each round."""
    connection, channel, queues = await _rabbit(run)
    await _rabbit_fill(channel, run.count)
    ended = asyncio.Event()

    async def on_message(message: Any) -> None:
        await message.ack()
        if run.got():
            ended.set()

    await queues[BACKLOG].consume(on_message)
    await ended.wait()
    await connection.close()


async def rabbit_latency(run: Run) -> None:
    arrived = asyncio.Event()

    async def on_message(message: Any) -> None:
        run.timed(message.body, arrived)
        await message.ack()

    connection, channel, queues = await _rabbit(run)
    await queues[TIMED].consume(on_message)
    await run.paced(lambda body: _rabbit_send(channel, TIMED, body), arrived)
    await connection.close()


async def _rabbit_fill(channel: Any, count: int) -> None:
    for _ in range(0, count, BATCH):
        await asyncio.gather(*(_rabbit_send(channel, BACKLOG, BODY) for _ in range(BATCH)))


#: By row and client.
WAYS: Final[dict[str, dict[str, Way]]] = {
    "one": {
        "ternmq": tern_one,
        "ternmq, sync": tern_sync_one,
        "aiokafka": aiokafka_one,
        "confluent-kafka": confluent_one,
        "redis-py": redis_one,
        "nats-py": nats_one,
        "aio-pika": rabbit_one,
    },
    "flight": {
        "ternmq": tern_flight,
        "ternmq, auto_batch": tern_auto,
        "aiokafka": aiokafka_flight,
        "confluent-kafka": confluent_flight,
        "nats-py": nats_flight,
        "aio-pika": rabbit_flight,
    },
    "lists": {
        "ternmq": tern_lists,
        "aiokafka": aiokafka_lists,
        "confluent-kafka": confluent_lists,
        "redis-py": redis_lists,
    },
    "consume": {
        "ternmq": tern_consume,
        "ternmq, one by one": tern_each,
        "ternmq, sync": tern_sync_each,
        "aiokafka": aiokafka_consume,
        "confluent-kafka": confluent_consume,
        "redis-py": redis_consume,
        "nats-py": nats_consume,
        "aio-pika": rabbit_consume,
    },
    "latency": {
        "ternmq": tern_latency,
        "aiokafka": aiokafka_latency,
        "confluent-kafka": confluent_latency,
        "redis-py": redis_latency,
        "nats-py": nats_latency,
        "aio-pika": rabbit_latency,
    },
}

# --- Backlogs --------------------------------------------------------------------------------------------------------


async def fill_ternmq(run: Run) -> None:
    async with Producer("bench", name_servers=run.address) as producer:
        for _ in range(0, run.count, BATCH):
            await producer.send_batch([Message(BACKLOG, BODY) for _ in range(BATCH)])


async def fill_kafka(run: Run) -> None:
    from aiokafka import AIOKafkaProducer

    async with AIOKafkaProducer(bootstrap_servers=run.address, acks=1) as producer:
        for _ in range(0, run.count, BATCH):
            await asyncio.gather(*[await producer.send(BACKLOG, BODY) for _ in range(BATCH)])


async def fill_redis(run: Run) -> None:
    async with _redis(run) as client:
        for _ in range(0, run.count, BATCH):
            pipeline = client.pipeline(transaction=False)
            for _ in range(BATCH):
                pipeline.xadd(BACKLOG, {"b": BODY})
            await pipeline.execute()


async def fill_nats(run: Run) -> None:
    client, stream = await _nats(run)
    for _ in range(0, run.count, BATCH):
        await asyncio.gather(*(stream.publish(BACKLOG, BODY) for _ in range(BATCH)))
    await client.close()


async def fill_nothing(_: Run) -> None:
    """RabbitMQ deletes what is acknowledged, so each measurement fills its own backlog."""


FILLS: Final[dict[str, Way]] = {
    "ternmq": fill_ternmq,
    "kafka": fill_kafka,
    "redis": fill_redis,
    "nats": fill_nats,
    "rabbitmq": fill_nothing,
}
