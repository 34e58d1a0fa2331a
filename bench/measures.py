"""What counting the time of requests costs a broker, with sockets: ``python -m bench.measures``.

A broker in a process of its own counts it on every other connection (``net.rpc_latency``). Two connections, one of each
kind, send 1, 10 and 64 messages (``--counts``) at a time and wait for the replies, in random order. CPU time of the
broker's process (Linux), the system's part of reading and writing included; median of the rounds.

``--instructions`` counts those of the broker's process outside the system instead (valgrind's callgrind), for two
brokers: one as it is, and one that counts neither messages (``broker.tables.stats``) nor the time of requests. That is
the same on a busy machine. (Waits in lanes are counted by both; they take some ten steps of Python.)
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from bench.transactions import sends
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.stats import Stats
from ternmq.net import server
from ternmq.net.peer import Peer
from ternmq.store.config import StoreConfig

COUNTS = (1, 10, 64)
#: Of the topic.
QUEUES = 8
#: Of one kind in a round.
MESSAGES = 640


class EveryOther:
    """Makes connections; those with even numbers do not measure."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, *args: Any, **options: Any) -> Peer:
        self._number += 1
        return Peer(*args, **(options | {"latencies": None} if self._number % 2 == 0 else options))


def unmeasured(*args: Any, **options: Any) -> Peer:
    return Peer(*args, **(options | {"latencies": None}))


def counts_nothing(*_: Any, **__: Any) -> None:
    """Instead of ``Stats.put``."""


async def serve(peers: Callable[..., Peer], *, counts: bool = True) -> None:
    """The broker: prints its port, and runs until standard input ends."""
    config = BrokerConfig(broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0)
    with ExitStack() as stack:
        name = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(mock.patch.object(server, "Peer", peers))
        if not counts:
            stack.enter_context(mock.patch.object(Stats, "put", counts_nothing))
        async with Broker(config, StoreConfig(store_path_root_dir=Path(name))) as broker:
            print(broker.port, flush=True)
            await asyncio.to_thread(sys.stdin.read)


def receive(connection: socket.socket, count: int) -> None:
    """Read so many replies."""
    data = b""
    while count:
        end = 4 + int.from_bytes(data[:4], "big")
        if len(data) >= max(end, 5):
            data = data[end:]
            count -= 1
        else:
            data += connection.recv(1 << 20)


def instructions(way: str, counts: Sequence[int]) -> dict[int, float]:
    """How many the broker needs for a send, by sends of a read."""
    frames, _ = sends(transactional=False, queues=QUEUES)
    found = {}
    with tempfile.TemporaryDirectory() as name:
        out = Path(name, "out")
        command = ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}", sys.executable]
        command += ["-m", "bench.measures", "--serve", way]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
            assert broker.stdout is not None, "it is a pipe"
            assert broker.stdin is not None, "it is a pipe"
            port = int(broker.stdout.readline())
            dumps = itertools.count(1)

            def counted() -> int:
                """Since the last call."""
                subprocess.run(["callgrind_control", "-d", str(broker.pid)], check=True, stdout=subprocess.DEVNULL)
                text = Path(f"{out}.{next(dumps)}").read_text()
                return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("totals:"))

            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for count in counts:
                    for is_warm in (False, True):
                        counted()
                        for at in range(0, MESSAGES, count):
                            connection.sendall(b"".join(frames[(at + each) % len(frames)] for each in range(count)))
                            receive(connection, count)
                        if is_warm:
                            found[count] = counted() / MESSAGES
            broker.stdin.close()
    return found


def compare_instructions(counts: Sequence[int]) -> None:
    with_it, without = instructions("all", counts), instructions("nothing", counts)
    for count in counts:
        print(
            f"{count:3d} a read: {with_it[count]:9,.0f} instructions, without {without[count]:9,.0f}: "
            f"{with_it[count] / without[count] - 1:+.1%}"
        )


def run(rounds: int, counts: Sequence[int]) -> None:
    frames, _ = sends(transactional=False, queues=QUEUES)
    command = [sys.executable, "-m", "bench.measures", "--serve", "half"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as broker:
        assert broker.stdout is not None, "it is a pipe"
        assert broker.stdin is not None, "it is a pipe"
        port = int(broker.stdout.readline())
        used = Path(f"/proc/{broker.pid}/schedstat")
        connections = {}
        for name in ("measured", "not measured"):
            connection = connections[name] = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(frames[0])
            receive(connection, 1)
        costs: dict[tuple[str, int], list[float]] = {(name, count): [] for name in connections for count in counts}
        order, chance = list(costs), random.Random(1)
        for _ in range(rounds):
            chance.shuffle(order)
            for name, count in order:
                before = int(used.read_text().split()[0])
                for at in range(0, MESSAGES, count):
                    connections[name].sendall(b"".join(frames[(at + each) % len(frames)] for each in range(count)))
                    receive(connections[name], count)
                costs[name, count].append((int(used.read_text().split()[0]) - before) / MESSAGES / 1000)
        for connection in connections.values():
            connection.close()
        broker.stdin.close()
    for count in counts:
        with_it, without = (statistics.median(costs[name, count]) for name in connections)
        print(f"{count:3d} a read: {with_it:6.2f} µs, without {without:6.2f} µs: {with_it / without - 1:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--instructions", action="store_true", help="count instructions instead of time")
    parser.add_argument("--serve", choices=["all", "half", "nothing"], help="be the broker")
    options = parser.parse_args()
    if options.serve == "half":
        uvloop.run(serve(EveryOther()))
    elif options.serve == "all":
        uvloop.run(serve(Peer))
    elif options.serve == "nothing":
        uvloop.run(serve(unmeasured, counts=False))
    elif options.instructions:
        compare_instructions(options.counts)
    else:
        run(options.rounds, options.counts)


if __name__ == "__main__":
    main()
