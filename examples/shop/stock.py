"""Pieces of an item, from free to reserved to sold. Each function is one UPDATE, which the database makes safe."""

from __future__ import annotations

from sqlalchemy import CursorResult, update
from sqlalchemy.orm import Session

from shop.schema import Item, Order


class OutOfStock(Exception):
    """There are not enough free pieces."""


def reserve(session: Session, order: Order) -> None:
    """Raises ``OutOfStock``."""
    enough = update(Item).where(Item.name == order.item, Item.free >= order.quantity)
    moved = session.execute(enough.values(free=Item.free - order.quantity, reserved=Item.reserved + order.quantity))
    assert isinstance(moved, CursorResult)
    if not moved.rowcount:
        raise OutOfStock(order.item)


def release(session: Session, order: Order) -> None:
    change = update(Item).where(Item.name == order.item)
    session.execute(change.values(free=Item.free + order.quantity, reserved=Item.reserved - order.quantity))


def sell(session: Session, order: Order) -> None:
    change = update(Item).where(Item.name == order.item)
    session.execute(change.values(reserved=Item.reserved - order.quantity, sold=Item.sold + order.quantity))
