"""A transaction as an application sees it (J1): a message that is delivered if and only if local work was committed.

::

    async with producer.transaction(Message("orders", b"paid")) as tx:   the broker has the message; no consumer sees it
        …                                                                local work, which notes ``tx.id``
                                                                         the end of the block: commit, or roll back

What ends how:

    the block ends                          commit
    ``Exception``                           roll back
    cancelled, interrupted, ``SystemExit``  nothing is said: whether the local work was committed is not known here, and
                                            the checker decides
    ``tx.commit()``, ``tx.rollback()``      as said, once; the end of the block adds nothing

A commit that cannot be delivered raises ``TransactionUncertain``: the broker will ask a checker. It is not tried again
here, except where nothing can have been sent: RocketMQ stores the message for each commit that it gets.

The first part, the *half*, is tried on other brokers after failures, as any send; but each attempt is a transaction
with an id of its own. The answer of one may have been lost, so its half may exist: no local work knows its id, and the
checker rolls it back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.hooks import EndContext, run_after_end
from ternmq.client.send.ongoing import Pick
from ternmq.client.send.outgoing import Outgoing
from ternmq.client.send.sender import Sender
from ternmq.errors import (
    BrokerRefused,
    CallTimeout,
    NetworkError,
    NotRunning,
    SendFailed,
    ServiceNotAvailable,
    SystemBusy,
    TernError,
    TooManyCalls,
    TransactionUncertain,
    refused,
)
from ternmq.message import Message, MessageQueue, Outcome, Property, SendReceipt, SendStatus
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import EndTransaction

if TYPE_CHECKING:
    from ternmq.client.send.checks import Checks

log = logging.getLogger(__name__)

#: Answers to a commit that mean «stored».
_STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
    }
)


class Transaction:
    """A message that is delivered if and only if it is committed; made by ``Producer.transaction``.

    ::

        async with producer.transaction(Message("orders", b"paid")) as tx:
            await database.pay(order, transaction_id=tx.id)

    The end of the block commits. An exception rolls back, and is raised as it is. When the block is cancelled, or the
    program interrupted, the producer's checker decides, and so it does when the program dies.

    Commit the local work last in the block. When an exception follows it, the message is rolled back nevertheless.
    """

    def __init__(
        self,
        message: Message,
        *,
        sender: Sender,
        group: str,
        checks: Checks,
        prepare: Callable[[], Outgoing],
        pick: Pick | None,
        timeout_ms: int,
    ) -> None:
        self.message = message
        self._sender = sender
        self._group = group
        self._checks = checks
        self._prepare = prepare
        self._pick = pick
        self._timeout_ms = timeout_ms
        self._receipt: SendReceipt | None = None
        self._outcome: Outcome | None = None

    def __repr__(self) -> str:
        state = self._outcome.name if self._outcome is not None else "OPEN" if self._receipt is not None else "NEW"
        return f"<Transaction {self._receipt.message_id if self._receipt else '-'} {state}>"

    @property
    def id(self) -> str:
        """The id of the transaction, which is the ``message_id`` of its message. Note it with the local work."""
        return self.receipt.message_id

    @property
    def receipt(self) -> SendReceipt:
        """The broker's receipt for the first part. Its offsets are not those of the message that consumers get."""
        if self._receipt is None:
            raise NotRunning("this transaction has not begun; use `async with producer.transaction(…) as tx`")
        return self._receipt

    async def __aenter__(self) -> Self:
        if self._receipt is not None:
            raise NotRunning("a transaction can begin only once; make another one with `producer.transaction(…)`")
        self._receipt = receipt = await self._begin()
        self._checks.began(receipt.message_id)
        if receipt.status is not SendStatus.OK:
            # A power cut could take the half, and with it the message that the local work relies on.
            self._give_up(Outcome.ROLLBACK)
            raise SendFailed(
                f"the broker has stored the first part of the transaction less safely than it was asked to "
                f"({receipt.status.name}); it is rolled back, begin another one"
            )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._outcome is not None:
            return
        if error is None:
            await self.commit()
        elif isinstance(error, Exception):
            try:
                await self.rollback()
            except TernError as failure:
                log.warning("%s", failure)
        else:
            # Cancelled in the middle of a commit of the local work, say.
            self._forget(Outcome.UNKNOWN)

    async def commit(self) -> None:
        """Deliver the message. Raises ``TransactionUncertain`` when the broker cannot be told; ``SystemFailure`` when
        it has given the transaction up before."""
        await self._end(Outcome.COMMIT)

    async def rollback(self) -> None:
        """Drop the message. Raises ``TransactionUncertain`` when the broker cannot be told."""
        await self._end(Outcome.ROLLBACK)

    # --- Begin ------------------------------------------------------------------------------------------------------

    async def _begin(self) -> SendReceipt:
        """Send the half. Each attempt has an id of its own."""
        sender, attempts = self._sender, self._sender.config.retries + 1
        tried: list[str] = []
        failures: list[BaseException] = []
        deadline = sender.now() + self._timeout_ms / 1000

        def pick(route: TopicRoute) -> MessageQueue:
            queue = self._pick(route) if self._pick is not None else sender.choose(route, avoid=tuple(tried))
            tried.append(queue.broker_name)
            return queue

        while True:
            left_ms = max(1, int((deadline - sender.now()) * 1000))
            try:
                return await sender.deliver(self._prepare(), pick=pick, timeout_ms=left_ms)
            except (NetworkError, TooManyCalls, BrokerRefused) as error:
                failures.append(error)
                may_help = not isinstance(error, BrokerRefused) or error.code in sender.config.retry_codes
                if may_help and self._pick is None and sender.now() < deadline and len(failures) < attempts:
                    continue
                if len(failures) == 1:
                    raise
                told = "; ".join(dict.fromkeys(map(str, failures)))
                topic = self.message.topic
                raise SendFailed(
                    f"{len(failures)} attempts to begin a transaction for topic {topic!r} failed: {told}",
                    attempts=tuple(failures),
                ) from error

    # --- End --------------------------------------------------------------------------------------------------------

    async def _end(self, outcome: Outcome) -> None:
        receipt = self.receipt
        if self._outcome is not None:
            raise NotRunning(f"the transaction {receipt.message_id} has ended ({self._outcome.name})")
        self._forget(outcome)
        instance = self._sender.instance
        try:
            address = instance.broker_address(receipt.queue.broker_name)
            await _connected(instance, address, self._timeout_ms)
            self._tell_hooks(address, outcome)
            response = await instance.call(
                address, RequestCode.END_TRANSACTION, self._header(outcome), timeout_ms=self._timeout_ms
            )
        except (NetworkError, TooManyCalls, NotRunning) as error:
            raise self._uncertain(outcome, error) from error
        if response.code in _STORED:
            return
        failure = refused(
            response.code,
            f"{receipt.queue.broker_name} refused to {_VERBS[outcome]} the transaction: {response.remark}",
            broker=receipt.queue.broker_name,
        )
        if isinstance(failure, SystemBusy | ServiceNotAvailable):
            raise self._uncertain(outcome, failure) from failure
        raise failure

    def _give_up(self, outcome: Outcome) -> None:
        """Say how it ended without waiting for an answer, if there is a connection."""
        self._forget(outcome)
        instance = self._sender.instance
        try:
            address = instance.broker_address(self.receipt.queue.broker_name)
            peer = instance.connections.get(address)
            if peer is not None:
                code = RequestCode.END_TRANSACTION
                peer.call_oneway(code, self._header(outcome), form=instance.form_of(code))
                self._tell_hooks(address, outcome)
        except TernError as error:
            log.info("cannot roll back the transaction %s: %s; its checker will be asked", self.id, error)

    def _tell_hooks(self, address: str, outcome: Outcome) -> None:
        if self._sender.hooks:
            id_ = self.receipt.transaction_id or self.id
            run_after_end(self._sender.hooks, EndContext(self._group, self.message, self.id, id_, address, outcome))

    def _header(self, outcome: Outcome) -> EndTransaction:
        receipt = self.receipt
        _, _, log_offset = parse_offset_id(receipt.offset_id)
        return EndTransaction(
            producer_group=self._group,
            queue_offset=receipt.queue_offset,
            log_offset=log_offset,
            decision=int(outcome),
            message_id=receipt.message_id,
            transaction_id=receipt.transaction_id or receipt.message_id,
        )

    def _forget(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._checks.ended(self.receipt.message_id)

    def _uncertain(self, outcome: Outcome, error: TernError) -> TransactionUncertain:
        return TransactionUncertain(
            f"cannot {_VERBS[outcome]} the transaction {self.id} now: {error}; the broker will ask a checker of "
            f"group {self._group!r}, whose answer decides",
            transaction_id=self.id,
        )


_VERBS: Final = {Outcome.COMMIT: "commit", Outcome.ROLLBACK: "roll back", Outcome.UNKNOWN: "end"}


async def _connected(instance: ClientInstance, address: str, timeout_ms: int) -> None:
    """Have a connection. Until then nothing was sent, so one more attempt can do no harm."""
    if instance.connections.get(address) is not None:
        return
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            try:
                await instance.connections.to(address)
            except NetworkError:
                await instance.connections.to(address)
    except TimeoutError as error:
        if isinstance(error, NetworkError):
            raise
        raise CallTimeout(f"cannot connect to {address} within {timeout_ms} ms", address=address) from None


def transaction_properties(group: str, check_after_s: int | None) -> dict[str, str]:
    """What a half has besides the properties of its message."""
    properties = {Property.TRANSACTION: "true", Property.PRODUCER_GROUP: group}
    if check_after_s is not None:
        properties[Property.CHECK_IMMUNITY_TIME] = str(check_after_s)
    return properties
