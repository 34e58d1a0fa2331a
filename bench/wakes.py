"""What a message costs a broker when a pull waits for it, without sockets: ``python -m bench.wakes``.

A real broker gets, through connections that are no sockets, a pull that finds nothing and waits, and then the send that
wakes it; on one connection, and on two. CPU time of the broker's thread from the bytes that were read to the bytes of
the last reply; best and median of the rounds, and turns of the loop. With ``--pause`` the process sleeps before each
round: on a busy machine, other programs then have the caches, as they have between two messages of a slow sender.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from bench.frames import Clock, Wire
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.kernels import describe
from ternmq.net.peer import Peer
from ternmq.net.server import Server
from ternmq.store.config import StoreConfig
from ternmq.wire.bodies.clients import ConsumerData, Heartbeat, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import encode_request
from ternmq.wire.requests import PullMessage, PullSysflag, SendMessageV2

GROUP: Final = "bench"
BODY: Final = bytes(200)
TURNS_MAX: Final = 10


class FedConnection:
    """One of the broker's, which is no socket."""

    def __init__(self, server: Server) -> None:
        self.wire = Wire()
        self.peer = Peer(server._routes, server.lanes, server._tasks, usage=server.usage, latencies=server.latencies)  # noqa: SLF001 - no socket
        self.peer.connection_made(self.wire)


def send(topic: str, number: int) -> bytes:
    header = SendMessageV2(
        producer_group="bench",
        topic=topic,
        default_topic_queue_nums=1,
        queue_id=0,
        sysflag=0,
        born_time_ms=1,
        flag=0,
        properties=f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        max_reconsume_times=None,
    )
    return b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, BODY, opaque=number))


def pull(topic: str, queue_offset: int) -> bytes:
    header = PullMessage(
        consumer_group=f"{GROUP}-{topic}",
        topic=topic,
        queue_id=0,
        queue_offset=queue_offset,
        count_max=256,
        sysflag=PullSysflag.SUSPEND | PullSysflag.COMMIT_OFFSET,
        commit_offset=queue_offset,
        suspend_timeout_ms=15_000,
        sub_version=0,
        expression_type="TAG",
        bytes_max=1 << 18,
    )
    return b"".join(encode_request(RequestCode.PULL_MESSAGE, header, opaque=queue_offset))


def heartbeat(topic: str) -> bytes:
    subscription = SubscriptionData(topic=topic, sub_string="*", sub_version=0)
    member = ConsumerData(group_name=f"{GROUP}-{topic}", subscription_data_set=[subscription])
    body = encode(Heartbeat(client_id=topic, producer_data_set=[], consumer_data_set=[member]))
    return b"".join(encode_request(RequestCode.HEART_BEAT, None, body, opaque=1))


async def run(directory: Path, rounds: int, pause_s: float) -> None:
    config = BrokerConfig(broker_ip1="127.0.0.1", listen_port=0)
    async with Broker(config, StoreConfig(store_path_root_dir=directory)):
        [server] = [one for one in gc.get_objects() if type(one) is Server]
        producer, other = FedConnection(server), FedConnection(server)
        ways = {"one": producer, "two": other}
        for topic, consumer in ways.items():
            producer.peer.data_received(send(topic, 1))
            consumer.peer.data_received(heartbeat(topic))
        await asyncio.sleep(0.01)
        gc.collect()
        gc.freeze()
        print(describe())
        for topic, consumer in ways.items():
            waits, wakes, turns = Clock("a pull waits"), Clock("the send that wakes it"), 0
            wires = {producer.wire, consumer.wire}
            for number in range(1, rounds + 1):
                for wire in wires:
                    wire.take()
                asked, sent = pull(topic, number), send(topic, number)
                with waits.running(1):
                    consumer.peer.data_received(asked)
                    await asyncio.sleep(0)
                assert not any(wire.written for wire in wires), "it waits"
                if pause_s:
                    await asyncio.sleep(pause_s)
                with wakes.running(1):
                    producer.peer.data_received(sent)
                    while not all(wire.written for wire in wires):
                        await asyncio.sleep(0)
                        turns += 1
                        assert turns <= TURNS_MAX * number
                told = b"".join(wire.take() for wire in wires)
                assert BODY in told, told
                assert b"msgId" in told, told
            print(f"connections: {topic}; {turns / rounds:.1f} turns of the loop", waits, wakes, sep="\n")
        for connection in (producer, other):
            connection.peer.connection_lost(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3_000)
    parser.add_argument("--pause", action="store_true", help="2 ms before each round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        uvloop.run(run(Path(name), options.rounds, 0.002 if options.pause else 0.0))


if __name__ == "__main__":
    main()
