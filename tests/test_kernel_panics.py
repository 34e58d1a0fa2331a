"""Damaged input: no compiled kernel panics on it, and one in doubt has written nothing (issues 18, 21). What a kernel
makes of it is compared with the Python version elsewhere (``test_send_kernel``, ``wire.test_shapes``,
``delay.test_kernels``, ``test_kernels``).

A panic would be a doubt, and Python would decide (``native/src/guard.rs``): only stderr tells of it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest
from msgspec.structs import astuple

from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Message
from ternmq.wire.auth import Secret
from ternmq.wire.batch import pack_messages
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import encode_request
from ternmq.wire.header import NO_BODY, Request
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.properties import join
from ternmq.wire.requests import EndTransaction
from ternmq.wire.shapes import BODY_BYTES_MAX, SignedSend
from tests.share.world import TOPIC, World
from tests.wire.test_shapes import FRAMES, SEND, framed, text

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

ROUNDS: Final = 2_000
HOST: Final = b"\x7f\0\0\1\0\0\x2a\x9f"
KEYS: Final = {"KEYS": "a b", "UNIQ_KEY": "7F000001000018B4AAC2000000000001", "TAGS": "t"}
HALF: Final = {"TRAN_MSG": "true", "PGROUP": "g"}
WAITING: Final = {"TIMER_OUT_MS": "1700000000000", "REAL_TOPIC": "orders", "REAL_QID": "0"}
WAITING_HOUR: Final = 1_700_000_000_000 // 3_600_000
PIECES: Final = [
    *(b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\0\0\0\0", b"\xc3", b"\xf0\x9f", b"9" * 25),
    *(b"\x01", b"\x02", b'"', b"\\", b"\\u", b"\\ud800", b"-", b"0", b"{", b"}", b",", b":", b"null"),
]


class Damage:
    """Input from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.pick = self._random.choice

    def of(self, data: bytes) -> bytes:
        """The data, or some of it replaced, inserted, repeated, or cut off."""
        changed, choose = bytearray(data), self._random
        for _ in range(choose.choice((0, 1, 1, 2, 4, 8))):
            at, piece = choose.randrange(len(changed) + 1), choose.choice(PIECES)
            match choose.randrange(5):
                case 0:
                    changed[at:at] = piece
                case 1:
                    changed[at : at + len(piece)] = piece
                case 2:
                    del changed[at : at + choose.randrange(1, 9)]
                case 3:
                    other = choose.randrange(len(changed) + 1)
                    changed[at:at] = changed[other : other + 30]
                case _:
                    del changed[at:]
        return bytes(changed)

    def frames(self, good: list[bytes]) -> bytes:
        """Frames, of which some are damaged and have the right length nevertheless."""
        made = b""
        for _ in range(self._random.randrange(1, 5)):
            frame = self.of(self.pick(good))
            made += self.pick((frame, (len(frame) - 4).to_bytes(4, "big") + frame[4:] if len(frame) > 8 else frame))
        return made

    def number(self) -> int:
        return self.pick((0, 0, 0, 1, -1, 7, 2**31 - 1, 2**31, 2**62, 2**63 - 1, -(2**63), 1_700_000_000_000))


def attempt(kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return kernel(*args, **options)
    except (ValueError, OverflowError):
        return None


def attempt_on(page: bytearray, kernel: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A kernel that writes to a page: nothing, if it is in doubt or tells how much room it needs."""
    before = bytes(page)
    made = attempt(kernel, *args, **options)
    if made is None or isinstance(made, int):
        assert before == page, f"{kernel.__name__} was in doubt, and has written"
    return made


@pytest.mark.parametrize("seed", [0, 1])
def test_no_frame_makes_a_kernel_panic(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """N1, B3: signed sends, runs of sends, and batches."""
    damage, secret = Damage(seed), Secret("secret-of-the-shop")
    assert secret.native is not None
    reader = native.SignedSends(
        "shop-key",
        secret.native,
        secret,
        codes=[10, 310, 320],
        body_bytes_max=BODY_BYTES_MAX,
        request_type=Request,
        header_type=SignedSend,
        no_body=NO_BODY,
    )
    terms = native.SendTerms(
        store_host=HOST,
        more_properties=b"",
        marks=[b"DELAY\x01"],
        sysflag_mask=0,
        body_bytes_max=1 << 20,
        record_bytes_max=1 << 20,
    )
    form = native.ReplyForm([b"{", b",", b",", b',"', b'",', b"}"])
    timed_form = native.ReplyForm([b"{", b",", b",", b',"', b'":"', b'",', b"}"])
    asked: list[dict[str, str]] = [{}, {"TIMER_DELAY_SEC": "90"}, {"TIMER_DELIVER_MS": "1700000000500"}]
    sends = [framed(text(SEND | {"i": join(KEYS | more), "e": f"{len(more)}"})) for more in asked]
    batch = pack_messages((0, b"body", join(KEYS)) for _ in range(3))
    stored = waiting = 0
    for _ in range(ROUNDS):
        data = damage.frames([*FRAMES.values(), *sends * 20])
        at, limit = damage.pick((0, 0, 0, 1, len(data), 2**62)), damage.pick((1 << 24, 1 << 24, 100))
        attempt(reader.read, data, memoryview(data), at, limit, damage.pick((0, 1, 1 << 30)), [])
        run = attempt(native.parse_sends, data, at, limit, damage.pick((None, reader)))
        page, large = bytearray(damage.pick((0, 200, 4_096))), bytearray(4_096)
        if run is not None:
            known = ("queue", 0, b"\x06orders"), ("queue", damage.number(), b"\x06orders"), None
            targets = [damage.pick(known) for _ in run.places]
            place = damage.number(), damage.number()
            room = damage.pick((0, 1, 64, 2**62)), page, 0, len(page), damage.pick((0, 48, 2**40))
            found = attempt_on(page, native.store_sends, run, terms, form, 0, *room, *place, HOST, targets)
            stored += found is not None
            found = attempt_on(
                large,
                native.store_timed_sends,
                run,
                terms,
                damage.pick((timed_form, timed_form, timed_form, form)),
                damage.pick((*range(run.count), 2**62)),
                large,
                0,
                damage.pick((4_096, 4_096, 4_096, 250, 4_097)),
                log_offset=damage.pick((0, damage.number())),
                store_time_ms=damage.pick((1_700_000_000_000, 1_700_000_000_000, damage.number())),
                max_delay_ms=damage.pick((10**9, 10**9, damage.number())),
                born_host=HOST,
                broker_name=damage.pick(("broker-a", "é", "")),
                may_wait=[damage.pick((True, True, True, False)) for _ in range(damage.pick((3, 3, 3, 0)))],
                queue_offset=damage.pick((0, damage.number())),
                topic_field=damage.pick((b"\x06orders", b"\x06orders", b"\x06orders", b"", b"\xff\xff")),
            )
            waiting += found is not None
        attempt_on(
            page,
            native.expand_batch,
            page,
            damage.pick((0, 10)),
            len(page),
            damage.of(batch),
            log_offset=damage.number(),
            lead=damage.pick((0, 48)),
            queue_id=0,
            queue_offset=damage.number(),
            store_time_ms=damage.number(),
            magic=-626843481,
            shared=bytes(44),
            topic_field=b"\x06orders",
            topic=b"orders",
            more_properties=b"",
            body_bytes_max=1 << 20,
            record_bytes_max=1 << 20,
        )
    assert stored, "some sends are still good"
    assert waiting, "some of them have a time"
    assert "" == capfd.readouterr().err


@pytest.mark.parametrize("seed", [0, 1])
def test_no_transaction_makes_a_kernel_panic(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """J1: halves, commits of halves that may be damaged, and ops."""
    damage, world = Damage(seed), World()
    for number in range(2):
        world.send(b"%d" % number, 0, TOPIC, **KEYS, **HALF, REAL_TOPIC="orders", REAL_QID="0")
    found = world.store.get("orders", 0, 0, count_max=2)
    world.end()
    records = [bytes(buffer) for buffer in found.buffers]
    halves = b"".join(records)
    places = {0: 0, 1: len(halves) // 2}
    good = [framed(text(SEND | {"i": join(KEYS | HALF)}))]
    for queue_offset, log_offset in places.items():
        header = EndTransaction(producer_group="g", queue_offset=queue_offset, log_offset=log_offset, decision=8)
        good.append(b"".join(encode_request(RequestCode.END_TRANSACTION, header, opaque=queue_offset)))
    terms = native.SendTerms(
        store_host=HOST,
        more_properties=b"",
        marks=[b"DELAY\x01"],
        sysflag_mask=0,
        body_bytes_max=1 << 20,
        record_bytes_max=1 << 20,
    )
    form = native.ReplyForm([b"{", b",", b",", b',"', b'",', b"}"])
    begun = committed = closed = 0
    for _ in range(ROUNDS):
        frames = [damage.pick((frame, frame, frame, damage.frames([frame]))) for frame in good]
        run = attempt(native.parse_sends, b"".join(frames[damage.pick((0, 1)) :]), 0, 1 << 24)
        page = bytearray(damage.pick((halves, halves, damage.of(halves))))
        at = damage.pick((len(page), len(page), len(page), 100, 2**62))
        page += bytes(4_096)
        if run is not None:
            made = attempt_on(
                page,
                native.store_transactions,
                run,
                terms,
                terms,
                form,
                (b"{", b"}"),
                damage.pick((0, *range(run.count), 2**62)),
                page,
                at,
                damage.pick((len(page), len(page), len(page), 250, len(page) + 1)),
                log_offset=damage.pick((at, at, at, damage.number())),
                from_offset=damage.pick((0, 0, 0, damage.number())),
                store_time_ms=damage.number(),
                born_host=HOST,
                group_bytes_max=damage.pick((100, 100, 0)),
                may_begin=[damage.pick((True, True, False)) for _ in range(damage.pick((3, 3, 3, 0)))],
                open_halves=damage.pick((places, places, {0: damage.number()}, None)),
                in_doubt=damage.pick((set(), set(), {0})),
                queue_offset=damage.pick((0, damage.number())),
                topic_field=damage.pick((b"\x06orders", b"\x06orders", b"\x06orders", b"", b"\xff\xff")),
                target=lambda *_: damage.pick(((0, b"\x06orders"), (damage.number(), b"\x06orders"), None)),
            )
            begun += made is not None and made[3] is not None
            committed += made is not None and bool(made[6])
        made = attempt_on(
            page,
            native.store_ops,
            page,
            damage.pick((0, 10, 2**62)),
            damage.pick((len(page), len(page) + 1)),
            [damage.number() for _ in range(damage.pick((0, 1, 3)))],
            log_offset=damage.number(),
            lead=damage.pick((0, 48)),
            queue_offset=damage.number(),
            born_time_ms=damage.number(),
            born_host=damage.pick((HOST, HOST, b"")),
            store_time_ms=damage.number(),
            store_host=damage.pick((HOST, HOST, b"")),
            topic_field=damage.pick((b"\x06orders", b"\x06orders", b"")),
        )
        closed += made is not None
    assert begun > 10
    assert committed > 10
    assert closed > 10
    assert "" == capfd.readouterr().err


@pytest.mark.parametrize("seed", [0, 1])
def test_no_record_makes_a_kernel_panic(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """C4, I2: the log that is folded, messages that wait, and the index."""
    damage, world = Damage(seed), World()
    for number in range(4):
        world.send(b"%d" % number, 0, TOPIC, **KEYS, TIMER_DELAY_MS="1000", **WAITING)
    found = world.store.get("orders", 0, 0, count_max=4)
    world.end()
    records = b"".join(map(bytes, found.buffers))
    size = len(records) // found.count
    folded = waiting = read = begun = rows_packed = 0
    for _ in range(ROUNDS):
        data, properties = (
            damage.of(records),
            damage.of(join({"TIMER_DELAY_MS": "1000"} | KEYS).encode()).decode("latin1"),
        )
        queue = SimpleNamespace(
            log_end=0,
            next_offset=0,
            assigned=0,
            queue_id=0,
            topic_part=damage.pick((b"\x06orders", b"")),
            needs_facts=False,
            has_due_times=False,
        )
        scanned = attempt(
            native.scan,
            data,
            damage.pick((0, 0, 0, size, 2**40)),
            begin=damage.number(),
            has_headers=damage.pick((False, False, True)),
            before=damage.pick((None, (-1, 0), (damage.number(), damage.number()))),
            check_crc=damage.pick((False, True)),
            known={(b"\x06orders", 0): (queue,)},
            indexed=damage.number(),
        )
        folded += scanned is not None and scanned[2] > 0
        attempt(
            native.check_chain,
            data,
            array("i", [damage.number() % 2**31 for _ in range(damage.pick((1, 7)))]),
            number=damage.pick((0, 1, 2**31 - 1, 2**62)),
            low=damage.number(),
            high=damage.number(),
        )
        attempt(native.count_same, data, damage.pick((0, 0, 7, 2**62)), records, damage.pick((0, 0, 7, 2**62)))
        entries = bytearray(damage.of(bytes(48) + records[:size]))
        places = damage.number(), damage.number(), damage.number()
        attempt(native.seal_entries, entries, damage.pick((0, 0, 1, 2**40)), len(entries), *places)
        attempt(
            native.check_entries,
            entries,
            damage.pick((0, 0, 2**40)),
            index=damage.pick(places),
            term=damage.pick(places),
            position=damage.pick(places),
            file_bytes=damage.pick((1 << 30, 1, 0, -1, damage.number())),
            members_flag=0,
        )
        begin = damage.pick((0, 0, damage.number()))
        waits = attempt(
            native.fold_waiting,
            data,
            begin,
            b"".join(
                ENTRY.pack(
                    damage.pick((begin + number * size, begin + number * size, damage.number())) & 2**63 - 1,
                    damage.pick((size, size, size, 0, -1, 2**31 - 1)),
                    0,
                )
                for number in range(4)
            )[: damage.pick((None, -1))],
            damage.pick((b"\x06orders", b"")),
            {damage.pick((WAITING_HOUR, 0)): SimpleNamespace(records_end=damage.number(), last_offset=damage.number())},
        )
        waiting += waits is not None and waits[0] > 0
        page = bytearray(damage.pick((0, 100, 2_000)))
        attempt_on(
            page,
            native.deliver,
            page,
            0,
            len(page),
            data,
            [damage.pick((0, size, len(data), 2**40, -1)) for _ in range(3)],
            [damage.pick((size, size, 0, 88, 2**31, -1)) for _ in range(3)],
            [damage.number() for _ in range(3)],
            log_offset=damage.number(),
            lead=damage.pick((0, 48)),
            store_time_ms=damage.number(),
            store_host=damage.pick((HOST, b"")),
            delivered=b"D\x011\x02",
            hour=damage.pick((WAITING_HOUR, damage.number())),
            record_bytes_max=1 << 20,
            own={b"REAL_TOPIC\x01orders\x02REAL_QID\x010\x02": ("orders", 0)},
            table={("orders", 0): queue},
        )
        attempt(native.timed, properties, "orders", damage.number(), damage.number(), damage.number())
        made = attempt(native.index_entries, [("orders", properties, damage.number(), damage.number())])
        attempt(
            native.index_put,
            page,
            made or damage.of(bytes(40)),
            damage.pick((0, 1, 4, 2**31, 2**62)),
            damage.pick((0, 1, 2**31)),
            damage.number(),
            damage.number(),
            damage.number(),
        )
        native.has_sound_entries(data)
        rows = native.read_rows(data)
        read += rows is not None and len(rows[0])
        attempt(native.record_starts, data, damage.number(), damage.number())
        starts = native.record_starts(data, 0, len(data))
        begun += starts is not None and len(starts)
        at, sizes = (array("q", [damage.number() for _ in range(3)]) for _ in range(2))
        for parts in ((at, sizes), (array("q", [0]), array("q", [len(properties)]))):
            native.part_crcs(properties.encode(errors="replace"), *parts)
            native.property_values(properties.encode(errors="replace"), *parts, [b"TAGS", b""])
            native.property_pairs(properties.encode(errors="replace"), *parts)
        column = (data[: damage.pick((None, 8, 7, 0))], data, damage.pick((None, None, b"", data)))
        packed = attempt(
            native.pack_rows,
            damage.pick((column, (array("i", [0, size, len(data)]).tobytes(), data, None))),
            damage.pick((None, column)),
            damage.pick((None, column)),
            damage.pick((0, 0, damage.number())),
            damage.pick((2, damage.number())),
            chunk_id="C",
            number=damage.pick((0, damage.number())),
            always=damage.pick(("", "INSTANCE_ID\x01a\x02")),
            topic_crc=damage.pick((0, 2**32 - 1)),
            room_bytes=damage.pick((1 << 20, damage.number())),
            body_bytes_max=damage.pick((1 << 20, damage.number())),
            properties_bytes_max=damage.pick((1 << 10, damage.number())),
        )
        rows_packed += packed is not None and packed[1]
    assert read, "some answers are still good"
    assert begun, "some records are still whole"
    assert rows_packed, "some rows are good"
    assert folded, "some records are still good"
    assert waiting, "some of them wait"
    assert "" == capfd.readouterr().err


def odd_message(damage: Damage) -> Message:
    """Its fields have values of any kind."""
    odd: tuple[Any, ...] = (
        "a",
        "",
        "\ud800",
        "\x01",
        b"x",
        None,
        0,
        -1,
        2**31,
        2**70,
        True,
        (),
        {},
        {"a": 1},
        {1: "a"},
        [],
    )
    good: dict[str, Any] = {"topic": "orders", "body": b"x", "properties": {"a": "b"}, "flag": 1, "delay_level": 0}
    good |= {"tags": "t", "keys": "k", "sharding_key": "", "wait_store_ok": True, "deliver_at": None, "delay": None}
    return Message(**{name: damage.pick((*[value] * 40, *odd)) for name, value in good.items()})


@pytest.mark.parametrize("seed", [0, 1])
def test_no_message_makes_a_kernel_panic(seed: int, capfd: pytest.CaptureFixture[str]) -> None:
    """E6: batches that are packed."""
    damage = Damage(seed)
    packed = 0
    for _ in range(ROUNDS):
        messages: list[Any] = [odd_message(damage) for _ in range(damage.pick((0, 1, 2, 5)))]
        made = attempt(
            native.pack_batch,
            messages,
            damage.pick(("P", "", "\x01")),
            damage.number(),
            namespace=damage.pick(("", "space", "\x02")),
            body_bytes_max=damage.pick((0, 40, 1 << 20)),
            reserved=frozenset({"KEYS"}),
            astuple=damage.pick((*[astuple] * 40, repr, tuple, None)),
        )
        packed += made is not None
        attempt(
            native.pack_properties,
            odd_message(damage),
            damage.pick(("P", "", "\x01", "é")),
            damage.number(),
            namespace=damage.pick(("", "space", "\x02")),
            body_bytes_max=damage.pick((0, 40, 1 << 20)),
            reserved=frozenset({"KEYS"}),
            astuple=damage.pick((*[astuple] * 40, repr, tuple, None)),
        )
    assert packed, "some messages are still good"
    assert "" == capfd.readouterr().err
