"""Threads that send by themselves, on lines (E1, E3, E4): what a line is used for, what becomes of all that is no plain
OK, and when it is opened and closed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.blocking.sends import _CROWD
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.send import lines as lines_module
from ternmq.client.send.hooks import SendHook
from ternmq.client.send.lines import IDLE_S
from ternmq.client.send.sender import Sender
from ternmq.client.send.time_limits import TimeLimits
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import (
    CallTimeout,
    InvalidMessage,
    NetworkError,
    NotRunning,
    SendFailed,
    TernError,
)
from ternmq.message import Message, MessageQueue, SendReceipt, SendStatus
from ternmq.net.line import CallLine
from ternmq.net.peer import Peer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from tests.auth.accounts import BOSS, SHOP, acl_in
from tests.auth.certificates import Certificates
from tests.client.blocking.own_sends import LONG_MS, in_thread, lines, noted, open_line, open_lines
from tests.client.scripted import ScriptedBroker, order


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Notes the calls that are made on lines; their threads, in fact."""
    calls: list[int] = []
    call = CallLine.call

    def noting(line: CallLine, *args: Any) -> Any:
        calls.append(threading.get_ident())
        return call(line, *args)

    monkeypatch.setattr(CallLine, "call", noting)
    return calls


# --- When there is a line ---------------------------------------------------------------------------------------------


async def test_a_program_that_sends_a_few_messages_has_one_connection() -> None:
    """B2."""
    async with noted() as (cluster, noting):

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                for number in range(lines_module.LONE_SENDS - 1):
                    producer.send(order(number))
                assert not open_lines(producer)

        await in_thread(send)
        assert 1 == len(set(noting.peers))


async def test_many_sends_have_a_line_on_which_nothing_else_is_sent() -> None:
    """B2, D3: no heartbeat, or the broker would take the line for a member of the group."""
    beats: set[Peer] = set()

    class Beaten(ScriptedBroker):
        def _heartbeat(self, peer: Peer, request: Request[Any]) -> Reply:
            beats.add(peer)
            return super()._heartbeat(peer, request)

    async with noted(Beaten("broker-a")) as (cluster, noting):

        def send() -> list[SendReceipt]:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer)
                receipts = [producer.send(order(number)) for number in range(100)]
                producer._run(producer._async._now_running().sender.instance.heartbeat())
            return receipts

        receipts = await in_thread(send)
    of_loop, of_line = noting.peers[0], noting.peers[-1]
    assert of_loop is not of_line
    assert 2 == len(set(noting.peers))
    assert {SendStatus.OK} == {receipt.status for receipt in receipts}
    assert [of_line] * 100 == noting.peers[-100:]
    assert {of_loop} == beats


def test_queues_take_turns_whoever_sends(cluster: EmbeddedCluster) -> None:
    """E3: over the loop, while a line is opened, and on it."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        queues = producer.queues("turns")
        receipts: list[SendReceipt] = []
        while len(receipts) < 400 or not open_lines(producer):
            receipts.append(producer.send(Message("turns", b"x")))
    counts = Counter(receipt.queue for receipt in receipts)
    assert set(queues) == set(counts)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_each_broker_has_its_line() -> None:
    """E3."""
    with EmbeddedCluster(brokers=2) as two, SyncProducer("shop", name_servers=two.name_servers) as producer:
        open_line(producer, count=2)
        brokers = Counter(producer.send(Message("orders", b"x")).queue.broker_name for _ in range(64))
        assert 2 == len(open_lines(producer))
    assert {"broker-a": 32, "broker-b": 32} == brokers


def test_a_line_that_cannot_be_opened_is_not_tried_again_soon(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2: a broker may have as many connections as it takes."""
    tried: list[str] = []

    def refuse(address: str, *_: Any, **__: Any) -> Any:
        tried.append(address)
        raise NetworkError("connection refused", address=address)

    monkeypatch.setattr("ternmq.client.connect.instance.dial_blocking", refuse)
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        while not tried:
            producer.send(Message("orders", b"x"))
        for _ in range(500):
            producer.send(Message("orders", b"x"))
    assert 1 == len(tried)


# --- What it carries --------------------------------------------------------------------------------------------------


def test_messages_of_all_kinds_are_sent_on_a_line(cluster: EmbeddedCluster, used: list[int]) -> None:
    """E1, E5, E6: with properties, large ones, compressed or not, with a queue, with a key, together."""
    noise = os.urandom(3 << 20)
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        open_line(producer, "kinds")
        queue = producer.queues("kinds")[1]
        producer.send(Message("kinds", b"x"))
        used.clear()
        receipts = [
            producer.send(Message("kinds", b"x", tags="new", keys=("a", "b"), properties={"城": "杭州"})),
            producer.send(Message("kinds", b"x" * 100_000)),
            producer.send(Message("kinds", noise), timeout_ms=LONG_MS),
            producer.send(Message("kinds", b"x", sharding_key="k")),
            producer.send(Message("kinds", b"x"), queue=queue),
            *producer.send_batch([Message("kinds", b"x"), Message("kinds", b"y")], queue=queue),
        ]
        assert 6 == len(used)
        again = producer.send(Message("kinds", b"x", sharding_key="k"))
    assert {SendStatus.OK} == {receipt.status for receipt in receipts}
    assert 7 == len({receipt.message_id for receipt in receipts})
    assert again.queue == receipts[3].queue
    assert [queue] * 3 == [receipt.queue for receipt in receipts[4:]]
    assert [0, 1, 2] == [receipt.queue_offset - receipts[4].queue_offset for receipt in receipts[4:]]


def test_what_is_invalid_is_refused_in_the_callers_thread(cluster: EmbeddedCluster, used: list[int]) -> None:
    """E2."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        open_line(producer)
        for _ in range(2):
            with pytest.raises(InvalidMessage):
                producer.send(Message("orders", b""))
            with pytest.raises(InvalidMessage):
                producer.send_batch([])
            with pytest.raises(InvalidMessage):
                producer.send(Message("orders", bytes(5 << 20)))
        used.clear()
        assert SendStatus.OK is producer.send(Message("orders", b"x")).status
        assert 1 == len(used)


def test_what_belongs_to_the_loop_goes_over_the_loop(cluster: EmbeddedCluster, used: list[int]) -> None:
    """E3, E6, E8: hooks and selectors run there; batches gather, and latencies are measured there."""
    ran_in: set[int] = set()

    class Hook(SendHook):
        def before_send(self, _: object) -> None:
            ran_in.add(threading.get_ident())

    def select(queues: Any, _: Message) -> MessageQueue:
        ran_in.add(threading.get_ident())
        first: MessageQueue = queues[0]
        return first

    for options in (
        {"hooks": [Hook()]},
        {"trace": True},
        {"config": ProducerConfig(send_latency_fault_enable=True)},
        {"config": ProducerConfig(auto_batch=True)},
    ):
        with SyncProducer("shop", name_servers=cluster.name_servers, **options) as producer:
            for _ in range(lines_module.LONE_SENDS + 10):
                producer.send(Message("orders", b"x"))
            assert not open_lines(producer)
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        open_line(producer)
        used.clear()
        producer.send(Message("orders", b"x"), selector=select)
        loop = producer._thread._thread.ident  # type: ignore[union-attr]  # it runs
    assert not used
    assert {loop} == ran_in


@pytest.mark.parametrize("account", ["plain", "acl"])
@pytest.mark.parametrize("encryption", ["open", "tls"])
@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
def test_lines_are_signed_and_encrypted_as_the_loops_connections(
    tmp_path: Path, used: list[int], account: str, encryption: str, form: str
) -> None:
    """B1, B4, N1; with a namespace, too."""
    settings: dict[str, Any] = {}
    client: dict[str, Any] = {"serialization": form, "namespace": "" if account == "acl" else "shop"}
    if account == "acl":
        acl = acl_in(tmp_path / "acl")
        (acl / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
        settings |= {"aclEnable": True, "aclPath": acl}
        client |= {"access_key": SHOP.access_key, "secret_key": SHOP.secret_key}
    if encryption == "tls":
        made = Certificates(tmp_path / "dev")
        settings |= {
            "tls.server.mode": "enforcing",
            "tls.server.certPath": made / "server.pem",
            "tls.server.keyPath": made / "server.key",
            "tls.enable": True,
            "tls.client.trustCertPath": made / "ca.pem",
        }
        client["tls"] = made.client()
    with EmbeddedCluster(settings=settings) as cluster:
        config = ClientConfig(cluster.name_servers, **client)
        with SyncProducer("shop", client=config) as producer:
            open_line(producer)
            used.clear()
            receipts = [producer.send(Message("orders", b"x" * 20_000)) for _ in range(50)]
            (line,) = open_lines(producer)
            assert (encryption == "tls") == hasattr(line.connection._socket, "cipher")  # type: ignore[union-attr]
    assert 50 == len(used) == len({receipt.offset_id for receipt in receipts})


# --- Answers that are no plain OK, and none at all --------------------------------------------------------------------


def outcome(call: Callable[[], SendReceipt]) -> tuple[Any, ...]:
    """What a caller sees of a send."""
    try:
        receipt = call()
    except TernError as error:
        return type(error), str(error), [str(one) for one in getattr(error, "attempts", ())]
    return receipt.status, receipt.queue.broker_name, receipt.recall_handle


def stored_as(code: int) -> Reply:
    return ScriptedBroker("broker-a").stored(_HEADER, code)


class _Header:
    queue_id = 0


_HEADER: Any = _Header()


@pytest.mark.parametrize(
    "answers",
    [
        [Reply(ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")] * 3,
        [Reply(ResponseCode.SYSTEM_ERROR, remark="broken")],
        [Reply(ResponseCode.MESSAGE_ILLEGAL, remark="not good")],
        [Reply(ResponseCode.SYSTEM_BUSY, remark="busy")] * 2,
        [Reply(ResponseCode.FLOW_CONTROL, remark="slow down")],
        [Reply(ResponseCode.SERVICE_NOT_AVAILABLE, remark="not master")] * 2,
        [Reply(12345, remark="an unknown code")],
        [Reply(remark="without its fields")],
        [stored_as(ResponseCode.FLUSH_DISK_TIMEOUT)],
        [stored_as(ResponseCode.SLAVE_NOT_AVAILABLE)],
    ],
    ids=lambda answers: f"{answers[0].code}",
)
@pytest.mark.parametrize("fixed", [False, True], ids=["any-queue", "fixed"])
async def test_all_other_answers_mean_what_they_mean_over_the_loop(answers: list[Reply], fixed: bool) -> None:
    """E1, E4: the same errors with the same texts, the same attempts."""
    async with noted() as (cluster, noting):

        def send(with_line: bool) -> tuple[tuple[Any, ...], int, set[Peer]]:
            config = ProducerConfig(send_timeout_ms=LONG_MS)
            with SyncProducer("shop", name_servers=cluster.name_servers, config=config) as producer:
                queue = producer.queues("orders")[0] if fixed else None
                producer.send(order())
                if with_line:
                    open_line(producer)
                    producer.send(order())
                before = len(noting.peers)
                cluster.broker.answers.extend(answers)
                seen = outcome(lambda: producer.send(order(), queue=queue))
                return seen, len(noting.peers) - before, set(noting.peers[before : before + 1])

        over_loop, attempts, _ = await in_thread(send, False)
        cluster.broker.answers.clear()
        on_line, attempts_of_line, first = await in_thread(send, True)
        assert (over_loop, attempts) == (on_line, attempts_of_line)
        assert not first & set(noting.peers[:1])


async def test_what_follows_the_first_attempt_has_the_rest_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """E1: one limit for all attempts."""
    passed_s = 0.0
    now, add = Sender.now, TimeLimits.add
    limits: list[int] = []

    def note(self: TimeLimits, item: Any, timeout_ms: int) -> Any:
        limits.append(timeout_ms)
        return add(self, item, timeout_ms)

    monkeypatch.setattr(Sender, "now", lambda self: now(self) + passed_s)
    monkeypatch.setattr(TimeLimits, "add", note)
    async with noted() as (cluster, noting):

        def hold(peer: Peer, _: Request[Any]) -> None:
            nonlocal passed_s
            noting.peers.append(peer)
            passed_s = 20.0

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer)
                producer.send(order())
                limits.clear()
                cluster.broker.answers.append(Reply(ResponseCode.SYSTEM_ERROR, remark="broken"))
                cluster.broker.on_send = hold
                assert SendStatus.OK is producer.send(order(), timeout_ms=60_000).status

        await in_thread(send)
        assert noting.peers[-2] is not noting.peers[-1] is noting.peers[0]
    (left_ms,) = limits
    assert 20_000 < left_ms <= 40_000


async def test_a_paced_broker_gets_its_sends_over_the_loop() -> None:
    """E4: where they wait in order."""
    async with noted() as (cluster, noting):

        def send() -> tuple[Peer, list[Peer]]:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer)
                cluster.broker.answers.extend([Reply(ResponseCode.SYSTEM_BUSY, remark="busy")] * 2)
                before = len(noting.peers)
                producer.send(order())
                producer.send(order())
                return noting.peers[0], noting.peers[before:]

        of_loop, peers = await in_thread(send)
        assert [True, False, False, False] == [peer is not of_loop for peer in peers]


async def test_a_line_that_is_lost_during_a_send_costs_an_attempt() -> None:
    """E4: the message may be stored; another broker gets it, or with a fixed queue, the caller the error."""
    async with noted(ScriptedBroker("broker-a"), ScriptedBroker("broker-b")) as (cluster, noting):

        def break_line(peer: Peer, _: Request[Any]) -> None:
            noting.peers.append(peer)
            peer.abort()

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer, count=2)
                queue = producer.queues("orders")[0]
                producer.send(order())
                one, other = cluster.brokers
                one.on_send = break_line
                receipts = [producer.send(order()) for _ in range(8)]
                assert {"broker-b"} == {receipt.queue.broker_name for receipt in receipts}
                assert not any(one.address == line.address for line in open_lines(producer))
                one.on_send = noting._note
                open_line(producer, count=2)
                producer.send(order())
                one.on_send = break_line
                with pytest.raises(NetworkError, match=f"the connection to {one.address} was lost"):
                    producer.send(order(), queue=queue)
                other.on_send = break_line
                with pytest.raises(SendFailed, match="was lost"):
                    producer.send(order())

        await in_thread(send)


async def test_a_late_answer_is_not_taken_for_another_one() -> None:
    """E1: the time is over, and with it the line."""
    held: list[tuple[Peer, Request[Any]]] = []
    async with noted() as (cluster, noting):
        loop = asyncio.get_running_loop()

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer)
                producer.send(order())
                cluster.broker.on_send = lambda peer, request: held.append((peer, request))
                cluster.broker.answers.append(None)
                with pytest.raises(
                    CallTimeout, match=r"did not answer SEND_MESSAGE_V2 to .* within 300 ms; the message may be stored"
                ):
                    producer.send(order(), timeout_ms=300)
                cluster.broker.on_send = noting._note
                assert not open_lines(producer)
                peer, request = held[0]
                loop.call_soon_threadsafe(
                    peer.reply, request, ScriptedBroker("broker-a").stored(request.fields, count=99)
                )
                receipts = [producer.send(order()) for _ in range(100)]
                assert 100 == len({receipt.queue_offset for receipt in receipts})

        await in_thread(send)


async def test_strange_bytes_on_a_line_are_a_lost_connection() -> None:
    """B5, E4."""
    async with noted(ScriptedBroker("broker-a"), ScriptedBroker("broker-b")) as (cluster, noting):

        def spoil(peer: Peer, _: Request[Any]) -> None:
            noting.peers.append(peer)
            peer.reply_all(b"HTTP/1.1 200 OK\r\n\r\n")
            peer.flush()

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer, count=2)
                producer.send(order())
                cluster.brokers[0].on_send = spoil
                assert {"broker-b"} == {producer.send(order()).queue.broker_name for _ in range(4)}

        await in_thread(send)


async def test_what_a_broker_asks_on_a_line_is_not_taken_for_an_answer() -> None:
    """J2: it asks the connections of members; a line is none, and does not answer."""
    async with noted() as (cluster, noting):

        def ask(peer: Peer, _: Request[Any]) -> None:
            noting.peers.append(peer)
            peer.call_oneway(RequestCode.CHECK_TRANSACTION_STATE, None, b"half")
            peer.start_call(RequestCode.GET_CONSUMER_RUNNING_INFO).add_done_callback(asyncio.Future.exception)

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer)
                producer.send(order())
                before = len(noting.peers)
                cluster.broker.on_send = ask
                assert SendStatus.OK is producer.send(order(), timeout_ms=LONG_MS).status
                cluster.broker.on_send = noting._note
                for _ in range(10):
                    producer.send(order(), timeout_ms=LONG_MS)
                assert 11 == len(noting.peers) - before

        await in_thread(send)


# --- The end of a line ------------------------------------------------------------------------------------------------


async def test_a_line_that_the_broker_has_closed_costs_nothing() -> None:
    """B2: brokers and firewalls close idle connections; no send may be lost, or be made twice."""
    async with noted() as (cluster, noting):
        loop = asyncio.get_running_loop()

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                queue = producer.queues("orders")[0]
                for _ in range(3):
                    open_line(producer)
                    producer.send(order())
                    (line,) = open_lines(producer)
                    asyncio.run_coroutine_threadsafe(_abort(noting.peers[-1]), loop).result(60)
                    connection = line.connection
                    assert connection is not None
                    connection._readable.poll()
                    before = len(noting.peers)
                    # With a fixed queue, nothing is tried twice.
                    assert SendStatus.OK is producer.send(order(), queue=queue).status
                    assert noting.peers[before:] == noting.peers[:1]

        async def _abort(peer: Peer) -> None:
            assert peer is not noting.peers[0]
            peer.abort()

        await in_thread(send)


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.01)


async def test_a_line_that_is_not_used_is_closed() -> None:
    """B2."""
    async with noted() as (cluster, noting):

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                for is_tidied in (True, False):
                    open_line(producer)
                    producer._do(lines(producer).tidy)
                    producer.send(order())
                    producer.send(order())
                    of_line = noting.peers[-1]
                    assert of_line is not noting.peers[0], "it was used a moment ago"
                    (line,) = open_lines(producer)
                    line._used_at -= 2 * IDLE_S
                    if is_tidied:
                        producer._do(lines(producer).tidy)
                        assert not open_lines(producer)
                    # Also without a heartbeat in between, it is not used any more.
                    producer.send(order())
                    assert noting.peers[-1] is noting.peers[0]
                    wait_until(of_line.closed.is_set)

        await in_thread(send)


async def test_lines_end_with_the_connection_of_the_loop_and_with_the_producer() -> None:
    """B2."""
    async with noted() as (cluster, noting):
        loop = asyncio.get_running_loop()

        def send() -> None:
            with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                open_line(producer)
                loop.call_soon_threadsafe(noting.peers[0].abort)
                wait_until(lambda: not open_lines(producer))
                open_line(producer)
            wait_until(lambda: not cluster.broker.peers)

        await in_thread(send)


async def test_a_producer_that_is_closed_ends_the_sends_of_other_threads() -> None:
    """E1: at once, and not after the time of the send."""
    async with noted() as (cluster, _):

        def send() -> None:
            asked = threading.Event()
            cluster.broker.on_send = lambda *_: asked.set()
            with ThreadPoolExecutor(1) as threads:
                with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
                    open_line(producer)
                    producer.send(order())
                    asked.clear()
                    cluster.broker.answers.append(None)
                    sending = threads.submit(producer.send, order(), timeout_ms=LONG_MS)
                    assert asked.wait(60)
                with pytest.raises(NotRunning):
                    sending.result(60)

        await in_thread(send)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


_OPEN = """
        import os, signal, sys, threading
        from ternmq import Message, SyncProducer
        from ternmq.errors import NotRunning

        def lines(producer):
            found = producer._async._running.sender.instance.lines._lines.values()
            return [line for line in found if line.connection is not None]

        def open_line(producer):
            while not lines(producer):
                producer.send(Message("orders", b"x"))
"""


def test_a_forked_process_has_no_part_in_a_line(cluster: EmbeddedCluster) -> None:
    """B2: the parent goes on with it, and the child opens its own."""
    done = run(
        _OPEN
        + """
        def send():
            return producer.send(Message("orders", b"x")).status.value

        with SyncProducer("shop", name_servers=sys.argv[1]) as producer:
            open_line(producer)
            before = lines(producer)[0].connection
            child = os.fork()
            if not child:
                try:
                    send()
                except NotRunning:
                    print("not in the child")
                with SyncProducer("shop", name_servers=sys.argv[1]) as own:
                    open_line(own)
                    status = own.send(Message("orders", b"x")).status.value
                    print(status, lines(own)[0].connection is before, flush=True)
                # As a program of its own ends, with what it has.
                del own, producer
                os._exit(0)
            os.waitpid(child, 0)
            print(send(), lines(producer)[0].connection is before)
        """,
        cluster.name_servers,
    )
    assert (0, "not in the child\nSEND_OK False\nSEND_OK True\n") == (done.returncode, done.stdout), done.stderr


def test_a_forked_process_leaves_the_block_as_it_wants(cluster: EmbeddedCluster) -> None:
    """B2: the client is its parent's, and goes on there."""
    done = run(
        _OPEN
        + """
        with SyncProducer("shop", name_servers=sys.argv[1]) as producer:
            open_line(producer)
            child = os.fork()
            if not child:
                sys.exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            print(producer.send(Message("orders", b"x")).status.value)
        """,
        cluster.name_servers,
    )
    assert (0, "7\nSEND_OK\n", "") == (done.returncode, done.stdout, done.stderr)


async def test_an_interrupt_ends_the_wait_for_an_answer_and_the_line() -> None:
    """E1: a late answer must not be the next one's."""
    async with noted() as (cluster, noting):
        program = (
            _OPEN
            + """
        with SyncProducer("shop", name_servers=sys.argv[1]) as producer:
            open_line(producer)
            print("ready", flush=True)
            try:
                producer.send(Message("orders", b"interrupted"), timeout_ms=60_000)
            except KeyboardInterrupt:
                print("interrupted", len(lines(producer)), flush=True)
            print(producer.send(Message("orders", b"x")).queue_offset)
        """
        )
        held = asyncio.Event()

        def hold(peer: Peer, request: Request[Any]) -> None:
            noting.peers.append(peer)
            if bytes(request.body) == b"interrupted":
                cluster.broker.answers.append(None)
                held.set()

        cluster.broker.on_send = hold
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", textwrap.dedent(program), cluster.name_servers, stdout=asyncio.subprocess.PIPE
        )
        await held.wait()
        assert process.stdout is not None
        assert b"ready\n" == await process.stdout.readline()
        told = asyncio.ensure_future(process.stdout.readline())
        while not told.done():
            # Python does not hear of a signal that comes just before it waits; a person presses Ctrl-C again.
            process.send_signal(signal.SIGINT)
            await asyncio.wait([told], timeout=5)
        assert b"interrupted 0\n" == told.result()
        out, _ = await asyncio.wait_for(process.communicate(), 60)
        assert f"{cluster.broker.offsets - 1}\n" == out.decode()


# --- Threads, and what goes over the loop at the same time ------------------------------------------------------------


def test_many_threads_gather_on_the_loop_and_one_sends_by_itself(cluster: EmbeddedCluster, used: list[int]) -> None:
    """B2: threads that send at once share the loop's connection; what they send has different ids."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer, ThreadPoolExecutor(16) as threads:
        open_line(producer)
        together = threading.Barrier(16)

        def send(number: int) -> list[SendReceipt]:
            together.wait(60)
            return [producer.send(Message("orders", b"%d" % number)) for _ in range(100)]

        receipts = [receipt for sent in threads.map(send, range(16)) for receipt in sent]
        assert 1600 == len({receipt.message_id for receipt in receipts}) == len({one.offset_id for one in receipts})
        assert 1 == len(open_lines(producer))
        for _ in range(1000):
            producer.send(Message("orders", b"x"))
        assert used[-100:] == [threading.get_ident()] * 100


def test_a_thread_that_was_not_alone_sends_over_the_loop_for_a_while(cluster: EmbeddedCluster, used: list[int]) -> None:
    """B2: taking turns between both ways with each send would take more than either."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        open_line(producer)
        used.clear()
        producer._sending.add(-1)
        producer.send(Message("orders", b"x"))
        producer._sending.remove(-1)
        sent = 0
        while not used:
            producer.send(Message("orders", b"x"))
            sent += 1
    assert _CROWD + 1 == sent


@pytest.mark.parametrize("way", ["send_nowait", "send_oneway"])
def test_a_send_does_not_overtake_what_its_thread_has_sent_before(cluster: EmbeddedCluster, way: str) -> None:
    """E5: to one queue, by a thread that does not wait in between."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        open_line(producer, way)
        queue = producer.queues(way)[0]
        before = producer.send(Message(way, b"x"), queue=queue).queue_offset
        for _ in range(200):
            for _ in range(3):
                getattr(producer, way)(Message(way, b"x"), queue=queue)
            receipt = producer.send(Message(way, b"x"), queue=queue)
            assert before + 4 == receipt.queue_offset
            before = receipt.queue_offset
        assert open_lines(producer)


def test_a_producer_may_be_used_again_and_shares_lines_with_its_like(cluster: EmbeddedCluster, used: list[int]) -> None:
    """A producer that is closed takes no line from another one of the same client."""
    with SyncProducer("one", name_servers=cluster.name_servers) as one:
        with SyncProducer("two", name_servers=cluster.name_servers) as two:
            open_line(two)
        used.clear()
        one.send(Message("orders", b"x"))
        one.send(Message("orders", b"x"))
        assert 2 == len(used)
        with two:
            two.send(Message("orders", b"x"))
        assert 3 == len(used)
