"""What a transaction costs a broker, without sockets: ``python -m bench.transactions``.

A real broker gets frames of a producer through a connection that is no socket, as Java's client sends them: commits
are one-way, and a thread writes the commit of one transaction together with the half of its next one, so a read has
both in turns. Reads of 64 halves, and of 64 commits, stand beside it, and so do plain sends of the
same body. CPU time of the broker's thread from the bytes that were read to the bytes of the reply, and what the end of
the turn adds; best and median of the rounds. With ``--profile``, it tells where the time of those in turns goes.
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


def sends(count: int = WINDOW, *, transactional: bool, queues: int = 4) -> tuple[list[bytes], list[str]]:
    """Sends to a topic with so many queues, in turns, and their unique keys."""
    frames, keys = [], []
    for number in itertools.islice(_numbers, count):
        key = f"7F000001000018B4AAC2{number:012X}"
        pairs = {"UNIQ_KEY": key, "WAIT": "true", "TAGS": "paid"}
        if transactional:
            pairs |= {"TRAN_MSG": "true", "PGROUP": GROUP}
        header = SendMessageV2(
            topic=TOPIC if queues == 4 else f"{TOPIC}-{queues}",
            queue_id=number % queues,
            default_topic_queue_nums=queues,
            producer_group=GROUP,
            born_time_ms=1_700_000_000_000,
            sysflag=4 if transactional else 0,
            properties=join(pairs),
        )
        keys.append(key)
        frames.append(b"".join(encode_request(Code.SEND_MESSAGE_V2, header, BODY, opaque=number)))
    return frames, keys


def commits(replies: bytes, keys: list[str]) -> list[bytes]:
    """Commits of the halves that these replies tell of."""
    frames = []
    found = _REPLY.findall(replies)
    assert len(found) == len(keys), f"{len(found)} of {len(keys)} halves were stored: {replies[:300]!r}"
    for number, (key, (log_offset, queue_offset)) in enumerate(zip(keys, found, strict=True)):
        header = EndTransaction(
            producer_group=GROUP,
            queue_offset=int(queue_offset),
            log_offset=int(log_offset, 16),
            decision=int(Outcome.COMMIT),
            message_id=key,
            transaction_id=key,
        )
        frames.append(b"".join(encode_request(Code.END_TRANSACTION, header, opaque=number, oneway=True)))
    return frames


async def run(directory: Path, rounds: int, count: int, profile: cProfile.Profile | None) -> None:
    async with fed_broker(directory) as broker:
        plain, half, commit = Clock("plain send"), Clock("half"), Clock("commit")
        both = Clock(f"transaction, {count} in turns", profile)
        frames, waiting = sends(count, transactional=True)
        told = await broker.feed(b"".join(frames), half, count)
        for _ in range(rounds):
            frames, _ = sends(transactional=False)
            await broker.feed(b"".join(frames), plain)
            frames, keys = sends(transactional=True)
            replies = await broker.feed(b"".join(frames), half)
            await broker.feed(b"".join(commits(replies, keys)), commit)
            frames, keys = sends(count, transactional=True)
            pairs = zip(commits(told, waiting), frames, strict=True)
            told = await broker.feed(b"".join(map(b"".join, pairs)), both, count)
            waiting = keys
        for clock in (plain, half, commit, both):
            print(clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--pairs", type=int, default=WINDOW // 2, help="commits and halves of a read that has both (32)"
    )
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    profile = cProfile.Profile() if options.profile else None
    with tempfile.TemporaryDirectory() as name:
        uvloop.run(run(Path(name), options.rounds, options.pairs, profile))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
