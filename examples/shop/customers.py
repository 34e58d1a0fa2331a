"""A process that serves customers: they place orders, and most of them pay, sooner or later.

    python -m shop.customers DATABASE NAME_SERVERS SEED

When the door is closed, it takes no more orders. It stays: brokers ask it about payments that were cut off.
"""

from __future__ import annotations

import heapq
import sys
import time
from random import Random

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from shop import orders, partner, payments
from shop.schema import PAY_WITHIN, Door, Item, Shop
from shop.stock import OutOfStock
from ternmq import SyncProducer
from ternmq.errors import TernError


class Customers:
    def __init__(self, shop: Shop, cashier: SyncProducer, seed: str) -> None:
        self._shop = shop
        self._cashier = cashier
        self._chance = Random(seed)
        self._seed = seed
        self._count = 0
        #: Payments to come: time, order, cents. They are lost with the process: those orders are cancelled.
        self._paying: list[tuple[float, str, int]] = []

    def serve(self) -> None:
        """One order, and the payments that are due."""
        with Session(self._shop.engine) as session:
            is_open = session.scalars(select(Door.is_open)).one()
            items = sorted(session.scalars(select(Item.name)))
        if is_open:
            self._order(items)
        while self._paying and self._paying[0][0] <= time.monotonic():
            _, order_id, cents = self._paying[0]
            payments.capture(self._shop, self._cashier, order_id, cents)
            heapq.heappop(self._paying)

    def _order(self, items: list[str]) -> None:
        self._count += 1
        chance = self._chance
        try:
            order = orders.place(
                self._shop,
                f"{self._seed}-{self._count}",
                item=chance.choice(items),
                quantity=chance.randint(1, 3),
                partner=partner.CLOSED if chance.random() < 0.15 else partner.GOOD,
            )
        except OutOfStock:
            return
        if chance.random() < 0.75:
            # Some pay in the moment in which the order is cancelled.
            after_s = chance.choice((0.0, 0.5, PAY_WITHIN.total_seconds(), PAY_WITHIN.total_seconds() + 1))
            heapq.heappush(self._paying, (time.monotonic() + after_s, order.id, order.cents))


def main(database: str, name_servers: str, seed: str) -> None:
    shop = Shop.at(database, name_servers)
    with shop.outbox, payments.cashier(shop) as cashier:
        customers = Customers(shop, cashier, seed)
        while True:
            try:
                customers.serve()
            except (SQLAlchemyError, TernError) as error:
                # A database or a broker is away. Payments are tried again; an order that was cut off may exist or not,
                # and if it does, it is cancelled after its time.
                print(f"{type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
                time.sleep(0.2)
            time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
