"""Where the trace records of one producer or consumer wait, and how they are sent (Q1).

``add`` is all that the send path and listeners pay: it notes a text and returns, in any thread. A task sends what has
gathered every ``INTERVAL_S``, or earlier when a message is full, as a client of its own: a trace never waits in
front of a message of the application, and is not traced itself.

Limits: records that wait or are on their way take at most ``WAITING_BYTES_MAX``; beyond that, new ones are dropped and
counted. A message that cannot be sent is not kept: its records count as dropped, too. So a broker that is gone costs
traces, never memory, and never a send of the application.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from threading import Lock
from typing import Final, NamedTuple

from ternmq.client.config import COMPRESSIONS, ClientConfig, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.outgoing import prepare, shrink
from ternmq.client.send.sender import Sender
from ternmq.env import Clock, Env
from ternmq.errors import ConfigError, TernError
from ternmq.message import Message
from ternmq.names import SERVED_GROUP_LENGTH_MAX, TRACE_TOPIC, check_topic
from ternmq.rare_log import RareLog
from ternmq.tasks import Tasks
from ternmq.wire.ids import UniqueIds
from ternmq.wire.trace import TraceRecord, encode

log = logging.getLogger(__name__)

#: As RocketMQ 4.9; 5.x waits up to 5 s.
INTERVAL_S: Final = 0.5
#: Of one trace message; RocketMQ's 128,000 characters.
BODY_BYTES_MAX: Final = 128_000
#: Keys are a property, and all properties together have at most 32,767 bytes.
KEYS_BYTES_MAX: Final = 24_000
#: Records that wait or are on their way, with their keys.
WAITING_BYTES_MAX: Final = 4 * 1024 * 1024
#: How long the end of a client waits for its last traces.
CLOSE_S: Final = 3.0
_SEND_TIMEOUT_MS: Final = 5_000
#: What Python's objects for one record take besides its characters, about.
_RECORD_BYTES: Final = 300


class TraceCounts(NamedTuple):
    """What became of the trace records of a client.

    Attributes:
        sent: Records that are stored in the trace topic.
        dropped: Records that were dropped, because there were too many, or they could not be sent.
    """

    sent: int = 0
    dropped: int = 0


class _Noted(NamedTuple):
    text: str
    #: Words by which the record is found: the message id first.
    keys: tuple[str, ...]
    size_bytes: int


def trace_topic(trace: bool | str) -> str:
    """The topic that a client's ``trace`` names; empty without. Raises ``ConfigError``, ``InvalidName``."""
    if isinstance(trace, bool):
        return TRACE_TOPIC if trace else ""
    if not isinstance(trace, str) or not trace:
        raise ConfigError(f"invalid trace {trace!r}: expected True, False or the name of the trace topic")
    return check_topic(trace)


class TraceOutbox:
    """The traces of one client, on their way to ``topic``. ``add`` may be called in any thread."""

    def __init__(self, topic: str, clock: Clock, ids: UniqueIds, *, waiting_bytes_max: int = WAITING_BYTES_MAX) -> None:
        self.topic: Final = topic
        self.clock: Final = clock
        self._ids = ids
        self._loop = asyncio.get_running_loop()
        self._waiting_bytes_max = waiting_bytes_max
        self._lock = Lock()
        self._waiting: deque[_Noted] = deque()
        #: Of what waits and what is on its way; of what waits alone.
        self._bytes = self._gathered_bytes = 0
        self._closed = False
        self._full = asyncio.Event()
        self._rare = RareLog(log, clock.monotonic)
        #: Records that were stored in the trace topic, and records that were not.
        self.sent = self.dropped = 0

    @property
    def counts(self) -> TraceCounts:
        return TraceCounts(self.sent, self.dropped)

    def request_id(self) -> str:
        """An id for one call of a listener."""
        with self._lock:
            return self._ids.next()

    def add(self, records: Iterable[TraceRecord]) -> None:
        """Take records to send; drop and count those for which there is no room."""
        for record in records:
            text = encode(record)
            keys = (record.message_id or "", *(record.keys or "").split())
            # A character may take four bytes; most take one.
            size = _RECORD_BYTES + (2 * len(text) if text.isascii() else 8 * len(text))
            with self._lock:
                if self._closed or self._bytes + size > self._waiting_bytes_max:
                    self.dropped += 1
                    continue
                self._waiting.append(_Noted(text, keys, size))
                self._bytes += size
                was, self._gathered_bytes = self._gathered_bytes, self._gathered_bytes + size
            if was < BODY_BYTES_MAX <= was + size:
                self._loop.call_soon_threadsafe(self._full.set)

    async def send_forever(self, sender: Sender) -> None:
        """Send what gathers; ``sender`` belongs to no client of the application."""
        while not self._closed:
            try:
                async with asyncio.timeout(INTERVAL_S):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            await self.flush(sender)

    def close(self) -> None:
        """Take no more. What waits is sent by the last ``flush`` of ``send_forever``."""
        with self._lock:
            self._closed = True
        self._full.set()

    def give_up(self) -> None:
        """Count what still waits as dropped: the time for the end is over."""
        with self._lock:
            left = len(self._waiting)
            self._waiting.clear()
            self.dropped += left
        if self.dropped:
            self._rare.warning("end", f"{self.dropped} trace records of this client were dropped, {self.sent} sent")

    async def flush(self, sender: Sender) -> None:
        """Send what waits now, one message after the other."""
        while part := self._take():
            try:
                await self._send(sender, part)
            except TernError as error:
                self._lost(part, error)
            except asyncio.CancelledError:
                self.dropped += len(part)
                raise
            else:
                self.sent += len(part)
            finally:
                with self._lock:
                    self._bytes -= sum(one.size_bytes for one in part)

    def _take(self) -> list[_Noted]:
        """What fits one message; at least one record, if any waits."""
        part: list[_Noted] = []
        body_bytes = keys_bytes = 0
        with self._lock:
            while self._waiting:
                first = self._waiting[0]
                # UTF-8 has at most three bytes for a character of the basic plane and four for what Java counts as two.
                body_bytes += len(first.text) if first.text.isascii() else 4 * len(first.text)
                keys_bytes += sum(4 * len(key) + 1 if not key.isascii() else len(key) + 1 for key in first.keys)
                if part and (body_bytes > BODY_BYTES_MAX or keys_bytes > KEYS_BYTES_MAX):
                    break
                part.append(self._waiting.popleft())
                self._gathered_bytes -= first.size_bytes
        return part

    async def _send(self, sender: Sender, part: Sequence[_Noted]) -> None:
        body = "".join(one.text for one in part).encode("utf-8", "replace")
        keys = _fitting(dict.fromkeys(key for one in part for key in one.keys if key))
        outgoing = prepare(Message(self.topic, body, keys=keys), message_id=sender.instance.unique_ids.next())
        shrink(outgoing, kind=COMPRESSIONS["ZLIB"], level=sender.config.compress_level)
        await sender.deliver(outgoing, timeout_ms=_SEND_TIMEOUT_MS)

    def _lost(self, part: Sequence[_Noted], error: TernError) -> None:
        self.dropped += len(part)
        self._rare.warning(
            "lost", f"cannot send {len(part)} trace records to topic {self.topic}: {error}; they are dropped"
        )


def _fitting(keys: Iterable[str]) -> tuple[str, ...]:
    """As many keys as a message can have. Message ids come first in each record, so the keys of one with very many are
    left out before its id."""
    kept, left = [], KEYS_BYTES_MAX
    for key in keys:
        left -= len(key.encode("utf-8", "replace")) + 1
        if left < 0:
            break
        kept.append(key)
    return tuple(kept)


@asynccontextmanager
async def outbox(
    topic: str, config: ClientConfig, group: str, *, kind: str, env: Env | None = None
) -> AsyncIterator[TraceOutbox]:
    """The outbox of a client with this ``config`` and ``group``; ``kind`` is ``PRODUCE`` or ``CONSUME``.

    Its connections are its own. The end sends what waits, for at most ``CLOSE_S``.
    """
    own = replace(config, instance_name=f"trace-{os.getpid()}", namespace="", vip_channel=False)
    name = f"_INNER_TRACE_PRODUCER-{group}-{kind}"[:SERVED_GROUP_LENGTH_MAX]
    async with ClientInstance.shared(own, env=env) as instance:
        sender = Sender(instance, name, ProducerConfig(), ())
        # Not the ids of the instance: listeners ask for some in their threads.
        ids = UniqueIds(
            instance.client_ip, os.getpid(), salt=instance.env.random.getrandbits(32), clock=instance.env.clock
        )
        box = TraceOutbox(topic, instance.env.clock, ids)
        instance.register_producer(name)
        async with Tasks() as tasks:
            sending = tasks.create_task(box.send_forever(sender), name="traces")
            try:
                yield box
            finally:
                box.close()
                await asyncio.wait([sending], timeout=CLOSE_S)
        box.give_up()
        await instance.unregister_producer(name)
