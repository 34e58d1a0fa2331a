"""Runs of sends, batches and op records on logs that confirm late: a store that has kernels pack them has the same
files, queue offsets and answers as one that does without, also when they are confirmed or taken back half-way (C1, C2,
C5, E6, J1, P2; issue 21)."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypedDict
from unittest import mock

import pytest

from ternmq.errors import NotRunning
from ternmq.kernels import HAS_NATIVE, native
from ternmq.names import OP_HALF_TOPIC
from ternmq.raft import checked_entries
from ternmq.raft import log as raft_log_module
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.config import StoreConfig
from ternmq.store.derived import follower, index
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.draft import Draft
from ternmq.store.log.protocol import Log
from ternmq.store.log.run import PackedRun, PackingRoom, RunPacker, SealedRun
from ternmq.store.store import MessageStore
from ternmq.transaction import ops
from ternmq.transaction.ops import OpWriter
from ternmq.wire.batch import pack_messages, unpack_messages
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.layouts.raft_entry import INDEX_UNIT_BYTES
from ternmq.wire.requests import SendMessageV2, SendReply
from ternmq.wire.template import ReplyTemplate
from tests.manual_clock import ManualClock
from tests.store.late_log import LateLog
from tests.store.small import BORN, bodies, draft, files, quiet_store, small_config

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

TAKEN_BACK: Final = NotRunning("another leader has other records here")
MORE: Final = "CLUSTER\x01c\x02"
TOPICS: Final = ("orders", "payments")
HOLES: Final = {"msgId": "%016X", "queueId": "%d", "queueOffset": "%d", "transactionId": "%b"}
SEGMENT: Final = 16_384


def config_of(root: Path) -> StoreConfig:
    return small_config(root, mapped_file_size_commit_log=SEGMENT)


def raft_log(config: StoreConfig) -> RaftLog:
    paths = RaftPaths.of(config, "n0")
    log = RaftLog(FileDisk(), paths, segment_bytes=SEGMENT, index_file_bytes=64 * INDEX_UNIT_BYTES)
    log.term = 3
    return log


class RoomyLog(LateLog):
    """It has room for more than one append, as a Raft log."""

    def reserve(self, record_bytes: int, count: int = 1) -> None:
        self._plain.reserve(record_bytes, count)


def roomy_log(config: StoreConfig) -> LateLog:
    confirmed = config.store_path_root_dir / "confirmed"
    return RoomyLog(FileDisk(), config.log_paths, segment_bytes=SEGMENT, confirmed_path=confirmed)


LOGS: Final[dict[str, Callable[[StoreConfig], Log]]] = {"late": roomy_log, "raft": raft_log}


class Shared(TypedDict):
    """What the messages of a batch share."""

    born_time_ms: int
    born_host: bytes
    more_properties: bytes


class Node:
    """A store that takes the sends of a read in runs, or one by one."""

    def __init__(self, root: Path, make_log: Callable[[StoreConfig], Log], *, in_runs: bool) -> None:
        self.root = root
        self._in_runs = in_runs
        #: Last entry of which consumers were told, by queue; how often, and in which order, is a matter of runs.
        self.arrivals: dict[tuple[str, int], int] = {}
        self.clock = ManualClock()
        log = make_log(config_of(root))
        self.store: MessageStore = quiet_store(config_of(root), log=log, clock=self.clock, on_arrival=self._arrived)
        self._terms = self.store.run_terms(MORE.encode(), [])
        self._form = native.ReplyForm(ReplyTemplate({}, HOLES).parts())
        self._ops = OpWriter(self.store, clock=self.clock, host=BORN)
        self.in_runs = 0
        #: Messages of batches, and op records, that a kernel packed.
        self.packed = 0

    def _arrived(self, topic: str, queue_id: int, offset: int, *_: Any) -> None:
        self.arrivals[topic, queue_id] = max(self.arrivals.get((topic, queue_id), 0), offset)

    def send(self, headers: list[tuple[SendMessageV2, bytes]]) -> list[tuple[int, int]]:
        """Log offset and queue offset of each."""
        found: list[tuple[int, int]] = []
        while len(found) < len(headers):
            found += self._send_run(headers[len(found) :]) if self._in_runs else []
            if len(found) < len(headers):
                header, body = headers[len(found)]
                place = Draft(
                    header.topic,
                    header.queue_id,
                    body,
                    (header.properties or "") + MORE,
                    header.born_time_ms,
                    BORN,
                    header.flag,
                )
                placed = self.store.put(place)
                found.append((placed.log_offset, placed.queue_offset))
        return found

    def send_batch(self, queue_id: int, messages: list[tuple[int, bytes, str]]) -> list[tuple[int, int]]:
        """Log offset and queue offset of each."""
        data, shared = pack_messages(messages), Shared(born_time_ms=5, born_host=BORN, more_properties=MORE.encode())
        placed = None
        if self._in_runs:
            placed = self.store.put_sent_batch("orders", queue_id, data, **shared)
        if placed is None:
            parcels = unpack_messages(data)
            placed = self.store.put_batch("orders", queue_id, parcels, **shared)
        else:
            self.packed += len(messages)
        return [(at, placed.queue_offset + number) for number, at in enumerate(placed.log_offsets)]

    def write_ops(self, closed: list[int]) -> list[tuple[int, int]]:
        """Log offset and queue offset of each op record."""
        put_packed = self.store.put_packed

        def counted(pack: RunPacker, *, answers_at_once: bool) -> bool:
            is_packed = put_packed(pack, answers_at_once=answers_at_once)
            self.packed += len(closed) * is_packed
            return is_packed

        begin = self.store.written
        with (
            mock.patch.object(ops, "HAS_NATIVE", self._in_runs),
            mock.patch.object(self.store, "put_packed", counted),
        ):
            self._ops.write_all(closed)
        return [(record.log_offset, record.queue_offset) for record in self.store.log.walk(begin)]

    def _send_run(self, headers: list[tuple[SendMessageV2, bytes]]) -> list[tuple[int, int]]:
        code = RequestCode.SEND_MESSAGE_V2
        data = b"".join(b"".join(encode_request(code, header, body, opaque=1)) for header, body in headers)
        sends = native.parse_sends(data, 0, 1 << 24)
        assert sends is not None
        assert self._terms is not None
        plain = dict.fromkeys((header.topic for header, _ in headers), 1_000)
        placed = self.store.put_run(sends, 0, plain, count_max=40, terms=self._terms, form=self._form, born_host=BORN)
        if placed is None:
            return []
        self.in_runs += placed.next
        replies = [each.read(SendReply) for each in FrameDecoder().feed(placed.replies)]  # type: ignore[union-attr]
        assert placed.next == len(replies) == len(placed.ends) // 8
        assert memoryview(placed.ends).cast("q")[-1] == self.store.written
        return [(int(reply.message_id, 16), reply.queue_offset) for reply in replies]


def pair(tmp_path: Path, kind: str) -> tuple[Node, Node]:
    return (
        Node(tmp_path / "runs", LOGS[kind], in_runs=True),
        Node(tmp_path / "alone", LOGS[kind], in_runs=False),
    )


def sends_of(choose: random.Random, count: int) -> list[tuple[SendMessageV2, bytes]]:
    return [
        (
            SendMessageV2(
                topic=choose.choice(TOPICS),
                queue_id=choose.randrange(2),
                producer_group="g",
                properties=f"KEYS\x01k{choose.randrange(9)}\x02UNIQ_KEY\x01A{number}\x02TAGS\x01{choose.choice('ab')}\x02",
                born_time_ms=number,
            ),
            choose.randbytes(choose.randrange(60)),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", LOGS)
@pytest.mark.parametrize("seed", range(6))
def test_a_store_that_takes_runs_has_what_one_that_takes_each_send_has(tmp_path: Path, kind: str, seed: int) -> None:
    """C1, C2, C4, C5: records are confirmed or taken back anywhere, topics are deleted, files end."""
    together = check_same_life(tmp_path, kind, seed)
    assert together.in_runs > 100
    assert together.packed > 40


def check_same_life(tmp_path: Path, kind: str, seed: int) -> Node:
    """The store that has kernels pack has the same files at the end; how much they packed depends on the seed."""
    choose = random.Random(seed)
    nodes = together, alone = pair(tmp_path, kind)
    with (
        mock.patch.object(index, "HAS_NATIVE", False),
        mock.patch.object(raft_log_module, "HAS_NATIVE", False),
    ):
        # Pure Python for the one that is the reference: it is asked first.
        _live(nodes, choose)
    assert not alone.in_runs + alone.packed
    assert files(together.root / "consumequeue") == files(alone.root / "consumequeue")
    for name in ("commitlog", "dledger-n0"):
        assert files(together.root / name) == files(alone.root / name)
    assert [*files(together.root / "index").values()] == [*files(alone.root / "index").values()]
    return together


def put_of(what: str, choose: random.Random) -> Callable[[Node], list[tuple[int, int]]]:
    """Something for both nodes to store."""
    count = choose.choice((1, 2, 10, 30))
    if what == "send":
        headers = sends_of(choose, count)
        return lambda node: node.send(headers)
    if what == "ops":
        closed = [choose.randrange(1 << choose.randrange(1, 60)) for _ in range(count)]
        return lambda node: node.write_ops(closed)
    queue_id = choose.randrange(2)
    messages = [
        (number, body, header.properties or "") for number, (header, body) in enumerate(sends_of(choose, count))
    ]
    if choose.random() < 0.1:
        # One that Python must store: it has no unique key.
        messages[-1] = (1, b"", "TAGS\x01a\x02")
    return lambda node: node.send_batch(queue_id, messages)


def _live(nodes: tuple[Node, Node], choose: random.Random) -> None:
    _, alone = nodes
    #: Where the records end that are not confirmed.
    ends: list[int] = []
    for node in nodes:
        # Queues that a run can name.
        for topic in TOPICS:
            for queue_id in range(2):
                node.store.put(draft(topic, queue_id))
        node.store.put(draft(OP_HALF_TOPIC, 0))
        node.store.confirm(node.store.written)
    for _ in range(80):
        step = choose.choice(("send", "send", "batch", "ops", "confirm", "confirm", "truncate", "delete"))
        if step in ("send", "batch", "ops"):
            put = put_of(step, choose)
            with mock.patch.object(raft_log_module, "HAS_NATIVE", True):
                placed = put(nodes[0])
            assert placed == put(alone)
            sizes = [alone.store.log.record(at) for at, _ in placed]
            ends += [at + len(size) for (at, _), size in zip(placed, sizes, strict=True) if size is not None]
        elif step == "confirm" and ends:
            number = choose.randrange(len(ends))
            for node in nodes:
                node.store.confirm(ends[number])
            del ends[: number + 1]
        elif step == "truncate" and ends:
            number = choose.randrange(len(ends))
            for node in nodes:
                node.store.truncate(ends[number], TAKEN_BACK)
            del ends[number + 1 :]
        elif step == "delete" and choose.random() < 0.3:
            # Also as another node did it, which had fewer records by then.
            as_of = choose.choice((None, alone.store.dispatched))
            for node in nodes:
                node.store.delete_topics([TOPICS[1]], as_of=as_of)
        assert 1 == len({len(node.store._pending) for node in nodes})
        assert 1 == len({(node.store.written, node.store.dispatched) for node in nodes})
        for node in nodes:
            node.clock.advance(0.007)
        for topic in TOPICS:
            for queue_id in range(2):
                one, other = (bodies(node.store, topic, queue_id) for node in nodes)
                assert one == other
        assert nodes[0].arrivals == nodes[1].arrivals
    for node in nodes:
        node.store.confirm(node.store.written)
        node.store.close()


def test_the_offsets_of_a_run_that_is_taken_back_half_way_are_given_out_again(tmp_path: Path) -> None:
    """C2, P2: exactly those of the records that are gone."""
    node, _ = pair(tmp_path, "raft")
    node.store.put(draft("orders", 0))
    node.store.put(draft("orders", 1))
    node.store.confirm(node.store.written)
    headers = [
        (SendMessageV2(topic="orders", queue_id=number % 2, properties=f"UNIQ_KEY\x01A{number}\x02"), b"%d" % number)
        for number in range(6)
    ]
    placed = node.send(headers)
    assert 6 == node.in_runs
    assert [1, 1, 2, 2, 3, 3] == [queue_offset for _, queue_offset in placed]
    log = node.store.log
    assert isinstance(log, RaftLog)
    assert 7 == log.last_index
    node.store.truncate(log.cut_before(5), TAKEN_BACK)
    assert (4, 3) == (log.last_index, len(node.store._pending))
    assert [2, 3, 3] == [queue_offset for _, queue_offset in node.send([headers[1], headers[0], headers[1]])]
    node.store.confirm(node.store.written)
    assert [b"hello", b"0", b"2", b"0"] == bodies(node.store, "orders", 0)
    assert [b"hello", b"1", b"1", b"1"] == bodies(node.store, "orders", 1)
    node.store.close()


def test_the_offsets_of_a_batch_that_is_taken_back_half_way_are_given_out_again(tmp_path: Path) -> None:
    """C2, E6, P2: exactly those of the records that are gone; entries have their numbers."""
    node, _ = pair(tmp_path, "raft")
    node.store.put(draft("orders", 0))
    node.store.confirm(node.store.written)
    messages = [(0, b"%d" % number, f"UNIQ_KEY\x01A{number}\x02") for number in range(5)]
    assert [1, 2, 3, 4, 5] == [queue_offset for _, queue_offset in node.send_batch(0, messages)]
    assert 5 == node.packed
    log = node.store.log
    assert isinstance(log, RaftLog)
    assert (5, 5) == (log.last_index, len(node.store._pending))
    assert 1 == node.store.max_offset("orders", 0)
    node.store.truncate(log.cut_before(3), TAKEN_BACK)
    assert (2, 2) == (log.last_index, len(node.store._pending))
    assert [3, 4, 5, 6, 7] == [queue_offset for _, queue_offset in node.send_batch(0, messages)]
    node.store.confirm(log.end_of(4) or 0)
    assert [b"hello", b"0", b"1", b"0", b"1"] == bodies(node.store, "orders", 0)
    node.store.confirm(node.store.written)
    assert [b"hello", b"0", b"1", b"0", b"1", b"2", b"3", b"4"] == bodies(node.store, "orders", 0)
    assert 8 == node.arrivals["orders", 0]
    node.store.close()


def packed_op(room: PackingRoom, *, keys: bytes) -> PackedRun:
    """An op record that has these index entries."""
    queue = room.table["orders", 0]
    made = native.store_ops(
        room.page,
        room.at,
        room.end,
        [7],
        log_offset=room.log_offset,
        lead=room.lead,
        queue_offset=queue.assigned,
        born_time_ms=5,
        born_host=BORN,
        store_time_ms=room.store_time_ms,
        store_host=room.store_host,
        topic_field=queue.topic_part,
    )
    assert made is not None
    last_offset, added = made
    return PackedRun(added[1], last_offset, [(queue, *added)], keys)


def test_a_batch_with_very_many_keys_does_not_wait_as_index_entries(tmp_path: Path) -> None:
    """C4, P2: these would take ten times the memory of its texts. On a log that confirms at once they do not wait."""
    many = "UNIQ_KEY\x01A\x02KEYS\x01" + "k " * 5_000 + "\x02"
    for make_log, is_taken in ((roomy_log, False), (None, True)):
        root = tmp_path / str(is_taken)
        log = make_log(config_of(root)) if make_log is not None else None
        with quiet_store(config_of(root), log=log) as store:
            store.put(draft())
            data = pack_messages([(0, b"body", many)])
            written = store.written
            placed = store.put_sent_batch("orders", 0, data, born_time_ms=5, born_host=BORN)
            assert is_taken == (placed is not None) == (store.written > written)
            packed = store.put_packed(lambda room: packed_op(room, keys=bytes(70_000)), answers_at_once=False)
            assert is_taken == packed
            assert store.put_packed(lambda room: packed_op(room, keys=bytes(60_000)), answers_at_once=False)
            assert store.put_batch("orders", 0, unpack_messages(data), born_time_ms=5, born_host=BORN)
            store.confirm(store.written)


def test_sends_with_very_many_keys_do_not_wait_as_index_entries(tmp_path: Path) -> None:
    """C4, P2: thousands of them may wait for a majority, bounded by the bytes of their records."""
    header = SendMessageV2(topic="orders", queue_id=0, properties="KEYS\x01" + "k " * 5_000 + "\x02UNIQ_KEY\x01A1\x02")
    for kind in LOGS:
        together, alone = pair(tmp_path / kind, kind)
        placed = []
        for node in (together, alone):
            node.store.put(draft("orders", 0))
            placed.append(node.send([(header, b"one"), (header, b"two")]))
            assert not any(isinstance(each, SealedRun) for each in node.store._pending._facts)
            node.store.confirm(node.store.written)
            node.store.close()
        assert placed[0] == placed[1]
        assert [*files(together.root / "index").values()] == [*files(alone.root / "index").values()]


def test_a_run_behind_the_deletion_of_its_topic_belongs_to_the_new_topic(tmp_path: Path) -> None:
    """C2: the queue was made again meanwhile."""
    node, _ = pair(tmp_path, "raft")
    node.store.confirm(node.store.put(draft("orders", 0)).end_offset)
    end = node.store.written
    node.store.put(draft("payments", 0))
    node.store.truncate(end, TAKEN_BACK)
    header = SendMessageV2(topic="payments", queue_id=0, properties="UNIQ_KEY\x01A1\x02")
    sent = [(header, b"one"), (header, b"two"), (header, b"three")]
    assert [0, 1, 2] == [queue_offset for _, queue_offset in node.send(sent)]
    assert 2 == node.in_runs
    node.store.delete_topics(["payments"], as_of=end)
    node.store.confirm(node.store.written)
    assert [b"one", b"two", b"three"] == bodies(node.store, "payments", 0)
    node.store.close()


def test_a_follower_folds_what_the_kernels_leave_the_same(tmp_path: Path) -> None:
    """P2: entries that came together are checked and folded by kernels, or in Python."""
    leader, _ = pair(tmp_path, "raft")
    leader.store.put(draft("orders", 0))
    for _ in range(6):
        leader.send(sends_of(random.Random(4), 30))
        # A topic that is too long for a kernel, and one without keys.
        leader.store.put(draft("o" * 120, 3))
        leader.store.put(draft("orders", 0, b"", TAGS="x"))
    source = leader.store.log
    assert isinstance(source, RaftLog)
    found = []
    for is_native in (True, False):
        node = Node(tmp_path / f"follower-{is_native}", raft_log, in_runs=False)
        log = node.store.log
        assert isinstance(log, RaftLog)
        with (
            mock.patch.object(checked_entries, "HAS_NATIVE", is_native),
            mock.patch.object(follower, "HAS_NATIVE", is_native),
            mock.patch.object(native, "check_entries", wraps=native.check_entries) as checked,
            mock.patch.object(native, "scan", wraps=native.scan) as scanned,
        ):
            while log.last_index < source.last_index:
                _, pieces = source.entries(log.last_index + 1, 4_000)
                data = b"".join(pieces)
                node.store.append_raw(log.check_append(data).position, data)
                node.store.confirm(node.store.written)
                assert node.store.follow(60.0)
        assert is_native == checked.called == scanned.called
        arrivals = dict(node.arrivals)
        node.store.close()
        home = node.root / "dledger-n0"
        found.append(
            (
                files(node.root / "consumequeue"),
                [*files(node.root / "index").values()],
                arrivals,
                files(home / "data"),
                files(home / "index"),
            )
        )
    assert found[0] == found[1]
    leader.store.close()
