"""Reads of all kinds are answered alike, whether their requests are carried out at once or queued first (B3, B5, F9).

Two brokers get the same reads. In one of them nothing is ever carried out at once (``Lanes.run_alone``).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from ternmq.wire.codes import BINARY, RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.handles import Handle, parse_messages, parse_starts
from ternmq.wire.header import Header, Response
from ternmq.wire.requests import AckMessage, PopReply, QueueBounds, UpdateOffset
from tests.broker.calls import pull
from tests.broker.popping import wish
from tests.broker.test_runs import Fed, counters, fed, plain

GROUPS: Final = ("poppers", "others")


class Reads:
    """Reads from a seed; their acks are of what was popped."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._opaque = 0
        self._handles: dict[str, list[str]] = {group: [] for group in GROUPS}

    def frame(self, code: int, header: Header | None, **options: Any) -> bytes:
        self._opaque += 1
        return b"".join(encode_request(code, header, opaque=self._opaque, **options))

    def pop(self, group: str) -> bytes:
        return self.frame(RequestCode.POP_MESSAGE, wish("orders", consumer_group=group, count_max=8))

    def popped(self, group: str, answer: bytes) -> None:
        """Note the handles of what a pop got."""
        [response] = FrameDecoder().feed(answer)
        assert isinstance(response, Response)
        reply = response.read(PopReply)
        starts = parse_starts(reply.start_offset_info)
        for (retry, queue_id), offsets in parse_messages(reply.msg_offset_info).items():
            for offset in offsets:
                start = starts[retry, queue_id]
                self._handles[group].append(
                    Handle(
                        start,
                        reply.pop_time_ms,
                        reply.invisible_ms,
                        reply.revive_queue_id,
                        retry,
                        "a",
                        queue_id,
                        offset,
                    ).text
                )

    def ack(self, group: str) -> bytes:
        """Of a message in flight, if there is one: perhaps of another group, of no queue, or with a handle that is
        none."""
        choose, handles = self._random, self._handles[group]
        text = handles.pop(choose.randrange(len(handles))) if handles else "0 1 2 3 0 a 0 0"
        parsed = Handle.parse(text)
        oddity = choose.randrange(12)
        header = AckMessage(
            consumer_group=GROUPS[0] if oddity == 1 else group,
            topic="missing" if oddity == 2 else "orders",
            queue_id=77 if oddity == 3 else parsed.queue_id,
            extra_info="1 2" if oddity == 4 else text,
            queue_offset=10**6 if oddity == 5 else parsed.queue_offset,
        )
        if oddity == 6:
            # The code does not fit the binary form as it is.
            return self.frame(RequestCode.ACK_MESSAGE & 0x7FFF, header, form=BINARY)
        return self.frame(RequestCode.ACK_MESSAGE, header, oneway=oddity == 7)

    def mixed(self) -> bytes:
        """Requests of one group or several, of one lane or several, a few or more than a slice has."""
        choose = self._random
        groups = choose.choice((GROUPS[:1], GROUPS[1:], GROUPS))
        kinds = choose.choice((self._acks_alone, self._acks_alone, self._any))
        count = choose.choice((1, 1, 2, 4, 9, 40))
        return b"".join(kinds(choose.choice(groups)) for _ in range(count))

    def _acks_alone(self, group: str) -> bytes:
        return self.ack(group)

    def _any(self, group: str) -> bytes:
        kind = self._random.randrange(6)
        self._opaque += kind == 0
        if kind == 0:
            # Of another topic: which lane goes first is a matter of time.
            return plain(self._opaque, topic="payments")
        if kind == 1:
            return self.frame(RequestCode.GET_MAX_OFFSET, QueueBounds(topic="orders", queue_id=self._opaque % 5))
        if kind == 2:
            update = UpdateOffset(consumer_group=group, topic="orders", queue_id=0, commit_offset=1)
            return self.frame(RequestCode.UPDATE_CONSUMER_OFFSET, update)
        if kind == 3:
            return self.frame(RequestCode.PULL_MESSAGE, pull("orders", consumer_group=group, subscription="*"))
        if kind == 4:
            return self.frame(999, None)
        return self.ack(group)


def frames_of(data: bytes) -> list[bytes]:
    """All frames, in any order."""
    frames = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        frames.append(data[:end])
        data = data[end:]
    return sorted(frames)


def counted(one: Fed) -> dict[str, Any]:
    """What the broker has counted, but for times."""
    counts: dict[str, Any] = {}
    for name, lane in one.lanes.by_name.items():
        counts[name] = sum(lane.waits.counts), lane.refused_late, lane.refused_full, lane.queued_bytes, lane.requests
        counts[f"groups of {name}"] = {*lane.spent}
    return counts


@pytest.mark.parametrize("seed", range(3))
async def test_requests_that_are_carried_out_at_once_are_answered_and_counted_as_queued_ones(
    tmp_path: Path, seed: int
) -> None:
    """B3, R4, F9: byte by byte. Which of two groups comes first in a read is a matter of time, and not compared."""
    async with fed(tmp_path / "one") as one, fed(tmp_path / "other") as other:
        run_alone, alone = one.lanes.run_alone, 0

        def noted(*args: Any, **options: Any) -> bool:
            nonlocal alone
            is_done = run_alone(*args, **options)
            alone += is_done
            return is_done

        with (
            mock.patch.object(one.lanes, "run_alone", noted),
            mock.patch.object(other.lanes, "run_alone", return_value=False),
        ):
            reads = Reads(seed)

            async def answers(data: bytes) -> bytes:
                found = [await each.feed(data) for each in (one, other)]
                assert frames_of(found[0]) == frames_of(found[1])
                return found[0]

            for number in range(120):
                await answers(b"".join(plain(number * 8 + each) for each in range(8)))
                for group in GROUPS:
                    reads.popped(group, await answers(reads.pop(group)))
                for _ in range(3):
                    await answers(reads.mixed())
        assert alone > 300
        assert counted(one) == counted(other)
        assert await counters(one) == await counters(other)
