"""The open transactions of a broker, as tools see them (J2); a body of TernMQ's own."""

from __future__ import annotations

from ternmq.wire.bodies.codec import Body, always


class OpenTransaction(Body, frozen=True, kw_only=True):
    """One half that is neither committed nor rolled back. Its body is not shown."""

    #: The unique key of the message.
    transaction_id: str = always(str)
    #: Where the message goes when it is committed.
    topic: str = always(str)
    queue_id: int = always(int)
    producer_group: str = always(str)
    #: Of the newest copy of its half.
    queue_offset: int = always(int)
    check_times: int = always(int)
    born_timestamp: int = always(int)
    store_timestamp: int = always(int)


class OpenTransactions(Body, frozen=True, kw_only=True):
    """LIST_TRANSACTIONS 15003."""

    transactions: list[OpenTransaction] = always(list)
    #: Where to ask for more; -1: there are none.
    next_offset: int = always(int)
    #: All that are open.
    open_count: int = always(int)
