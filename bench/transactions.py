"""What a transaction costs a broker, without sockets: ``python -m bench.transactions``.

A real broker gets frames of a producer through a connection that is no socket: reads of 64 halves, then reads of 64
commits, as Java's client sends them (one-way). CPU time of the broker's thread from the bytes that were read to the
bytes of the reply, and what the end of the turn adds; best and median of the rounds. Plain sends of the same body stand
beside them. With ``--profile``, it tells where the time goes.
"""

from __future__ import annotations

import argparse
import cProfile
import itertools
import pstats
import re
import tempfile
from pathlib import Path
from typing import Final

import uvloop

from bench.frames import BODY, WINDOW, Clock, fed_broker
from ternmq.message import Outcome
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import encode_request
from ternmq.wire.properties import join
from ternmq.wire.requests import EndTransaction, SendMessageV2

GROUP: Final = "bench-producers"
TOPIC: Final = "bench-transactions"
_REPLY: Final = re.compile(rb'"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*?"queueOffset":"(\d+)"')
_numbers: Final = itertools.count()


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
    async with fed_broker(directory) as broker:
        plain, half, commit = Clock("plain send"), Clock("half", profile), Clock("commit", profile)
        for _ in range(rounds):
            data, _ = sends(transactional=False)
            await broker.feed(data, plain)
            data, keys = sends(transactional=True)
            replies = await broker.feed(data, half)
            await broker.feed(commits(replies, keys), commit)
        for clock in (plain, half, commit):
            print(clock)


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
