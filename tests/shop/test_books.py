"""The books of ``examples/shop`` balance after an ordinary day, and notice each rule that is broken (J3, S1).

The listeners are those of the shop on a real PostgreSQL. Instead of brokers, the tests hand them what is in the outbox.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from shop import books, orders, partner, worker
from shop.schema import CAPTURES, DEADLINES, STEPS, Account, Capture, Order, Parcel, Shop
from shop.stock import OutOfStock
from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from ternmq import ConsumeContext, MessageQueue, ReceivedMessage
from tests.client.samples import received
from tests.databases import Database
from tests.shop.broken import unguarded

Listener = Callable[[ReceivedMessage, ConsumeContext], object]


@pytest.fixture
def shop(postgresql_database: Database) -> Iterator[Shop]:
    made = Shop.at(postgresql_database.url(), "127.0.0.1:1")
    made.create({"book": (1_999, 10), "lamp": (4_950, 1)})
    yield made
    made.engine.dispose()


class Courier:
    """Hands the messages of the outbox to the listeners, deadlines last; each of them ``times``."""

    def __init__(self, shop: Shop, *, times: int = 1) -> None:
        self._shop = shop
        self._listeners: dict[str, Any] = worker.listeners(shop)
        self._times = times

    def deliver(self, *, in_order: bool = True) -> None:
        while rows := self._taken():
            rows.sort(key=lambda row: (row[0] == DEADLINES, row[0] == STEPS, 0 if in_order else -row[2]))
            for topic, body, _ in rows:
                self.hand_over(topic, body)

    def hand_over(self, topic: str, body: bytes) -> None:
        message = received(0, body)
        message.topic = topic
        message.properties = {"KEYS": f"{body!r}"}
        context = ConsumeContext(topic, MessageQueue(topic, "broker-a", 0), [message])
        listener = self._listeners[topic]
        for _ in range(self._times):
            for message.reconsume_times in range(20):  # the good partner sometimes gives no answer
                try:
                    listener(message) if topic == DEADLINES else listener(message, context)
                except (partner.Refused, partner.NoAnswer):
                    continue
                break

    def capture(self, order: Order) -> None:
        """The cashier takes the money, and its message comes."""
        with Session(self._shop.engine) as session, session.begin():
            session.add(Capture(order_id=order.id, cents=order.cents))
        self.hand_over(CAPTURES, json.dumps({"order": order.id, "cents": order.cents}).encode())

    def _taken(self) -> list[Any]:
        with self._shop.engine.begin() as connection:
            gone = "DELETE FROM ternmq_outbox RETURNING topic, body, id"
            return sorted(map(tuple, connection.execute(text(gone))), key=lambda row: row[2])


def ordinary_day(shop: Shop, courier: Courier, *, in_order: bool = True) -> None:
    """One order of each fate."""
    shipped = orders.place(shop, "shipped", item="book", quantity=2, partner=partner.GOOD)
    refused = orders.place(shop, "refused", item="book", quantity=1, partner=partner.CLOSED)
    orders.place(shop, "unpaid", item="book", quantity=3, partner=partner.GOOD)
    late = orders.place(shop, "late", item="lamp", quantity=1, partner=partner.GOOD)
    with pytest.raises(OutOfStock):
        orders.place(shop, "ghost", item="lamp", quantity=1, partner=partner.GOOD)
    courier.capture(shipped)
    courier.capture(refused)
    courier.deliver(in_order=in_order)
    courier.capture(late)
    courier.deliver()


@pytest.mark.parametrize("times", [1, 2])
def test_the_books_balance_though_every_message_comes_twice(shop: Shop, times: int) -> None:
    """J3, S1: paid and shipped, refused by the partner, unpaid, paid too late, out of stock."""
    ordinary_day(shop, Courier(shop, times=times))

    ledger = books.audit(shop.engine)
    assert "" == books.unfinished(shop.engine)
    assert () == ledger.faults
    assert {"shipped": 1, "refunded": 1, "cancelled": 2} == ledger.states
    assert (3998 + 1999 + 4950, 1999 + 4950, 3998) == (
        ledger.captured_cents,
        ledger.refunded_cents,
        ledger.account_cents,
    )
    assert (9, 0, 2, 11) == (ledger.free, ledger.reserved, ledger.sold, ledger.initial)


def test_without_the_guard_money_is_booked_twice(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1."""
    monkeypatch.setattr(worker, "once_in_transaction", unguarded(shop))
    ordinary_day(shop, Courier(shop, times=2))

    found = str(books.audit(shop.engine))
    assert "the account has" in found
    assert "stock of book: " in found
    assert "the books do not balance" in found


def test_without_order_the_history_is_wrong(shop: Shop) -> None:
    """F2."""
    ordinary_day(shop, Courier(shop), in_order=False)

    assert "the steps ['paid', 'placed', 'shipped'] instead of" in str(books.audit(shop.engine))


def test_without_the_outbox_an_order_that_does_not_exist_is_told(shop: Shop) -> None:
    """J3: sent in the transaction, which was then rolled back."""
    courier = Courier(shop)
    ordinary_day(shop, courier)
    courier.hand_over(STEPS, json.dumps({"order": "ghost", "number": 1, "step": "placed"}).encode())

    assert ("order ghost: steps are told, and it does not exist",) == books.audit(shop.engine).faults


def test_without_the_outbox_a_message_that_is_lost_leaves_an_order_open(shop: Shop) -> None:
    """J3: the process died between the commit and the send."""
    orders.place(shop, "lost", item="book", quantity=1, partner=partner.GOOD)
    with shop.engine.begin() as connection:
        connection.execute(text("DELETE FROM ternmq_outbox WHERE topic = :topic"), {"topic": DEADLINES})
    Courier(shop).deliver()

    assert "1 open orders" == books.unfinished(shop.engine)
    found = str(books.audit(shop.engine))
    assert "order lost (placed): not in a final state" in found
    assert "stock of book: 9 free, 1 reserved" in found


def test_a_cent_and_a_parcel_are_noticed(shop: Shop) -> None:
    """Whatever the reason."""
    ordinary_day(shop, Courier(shop))
    with Session(shop.engine) as session, session.begin():
        session.get_one(Account, "shop").cents += 1
        session.execute(delete(Parcel))

    assert (
        "order shipped (shipped): shipped without a parcel",
        "the account has 39.99, and shipped orders cost 39.98",
    ) == books.audit(shop.engine).faults
