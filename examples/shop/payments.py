"""Money: captured by the cashier, booked by the shop, and given back.

The cashier sends *transactions*: the half message first, then the row, then the commit. If it dies in between, the
broker asks the next cashier, and the table ``ternmq_transactions`` knows.
"""

from __future__ import annotations

import json

from sqlalchemy import update
from sqlalchemy.orm import Session

from shop import orders
from shop.schema import CAPTURES, Account, Capture, Order, Refund, Shop, State, locked
from ternmq import Message, ReceivedMessage, SyncProducer


def cashier(shop: Shop) -> SyncProducer:
    return SyncProducer("shop-cashier", name_servers=shop.name_servers, checker=shop.transactions, topics=[CAPTURES])


def capture(shop: Shop, producer: SyncProducer, order_id: str, cents: int) -> None:
    """Take the money, once. The cashier does not know whether the order was cancelled: that is the shop's business."""
    with Session(shop.engine) as session:
        if session.get(Capture, order_id) is not None:
            return  # an earlier attempt was committed, and its caller did not hear of it
    body = json.dumps({"order": order_id, "cents": cents})
    message = Message(CAPTURES, body.encode(), keys=order_id)
    with producer.transaction(message) as tx, Session(shop.engine) as session, session.begin():
        session.add(Capture(order_id=order_id, cents=cents))
        session.execute(shop.transactions.insert(tx))


def on_captured(shop: Shop, message: ReceivedMessage, session: Session) -> None:
    """Book the money, exactly once. Too late for a cancelled order, so it is given back."""
    captured = json.loads(message.body)
    order = locked(session, captured["order"])
    _book(session, captured["cents"])
    if order.state == State.PLACED:
        orders.pay(shop, session, order)
    else:
        refund(shop, session, order)


def refund(shop: Shop, session: Session, order: Order) -> None:
    session.add(Refund(order_id=order.id, cents=order.cents))
    _book(session, -order.cents)
    orders.tell(shop, session, order, State.REFUNDED)


def _book(session: Session, cents: int) -> None:
    # Twice would not be the same as once: this is what the guard is for.
    session.execute(update(Account).where(Account.name == "shop").values(cents=Account.cents + cents))
