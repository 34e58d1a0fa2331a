"""The shop with one rule broken, to see that its books notice: ``script/soak shop --broken guard|outbox|order``.

``SHOP_BROKEN`` names the rule:

- ``guard``: messages that come again are worked on again;
- ``outbox``: messages are sent at once, whatever becomes of the transaction;
- ``order``: the steps of an order have no sharding key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from shop import orders, worker
from shop.schema import Shop
from sqlalchemy.orm import Session

from ternmq import Message, SyncProducer
from ternmq.outbox.sqlalchemy import Outbox

RULES = ("guard", "outbox", "order")


def break_rule(shop: Shop) -> None:
    """Break the rule in this process."""
    rule = os.environ["SHOP_BROKEN"]
    if rule == "guard":
        patch.object(worker, "once_in_transaction", unguarded(shop)).start()
    elif rule == "outbox":
        producer = SyncProducer("shop-at-once", name_servers=shop.name_servers).__enter__()
        patch.object(Outbox, "send", lambda _self, _session, message: producer.send(message)).start()
    else:
        patch.object(orders, "Message", unordered).start()


def unguarded(shop: Shop) -> Callable[..., Any]:
    """Instead of ``once_in_transaction``: a transaction, and no key."""

    def decorator(_keys: object, **_options: object) -> Callable[..., Any]:
        def decorate(listener: Callable[..., Any]) -> Callable[..., Any]:
            def call(message: object, _context: object) -> None:
                with Session(shop.engine) as session, session.begin():
                    listener(message, session)

            return call

        return decorate

    return decorator


def unordered(*args: Any, sharding_key: str = "", **options: Any) -> Message:
    """A message without the sharding key that it should have."""
    return Message(*args, **options)
