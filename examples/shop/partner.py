"""Partners that ship. One of them refuses everything, for ever: only its own orders are compensated.

Two failures that must not be confused: ``Refused`` is an answer, and after some attempts the order is given up.
``NoAnswer`` is none: perhaps there is a parcel. So it is asked again with the same id, and never given up by a program:
after 16 retries the message would be a dead letter, and a person must ask the partner.
"""

from __future__ import annotations

from random import Random

from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from shop import orders, payments, stock
from shop.schema import Parcel, Shop, State, locked
from ternmq import ReceivedMessage

GOOD, CLOSED = "good-post", "closed-post"
#: Times that a refused order is tried.
ATTEMPTS = 3


class Refused(Exception):
    """The partner does not ship this."""


class NoAnswer(Exception):
    """It is not known whether the partner ships this."""


def ship(shop: Shop, chance: Random, order_id: str, partner: str) -> None:
    """The call to the other company, in no transaction of ours. The id of the order is its idempotency key."""
    if partner == CLOSED:
        raise Refused(f"{partner} is closed")
    again = {"requests": Parcel.requests + 1}
    with shop.engine.begin() as theirs:
        theirs.execute(
            insert(Parcel)
            .values(order_id=order_id, partner=partner)
            .on_conflict_do_update(index_elements=[Parcel.order_id], set_=again)
        )
    if chance.random() < 0.1:
        raise NoAnswer(f"{partner} took too long")


def on_parcel(shop: Shop, chance: Random, message: ReceivedMessage, session: Session) -> None:
    """Have an order shipped, or give it up: money and stock go back."""
    order = locked(session, message.body.decode())
    try:
        ship(shop, chance, order.id, order.partner)
    except Refused:
        if message.reconsume_times < ATTEMPTS - 1:
            raise
        order.state = State.REFUNDED
        stock.release(session, order)
        payments.refund(shop, session, order)
        return
    order.state = State.SHIPPED
    stock.sell(session, order)
    orders.tell(shop, session, order, State.SHIPPED)
