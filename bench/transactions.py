"""What a transaction costs a broker, without sockets: ``python -m bench.transactions``.

A real broker gets frames of a producer through a connection that is no socket: reads of 64 halves, then reads of 64
commits, as Java's client sends them (one-way). CPU time of the broker's thread from the bytes that were read to the
bytes of the reply, and what the end of the turn adds; best and median of the rounds. Plain sends of the same body stand
beside them. With ``--profile``, it tells where the time goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import itertools
import pstats
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import SEND
from ternmq.message import Outcome
from ternmq.net.peer import Peer
from ternmq.net.server import Server
from ternmq.store.config import StoreConfig
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import encode_request
from ternmq.wire.properties import join
from ternmq.wire.requests import EndTransaction, SendMessageV2

#: Requests of one read.
WINDOW: Final = 64
GROUP: Final = "bench-producers"
TOPIC: Final = "bench-transactions"
BODY: Final = b"x" * 128
_REPLY: Final = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*?"queueOffset":"(\d+)"')
_numbers: Final = itertools.count()


class Wire(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 10_911)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written.extend(map(bytes, list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data


class Clock:
    """Adds up CPU time per request, of one kind."""

    def __init__(self, name: str, profile: cProfile.Profile | None) -> None:
        self.name = name
        self.rounds: list[float] = []
        self._profile = profile

    @contextmanager
    def running(self) -> Iterator[None]:
        began = time.thread_time()
        if self._profile is not None:
            self._profile.enable()
        yield
        if self._profile is not None:
            self._profile.disable()
        self.rounds.append((time.thread_time() - began) / WINDOW * 1e6)

    def __str__(self) -> str:
        costs = sorted(self.rounds)
        return f"{self.name:12s} best {costs[0]:6.2f}  median {costs[len(costs) // 2]:6.2f}  µs CPU"


def sends(*, transactional: bool) -> tuple[bytes, list[str]]:
    """A read of sends, and their unique keys."""
    frames, keys = bytearray(), []
    for number in itertools.islice(_numbers, WINDOW):
        key = f"7F000001000018B4AAC2{number:012X}"
        pairs = {"UNIQ_KEY": key, "WAIT": "true", "TAGS": "paid"}
        if transactional:
            pairs |= {"TRAN_MSG": "true", "PGROUP": GROUP}
        header = SendMessageV2(
            topic=TOPIC,
            queue_id=number % 4,
            producer_group=GROUP,
            born_time_ms=1_700_000_000_000,
            sysflag=4 if transactional else 0,
            properties=join(pairs),
        )
        keys.append(key)
        frames += b"".join(encode_request(Code.SEND_MESSAGE_V2, header, BODY, opaque=number))
    return bytes(frames), keys


def commits(replies: bytes, keys: list[str]) -> bytes:
    """A read of commits of the halves that these replies tell of."""
    frames = bytearray()
    found = _REPLY.findall(replies)
    assert len(found) == WINDOW, f"{len(found)} of {WINDOW} halves were stored: {replies[:300]!r}"
    for number, (key, (log_offset, queue_offset)) in enumerate(zip(keys, found, strict=True)):
        header = EndTransaction(
            producer_group=GROUP,
            queue_offset=int(queue_offset),
            log_offset=int(log_offset, 16),
            decision=int(Outcome.COMMIT),
            message_id=key,
            transaction_id=key,
        )
        frames += b"".join(encode_request(Code.END_TRANSACTION, header, opaque=number, oneway=True))
    return bytes(frames)


async def run(directory: Path, rounds: int, profile: cProfile.Profile | None) -> None:
    async with Broker(BrokerConfig(broker_ip1="127.0.0.1", listen_port=0), StoreConfig(store_path_root_dir=directory)):
        [server] = [one for one in gc.get_objects() if type(one) is Server]
        wire = Wire()
        peer = Peer(server._routes, server.lanes, server._tasks, usage=server.usage)  # noqa: SLF001 - no socket
        peer.connection_made(wire)
        plain, half, commit = Clock("plain send", None), Clock("half", profile), Clock("commit", profile)

        async def feed(data: bytes, clock: Clock) -> bytes:
            with clock.running():
                peer.data_received(data)
                await asyncio.sleep(0)
                while server.lanes[SEND].count:  # noqa: ASYNC110 - turns of the loop are what is measured
                    # On a busy machine the lane gives way to others before it is done.
                    await asyncio.sleep(0)
            await asyncio.sleep(0.001)
            return wire.take()

        gc.collect()
        gc.freeze()
        for _ in range(rounds):
            data, _ = sends(transactional=False)
            await feed(data, plain)
            data, keys = sends(transactional=True)
            replies = await feed(data, half)
            await feed(commits(replies, keys), commit)
        for clock in (plain, half, commit):
            print(clock)
        peer.connection_lost(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as name:
        uvloop.run(run(Path(name), options.rounds, profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
