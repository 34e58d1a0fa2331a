"""What a broker decides by a message's properties is decided by whole pairs: no name or value of a user's, whatever it
holds, is taken for a property of the system (C1, C6, E1)."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from pathlib import Path

import pytest

from ternmq.store.config import FlushDiskType
from ternmq.wire.batch import pack_messages
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Response
from ternmq.wire.properties import parse
from ternmq.wire.requests import SendReply
from tests.broker.calls import FAR_MS, Caller, serving, v2

#: Of these are names and values made; the system's own among them, and what only ends or begins like one.
PARTS = (
    "WAIT", "CLUSTER", "POP_CK", "TRAN_MSG", "UNIQ_KEY", "DELAY", "MSG_REGION", "TRACE_ON", "TAGS", "MY", "X", "_",
    "__RMQ.TRANSIENT.", "TIMER_", "TIMER_OUT_MS", "false", "true", "0", "1", "\x01", "é",
)  # fmt: skip


def random_text(rng: random.Random) -> str:
    """Pairs as a sender could write them: names twice, empty ones, a last one without its end."""
    pairs = []
    for _ in range(rng.randint(0, 6)):
        name = "".join(rng.choices(PARTS, k=rng.choice((0, 1, 1, 1, 1, 2)))).replace("\x01", "")
        value = "".join(rng.choices(PARTS, k=rng.choice((0, 1, 1, 2, 3))))
        pairs.append(f"{name}\x01{value}\x02")
    text = "".join(pairs)
    return text.removesuffix("\x02") if rng.random() < 0.2 else text


def as_stored(text: str) -> dict[str, str] | None:
    """What a slow reader expects to find of a message's own properties; None if it is refused, or goes elsewhere."""
    pairs = parse(text)
    if pairs.get("TRAN_MSG") == "true" or pairs.get("DELAY", "").isdigit():
        return None
    # Of a sender that is not the first, or of another delivery.
    for name in ("CLUSTER", "POP_CK", "MSG_REGION", "TRACE_ON"):
        pairs.pop(name, None)
    return {name: value for name, value in pairs.items() if not name.startswith("__RMQ.TRANSIENT.")}


async def test_the_short_way_decides_as_a_reader_of_all_pairs_does(tmp_path: Path) -> None:
    """Point 8: the same is stored and answered the short way and the long one."""
    rng = random.Random(13)
    async with serving(tmp_path, store={"mapped_file_size_commit_log": 8 << 20}) as broker:
        await broker.sent("orders", b"opens the short way", properties="UNIQ_KEY\x01U\x02")
        seen = 0
        for _ in range(400):
            text = random_text(rng) + rng.choice(("", "\x02UNIQ_KEY\x01LAST\x02"))
            expected = as_stored(text)
            short, long = await sent_both_ways(broker, text)
            assert short.code == long.code, text
            if expected is None or short.code:
                continue
            seen += 1
            for reply in (short.read(SendReply), long.read(SendReply)):
                [record] = await broker.records("orders", reply.queue_offset, queue_id=reply.queue_id, count_max=1)
                stored = parse(record.properties)
                assert reply.transaction_id == stored["UNIQ_KEY"] == expected.get("UNIQ_KEY", stored["UNIQ_KEY"])
                own = {"CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
                assert stored == expected | own | {"UNIQ_KEY": stored["UNIQ_KEY"]}, text
        assert seen > 200


async def sent_both_ways(broker: Caller, text: str) -> tuple[Response, Response]:
    short = await broker.send("orders", b"x", properties=text)
    # A queue that the broker is to choose is never the short way.
    return short, await broker.send("orders", b"x", queue_id=-1, properties=text)


class Stuck:
    """A disk that syncs nothing until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        real = os.fdatasync

        def fdatasync(fd: int) -> None:
            assert self.opened.wait(60)
            real(fd)

        monkeypatch.setattr(os, "fdatasync", fdatasync)


async def test_only_the_property_wait_itself_spares_the_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 8, C6: SYNC_FLUSH is kept for a user's MYWAIT=false, for «WAIT=falsely», and in values."""
    rng = random.Random(8)
    texts = ["MYWAIT\x01false\x02", "WAIT\x01falsely\x02", "A\x01WAIT\x01false\x02", "X\x01WAIT\x02WAIT\x01false\x02"]
    texts += ["WAIT\x01false", "WAIT\x01false\x02WAIT\x01\x02", "WAIT\x01false\x02WAIT\x01true\x02"]
    texts += [text for text in (random_text(rng) for _ in range(200)) if as_stored(text) is not None]
    store = {
        "flush_disk_type": FlushDiskType.SYNC_FLUSH,
        "sync_flush_timeout": FAR_MS,
        "mapped_file_size_commit_log": 8 << 20,
    }
    async with serving(tmp_path, store=store) as broker:
        await broker.sent("orders", b"opens the short way", properties="UNIQ_KEY\x01U\x02")
        stuck = Stuck(monkeypatch)
        batch = pack_messages([(0, b"x", "A\x011\x02")])
        calls = []
        for text in texts:
            for unique in ("", "\x02UNIQ_KEY\x01U\x02"):
                header = v2("orders", queue_id=0, properties=text + unique)
                calls.append((text, broker.peer.start_call(RequestCode.SEND_MESSAGE_V2, header, b"x")))
            header = v2("orders", queue_id=0, batch=True, properties=text)
            calls.append((text, broker.peer.start_call(RequestCode.SEND_BATCH_MESSAGE, header, batch)))
        # Behind them on the same connection, and not waiting for the disk.
        await broker.sent("orders", b"last", properties="WAIT\x01false\x02UNIQ_KEY\x01U\x02")
        waits = {text: parse(text).get("WAIT") != "false" for text, _ in calls}
        wrong = [text for text, call in calls if call.done() == waits[text]]
        stuck.opened.set()
        assert {0} == {(await asyncio.wait_for(call, 60)).code for _, call in calls}

    assert [] == wrong
    assert {True, False} == set(waits.values())
