"""Runs of sends (issue 21): a broker that stores the sends of a read with one call of a kernel answers and stores the
same bytes as one that takes them one by one (E1, C1, C2, C4, B5).

Two brokers get the same reads through connections that are no sockets, so that each read ends at the same byte. Clock,
seed and addresses are the same. Among ordinary sends there are all kinds of others: special properties, unknown topics,
odd JSON, the binary form, batches, sizes at the limits, other requests, and damaged frames.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.flow import SEND
from ternmq.broker.handlers.send import SendHandlers
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.sending import Sending
from ternmq.delay import hour_files, schedule_log, timer
from ternmq.delay.runs import TimedRun, TimedRuns
from ternmq.delay.schedule_log import POSITION
from ternmq.env import Env
from ternmq.kernels import HAS_NATIVE, native
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer
from ternmq.net.server import Server
from ternmq.store.config import FlushDiskType
from ternmq.store.derived import index
from ternmq.store.durable.safety import Level, Safety, WaitingRun
from ternmq.store.durable.watermark import Watermark
from ternmq.store.log import batch
from ternmq.store.log.run import PlacedRun, RunWriter
from ternmq.store.store import MessageStore
from ternmq.wire import frame
from ternmq.wire.batch import pack_messages
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Response
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullSysflag, SendMessage, SendMessageV2
from tests.broker.calls import FAR_MS, pull, serving, settings, small_store
from tests.manual_clock import ManualClock
from tests.store.small import HOST, files, log_queues_index

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

BODY_BYTES_MAX: Final = 5_000
KEY: Final = "UNIQ_KEY\x017F000001000018B4AAC2000000000001\x02"
PROPERTIES: Final = (
    KEY,
    KEY[:-1],
    f"{KEY}WAIT\x01true\x02TAGS\x01paid\x02",
    f"TAGS\x01paid\x02KEYS\x01a b  c\x02{KEY[:-1]}",
    f"KEYS\x01é 𝄞\x02TAGS\x01é\x02{KEY}",
    f'a"b\\c/d\x01\n\t\r\b\f\x02{KEY}',
    f"zero\x01\0\x02{KEY}",
    # What the broker must look at.
    f"{KEY}DELAY\x013\x02",
    f"{KEY}TRAN_MSG\x01true\x02PGROUP\x01g\x02",
    f"{KEY}TIMER_DELAY_SEC\x01600\x02",
    f"{KEY}__STARTDELIVERTIME\x011700000600000\x02",
    f"{KEY}CLUSTER\x01other\x02",
    f"{KEY}POP_CK\x011 2 3\x02",
    f"{KEY}__RMQ.TRANSIENT.x\x01y\x02",
    f"{KEY}WAIT\x01false\x02",
    # Times that are past, beyond the limit of 40 days, no numbers, or none; and such with more to decide.
    *(f"{KEY}TIMER_DELAY_MS\x01{ms}\x02" for ms in ("0", "1", "-1", "", "x", "3456000000", "3456000001", "9" * 19)),
    f"{KEY}TIMER_DELAY_SEC\x013456000\x02",
    f"{KEY}TIMER_DELAY_SEC\x013456001\x02",
    *(f"{KEY}TIMER_DELIVER_MS\x01{ms}\x02" for ms in (1, 1_699_999_999_999, 1_700_000_000_000, 1_700_000_000_001)),
    f"{KEY}__STARTDELIVERTIME\x011703456000001\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02DELAY\x013\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02DELAY\x010\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02TIMER_DELIVER_MS\x011700000600000\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02TIMER_DELAY_MS\x017000\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02TIMER_OUT_MS\x011700000004000\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02REAL_TOPIC\x01other\x02REAL_QID\x017\x02",
    f"{KEY}TIMER_DELAY_MS\x015000\x02TIMER_ROLL_TIMES\x011\x02",
    f"{KEY}TIMER_DELAY_MS\x010\x02TIMER_DEL_UNIQKEY\x01{KEY[9:-1]}\x02",
    f"{KEY}MY_TIMER_X\x015000\x02",
    # Unique keys that are none, or need escapes, or are not the last.
    "",
    "TAGS\x01a\x02",
    "UNIQ_KEY\x01\x02",
    f"UNIQ_KEY\x01\x02{KEY}",
    f"{KEY}UNIQ_KEY\x01\x02",
    'UNIQ_KEY\x01with "quotes"\x02',
    "UNIQ_KEY\x01é\x02",
    "XUNIQ_KEY\x01abc\x02",
    f"v\x01UNIQ_KEY\x01abc\x02{KEY}",
    # Tags and keys without a value, and twice.
    f"{KEY}TAGS\x01\x02",
    f"TAGS\x01a\x02TAGS\x01b\x02{KEY}",
    f"TAGS\x01a\x02TAGS\x01\x02{KEY}",
    f"KEYS\x01\x02{KEY}",
    # Around the limit of the properties, with those that the broker adds.
    *(f"{KEY}p\x01{'x' * count}\x02" for count in range(32_640, 32_740, 3)),
    *(f"{KEY}TIMER_DELAY_MS\x015000\x02p\x01{'x' * count}\x02" for count in range(32_540, 32_640, 3)),
)
#: Messages that are let wait, for this hour and others.
TIMED: Final = (
    f"{KEY}TIMER_DELAY_SEC\x01600\x02",
    f"TIMER_DELAY_MS\x0190001\x02{KEY[:-1]}",
    f"{KEY}TIMER_DELIVER_MS\x011700000600000\x02TAGS\x01paid\x02",
    f"{KEY}TIMER_DELIVER_MS\x011700090600001\x02KEYS\x01é a\x02",
    f"{KEY}__STARTDELIVERTIME\x011700003600000\x02WAIT\x01true\x02",
    f"{KEY}TIMER_DELAY_SEC\x010086400\x02",
)
TOPICS: Final = ("orders", "orders", "orders", "orders", "payments", "made-now", "no/such", "SCHEDULE_TOPIC_XXXX", "")


#: Among reads: the client closes the connection.
CLOSED: Final = b""


class Wire(asyncio.Transport):
    """A connection that keeps what is written to it."""

    #: Of the client.
    host = "10.0.0.7"

    def __init__(self) -> None:
        super().__init__({"peername": (self.host, 40_000), "sockname": ("127.0.0.1", 10_911)})
        self.written = bytearray()
        self.is_gone = False

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.is_gone

    def pause_reading(self) -> None:
        """The test gives what is read."""

    def resume_reading(self) -> None:
        """The same."""

    def abort(self) -> None:
        self.is_gone = True


class Fed:
    """A broker, and a connection to it for each read that did not end the one before."""

    def __init__(self, server: Server, intake: Intake, store: MessageStore) -> None:
        self._server = server
        self._peer: Peer | None = None
        self._wire = Wire()
        self.intake = intake
        self.store = store
        self.slave: Watermark | None = None
        self._told_bytes = 0

    def rest(self) -> bytes:
        """What was written since the last read was answered."""
        return bytes(self._wire.written[self._told_bytes :])

    async def feed(self, data: bytes) -> bytes:
        """What a read is answered with."""
        server = self._server
        if self._wire.is_gone or data == CLOSED:
            self.close()
        if self._peer is None:
            self._wire = Wire()
            self._peer = Peer(
                server._routes,
                server.lanes,
                server._tasks,
                gate=server._gate,
                usage=server.usage,
                latencies=server.latencies,
            )
            self._peer.connection_made(self._wire)
        self._wire.written.clear()
        self._peer.data_received(data)
        await self.settled()
        self._told_bytes = len(self._wire.written)
        return bytes(self._wire.written)

    async def settled(self) -> None:
        """Nothing waits on a lane, and all replies are written."""
        while any(lane.count for lane in self._server.lanes.by_name.values()):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def lanes(self) -> Lanes:
        return self._server.lanes

    def close(self) -> None:
        """End the connection; the next read has a new one."""
        if self._peer is not None:
            self._peer.connection_lost(None)
        self._peer = None


@asynccontextmanager
async def fed(path: Path, *, store: dict[str, Any] | None = None, **changes: Any) -> AsyncIterator[Fed]:
    servers: list[Server] = []
    intakes: list[tuple[Intake, MessageStore]] = []
    make, make_intake = Server.__init__, Intake.__init__

    def noted(server: Server, *args: Any, **options: Any) -> None:
        make(server, *args, **options)
        servers.append(server)

    def noted_intake(intake: Intake, store: MessageStore, **options: Any) -> None:
        make_intake(intake, store, **options)
        intakes.append((intake, store))

    sizes = {"mapped_file_size_commit_log": 1 << 18, "max_message_size": BODY_BYTES_MAX} | (store or {})
    env = Env(ManualClock(), random.Random(1))
    with (
        mock.patch.object(Server, "__init__", noted),
        mock.patch.object(Intake, "__init__", noted_intake),
        mock.patch("ternmq.broker.broker.pack_host", return_value=HOST),
    ):
        broker = Broker(settings(broker_ip1="127.0.0.1", **changes), small_store(path, **sizes), env)
        await broker.__aenter__()
    try:
        [server] = servers
        one = Fed(server, *intakes[0])
        yield one
        one.close()
    finally:
        await broker.__aexit__(None, None, None)


def frame_of(header: bytes, body: bytes, *, form: int = 0) -> bytes:
    return (
        (4 + len(header) + len(body)).to_bytes(4, "big") + (form << 24 | len(header)).to_bytes(4, "big") + header + body
    )


def plain(number: int, *, topic: str = "orders", body: bytes = b"body") -> bytes:
    header = SendMessageV2(topic=topic, queue_id=number % 4, producer_group="g", properties=KEY, born_time_ms=number)
    return b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, body, opaque=number))


class Reads:
    """Reads of all kinds, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        #: Properties of ordinary sends.
        self._usual = PROPERTIES[:6]

    def next(self) -> list[bytes]:
        """Some sends and other requests; the first read may end anywhere in a frame."""
        choose = self._random
        count = choose.choice((1, 2, 5, 20, 100))
        # Most frames of a read are ordinary, or there would be no runs.
        oddity = choose.choice((0.0, 0.05, 0.5))
        self._usual = choose.choice((PROPERTIES[:6], TIMED, (*PROPERTIES[:6], *TIMED)))
        frames = [self._odd() if choose.random() < oddity else self._send(0) for _ in range(count)]
        is_damaged = choose.random() < 0.1
        if is_damaged:
            frames.insert(choose.randrange(count + 1), self._damaged())
        data = b"".join(frames)
        cut = choose.randrange(len(data)) if choose.random() < 0.3 else 0
        reads = [data[:cut], data[cut:]] if cut else [data]
        if is_damaged:
            # A wrong length would swallow all that follows.
            return [*reads, CLOSED]
        # A read of its own: which lane goes first is a matter of time.
        return [*reads, self._request(RequestCode.GET_MAX_OFFSET)]

    def _send(self, oddity: float) -> bytes:
        """A send; with so much oddity, its fields have odd values."""
        choose = self._random
        self._number += 1

        def value(usual: Callable[[], Any], *odd: Any) -> Any:
            return choose.choice(odd) if choose.random() < oddity else usual()

        form = value(lambda: 0, BINARY)
        kind, code = value(
            lambda: (SendMessageV2, RequestCode.SEND_MESSAGE_V2), (SendMessage, RequestCode.SEND_MESSAGE)
        )
        header = kind(
            topic=value(lambda: "orders", *TOPICS),
            queue_id=value(lambda: choose.randrange(4), -1, 7, 8, 2**31 - 1),
            producer_group="g",
            properties=value(lambda: choose.choice(self._usual), *PROPERTIES, None),
            born_time_ms=value(lambda: 1_700_000_000_000 + self._number, 0, -1, 2**63 - 1),
            sysflag=value(lambda: 0, 1, 4, 8, 12, 0x10, 0x30, -1, 2**31 - 1),
            flag=value(lambda: 0, 7, -1),
            reconsume_times=value(lambda: 0, None, 3),
            unit_mode=value(lambda: False, True),
            max_reconsume_times=value(lambda: None, 16),
            broker_name=value(lambda: None, "broker-a"),
        )
        sizes = (0, 1, 100, 4_000, BODY_BYTES_MAX - 1, BODY_BYTES_MAX, BODY_BYTES_MAX + 1, 70_000)
        body = choose.randbytes(value(lambda: choose.randrange(200), *sizes))
        oneway = value(lambda: False, True)
        return b"".join(encode_request(code, header, body, opaque=self._number, oneway=oneway, form=form))

    def _odd(self) -> bytes:
        choose = self._random
        kinds = (lambda: self._send(0.15), lambda: self._send(0.15), lambda: self._send(1), self._json, self._other)
        return choose.choice(kinds)()

    def _json(self) -> bytes:
        """A send whose header is written in another way."""
        fields: dict[str, Any] = {
            "a": "g",
            "b": "orders",
            "c": "TBW102",
            "d": "4",
            "e": "1",
            "f": "0",
            "g": "5",
            "h": "0",
        }
        fields |= {"i": KEY, "j": "0", "k": "false", "m": "false"}
        self._number += 1
        whole: dict[str, Any] = {"code": 310, "extFields": fields, "flag": 0, "language": "JAVA"}
        whole |= {"opaque": self._number, "serializeTypeCurrentRPC": "JSON", "version": 401}
        text = json.dumps(whole, separators=(",", ":"))
        old, new = self._random.choice(
            (
                ("", ""),
                ('"e":"1"', '"e":1'),
                ('"e":"1"', '"e":"01"'),
                ('"e":"1"', '"e":"+1"'),
                ('"e":"1"', '"e":" 1"'),
                ('"e":"1"', '"e":"1.0"'),
                ('"e":"1"', '"e":"-0"'),
                ('"e":"1"', '"e":"2147483648"'),
                ('"e":"1"', '"e":"99999999999999999999"'),
                ('"e":"1"', '"e":null'),
                ('"e":"1"', '"e":"1","e":"2"'),
                ('"e":"1",', ""),
                ('"b":"orders"', '"b":"ord\\u0065rs"'),
                ('"b":"orders"', '"b":"orders","b":"payments"'),
                ('"b":"orders",', ""),
                ('"g":"5"', '"g":"-9223372036854775808"'),
                ('"g":"5"', '"g":"9223372036854775808"'),
                ('"k":"false"', '"k":"FALSE"'),
                ('"k":"false"', '"k":false'),
                ('"k":"false"', '"k":"maybe"'),
                ('"m":"false"', '"m":"true"'),
                ('"m":"false"', '"m":"0"'),
                ('"m":"false"', '"m":"false","z":"more"'),
                ('"m":"false"', '"m":"false","AccessKey":"x"'),
                ('"a":"g"', '"a":"\\ud800"'),
                ('"a":"g"', '"a":"\x7f"'),
                ("UNIQ_KEY", "UNIQ\\u005fKEY"),
                ("UNIQ_KEY", "\\ud834\\udd1e\\u0001x\\u0002UNIQ_KEY"),
                ("UNIQ_KEY", "\\ud834\\u0001x\\u0002UNIQ_KEY"),
                ("\\u0001", "\\u0001\\/\\b\\f\\n\\r\\t"),
                ('"flag":0', '"flag":2'),
                ('"flag":0', '"flag":4'),
                ('"flag":0', '"flag":-1'),
                ('"flag":0', '"flag":0.0'),
                ('"flag":0', '"flag":0,"flag":2'),
                ('"code":310', '"code":310,"code":10'),
                ('"code":310', '"code": 310'),
                ('"language":"JAVA"', '"language":3'),
                ('"language":"JAVA"', '"language":"JAVA","remark":"r"'),
                ('"language":"JAVA"', '"language":"JAVA","remark":null'),
                ('"opaque":', '"opaque":-'),
                ('"opaque":', '"opaque":9999999999'),
                ('"version":401', '"version":9999999999'),
                (',"version":401', ""),
                ('"serializeTypeCurrentRPC":"JSON"', '"serializeTypeCurrentRPC":"ROCKETMQ"'),
            )
        )
        assert old in text, old
        return frame_of(text.replace(old, new, 1).encode(), b"odd")

    def _other(self) -> bytes:
        choose = self._random
        self._number += 1
        if choose.random() < 0.4:
            messages = [(0, b"in a batch", choose.choice(PROPERTIES[:6])) for _ in range(choose.randrange(4))]
            header = SendMessageV2(topic="orders", queue_id=2, batch=True, properties=KEY)
            code = choose.choice((RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2))
            return b"".join(encode_request(code, header, pack_messages(messages), opaque=self._number))
        return self._request(choose.choice((RequestCode.SEND_MESSAGE_V2, 9_999)))

    def _request(self, code: int) -> bytes:
        fields = {"topic": "orders", "queueId": "1"}
        return b"".join(encode_request(code, None, b"", opaque=self._number, more_fields=fields))

    def _damaged(self) -> bytes:
        """A frame that ends its connection, or one with a wrong byte somewhere."""
        choose, good = self._random, bytearray(self._send(0))
        if choose.random() < 0.3:
            at = choose.randrange(4)
            good[at] = choose.choice((0, 0x7F, 0xFF))
        else:
            header_bytes = int.from_bytes(good[4:8], "big") & 0xFFFFFF
            good[choose.randrange(4, 8 + header_bytes)] ^= 1 << choose.randrange(8)
        return bytes(good)


#: Counters of a broker that sends move.
COUNTERS: Final = ("putMessageTimesTotal", "putMessageSizeTotal", "msgPutTotalTodayNow", "putMessageAverageSize")


async def asked(one: Fed, code: RequestCode) -> Any:
    """What a broker answers to a request without fields."""
    one.close()
    [response] = FrameDecoder().feed(await one.feed(b"".join(encode_request(code, opaque=1))))
    assert isinstance(response, Response)
    return json.loads(bytes(response.body))


async def counters(one: Fed) -> tuple[dict[str, str], Any]:
    """Of messages that were sent, and of those that wait."""
    table: dict[str, str] = (await asked(one, RequestCode.GET_BROKER_RUNTIME_INFO))["table"]
    return {name: table[name] for name in COUNTERS}, await asked(one, RequestCode.GET_DELAYED_STATS)


def schedule_files(root: Path) -> dict[str, bytes]:
    """Of messages that wait; all but the one that tells how far the log was when nothing had changed for a while."""
    return {name: data for name, data in files(root / "schedule").items() if name != POSITION}


async def fed_with(
    path: Path, reads: list[bytes], let_go: Callable[[Fed, int], None] | None = None
) -> tuple[list[bytes], object, int, int]:
    """Replies to each read, the counters, and how many sends were stored in runs, and of these with a time. After each
    read ``let_go`` decides what becomes of senders that wait."""
    taken = waiting = 0
    run, store = SendHandlers.run, TimedRuns.store

    def let_wait(self: TimedRuns, sends: Any, first: int, *args: Any, **options: Any) -> TimedRun | None:
        nonlocal waiting
        found = store(self, sends, first, *args, **options)
        waiting += found.next - first if found is not None else 0
        return found

    def counted(self: SendHandlers, peer: Peer, sends: Any, first: int, *, arrived: float) -> tuple[int, bytes, int]:
        nonlocal taken
        number, replies, ends = run(self, peer, sends, first, arrived=arrived)
        taken += number - first
        return number, replies, ends

    async with fed(path) as one:
        replies = []
        with mock.patch.object(SendHandlers, "run", counted), mock.patch.object(TimedRuns, "store", let_wait):
            for number, data in enumerate(reads):
                replies.append(await one.feed(data))
                if let_go is not None:
                    let_go(one, number)
                    await one.settled()
                    replies.append(one.rest())
        return replies, await counters(one), taken, waiting


async def check_same(path: Path, reads: list[bytes], *, plain_min: int, timed_min: int) -> None:
    """Feed a broker with kernels and one without: replies, counters and files are the same, and as many sends as
    ``plain_min`` and ``timed_min`` were stored in runs."""
    replies, counted, taken, waiting = await fed_with(path / "kernel", reads)
    with ExitStack() as stack:
        for module in (frame, batch, index, timer, schedule_log, hour_files):
            stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
        expected, expected_counters, taken_without, _ = await fed_with(path / "python", reads)
    assert taken - waiting >= plain_min
    assert waiting >= timed_min
    assert not taken_without
    for one, other in zip(expected, replies, strict=True):
        assert FrameDecoder().feed(one) == FrameDecoder().feed(other)
        assert one == other
    assert expected_counters == counted
    assert log_queues_index(path / "python") == log_queues_index(path / "kernel")
    assert schedule_files(path / "python") == schedule_files(path / "kernel")


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 20))])
async def test_a_broker_with_kernels_answers_and_stores_the_same(tmp_path: Path, seed: int) -> None:
    """E1, C1, C2, C4, B5, I2."""
    source = Reads(seed)
    reads = [plain(number) for number in range(4)] + [data for _ in range(120) for data in source.next()]
    await check_same(tmp_path, reads, plain_min=300, timed_min=200)


async def test_properties_of_all_kinds_are_stored_in_runs_as_one_by_one(tmp_path: Path) -> None:
    """E1, I1, I2, J1: each of them among messages that wait."""
    reads = [plain(number) for number in range(4)]
    for number, properties in enumerate((*PROPERTIES, *TIMED)):
        texts = TIMED[number % len(TIMED)], properties, TIMED[0]
        headers = [
            SendMessageV2(topic="orders", queue_id=number % 4, producer_group="g", properties=each) for each in texts
        ]
        frames = [
            b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number, opaque=3 * number + place))
            for place, header in enumerate(headers)
        ]
        reads.append(b"".join(frames))
    await check_same(tmp_path, reads, plain_min=10, timed_min=200)


async def test_a_full_lane_refuses_as_many_of_a_run_as_of_single_sends(tmp_path: Path) -> None:
    """M1: a lane counts the sends of a run."""
    reads = [plain(0), b"".join(plain(number) for number in range(4, 104, 4))]
    answers = []
    for name, is_native in (("kernel", True), ("python", False)):
        with mock.patch.object(frame, "HAS_NATIVE", is_native):
            async with fed(tmp_path / name, send_thread_pool_queue_capacity=10) as one:
                answers.append([await one.feed(data) for data in reads])
                assert 15 == one.lanes[SEND].refused_full
    assert answers[0] == answers[1]


async def test_a_run_that_waited_too_long_is_refused_send_by_send(tmp_path: Path) -> None:
    """M1."""
    data = b"".join(plain(number) for number in range(20))
    async with fed(tmp_path) as one:
        await one.feed(b"".join(plain(number) for number in range(4)))
        lane = one.lanes[SEND]
        # As if the loop had been busy since long before the read, and were so still.
        late = mock.patch.object(one.lanes, "submit", wraps=one.lanes.submit)
        with late as submit, mock.patch.object(one.lanes, "run_alone", return_value=False):
            submit.side_effect = lambda lane, worker, request, _now, size, *keys: Lanes.submit(
                one.lanes, lane, worker, request, -1e9, size, *keys
            )
            answer = await one.feed(data)
        assert 20 == lane.refused_late
    responses = FrameDecoder().feed(answer)
    assert [*range(20)] == [response.opaque for response in responses]
    assert all("TIMEOUT_CLEAN_QUEUE" in (response.remark or "") for response in responses)


async def test_a_failure_answers_all_sends_that_are_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """B5: the connection and its other requests go on."""
    data = b"".join(plain(number) for number in range(8))
    async with fed(tmp_path) as one:
        await one.feed(b"".join(plain(number) for number in range(4)))
        with mock.patch.object(SendHandlers, "run", side_effect=RuntimeError("a fault")):
            responses = FrameDecoder().feed(await one.feed(data))
        assert [(number, 1) for number in range(8)] == [(each.opaque, each.code) for each in responses]
        assert "failed" in caplog.text
        [response] = FrameDecoder().feed(await one.feed(plain(9)))
        assert response.code == 0


async def test_sends_of_a_client_that_does_not_read_are_taken_one_by_one(tmp_path: Path) -> None:
    """M1: what waits for such a client is counted, and its reading is paused."""
    async with fed(tmp_path) as one:
        await one.feed(b"".join(plain(number) for number in range(4)))
        peer = one._peer
        assert peer is not None
        peer.pause_writing()
        with (
            mock.patch.object(SendHandlers, "run") as run,
            mock.patch.object(Wire, "pause_reading", create=True) as paused,
        ):
            answer = await one.feed(b"".join(plain(number) for number in range(5)))
        run.assert_not_called()
        paused.assert_called_once()
        assert 5 == len(FrameDecoder().feed(answer))


async def piped(address: str, data: bytes, count: int) -> list[Any]:
    """Responses to requests that are written at once, over a socket."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    decoder = FrameDecoder()
    responses: list[Any] = []
    async with asyncio.timeout(60):
        while len(responses) < count:
            data = await reader.read(1 << 16)
            assert data, "the broker closed the connection"
            responses += decoder.feed(data)
    writer.close()
    await writer.wait_closed()
    return responses


async def test_a_waiting_pull_gets_what_a_run_brings(tmp_path: Path) -> None:
    """F8, K1: over sockets; a pull is woken by the tag that it waits for."""
    tagged = "".join((KEY, "TAGS\x01paid\x02"))
    async with serving(tmp_path) as caller:
        for queue_id in range(4):
            await caller.sent("orders", b"first", queue_id=queue_id, properties=KEY)
        request = pull(
            "orders",
            queue_offset=1,
            subscription="paid",
            sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
            suspend_timeout_ms=FAR_MS,
        )
        waiting = caller.peer.start_call(RequestCode.PULL_MESSAGE, request)
        # Answered behind the pull, which waits by then.
        await caller.sent("orders", b"second", queue_id=1, properties=KEY)
        others = b"".join(plain(number) for number in range(20))
        header = SendMessageV2(topic="orders", queue_id=0, producer_group="g", properties=tagged)
        last = b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"paid", opaque=20)) + plain(21)
        responses = await piped(caller.peer.address, others + last, 22)
        assert [(number, 0) for number in range(22)] == [(each.opaque, each.code) for each in responses]
        async with asyncio.timeout(60):
            records = unpack_records((await waiting).body)
        assert [b"paid"] == [bytes(record.body) for record in records]


# --- Senders that wait (C6) -----------------------------------------------------------------------------------------


def slave_of(one: Fed) -> Watermark:
    """A slave that senders wait for, whose progress the test decides."""
    if one.slave is None:
        one.slave = Watermark()
        one.intake.safety.add(Level(one.slave, 3000, ResponseCode.FLUSH_SLAVE_TIMEOUT))
    return one.slave


def keep_up(one: Fed, _number: int) -> None:
    """The slave has all."""
    slave_of(one).advance(one.store.written)


def be_late(one: Fed, number: int) -> None:
    """The slave has some records of the read when the time is over, now and then all of them."""
    slave, end = slave_of(one), one.store.written
    at = slave.value + (end - slave.value) * (number % 4) // 3
    slave.advance(at)
    one.intake.safety.expire(asyncio.get_running_loop().time() + 60)
    slave.advance(end)


def fail(one: Fed, number: int) -> None:
    """The disk fails, or the broker stops: all that wait are answered."""
    slave = slave_of(one)
    slave.advance(one.store.written - (number % 3) * 300)
    one.intake.safety.give_up()
    slave.advance(one.store.written)


@pytest.mark.parametrize("answer", [keep_up, be_late, fail])
async def test_senders_of_a_run_that_wait_get_the_answers_that_they_would_get_alone(
    tmp_path: Path, answer: Callable[[Fed, int], None]
) -> None:
    """C6, O1: in time, too late, not at all, byte for byte; and those that asked not to wait do not."""
    source = Reads(7)
    reads = [plain(number) for number in range(4)] + [data for _ in range(50) for data in source.next()]
    found = []
    for name, is_native in (("kernel", True), ("python", False)):
        with (
            mock.patch.object(frame, "HAS_NATIVE", is_native),
            mock.patch.object(batch, "HAS_NATIVE", is_native),
            mock.patch.object(index, "HAS_NATIVE", is_native),
        ):
            replies, counted, taken, _ = await fed_with(tmp_path / name, reads, answer)
        assert is_native == (taken > 100)
        codes = {each.code for data in replies for each in FrameDecoder().feed(data) if isinstance(each, Response)}
        assert (answer is keep_up) == (ResponseCode.FLUSH_SLAVE_TIMEOUT not in codes)
        found.append((replies, counted))
    assert found[0] == found[1]
    assert log_queues_index(tmp_path / "python") == log_queues_index(tmp_path / "kernel")


async def test_senders_that_wait_are_bounded_in_messages(tmp_path: Path) -> None:
    """M1: a run has as many as there is room for, and the next sends are refused."""
    found = []
    for name, is_native in (("kernel", True), ("python", False)):
        with mock.patch.object(frame, "HAS_NATIVE", is_native):
            async with fed(tmp_path / name, store={"flush_disk_type": FlushDiskType.ASYNC_FLUSH}) as one:
                await one.feed(b"".join(plain(number) for number in range(4)))
                one.intake._waiting_max = 10
                slave = slave_of(one)
                first = await one.feed(b"".join(plain(number) for number in range(4, 40)))
                assert 10 == one.intake.safety.waiting
                slave.advance(one.store.written)
                await one.settled()
                found.append((first, one.rest()))
    assert found[0] == found[1]
    [refused, taken] = [[each.code for each in FrameDecoder().feed(data)] for data in found[0]]
    assert [ResponseCode.SYSTEM_BUSY] * 26 == refused
    assert [0] * 10 == taken


async def test_a_sender_that_asked_not_to_wait_ends_a_run_and_is_answered_at_once(tmp_path: Path) -> None:
    """C6: unless all have to wait, as in a Raft group."""
    hasty = SendMessageV2(topic="orders", queue_id=0, producer_group="g", properties=f"{KEY}WAIT\x01false\x02")
    frames = [plain(number) for number in range(9)]
    frames[4] = b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, hasty, b"hasty", opaque=4))
    async with fed(tmp_path) as one:
        await one.feed(b"".join(plain(number) for number in range(4)))
        slave = slave_of(one)
        [response] = FrameDecoder().feed(await one.feed(b"".join(frames)))
        assert (4, 8) == (response.opaque, one.intake.safety.waiting)
        slave.advance(one.store.written)
        await one.settled()
        assert [0, 1, 2, 3, 5, 6, 7, 8] == [each.opaque for each in FrameDecoder().feed(one.rest())]
        one.intake.safety.add(Level(Watermark(), 3000, ResponseCode.SYSTEM_ERROR, is_required=True))
        assert b"" == await one.feed(b"".join(frames))
        assert 9 == one.intake.safety.waiting


async def test_a_client_that_does_not_read_gets_replies_that_waited_one_by_one(tmp_path: Path) -> None:
    """M1: they are counted, and its reading is paused."""
    async with fed(tmp_path) as one:
        await one.feed(b"".join(plain(number) for number in range(4)))
        slave = slave_of(one)
        assert b"" == await one.feed(b"".join(plain(number) for number in range(5)))
        peer = one._peer
        assert peer is not None
        peer.pause_writing()
        with (
            mock.patch.object(Wire, "pause_reading", create=True) as paused,
            mock.patch.object(Peer, "reply_all") as all_at_once,
        ):
            slave.advance(one.store.written)
            await one.settled()
        all_at_once.assert_not_called()
        paused.assert_called_once()
        assert [*range(5)] == [each.opaque for each in FrameDecoder().feed(one.rest())]


async def test_nothing_is_kept_of_a_run_that_waits_but_its_replies(tmp_path: Path) -> None:
    """M1: the bodies are in the log."""
    async with fed(tmp_path) as one:
        await one.feed(b"".join(plain(number) for number in range(4)))
        slave = slave_of(one)
        data = b"".join(plain(number, body=bytes(4_000)) for number in range(20))
        references = sys.getrefcount(data)
        await one.feed(data)
        assert 20 == one.intake.safety.waiting
        assert references == sys.getrefcount(data)
        slave.advance(one.store.written)


async def test_under_sync_flush_runs_are_answered_when_the_disk_has_them(tmp_path: Path) -> None:
    """C6: once for each run; and not before."""
    put, ends = RunWriter.put, []

    def noted(self: RunWriter, *args: Any, **more: Any) -> PlacedRun | None:
        placed = put(self, *args, **more)
        if placed is not None:
            ends.append(self._log.end)
        return placed

    safe: list[int] = []
    wait_all = Safety.wait_all

    def watched(self: Safety, run: WaitingRun, now: float) -> None:
        told = run.all_safe

        def all_safe() -> None:
            safe.append(self.safe.value)
            told()

        wait_all(self, mock.Mock(ends=run.ends, all_safe=all_safe, answer=run.answer), now)

    with mock.patch.object(RunWriter, "put", noted), mock.patch.object(Safety, "wait_all", watched):
        async with serving(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as caller:
            for queue_id in range(4):
                await caller.sent("orders", b"first", queue_id=queue_id, properties=KEY)
            responses = await piped(caller.peer.address, b"".join(plain(number) for number in range(30)), 30)
    assert [0] * 30 == [each.code for each in responses]
    assert ends
    assert len(ends) == len(safe)
    assert all(flushed >= end for flushed, end in zip(safe, ends, strict=True))


@pytest.mark.parametrize(("host", "is_parsed"), [("10.0.0.7", True), ("2001:db8::7", False)])
async def test_sends_of_clients_of_ipv6_are_parsed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, is_parsed: bool
) -> None:
    """B3: no kernel writes their records, so each run was parsed for nothing."""
    monkeypatch.setattr(Wire, "host", host)
    async with fed(tmp_path) as one:
        await one.feed(plain(0))
        with mock.patch.object(native, "parse_sends", wraps=native.parse_sends) as parse:
            answer = await one.feed(b"".join(plain(number) for number in range(8)))
    assert [0] * 8 == [each.code for each in FrameDecoder().feed(answer) if isinstance(each, Response)]
    assert is_parsed == parse.called


@pytest.mark.parametrize("waits", [False, True])
async def test_an_error_in_a_run_leaves_what_was_stored_before(tmp_path: Path, waits: bool) -> None:
    """E1, C6: each request has one answer, also where those that were stored are answered later."""
    first = [plain(number) for number in range(4)]
    sends = [plain(number) for number in range(10, 13)]
    for number in range(13, 16):
        properties = f"UNIQ_KEY\x01K{number}\x02TIMER_DELAY_SEC\x01600\x02"
        header = SendMessageV2(topic="orders", queue_id=0, producer_group="g", properties=properties)
        sends.append(b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"later", opaque=number)))
    async with fed(tmp_path) as one:
        for data in first:
            await one.feed(data)
        if waits:
            slave_of(one)
        before = one.store.written
        with mock.patch.object(Sending, "_store_timed", side_effect=RuntimeError("the disk is gone")):
            answers = await one.feed(b"".join(sends))
        assert one.store.written > before
        if waits:
            keep_up(one, 0)
            await one.settled()
            answers += one.rest()
        codes = sorted((each.opaque, each.code) for each in FrameDecoder().feed(answers))
        assert [*((number, 0) for number in range(10, 13)), *((number, 1) for number in range(13, 16))] == codes
