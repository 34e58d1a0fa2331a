"""The blocking producer: a loop in a thread behind plain calls (E1–E6)."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ternmq.client.blocking.base import in_thread
from ternmq.client.blocking.loop_thread import LoopThread, loop_thread
from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.config import ProducerConfig
from ternmq.client.send.hooks import SendContext, SendHook
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import InvalidMessage, NameServersUnreachable, NotRunning
from ternmq.message import Message, MessageQueue, SendReceipt, SendStatus


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


def test_it_sends_in_every_way(cluster: EmbeddedCluster) -> None:
    """E1, E5, E6."""
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        first = producer.send(Message("orders", b"x", sharding_key="k"))
        queue = first.queue
        assert queue in producer.queues("orders")
        producer.send_oneway(Message("orders", b"x"), queue=queue)
        sent = producer.send_nowait(Message("orders", b"x"), queue=queue)
        assert 2 == sent.result().queue_offset
        batch = producer.send_batch([Message("orders", b"x"), Message("orders", b"y")], queue=queue)
    assert [(SendStatus.OK, 3), (SendStatus.OK, 4)] == [(each.status, each.queue_offset) for each in batch]


def test_hooks_see_the_context_of_the_calling_thread(cluster: EmbeddedCluster) -> None:
    """E8: as those of the asynchronous producer see that of their task, before and after the send."""
    name = contextvars.ContextVar("name", default="none")
    seen: list[str] = []

    class Hook(SendHook):
        def before_send(self, _: SendContext) -> None:
            seen.append(name.get())

        def after_send(self, _: SendContext) -> None:
            seen.append(name.get())

    with SyncProducer("shop", name_servers=cluster.name_servers, hooks=[Hook()]) as producer:
        for value in ("first", "second"):
            name.set(value)
            producer.send(Message("orders", b"x"))
    assert ["first", "first", "second", "second"] == seen


def test_a_send_outlives_the_interrupt_of_another_one(cluster: EmbeddedCluster) -> None:
    """E1: a wait that ends early leaves the producer in order."""

    class Interrupt(KeyboardInterrupt):
        pass

    def refuse(_queues: object, _message: object) -> MessageQueue:
        raise Interrupt

    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        producer.send(Message("orders", b"x"))
        with pytest.raises(Interrupt):
            producer.send(Message("orders", b"x"), selector=refuse)
        assert SendStatus.OK == producer.send(Message("orders", b"x")).status


def test_automatic_batches_are_waited_for(cluster: EmbeddedCluster) -> None:
    """E6."""
    config = ProducerConfig(auto_batch=True)
    with SyncProducer("shop", name_servers=cluster.name_servers, config=config) as producer:
        assert SendStatus.OK == producer.send(Message("orders", b"x")).status


def test_many_threads_share_one_producer(cluster: EmbeddedCluster) -> None:
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer, ThreadPoolExecutor(8) as threads:

        def send(number: int) -> SendReceipt:
            return producer.send(Message("many", f"{number}".encode()))

        receipts = list(threads.map(send, range(200)))
    assert 200 == len({receipt.offset_id for receipt in receipts})


def test_leaving_the_block_waits_for_what_is_on_its_way(cluster: EmbeddedCluster) -> None:
    config = ProducerConfig(auto_batch=True, auto_batch_wait_ms=60_000)
    with SyncProducer("shop", name_servers=cluster.name_servers, config=config) as producer:
        sent = [producer.send_nowait(Message("orders", b"x")) for _ in range(10)]
    assert {SendStatus.OK} == {future.result(0).status for future in sent}


def test_errors_come_out_as_they_are() -> None:
    """E2, A6."""
    with SyncProducer("shop", name_servers="127.0.0.1:1") as producer:
        with pytest.raises(InvalidMessage):
            producer.send_nowait(Message("orders", b""))
        with pytest.raises(NameServersUnreachable):
            producer.send(Message("orders", b"x"))
        with pytest.raises(NameServersUnreachable):
            producer.send_nowait(Message("orders", b"x")).result()
    with pytest.raises(NotRunning, match="send inside `with SyncProducer"):
        producer.send(Message("orders", b"x"))


def test_a_blocking_call_in_a_callback_is_refused_instead_of_waiting_for_itself(cluster: EmbeddedCluster) -> None:
    caught: Future[BaseException | None] = Future()
    with SyncProducer("shop", name_servers=cluster.name_servers) as producer:

        def again(_: object) -> None:
            try:
                producer.send(Message("orders", b"x"))
            except RuntimeError as error:
                caught.set_result(error)

        producer.send_nowait(Message("orders", b"x")).add_done_callback(again)
        assert "make it in another thread" in str(caught.result())


def test_a_process_has_one_loop_thread() -> None:
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: loop_thread(), range(16)))
    assert {loop_thread()} == found


def test_a_stopped_thread_runs_nothing_more() -> None:
    thread = LoopThread()
    assert "ran" == thread.run(asyncio.sleep(0, "ran"))
    thread.stop()
    assert not thread.is_usable
    with pytest.raises(NotRunning):
        thread.run(asyncio.sleep(0))


def test_what_waits_when_the_loop_ends_is_told() -> None:
    thread = LoopThread()
    begun = threading.Event()

    def begin() -> asyncio.Future[str]:
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.cancel)
        begun.set()
        return future

    waiting = thread.start(begin)
    begun.wait()
    with pytest.raises(NotRunning):
        waiting.result()
    thread.stop()


def test_a_plain_callback_may_block_and_an_async_one_runs_on_the_loop() -> None:
    """F4: the listener of ``watch_queues``."""
    ran_in: list[threading.Thread] = []

    def plain() -> None:
        ran_in.append(threading.current_thread())

    async def on_loop() -> None:
        ran_in.append(threading.current_thread())

    async def call_both() -> threading.Thread:
        await in_thread(plain)()
        await in_thread(on_loop)()
        return threading.current_thread()

    of_loop = asyncio.run(call_both())
    assert [False, True] == [thread is of_loop for thread in ran_in]


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_program_ends_though_a_producer_was_left_open(cluster: EmbeddedCluster) -> None:
    done = run(
        """
        import sys
        from ternmq import Message, SyncProducer
        producer = SyncProducer("shop", name_servers=sys.argv[1]).__enter__()
        print(producer.send(Message("orders", b"x")).status.value)
        """,
        cluster.name_servers,
    )
    assert (0, "SEND_OK\n", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_process_gets_a_loop_of_its_own(cluster: EmbeddedCluster) -> None:
    """Servers and Spark workers fork; a producer opened before belongs to the parent."""
    done = run(
        """
        import os, sys
        from ternmq import Message, SyncProducer, errors

        with SyncProducer("shop", name_servers=sys.argv[1]) as parents:
            parents.send(Message("orders", b"x"))
            child = os.fork()
            if child == 0:
                try:
                    parents.send(Message("orders", b"x"))
                except errors.NotRunning as error:
                    print("open one in this process" in str(error), flush=True)
                with SyncProducer("shop", name_servers=sys.argv[1]) as own:
                    print(own.send(Message("orders", b"x")).status.value, flush=True)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            print(parents.send(Message("orders", b"x")).status.value)
        """,
        cluster.name_servers,
    )
    assert (0, "True\nSEND_OK\nSEND_OK\n") == (done.returncode, done.stdout), done.stderr
