"""Runs of halves and commits (issue 15): a broker that carries out those of a read with one call of a kernel answers
and stores the same bytes as one that takes them one by one (J1, E1, C1, C2, C4).

One broker gets reads as producers write them, commits and further halves in turns, made from its own replies. Among
them are all kinds of others: rollbacks, ends of unknown, ended and foreign transactions, odd JSON, halves with special
properties, plain and delayed sends. Another broker, without kernels, gets the same reads.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest

from ternmq import names
from ternmq.broker.services.transactions import TransactionService
from ternmq.delay import hour_files, schedule_log, timer
from ternmq.kernels import HAS_NATIVE
from ternmq.message import Outcome
from ternmq.net import lanes
from ternmq.store.derived import index
from ternmq.store.log import batch
from ternmq.transaction import ops
from ternmq.transaction.runs import TransactionRun
from ternmq.wire import frame
from ternmq.wire.codes import BINARY, RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Response
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import EndTransaction, SendMessageV2, SendReply
from ternmq.wire.requests_admin import DeleteTopic, UpdateTopic
from tests.broker.test_runs import Fed, counters, fed, frame_of, plain, schedule_files, slave_of
from tests.store.small import log_queues_index

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

GROUP: Final = "producers"
MARK: Final = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
#: Properties of halves beside their unique keys.
USUAL: Final = (
    MARK,
    f"TAGS\x01paid\x02{MARK}",
    f"{MARK}KEYS\x01é 𝄞 a\x02WAIT\x01true\x02",
    f"{MARK}CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02",
)
ODD: Final = (
    f"TRAN_MSG\x01TRUE\x02PGROUP\x01{GROUP}\x02",
    f"TRAN_MSG\x01false\x02PGROUP\x01{GROUP}\x02",
    f"TRAN_MSG\x01\x02PGROUP\x01{GROUP}\x02",
    f"TRAN_MSG\x01false\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02",
    f"TRAN_MSG\x01true\x02TRAN_MSG\x01\x02PGROUP\x01{GROUP}\x02",
    f"XTRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02",
    "TRAN_MSG\x01true\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01another\x02",
    *(f"TRAN_MSG\x01true\x02PGROUP\x01{'g' * length}\x02" for length in (118, 119, 120, 121, 247, 248, 249, 300)),
    f"TRAN_MSG\x01true\x02PGROUP\x01{'é' * 119}\x02",
    f"{MARK}DELAY\x013\x02",
    f"{MARK}TIMER_DELAY_SEC\x01600\x02",
    f"{MARK}__STARTDELIVERTIME\x011700000600000\x02",
    f"{MARK}REAL_TOPIC\x01other\x02",
    f"{MARK}REAL_QID\x017\x02",
    f"{MARK}__transactionId__\x01x\x02",
    f"{MARK}TRANSACTION_CHECK_TIMES\x013\x02",
    f"{MARK}TRAN_PREPARED_QUEUE_OFFSET\x010\x02",
    f"{MARK}TERN_WAITS_SINCE\x011\x02",
    f"{MARK}CLUSTER\x01other\x02",
    f"{MARK}POP_CK\x011 2\x02",
    f"{MARK}TAGS\x01\x02",
    f"{MARK}KEYS\x01\x02",
    f"{MARK}v\x01REAL_TOPIC\x01x\x02",
    # Around the limit of the properties, with those that the broker adds.
    *(f"{MARK}p\x01{'x' * count}\x02" for count in range(32_430, 32_600, 11)),
)
TOPICS: Final = ("payments", "made-now", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", names.HALF_TOPIC, "")
END_FIELDS: Final = (
    ('"8"', '"12"'),
    ('"8"', '"0"'),
    ('"8"', '"4"'),
    ('"8"', '"08"'),
    ('"8"', "8"),
    ('"false"', '"true"'),
    ('"false"', '"maybe"'),
    ('"fromTransactionCheck":"false",', ""),
    ('"commitOrRollback":"8",', ""),
    (f'"producerGroup":"{GROUP}"', '"producerGroup":"another"'),
    (f'"producerGroup":"{GROUP}"', '"producerGroup":""'),
    (f'"producerGroup":"{GROUP}"', f'"producerGroup":"{GROUP}","producerGroup":"{GROUP}"'),
    (f'"producerGroup":"{GROUP}",', ""),
    ("producers", "pr\\u006fducers"),
    ('"flag":', '"remark":"failed","flag":'),
    ('"extFields":{', '"extFields":{"topic":"orders","bname":"broker-a",'),
    ('"commitLogOffset":"', '"commitLogOffset":"-'),
    ('"commitLogOffset":"', '"commitLogOffset":"1'),
    ('"tranStateTableOffset":"', '"tranStateTableOffset":"1'),
    ('"tranStateTableOffset":"', '"tranStateTableOffset":"+'),
    ('"transactionId":"', '"transactionId":"X'),
    ('"transactionId":"', '"msgId":"M","transactionId":"'),
    ('"transactionId":', '"transactionIdX":'),
)


class Known(NamedTuple):
    """A half that was answered."""

    key: str
    log_offset: int
    queue_offset: int


class Producers:
    """Reads as producers write them, from a seed; the replies tell what can be ended."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._number = 0
        self._keys: dict[int, str] = {}
        self.open: list[Known] = []
        #: Some that were ended.
        self._ended: list[Known] = []

    def next(self) -> list[bytes]:
        """Commits and halves in turns, and others among them."""
        choose = self._random
        oddity = choose.choice((0.0, 0.0, 0.05, 0.3))
        frames: list[bytes] = []
        for _ in range(choose.choice((1, 2, 5, 20, 60))):
            if self.open:
                frames.append(self._end(oddity))
            frames.append(self._half(oddity))
            if choose.random() < oddity / 2:
                frames.append(choose.choice((self._plain, self._timed, self._end_again))())
        data = b"".join(frames)
        cut = choose.randrange(len(data)) if choose.random() < 0.3 else 0
        return [data[:cut], data[cut:]] if cut else [data]

    def told(self, replies: bytes) -> None:
        for response in FrameDecoder().feed(replies):
            key = self._keys.pop(response.opaque, None)
            if isinstance(response, Response) and key is not None and response.code == 0:
                reply = response.read(SendReply)
                self.open.append(Known(key, parse_offset_id(reply.message_id)[2], reply.queue_offset))

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    def _half(self, oddity: float) -> bytes:
        choose, number = self._random, self._next_number()

        def value(usual: Any, *odd: Any) -> Any:
            return choose.choice(odd) if choose.random() < oddity else usual

        # Ever again the same key, too.
        key = value(f"7F000001000018B4AAC2{number:012X}", "7F000001000018B4AAC2000000000000", "with-a-dash")
        self._keys[number] = key
        properties = f"UNIQ_KEY\x01{key}\x02{value(choose.choice(USUAL), *ODD)}"
        header = SendMessageV2(
            topic=value("orders", *TOPICS),
            queue_id=value(choose.randrange(4), -1, 8),
            producer_group=GROUP,
            properties=properties[: value(None, -1)],
            born_time_ms=1_700_000_000_000 + number,
            sysflag=value(4, 0, 1, 8, 12, 0x30, -1),
            flag=value(0, 7, -1),
            reconsume_times=value(0, 3, None),
        )
        body = choose.randbytes(value(choose.randrange(200), 0, 4_990, 5_000, 5_001))
        code, form = RequestCode.SEND_MESSAGE_V2, value(0, BINARY)
        oneway = value(False, True)
        return b"".join(encode_request(code, header, body, opaque=number, oneway=oneway, form=form))

    def _plain(self) -> bytes:
        return plain(self._next_number())

    def _timed(self) -> bytes:
        number = self._next_number()
        properties = f"UNIQ_KEY\x01K{number}\x02TIMER_DELAY_SEC\x01600\x02"
        header = SendMessageV2(topic="orders", queue_id=number % 4, producer_group=GROUP, properties=properties)
        return b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"later", opaque=number))

    def _end(self, oddity: float) -> bytes:
        """The end of an open transaction, perhaps an odd one."""
        choose = self._random
        # Most are of the last read, as they come; some wait for long, and lie in earlier segments.
        known = self.open.pop(choose.randrange(len(self.open)) if choose.random() < 0.1 else 0)
        self._ended = [known, *self._ended[:20]]
        if choose.random() >= oddity:
            return self._framed(known)
        if choose.random() < 0.2:
            # One whose half is not there yet: the next that is stored, by a producer that guesses.
            return self._framed(Known(known.key, known.log_offset + 500, known.queue_offset + 1))
        old, new = choose.choice(END_FIELDS)
        return self._framed(known, lambda text: text.replace(old, new, 1))

    def _end_again(self) -> bytes:
        return self._framed(self._random.choice(self._ended)) if self._ended else self._plain()

    def _framed(self, known: Known, change: Callable[[str], str] = lambda text: text) -> bytes:
        choose, number = self._random, self._next_number()
        fields = {
            "commitOrRollback": "8",
            "fromTransactionCheck": "false",
            "producerGroup": GROUP,
            "tranStateTableOffset": str(known.queue_offset),
            "commitLogOffset": str(known.log_offset),
            "msgId": known.key,
            "transactionId": choose.choice((known.key, known.key, "")),
        }
        whole = {"code": 37, "extFields": fields, "flag": choose.choice((2, 2, 0)), "language": "JAVA"}
        whole |= {"opaque": number, "serializeTypeCurrentRPC": "JSON", "version": 401}
        text = change(json.dumps(whole, separators=(",", ":")))
        return frame_of(text.encode(), b"x" if choose.random() < 0.02 else b"")


class Outcomes(NamedTuple):
    """What became of a broker's reads."""

    reads: list[bytes]
    replies: list[bytes]
    counters: object
    open: object
    #: Requests that were carried out in runs.
    taken: int


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many requests were carried out in each run."""
    store_run, taken = TransactionService.store_run, list[int]()

    def noted(service: TransactionService, sends: Any, first: int, *args: Any, **options: Any) -> TransactionRun | None:
        run = store_run(service, sends, first, *args, **options)
        taken.append(run.next - first if run is not None else 0)
        return run

    # The turn of a lane must not end within a read: ops are written when a turn ends.
    with mock.patch.object(TransactionService, "store_run", noted), mock.patch.object(lanes, "TURN_S", 3600.0):
        yield taken


@contextmanager
def without_kernels() -> Iterator[None]:
    with ExitStack() as stack:
        for module in (frame, batch, index, timer, schedule_log, hour_files, ops):
            stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
        yield


async def listed(one: Fed) -> Any:
    """The open transactions, as tools see them."""
    request = encode_request(RequestCode.LIST_TRANSACTIONS, opaque=1, more_fields={"queueOffset": "0", "maxNum": "999"})
    answer = await one.feed(b"".join(request))
    async with asyncio.timeout(60):
        while not answer:
            # It is read in slices.
            await one.settled()
            answer = one.rest()
    [response] = FrameDecoder().feed(answer)
    assert isinstance(response, Response)
    return json.loads(bytes(response.body))


async def fed_with(
    path: Path,
    source: Iterator[list[bytes]],
    told: Callable[[bytes], None],
    *,
    after_read: Callable[[Fed], None] | None = None,
    **changes: Any,
) -> Outcomes:
    reads: list[bytes] = []
    replies: list[bytes] = []
    with counted() as taken:
        async with fed(path, **changes) as one:
            for some in source:
                for data in some:
                    reads.append(data)
                    answer = await one.feed(data)
                    if after_read is not None:
                        after_read(one)
                        await one.settled()
                        answer += one.rest()
                    replies.append(answer)
                    told(answer)
            return Outcomes(reads, replies, await counters(one), await listed(one), sum(taken))


async def check_same(path: Path, producers: Producers, rounds: int, *, taken_min: int, **changes: Any) -> Outcomes:
    """Feed a broker with kernels and one without: replies, counters, files and open transactions are the same."""
    first = [[plain(number)] for number in range(100_000, 100_004)]

    def source() -> Iterator[list[bytes]]:
        yield from first
        for _ in range(rounds):
            yield producers.next()

    found = await fed_with(path / "kernel", source(), producers.told, **changes)
    with without_kernels():
        expected = await fed_with(path / "python", iter([found.reads]), lambda _: None, **changes)
    assert found.taken >= taken_min
    assert not expected.taken
    for one, other in zip(expected.replies, found.replies, strict=True):
        assert FrameDecoder().feed(one) == FrameDecoder().feed(other)
        assert one == other
    assert expected.counters == found.counters
    assert expected.open == found.open
    assert log_queues_index(path / "python") == log_queues_index(path / "kernel")
    assert schedule_files(path / "python") == schedule_files(path / "kernel")
    return found


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 20))])
async def test_a_broker_with_kernels_answers_and_stores_the_same(tmp_path: Path, seed: int) -> None:
    """J1, E1, C1, C2, C4: segments of 256 KiB, so that some halves lie in earlier ones."""
    await check_same(tmp_path, Producers(seed), 60, taken_min=400)


async def test_properties_of_all_kinds_are_halves_in_runs_as_one_by_one(tmp_path: Path) -> None:
    """J1, I1, I2: each of them between two plain ones, and each is committed."""

    class Each(Producers):
        def __init__(self) -> None:
            super().__init__(1)
            self._left = [*ODD, *USUAL]

        def next(self) -> list[bytes]:
            texts = (USUAL[0], self._left.pop(), USUAL[1])
            ends = [self._end(0) for _ in range(len(self.open))]
            return [b"".join([*ends, *(self._of(text) for text in texts)])]

        def _of(self, text: str) -> bytes:
            number = self._next_number()
            key = self._keys[number] = f"K{number}"
            header = SendMessageV2(
                topic="orders", queue_id=0, producer_group=GROUP, properties=f"UNIQ_KEY\x01{key}\x02{text}"
            )
            return b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"%d" % number, opaque=number))

    await check_same(tmp_path, Each(), len(ODD) + len(USUAL), taken_min=len(ODD))


@pytest.mark.parametrize("changes", [{"reject_transaction_message": True}, {"max_open_transactions": 40}])
async def test_what_is_refused_is_refused_in_runs(tmp_path: Path, changes: dict[str, Any]) -> None:
    """J1, M1: transactions that the broker does not take, or not so many."""
    found = await check_same(tmp_path, Producers(3), 30, taken_min=0, **changes)
    codes = {each.code for data in found.replies for each in FrameDecoder().feed(data)}
    assert codes - {0, 1}, "some were refused"


@pytest.mark.parametrize("store", [{"message_index_enable": False}, {"enable_consume_queue_ext": True}])
async def test_stores_that_need_more_are_the_same(tmp_path: Path, store: dict[str, Any]) -> None:
    """J1, C3, C4: without an index each op follows its message; units beside entries are made of facts."""
    await check_same(tmp_path, Producers(4), 20, taken_min=0, store=store)


async def test_senders_that_wait_get_the_same_answers(tmp_path: Path) -> None:
    """C6, O1: where a slave must have the records, all take the long way."""

    def keep_up(one: Fed) -> None:
        slave_of(one).advance(one.store.written)

    found = await check_same(tmp_path, Producers(7), 15, taken_min=0, after_read=keep_up)
    assert not found.taken
    assert sum(len(FrameDecoder().feed(data)) for data in found.replies) > 100


async def test_a_half_that_is_in_doubt_is_searched_before_it_is_committed(tmp_path: Path) -> None:
    """J1: after a restart; and what is committed twice in one read is stored once."""
    producers = Producers(5)
    with counted() as taken:
        async with fed(tmp_path) as one:
            for number in range(4):
                await one.feed(plain(number))
            for _ in range(2):
                producers.told(await one.feed(b"".join(producers._half(0) for _ in range(20))))
        old = producers.open[:]
        async with fed(tmp_path) as one:
            await one.feed(plain(0))
            assert 40 == (await listed(one))["openCount"]
            taken.clear()
            ends = [producers._framed(known) for known in old[:20]]
            await one.feed(b"".join(end for end in ends for _ in range(2)))
            assert not sum(taken)
            assert 20 == (await listed(one))["openCount"]
            producers.open.clear()
            producers.told(await one.feed(b"".join(producers._half(0) for _ in range(20))))
            new = producers.open[:]
            before = sum(one.store.max_offset("orders", queue_id) for queue_id in range(4))
            await one.feed(b"".join(producers._framed(known) for known in new for _ in range(2)))
            assert sum(taken) >= 20
            assert before + 20 == sum(one.store.max_offset("orders", queue_id) for queue_id in range(4))
            assert 20 == (await listed(one))["openCount"]


async def test_ends_that_are_no_commits_stop_a_run_and_are_answered(tmp_path: Path) -> None:
    """J1: the others of the read are carried out."""
    producers = Producers(6)
    async with fed(tmp_path) as one:
        for number in range(4):
            await one.feed(plain(number))
        await one.feed(producers._half(0))
        producers.open.clear()
        producers.told(await one.feed(b"".join(producers._half(0) for _ in range(9))))
        ends = []
        for number, known in enumerate(producers.open):
            header = EndTransaction(
                producer_group=GROUP,
                queue_offset=known.queue_offset,
                log_offset=known.log_offset,
                decision=int(Outcome.ROLLBACK if number == 4 else Outcome.COMMIT),
                transaction_id=known.key,
            )
            ends.append(b"".join(encode_request(RequestCode.END_TRANSACTION, header, opaque=number)))
        responses = FrameDecoder().feed(await one.feed(b"".join(ends)))
        assert [(number, 0) for number in range(9)] == [(each.opaque, each.code) for each in responses]
        assert 9 == one.store.max_offset(names.OP_HALF_TOPIC, 0)


def commits(producers: Producers) -> bytes:
    """The ends of all open transactions, one read; each is answered."""
    ends = []
    for number, known in enumerate(producers.open):
        header = EndTransaction(
            producer_group=GROUP,
            queue_offset=known.queue_offset,
            log_offset=known.log_offset,
            decision=int(Outcome.COMMIT),
            transaction_id=known.key,
        )
        ends.append(b"".join(encode_request(RequestCode.END_TRANSACTION, header, opaque=number)))
    return b"".join(ends)


def message_count(one: Fed) -> int:
    return sum(one.store.max_offset("orders", queue_id) for queue_id in range(4))


async def test_commits_of_large_messages_leave_the_loop_when_the_turn_is_over(tmp_path: Path) -> None:
    """J1, R4: a run of 64 short requests copied 250 MB in one go, and the broker did nothing else for 0.3 s."""
    producers = Producers(8)
    sizes = {"mapped_file_size_commit_log": 1 << 22, "max_message_size": 1 << 17}
    async with fed(tmp_path, store=sizes) as one:
        for number in range(4):
            await one.feed(plain(number))
        for number in range(20):
            key = producers._keys[number] = f"K{number}"
            header = SendMessageV2(
                topic="orders", queue_id=0, producer_group=GROUP, properties=f"UNIQ_KEY\x01{key}\x02{MARK}"
            )
            half = encode_request(RequestCode.SEND_MESSAGE_V2, header, bytes(50_000), opaque=number)
            producers.told(await one.feed(b"".join(half)))
        before = message_count(one)
        waiting: list[int] = []
        give_back = lanes.Lanes.give_back

        def noted(self: lanes.Lanes, lane: lanes.Lane, *args: Any) -> None:
            give_back(self, lane, *args)
            waiting.append(lane.count)

        with mock.patch.object(lanes.Lanes, "give_back", noted), mock.patch.object(lanes, "TURN_S", -1.0):
            responses = FrameDecoder().feed(await one.feed(commits(producers)))
        assert [20 - lanes.SLOW_REQUESTS] == waiting
        assert [(number, 0) for number in range(20)] == [(each.opaque, each.code) for each in responses]
        assert before + 20 == message_count(one)
        assert not one.lanes["send"].queued_bytes


@pytest.mark.parametrize("count", [1, 6])
async def test_a_commit_that_fails_when_it_is_stored_is_not_stored_again(tmp_path: Path, count: int) -> None:
    """J1: the half is open, but in doubt; one by one, and in a run."""
    producers = Producers(9)
    async with fed(tmp_path) as one:
        for number in range(4):
            await one.feed(plain(number))
        for _ in range(2):
            producers.open.clear()
            producers.told(await one.feed(b"".join(producers._half(0) for _ in range(count))))
        before = message_count(one)
        part: Any = one.store._runs if count > 1 else one.store._writer
        dispatch = part._dispatch

        def fails(*args: Any) -> None:
            dispatch(*args)
            raise RuntimeError("the disk is gone")

        with mock.patch.object(part, "_dispatch", fails):
            responses = FrameDecoder().feed(await one.feed(commits(producers)))
        assert [(number, 1) for number in range(count)] == [(each.opaque, each.code) for each in responses]
        assert before + count == message_count(one)
        assert count * 2 == (await listed(one))["openCount"]
        responses = FrameDecoder().feed(await one.feed(commits(producers)))
        assert [(number, 0) for number in range(count)] == [(each.opaque, each.code) for each in responses]
        assert before + count == message_count(one)
        assert count == (await listed(one))["openCount"]


CHANGES: Final = (
    *(
        (RequestCode.UPDATE_AND_CREATE_TOPIC, UpdateTopic(topic="orders", **change), b"")
        for change in (
            {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 4},
            {"read_queue_nums": 2, "write_queue_nums": 2, "perm": 6},
            {"read_queue_nums": 4, "write_queue_nums": 1, "perm": 6},
            {"read_queue_nums": 4, "write_queue_nums": 4, "perm": 6, "topic_filter_type": "MULTI_TAG"},
            {"read_queue_nums": 8, "write_queue_nums": 8, "perm": 6},
        )
    ),
    (RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(topic="orders"), b""),
    *(
        (RequestCode.UPDATE_BROKER_CONFIG, None, text)
        for text in (b"brokerPermission=4", b"rejectTransactionMessage=true", b"maxOpenTransactions=3")
    ),
)
#: As it was.
USUAL_CHANGES: Final = (
    (RequestCode.UPDATE_BROKER_CONFIG, None, b"brokerPermission=6"),
    (RequestCode.UPDATE_BROKER_CONFIG, None, b"rejectTransactionMessage=false\nmaxOpenTransactions=1000000"),
    (
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        UpdateTopic(topic="orders", read_queue_nums=4, write_queue_nums=4, perm=6),
        b"",
    ),
)


async def test_what_an_administrator_changes_holds_for_runs(tmp_path: Path) -> None:
    """J1, D1: between halves and their commits a topic is deleted, loses its permission, has fewer queues or other
    tags, or the broker has other settings. Halves that are open are committed as one by one."""

    async def changed(one: Fed, change: Any) -> bytes:
        code, header, body = change
        answer = await one.feed(b"".join(encode_request(code, header, body, opaque=9)))
        async with asyncio.timeout(60):
            while not answer:
                await asyncio.sleep(0)
                answer = one.rest()
        return answer

    async def outcomes(path: Path) -> Any:
        producers, answers = Producers(11), list[bytes]()
        async with fed(path, max_open_transactions=1_000) as one:
            for change in CHANGES:
                for back in USUAL_CHANGES:
                    answers.append(await changed(one, back))
                for number in range(4):
                    answers.append(await one.feed(plain(number)))
                for _ in range(2):
                    answers.append(await one.feed(b"".join(producers._half(0) for _ in range(6))))
                    producers.told(answers[-1])
                answers.append(await changed(one, change))
                ends = [producers._end(0) for _ in range(10)]
                frames = [part for end in ends for part in (end, producers._half(0))]
                answers.append(await one.feed(b"".join([producers._end_again(), *frames, producers._end_again()])))
                producers.told(answers[-1])
            return answers, await counters(one), await listed(one)

    with counted() as taken:
        found = await outcomes(tmp_path / "kernel")
    with without_kernels(), counted():
        expected = await outcomes(tmp_path / "python")
    assert sum(taken) > 100
    for one, other in zip(expected[0], found[0], strict=True):
        assert FrameDecoder().feed(one) == FrameDecoder().feed(other)
    assert {0, 2, 16} <= {each.code for data in found[0] for each in FrameDecoder().feed(data)}
    assert expected[1:] == found[1:]
    assert log_queues_index(tmp_path / "python") == log_queues_index(tmp_path / "kernel")


async def test_halves_that_are_being_checked_are_committed_once(tmp_path: Path) -> None:
    """J1, J2: a check has copied some of them; a read commits all by the places that their producer knows, twice."""
    producers = Producers(12)
    services: list[TransactionService] = []
    store_run = TransactionService.store_run

    def noted(service: TransactionService, *args: Any, **options: Any) -> TransactionRun | None:
        services.append(service)
        return store_run(service, *args, **options)

    async with fed(tmp_path) as one:
        for number in range(4):
            await one.feed(plain(number))
        with mock.patch.object(TransactionService, "store_run", noted):
            for _ in range(2):
                producers.told(await one.feed(b"".join(producers._half(0) for _ in range(10))))
        transactions = services[0]._transactions()
        await transactions.caught_up()
        for known in producers.open[::3]:
            found = transactions.find(known.queue_offset)
            assert isinstance(found, tuple)
            transactions.copy(*found, checks=1)
        before = message_count(one)
        data = commits(producers)
        for read in (data + data, data):
            responses = FrameDecoder().feed(await one.feed(read))
            assert {0} == {each.code for each in responses}
            assert before + 20 == message_count(one)
        assert not (await listed(one))["openCount"]
