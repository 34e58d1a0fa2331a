"""The synchronous version of ``Transaction``."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from ternmq.client.blocking.loop_thread import LoopThread
from ternmq.client.send.transaction import Transaction
from ternmq.message import Message, SendReceipt


class SyncTransaction:
    """A message that is delivered if and only if it is committed; made by ``SyncProducer.transaction``.

    ::

        with producer.transaction(Message("orders", b"paid")) as tx:
            database.pay(order, transaction_id=tx.id)

    The end of the block commits. An exception rolls back, and is raised as it is. When the program is interrupted or
    dies, the producer's checker decides.

    Commit the local work last in the block. When an exception follows it, the message is rolled back nevertheless.
    """

    def __init__(self, transaction: Transaction, thread: LoopThread) -> None:
        self._async = transaction
        self._thread = thread

    def __repr__(self) -> str:
        return f"<Sync{repr(self._async)[1:]}"

    @property
    def message(self) -> Message:
        """The message."""
        return self._async.message

    @property
    def id(self) -> str:
        """The id of the transaction, which is the ``message_id`` of its message. Note it with the local work."""
        return self._async.id

    @property
    def receipt(self) -> SendReceipt:
        """The broker's receipt for the first part. Its offsets are not those of the message that consumers get."""
        return self._async.receipt

    def __enter__(self) -> Self:
        self._thread.run(self._async.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.run(self._async.__aexit__(kind, error, trace))

    def commit(self) -> None:
        """Deliver the message. Raises ``TransactionUncertain`` when the broker cannot be told; ``SystemFailure`` when
        it has given the transaction up before."""
        self._thread.run(self._async.commit())

    def rollback(self) -> None:
        """Drop the message. Raises ``TransactionUncertain`` when the broker cannot be told."""
        self._thread.run(self._async.rollback())
