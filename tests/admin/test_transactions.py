"""Open transactions and discarded ones, as administrators see them (J2)."""

from __future__ import annotations

import pytest

from ternmq import Admin, EmbeddedCluster, Message, Outcome, Producer, PullConsumer, ReceivedMessage
from ternmq.errors import BrokerMissing, InvalidName, NetworkError, SystemFailure
from ternmq.names import CHECK_MAX_TOPIC
from tests.client.send.test_transaction import QUICK, bodies, is_settled, until


def unknown(_: ReceivedMessage) -> Outcome:
    return Outcome.UNKNOWN


async def test_open_transactions_are_listed(cluster: EmbeddedCluster, admin: Admin) -> None:
    """J2: of all brokers and groups, or of one group."""
    await admin.topics.create("orders", queues=1)
    async with (
        Producer("shop", name_servers=cluster.name_servers, checker=unknown) as shop,
        Producer("bank", name_servers=cluster.name_servers, checker=unknown) as bank,
    ):
        queues = await shop.queues("orders")
        async with (
            shop.transaction(Message("orders", b"1"), queue=queues[0]) as first,
            bank.transaction(Message("orders", b"2"), queue=queues[1]) as second,
        ):
            found = await admin.transactions.open()
            assert [("broker-a", first.id, "shop", 0), ("broker-b", second.id, "bank", 0)] == [
                (one.broker, one.transaction_id, one.group, one.checks) for one in found
            ]
            assert [second.id] == [one.transaction_id for one in await admin.transactions.open(group="bank")]
            assert 1 == len(await admin.transactions.open(count_max=1))
            assert {"broker-a": 1, "broker-b": 1} == await admin.transactions.count()
    assert [] == await admin.transactions.open()


async def test_the_number_of_checks_is_listed() -> None:
    """J2: of a transaction whose producer does not know; its age counts from its first half, not from its copies."""
    async with (
        EmbeddedCluster(settings=QUICK) as quick,
        Admin(quick.name_servers) as admin,
        Producer("shop", name_servers=quick.name_servers, checker=unknown) as producer,
        producer.transaction(Message("orders", b"paid")) as tx,
    ):

        async def is_checked() -> bool:
            return (await admin.transactions.open(group="shop"))[0].checks >= 2

        [first] = await admin.transactions.open(group="shop")
        await until(is_checked)
        [listed] = await admin.transactions.open(group="shop")
        assert (tx.id, first.born_time_ms) == (listed.transaction_id, listed.born_time_ms)


async def test_a_discarded_transaction_is_resumed(cluster: EmbeddedCluster) -> None:
    """J2: after it was checked too often; then its producer knows, and it is delivered."""
    settings = {"transactionTimeOut": "0", "transactionCheckInterval": "100", "transactionCheckMax": "2"}
    knows = False

    async def checker(_: ReceivedMessage) -> Outcome:
        return Outcome.COMMIT if knows else Outcome.UNKNOWN

    async with (
        EmbeddedCluster(settings=settings) as quick,
        Admin(quick.name_servers) as admin,
        Producer("shop", name_servers=quick.name_servers, checker=checker) as producer,
    ):
        transaction = await producer.transaction(Message("orders", b"paid")).__aenter__()
        producer._now_running().checks.ended(transaction.id)  # type: ignore[union-attr]  # as if its process had died
        await until(lambda: is_settled(quick))
        assert ([], [b"paid"]) == (await bodies(quick), await bodies(quick, CHECK_MAX_TOPIC))
        async with PullConsumer("readers", name_servers=quick.name_servers) as consumer:
            [queue] = await consumer.queues(CHECK_MAX_TOPIC)
            [discarded] = (await consumer.pull(queue, 0)).messages
        knows = True
        await admin.transactions.resume(discarded.offset_id)
        await until(lambda: is_settled(quick))
        assert [b"paid"] == await bodies(quick)
        with pytest.raises(SystemFailure, match="was committed before"):
            await admin.transactions.resume(discarded.offset_id)
        with pytest.raises(SystemFailure, match="no discarded half message"):
            await admin.transactions.resume(transaction.receipt.offset_id)
        with pytest.raises(InvalidName):
            await admin.transactions.resume("x")


async def test_a_transaction_is_resumed_on_a_broker_that_has_another_address_now(cluster: EmbeddedCluster) -> None:
    """J2: an offset id names the address that the broker had. Its name finds it where it is."""
    async with Admin(cluster.name_servers) as admin:
        gone = "7F00000100000001" + "0" * 16
        with pytest.raises(NetworkError):
            await admin.transactions.resume(gone)
        broker, *_ = await admin.brokers.masters()
        with pytest.raises(SystemFailure, match="no discarded half message"):
            await admin.transactions.resume(gone, broker=broker.name)
        with pytest.raises(BrokerMissing, match="no master 'broker-z'; the registered ones are broker-a"):
            await admin.transactions.resume(gone, broker="broker-z")
