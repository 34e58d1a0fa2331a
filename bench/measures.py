"""What counting the time of requests costs a broker, with sockets: ``python -m bench.measures``.

A broker in a process of its own counts it on every other connection (``net.rpc_latency``). Two connections, one of each
kind, send 1, 10 and 64 messages at a time and wait for the replies, in random order. CPU time of the broker's process
(Linux), the system's part of reading and writing included; median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import uvloop

from bench.transactions import sends
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.net import server
from ternmq.net.peer import Peer
from ternmq.store.config import StoreConfig

COUNTS = (1, 10, 64)
#: Of one kind in a round.
MESSAGES = 640


class EveryOther:
    """Makes connections; those with even numbers do not measure."""

    def __init__(self) -> None:
        self._number = 0

    def __call__(self, *args: Any, **options: Any) -> Peer:
        self._number += 1
        return Peer(*args, **(options | {"latencies": None} if self._number % 2 == 0 else options))


async def serve() -> None:
    """The broker: prints its port, and runs until standard input ends."""
    config = BrokerConfig(broker_ip1="127.0.0.1", bind_address="127.0.0.1", listen_port=0)
    with tempfile.TemporaryDirectory() as name, mock.patch.object(server, "Peer", EveryOther()):
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


def run(rounds: int) -> None:
    frames, _ = sends(transactional=False)
    command = [sys.executable, "-m", "bench.measures", "--serve"]
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
        costs: dict[tuple[str, int], list[float]] = {(name, count): [] for name in connections for count in COUNTS}
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
    for count in COUNTS:
        with_it, without = (statistics.median(costs[name, count]) for name in connections)
        print(f"{count:3d} a read: {with_it:6.2f} µs, without {without:6.2f} µs: {with_it / without - 1:+.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--serve", action="store_true", help="be the broker")
    options = parser.parse_args()
    if options.serve:
        uvloop.run(serve())
    else:
        run(options.rounds)


if __name__ == "__main__":
    main()
