"""What a pull costs a broker, without sockets: ``python -m bench.pulls``.

A real broker gets pulls of one message and of 32 through a connection that is no socket, alone and four in a read. CPU
time of the broker's thread from the bytes that were read to the bytes of the replies; best and median of the rounds.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from bench.frames import Clock, FedBroker, fed_broker
from bench.pops import GROUP, POPPED, TOPIC, batch
from ternmq.broker.flow import CLIENT, PULL
from ternmq.kernels import describe
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import encode_request
from ternmq.wire.requests import PullMessage, PullSysflag

#: Messages of a pull.
COUNTS: Final = (1, 32)
#: Pulls of a read.
PULLS: Final = (1, 4)
#: Of each kind in a round.
READS: Final = 16
BATCHES: Final = 64
_MEMBER: Final = (
    b'{"clientID":"bench","consumerDataSet":[{"groupName":"%b","consumeType":"CONSUME_PASSIVELY","messageModel":'
    b'"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"%b","subString":"*",'
    b'"subVersion":0}],"unitMode":false}],"producerDataSet":[]}'
)


def pull(number: int, count: int) -> bytes:
    """A pull as clients send it, with the offset that they commit."""
    queue_offset = number * count % (BATCHES * POPPED - count)
    header = PullMessage(
        consumer_group=GROUP,
        topic=TOPIC,
        queue_id=0,
        queue_offset=queue_offset,
        count_max=count,
        sysflag=PullSysflag.COMMIT_OFFSET | PullSysflag.SUSPEND,
        commit_offset=queue_offset,
        suspend_timeout_ms=15_000,
        subscription="*",
        expression_type="TAG",
    )
    return b"".join(encode_request(RequestCode.PULL_MESSAGE, header, opaque=number))


async def fill(fed: FedBroker) -> None:
    """Messages, and a member of the group."""
    for number in range(BATCHES):
        await fed.feed(batch(number), Clock(""))
    member = _MEMBER % (GROUP.encode(), TOPIC.encode())
    heartbeat = b"".join(encode_request(RequestCode.HEART_BEAT, None, member, opaque=1))
    assert b'"code":0,' in await fed.feed(heartbeat, Clock(""), lane=CLIENT)


async def run(directory: Path, rounds: int) -> None:
    async with fed_broker(directory) as fed:
        await fill(fed)
        clocks = {(count, pulls): Clock(f"pull of {count}, {pulls} a read") for pulls in PULLS for count in COUNTS}
        order, chance = list(clocks.items()), random.Random(1)
        for _ in range(rounds):
            chance.shuffle(order)
            for (count, pulls), clock in order:
                frames = [pull(number, count) for number in range(READS * pulls)]
                reads = [b"".join(frames[at : at + pulls]) for at in range(0, len(frames), pulls)]
                replies = await fed.feed_all(reads, clock, pulls, lane=PULL)
                assert replies.count(b'"code":0,') == len(frames), replies[:300]
        print(describe())
        for clock in clocks.values():
            print(clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        uvloop.run(run(Path(directory), options.rounds))


if __name__ == "__main__":
    main()
