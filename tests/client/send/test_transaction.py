"""Transactions of the Python client, against a real broker with short times (J1, J2)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ternmq import (
    Admin,
    EmbeddedCluster,
    Message,
    Outcome,
    Producer,
    ProducerConfig,
    PullConsumer,
    ReceivedMessage,
    SyncProducer,
    Transaction,
)
from ternmq.errors import ConfigError, InvalidMessage, NotRunning, SystemFailure, TransactionUncertain

#: Checks come at once and often; nothing is discarded within a test.
QUICK = {"transactionTimeOut": "0", "transactionCheckInterval": "100", "transactionCheckMax": "100000"}
#: For tests in which no check may come.
NEVER = {"transactionTimeOut": "3600000"}


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings=NEVER) as cluster:
        yield cluster


@pytest.fixture
async def quick() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(settings=QUICK) as cluster:
        yield cluster


def unknown(_: ReceivedMessage) -> Outcome:
    return Outcome.UNKNOWN


async def bodies(cluster: EmbeddedCluster, topic: str = "orders") -> list[bytes]:
    """All messages of a topic."""
    async with PullConsumer("readers", name_servers=cluster.name_servers) as consumer:
        found: list[bytes] = []
        for queue in await consumer.queues(topic):
            pulled = await consumer.pull(queue, 0, wait=False)
            found += [message.body for message in pulled.messages]
        return sorted(found)


async def until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await true():
            await asyncio.sleep(0.05)


async def is_settled(cluster: EmbeddedCluster) -> bool:
    async with Admin(cluster.name_servers) as admin:
        return not sum((await admin.transactions.count()).values())


async def test_the_end_of_the_block_commits_and_an_exception_rolls_back(cluster: EmbeddedCluster) -> None:
    """J1"""
    async with Producer("shop", name_servers=cluster.name_servers, checker=unknown) as producer:
        async with producer.transaction(Message("orders", b"paid", tags="A", keys="order-1")) as tx:
            assert [] == await bodies(cluster)
            assert tx.id == tx.receipt.message_id
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("orders", b"failed")):
                _ = 1 / 0
        async with producer.transaction(Message("orders", b"explicitly")) as tx:
            await tx.commit()
            assert [b"explicitly", b"paid"] == await bodies(cluster)
        async with producer.transaction(Message("orders", b"dropped")) as tx:
            await tx.rollback()
            with pytest.raises(NotRunning, match="has ended"):
                await tx.commit()
    assert [b"explicitly", b"paid"] == await bodies(cluster)
    assert await is_settled(cluster)


async def test_the_message_is_that_which_was_sent(cluster: EmbeddedCluster) -> None:
    """J1, E6: also a compressed one; its id is that of the transaction."""
    message = Message("orders", b"x" * 10_000, tags="A", keys=("k1", "k2"), properties={"region": "eu"})
    async with (
        Producer("shop", name_servers=cluster.name_servers, checker=unknown) as producer,
        producer.transaction(message) as tx,
    ):
        pass
    async with Admin(cluster.name_servers) as admin:
        [found] = await admin.messages.by_key("orders", "k2")
    assert (message.body, "A", "eu", tx.id) == (
        found.body,
        found.tags,
        found.properties["region"],
        found.message_id,
    )


async def test_what_cannot_be_a_transaction_is_refused_before_anything_is_sent(cluster: EmbeddedCluster) -> None:
    """J1, bad input"""
    message = Message("orders", b"x")
    async with Producer("plain", name_servers=cluster.name_servers) as producer:
        with pytest.raises(ConfigError, match="has no checker"):
            producer.transaction(message)
    for wrong in (7, "checker", Outcome.COMMIT, lambda: Outcome.COMMIT, lambda _message, _table: Outcome.COMMIT):
        with pytest.raises(ConfigError, match="invalid checker"):
            Producer("shop", name_servers=cluster.name_servers, checker=wrong)  # type: ignore[arg-type]
    producer = Producer("shop", name_servers=cluster.name_servers, checker=unknown)
    with pytest.raises(NotRunning):
        producer.transaction(message)
    async with producer:
        for bad, words in (
            (Message("orders", b"x", delay_level=3), "has delay_level=3"),
            (Message("orders", b"x", delay=timedelta(seconds=5)), "has delay=0:00:05"),
            (Message("orders", b"x", deliver_at=datetime(2030, 1, 1, tzinfo=UTC)), "has deliver_at=2030"),
            (Message("%RETRY%billing", b"x"), "cannot be part of a transaction"),
        ):
            with pytest.raises(InvalidMessage, match=words):
                producer.transaction(bad)
        for seconds in (0, -1, 10**10):
            with pytest.raises(InvalidMessage, match="invalid check_after_s"):
                producer.transaction(message, check_after_s=seconds)
        for no_int in (600.0, "600", True):
            with pytest.raises(TypeError, match=r"invalid check_after_s of type .*: expected an int, in whole seconds"):
                producer.transaction(message, check_after_s=no_int)  # type: ignore[arg-type]
        transaction = producer.transaction(message)
        with pytest.raises(NotRunning, match="has not begun"):
            _ = transaction.id
        async with transaction:
            pass
        with pytest.raises(NotRunning, match="begin only once"):
            await transaction.__aenter__()


async def test_a_cancelled_block_leaves_the_decision_to_the_checker(quick: EmbeddedCluster) -> None:
    """J1: it may have been cancelled in the middle of the local commit."""
    rows: set[str] = set()

    async def checker(message: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT if message.message_id in rows else Outcome.ROLLBACK

    async with Producer("shop", name_servers=quick.name_servers, checker=checker) as producer:
        begun = asyncio.Event()

        async def work(body: bytes, *, commits: bool) -> None:
            async with producer.transaction(Message("orders", body)) as tx:
                if commits:
                    rows.add(tx.id)
                begun.set()
                await asyncio.Event().wait()

        for body, commits in ((b"committed", True), (b"not", False)):
            begun.clear()
            task = asyncio.create_task(work(body, commits=commits))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await until(lambda: is_settled(quick))
    assert [b"committed"] == await bodies(quick)


async def test_another_member_answers_for_one_that_has_left(quick: EmbeddedCluster) -> None:
    """J2: it learns of the broker by the topics that it is given, without sending anything."""
    asked: list[str] = []

    async def checker(message: ReceivedMessage) -> Outcome:
        asked.append(message.message_id)
        assert ("orders", b"left") == (message.topic, message.body)
        return Outcome.COMMIT

    async with Producer("shop", name_servers=quick.name_servers, checker=unknown) as first:
        transaction = await first.transaction(Message("orders", b"left")).__aenter__()
    async with Producer("shop", name_servers=quick.name_servers, checker=checker, topics=["orders"]):
        await until(lambda: is_settled(quick))
    assert [transaction.id] == asked[:1]
    assert [b"left"] == await bodies(quick)


async def test_a_running_block_is_not_asked_about(quick: EmbeddedCluster) -> None:
    """J2: the checker of the same process could only guess."""
    asked: list[str] = []

    def checker(message: ReceivedMessage) -> Outcome:
        asked.append(message.message_id)
        return Outcome.ROLLBACK

    async with (
        Producer("shop", name_servers=quick.name_servers, checker=checker) as producer,
        Admin(quick.name_servers) as admin,
        producer.transaction(Message("orders", b"slow")),
    ):

        async def was_checked_twice() -> bool:
            return any(one.checks >= 2 for one in await admin.transactions.open())

        await until(was_checked_twice)
    assert ([], [b"slow"]) == (asked, await bodies(quick))


def raising(_: ReceivedMessage) -> Outcome:
    raise ValueError("the database is gone")


async def hanging(_: ReceivedMessage) -> Outcome:
    await asyncio.Event().wait()
    return Outcome.COMMIT


def garbled(_: ReceivedMessage) -> Outcome:
    return "COMMIT"  # type: ignore[return-value]


@pytest.mark.parametrize("bad", [raising, hanging, garbled, unknown])
async def test_a_checker_that_fails_decides_nothing(
    quick: EmbeddedCluster, bad: Callable[[ReceivedMessage], Any], caplog: pytest.LogCaptureFixture
) -> None:
    """J2: raises, hangs, returns nonsense; the transaction stays open until one knows."""
    config = ProducerConfig(check_timeout_ms=50)
    results: list[Callable[[ReceivedMessage], Any]] = [bad, bad, bad]

    async def checker(message: ReceivedMessage) -> Outcome:
        if not results:
            return Outcome.COMMIT
        outcome = results.pop()(message)
        return await outcome if asyncio.iscoroutine(outcome) else outcome  # type: ignore[no-any-return]

    async with Producer("shop", name_servers=quick.name_servers, checker=checker, config=config) as producer:
        transaction = producer.transaction(Message("orders", b"paid"))
        await transaction.__aenter__()
        with pytest.raises(asyncio.CancelledError):
            await _cancelled(transaction)
        await until(lambda: is_settled(quick))
    assert ([b"paid"], []) == (await bodies(quick), results)
    if bad is not unknown:
        assert "transaction" in caplog.text


async def _cancelled(transaction: Transaction) -> None:
    error = asyncio.CancelledError()
    await transaction.__aexit__(type(error), error, None)
    raise error


async def test_a_plain_checker_runs_in_a_thread(quick: EmbeddedCluster) -> None:
    """J2: where it may block, and use synchronous clients."""
    threads: list[str] = []

    def checker(message: ReceivedMessage) -> Outcome:
        threads.append(threading.current_thread().name)
        return Outcome.COMMIT

    async with Producer("shop", name_servers=quick.name_servers, checker=checker) as producer:
        transaction = producer.transaction(Message("orders", b"paid"))
        await transaction.__aenter__()
        with pytest.raises(asyncio.CancelledError):
            await _cancelled(transaction)
        await until(lambda: is_settled(quick))
    assert threads[0].startswith("checker-shop")


async def test_a_commit_that_cannot_be_delivered_says_so(cluster: EmbeddedCluster) -> None:
    """J1: the local work is done, the checker decides about the message."""
    async with Producer("shop", name_servers=cluster.name_servers, checker=unknown) as producer:
        transaction = producer.transaction(Message("orders", b"paid"), timeout_ms=500)
        with pytest.raises(TransactionUncertain, match="whose answer decides") as raised:
            async with transaction:
                _cut(producer)
        assert transaction.id == raised.value.transaction_id


def _cut(producer: Producer) -> None:
    """Let every connection of the client break, and no new one succeed."""
    running = producer._now_running()
    instance = running.sender.instance
    for address in list(instance.routes.addresses(masters_only=True)):
        peer = instance.connections.get(address)
        if peer is not None:
            peer.abort()
    for route in instance.routes._known.values():
        for by_id in route.brokers.values():
            for broker_id in by_id:
                by_id[broker_id] = "127.0.0.1:1"  # type: ignore[index]  # a table, which only routes.py may change


async def test_a_transaction_that_was_given_up_cannot_be_committed(quick: EmbeddedCluster) -> None:
    """J2: another process has answered ROLLBACK; the commit is refused, and the application knows."""

    async def rollback(_: ReceivedMessage) -> Outcome:
        return Outcome.ROLLBACK

    async with Producer("shop", name_servers=quick.name_servers, checker=unknown) as first:
        transaction = first.transaction(Message("orders", b"late"))
        with pytest.raises(SystemFailure, match="rolled back or discarded"):
            async with transaction:
                # As a process that stood still: its own client does not answer any more.
                first._now_running().sender.instance.checks._by_group.clear()
                other = Producer("shop", name_servers=quick.name_servers, checker=rollback, topics=["orders"])
                async with other:
                    await until(lambda: is_settled(quick))
                    first._now_running().sender.instance.checks.add("shop", first._now_running().checks)  # type: ignore[arg-type]
    assert [] == await bodies(quick)


def test_the_synchronous_version() -> None:
    """J1: commits, rolls back, and its checker runs in a thread."""
    with EmbeddedCluster(settings=QUICK) as cluster:
        rows: list[str] = []

        def checker(message: ReceivedMessage) -> Outcome:
            return Outcome.COMMIT if message.message_id in rows else Outcome.UNKNOWN

        with SyncProducer("shop", name_servers=cluster.name_servers, checker=checker) as producer:
            with producer.transaction(Message("orders", b"paid")) as tx:
                assert tx.id == tx.receipt.message_id
            with pytest.raises(ZeroDivisionError), producer.transaction(Message("orders", b"failed")):
                _ = 1 / 0
            with producer.transaction(Message("orders", b"explicitly")) as tx:
                tx.commit()
            with producer.transaction(Message("orders", b"dropped")) as tx:
                tx.rollback()
            with pytest.raises(KeyboardInterrupt), producer.transaction(Message("orders", b"interrupted")) as tx:
                rows.append(tx.id)
                raise KeyboardInterrupt
            asyncio.run(until(lambda: is_settled(cluster)))
        assert [b"explicitly", b"interrupted", b"paid"] == asyncio.run(bodies(cluster))
