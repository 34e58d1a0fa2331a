"""What a plain send costs a broker, without sockets: ``python -m bench.sends``.

A real broker gets reads of 1, 10 and 64 sends to four queues, and of 4 and 8 to eight, through connections that are no
sockets, in turns: one whose sends are handled as runs (``net.runs``), and one whose sends are handled one by one; and
both once more without counting how long requests take (``net.rpc_latency``). CPU time of the broker's thread from the
bytes that were read to the bytes of the replies; best and median of the rounds. Run it with ``TERNMQ_NATIVE=0``, too:
then neither has a kernel.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import tempfile
from pathlib import Path

import uvloop

from bench.frames import WINDOW, Clock, Wire
from bench.transactions import sends
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import SEND
from ternmq.kernels import describe
from ternmq.net.peer import Peer
from ternmq.net.server import Server
from ternmq.store.config import StoreConfig

#: Sends of a read, and queues of their topic.
READS = ((1, 4), (4, 8), (8, 8), (10, 4), (WINDOW, 4))


async def run(directory: Path, rounds: int) -> None:
    async with Broker(BrokerConfig(broker_ip1="127.0.0.1", listen_port=0), StoreConfig(store_path_root_dir=directory)):
        [server] = [one for one in gc.get_objects() if type(one) is Server]
        ways = {}
        for name in ("runs", "one by one", "runs, not measured", "one by one, not measured"):
            wire = Wire()
            peer = Peer(
                server._routes,  # noqa: SLF001 - no socket
                server.lanes,
                server._tasks,  # noqa: SLF001 - no socket
                usage=server.usage,
                latencies=None if name.endswith("not measured") else server.latencies,
            )
            peer.connection_made(wire)
            if name.startswith("one by one"):
                peer._runs = None  # noqa: SLF001 - as on a connection with a gate
            ways[name] = wire, peer
        clocks = {(name, *read): Clock(f"{name}, {read[0]} a read", None) for read in READS for name in ways}
        gc.collect()
        gc.freeze()
        order, chance = list(clocks.items()), random.Random(1)
        for _ in range(rounds):
            # What came before leaves the caches warm, or not.
            chance.shuffle(order)
            for (name, count, queues), clock in order:
                wire, peer = ways[name]
                frames, _ = sends(transactional=False, queues=queues)
                reads = [b"".join(frames[at : at + count]) for at in range(0, WINDOW, count)]
                with clock.running():
                    for data in reads:
                        peer.data_received(data)
                        await asyncio.sleep(0)
                        while server.lanes[SEND].count:  # noqa: ASYNC110 - turns of the loop are what is measured
                            await asyncio.sleep(0)
                await asyncio.sleep(0.001)
                assert wire.take().count(b'"code":0,') == WINDOW
        print(describe())
        for clock in clocks.values():
            print(clock)
        for _, peer in ways.values():
            peer.connection_lost(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        uvloop.run(run(Path(name), options.rounds))


if __name__ == "__main__":
    main()
