"""Orders: placed, then paid or cancelled. Each change and its messages are one transaction (outbox)."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from shop import stock
from shop.schema import DEADLINES, PARCELS, PAY_WITHIN, STEPS, Item, Order, Shop, State, locked
from ternmq import Message, ReceivedMessage


def place(shop: Shop, order_id: str, *, item: str, quantity: int, partner: str) -> Order:
    """Take an order. Raises ``OutOfStock``; then there is no order, and no message."""
    with Session(shop.engine, expire_on_commit=False) as session, session.begin():
        cents = session.get_one(Item, item).cents * quantity
        order = Order(id=order_id, item=item, quantity=quantity, cents=cents, partner=partner, steps=0)
        session.add(order)
        tell(shop, session, order, State.PLACED)
        shop.outbox.send(session, Message(DEADLINES, order_id.encode(), keys=order_id, delay=PAY_WITHIN))
        # Last, because every order of this item waits for the row: it is locked for a moment only.
        stock.reserve(session, order)
    return order


def pay(shop: Shop, session: Session, order: Order) -> None:
    """The money is there: the order goes to the partner."""
    order.state = State.PAID
    tell(shop, session, order, State.PAID)
    shop.outbox.send(session, Message(PARCELS, order.id.encode(), keys=order.id))


def on_deadline(shop: Shop, message: ReceivedMessage) -> None:
    """Cancel the order if it is not paid. It needs no guard: a second time, the order is not PLACED any more."""
    with Session(shop.engine) as session, session.begin():
        order = locked(session, message.body.decode())
        if order.state == State.PLACED:
            order.state = State.CANCELLED
            stock.release(session, order)
            tell(shop, session, order, State.CANCELLED)


def tell(shop: Shop, session: Session, order: Order, step: str) -> None:
    """Save a message about a step of the order, which is locked or new."""
    order.steps += 1
    body = json.dumps({"order": order.id, "number": order.steps, "step": step})
    key = f"{order.id}-{order.steps}"
    shop.outbox.send(session, Message(STEPS, body.encode(), tags=step, keys=key, sharding_key=order.id))
