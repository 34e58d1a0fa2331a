"""What a pop and an ack cost a broker, without sockets: ``python -m bench.pops``.

A real broker gets requests through a connection that is no socket: a pop of 32 messages, then an ack for each of them,
32, 4, 2 and one in a read. CPU time of the broker's thread from the bytes that were read to the bytes of the replies;
best and median of the rounds. ``--profile`` tells where it goes.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from bench.frames import BODY, Clock, FedBroker, fed_broker
from ternmq.broker.flow import CLIENT, PULL
from ternmq.kernels import describe
from ternmq.wire.batch import pack_messages
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Response
from ternmq.wire.requests import AckMessage, PopMessage, PopReply, SendMessageV2

TOPIC: Final = "BenchTopic"
GROUP: Final = "bench"
POPPED: Final = 32
#: Acks of a read.
ACKS: Final = (POPPED, 4, 2, 1)


def batch(number: int) -> bytes:
    """A send of as many messages as one pop takes."""
    body = pack_messages((0, BODY, f"UNIQ_KEY\x01{number}-{each}\x02TAGS\x01a\x02") for each in range(POPPED))
    header = SendMessageV2(
        producer_group="bench",
        topic=TOPIC,
        default_topic_queue_nums=1,
        queue_id=0,
        sysflag=0,
        born_time_ms=1,
        flag=0,
        properties="",
        reconsume_times=0,
        unit_mode=False,
        batch=True,
        max_reconsume_times=None,
    )
    return b"".join(encode_request(RequestCode.SEND_BATCH_MESSAGE, header, body, opaque=number))


async def pop(fed: FedBroker, clock: Clock, number: int) -> list[bytes]:
    """Pop messages; the acks of them."""
    header = PopMessage(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=-1,
        count_max=POPPED,
        invisible_ms=60_000,
        expression_type="TAG",
        subscription="*",
    )
    request = b"".join(encode_request(RequestCode.POP_MESSAGE, header, opaque=number))
    [answer] = FrameDecoder().feed(await fed.feed(request, clock, 1, lane=PULL))
    assert isinstance(answer, Response), answer
    assert answer.code == 0, answer
    reply = answer.read(PopReply)
    # «retry, queue, offset,offset,…» of the one queue that there is.
    _, _, offsets = (reply.msg_offset_info or "").split(" ")
    frames = []
    for opaque, offset in enumerate(map(int, offsets.split(","))):
        _, _, start = (reply.start_offset_info or "").split(" ")
        handle = f"{start} {reply.pop_time_ms} {reply.invisible_ms} {reply.revive_queue_id} 0 broker-a 0 {offset}"
        ack = AckMessage(consumer_group=GROUP, topic=TOPIC, queue_id=0, extra_info=handle, queue_offset=offset)
        frames.append(b"".join(encode_request(RequestCode.ACK_MESSAGE, ack, opaque=opaque)))
    assert len(frames) == POPPED
    return frames


async def run(directory: Path, rounds: int, profiles: dict[str, cProfile.Profile]) -> None:
    async with fed_broker(directory) as fed:
        pops = Clock(f"pop of {POPPED}", profiles.get("pop"))
        acks = {count: Clock(f"ack, {count} a read", profiles.get("ack")) for count in ACKS}
        for number in range(rounds):
            for count, clock in acks.items():
                await fed.feed(batch(number), Clock(""))
                frames = await pop(fed, pops, number)
                reads = [b"".join(frames[at : at + count]) for at in range(0, POPPED, count)]
                replies = await fed.feed_all(reads, clock, count, lane=CLIENT)
                assert replies.count(b'"code":0,') == POPPED, replies
        print(describe())
        for clock in (pops, *acks.values()):
            print(clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profiles = {name: cProfile.Profile() for name in ("pop", "ack")} if options.profile else {}
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(run(Path(directory), options.rounds, profiles))
    for name, profile in profiles.items():
        print(f"\n{name}")
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main()
