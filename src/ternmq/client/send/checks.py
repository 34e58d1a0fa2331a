"""Answers to brokers that ask how a transaction ended (CHECK_TRANSACTION_STATE 39; J2).

A broker asks any connected member of the producer group, so the answer must not rest on what one process knows: the
checker looks into the database in which all of them work. One thing this process does know: a transaction whose block
is still running here has not ended. For that one the checker is not asked, the answer is UNKNOWN.

Each client instance has one ``CheckDesk``; brokers ask a client, and the half names the group. A check costs a task,
and a plain function a thread of a small pool. ``PENDING_MAX`` checks may wait, with messages of
``PENDING_BYTES_MAX``; one more is dropped, and the broker asks again.

A checker that raises, returns something else, or takes longer than ``check_timeout_ms`` has said UNKNOWN.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ternmq.client.connect.namespace import unwrap
from ternmq.client.consume.decode import Inflater
from ternmq.client.send.hooks import EndContext, SendHook, run_after_end
from ternmq.errors import ConfigError, CorruptRecord, NetworkError, TooManyCalls
from ternmq.message import Outcome, Property, ReceivedMessage
from ternmq.tasks import Tasks, contained
from ternmq.wire import properties as props
from ternmq.wire.codes import RequestCode
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import CheckTransaction, EndTransaction
from ternmq.wire.stored import StoredMessage

if TYPE_CHECKING:
    from ternmq.net.peer import Peer
    from ternmq.wire.header import Request

log = logging.getLogger(__name__)

#: Says how the transaction of a message ended; ``message.message_id`` is the transaction's id. A plain function runs in
#: a thread.
Checker: TypeAlias = Callable[[ReceivedMessage], Outcome | Awaitable[Outcome]]

#: Checks of one producer that may wait or run, and the bytes of their messages.
PENDING_MAX: Final = 1_000
PENDING_BYTES_MAX: Final = 64 << 20
#: Checkers that run at once.
RUNNING_MAX: Final = 4


class CheckDesk:
    """Passes checks on to the producers of a client, by group on the wire."""

    def __init__(self, inflater: Inflater) -> None:
        self._by_group: dict[str, list[Checks]] = {}
        self._inflater = inflater

    def add(self, group: str, checks: Checks) -> None:
        self._by_group.setdefault(group, []).append(checks)

    def remove(self, group: str, checks: Checks) -> None:
        members = self._by_group[group]
        members.remove(checks)
        if not members:
            del self._by_group[group]

    def asked(self, peer: Peer, request: Request[CheckTransaction]) -> None:
        """CHECK_TRANSACTION_STATE 39, one-way."""
        try:
            record = unpack_record(request.body)
        except CorruptRecord as error:
            log.warning("%s asked about a transaction that cannot be read: %s", peer.address, error)
            return
        group = props.find(record.properties, Property.PRODUCER_GROUP) or ""
        members = self._by_group.get(group)
        if not members:
            log.info("%s asked about a transaction of group %s, which has no checker here", peer.address, group)
            return
        header, broker_name = request.fields, request.fields.broker_name or ""
        answer = partial(self._answer, peer, header, group)
        # Any of them may answer; one in whose process the transaction still runs says so.
        transaction_id = header.transaction_id or header.message_id or ""
        checks = next((one for one in members if transaction_id in one.running), members[-1])
        # A copy: the check may wait longer than the bytes that were read.
        body = bytes(request.body)
        checks.check(partial(self._message, body, broker_name), transaction_id, answer, size_bytes=len(body))

    async def _message(self, body: bytes, broker_name: str) -> ReceivedMessage:
        message = StoredMessage.of(unpack_record(body), broker_name)
        await self._inflater.messages([message])
        return message

    def _answer(self, peer: Peer, header: CheckTransaction, group: str, outcome: Outcome) -> None:
        ending = EndTransaction(
            producer_group=group,
            queue_offset=header.queue_offset,
            log_offset=header.log_offset,
            decision=int(outcome),
            from_check=True,
            message_id=header.message_id or "",
            transaction_id=header.transaction_id,
            topic=header.topic,
        )
        try:
            peer.call_oneway(RequestCode.END_TRANSACTION, ending)
        except (NetworkError, TooManyCalls) as error:
            log.info("cannot answer a check of transaction %s: %s; the broker will ask again", header.message_id, error)


class Checks:
    """The checks of one producer. All methods belong to the loop's thread."""

    def __init__(
        self,
        checker: Checker,
        tasks: Tasks,
        *,
        group: str,
        namespace: str,
        timeout_ms: int,
        hooks: Sequence[SendHook] = (),
    ) -> None:
        check_checker(checker)
        self._checker = checker
        self._tasks = tasks
        self._group = group
        self._hooks = hooks
        self._namespace = namespace
        self._timeout_s = timeout_ms / 1000
        self._is_async = inspect.iscoroutinefunction(checker) or inspect.iscoroutinefunction(
            getattr(checker, "__call__", None)  # noqa: B004 - the method, not whether there is one
        )
        self._pool: ThreadPoolExecutor | None = None
        self._pending = self._pending_bytes = 0
        self._slots = asyncio.Semaphore(RUNNING_MAX)
        #: Ids of transactions whose block is running.
        self.running: set[str] = set()

    def began(self, transaction_id: str) -> None:
        self.running.add(transaction_id)

    def ended(self, transaction_id: str) -> None:
        self.running.discard(transaction_id)

    def check(
        self,
        read: Callable[[], Awaitable[ReceivedMessage]],
        transaction_id: str,
        answer: Callable[[Outcome], None],
        *,
        size_bytes: int = 0,
    ) -> None:
        """Have the checker decide, and answer; ``size_bytes`` is what ``read`` keeps in memory."""
        if transaction_id in self.running:
            answer(Outcome.UNKNOWN)
        elif self._pending >= PENDING_MAX or (self._pending and self._pending_bytes + size_bytes > PENDING_BYTES_MAX):
            log.warning(
                "the checker of group %s is too slow: a check of transaction %s is dropped; the broker will ask again",
                self._group,
                transaction_id,
            )
        else:
            self._pending += 1
            self._pending_bytes += size_bytes
            self._tasks.create_task(self._check(read, answer, size_bytes))

    async def _check(
        self, read: Callable[[], Awaitable[ReceivedMessage]], answer: Callable[[Outcome], None], size_bytes: int
    ) -> None:
        try:
            async with self._slots:
                message = await read()
                message.topic = unwrap(self._namespace, message.topic)
                outcome = await self._outcome(message)
                if message.message_id in self.running:
                    outcome = Outcome.UNKNOWN
        finally:
            self._pending -= 1
            self._pending_bytes -= size_bytes
        answer(outcome)
        if self._hooks:
            message_id, address = message.message_id, message.store_host
            id_ = message.properties.get(Property.TRANSACTION_ID) or message_id
            run_after_end(self._hooks, EndContext(self._group, message, message_id, id_, address, outcome, True))

    async def _outcome(self, message: ReceivedMessage) -> Outcome:
        outcome: Any
        try:
            async with asyncio.timeout(self._timeout_s):
                if self._is_async:
                    outcome = self._checker(message)
                else:
                    if self._pool is None:
                        self._pool = ThreadPoolExecutor(RUNNING_MAX, thread_name_prefix=f"checker-{self._group}")
                    check = contained(self._checker)
                    outcome = await asyncio.get_running_loop().run_in_executor(self._pool, check, message)
                if inspect.isawaitable(outcome):
                    outcome = await outcome
        except TimeoutError:
            log.warning(
                "the checker of group %s did not answer within %d s for transaction %s; the broker will ask again",
                self._group,
                self._timeout_s,
                message.message_id,
            )
            return Outcome.UNKNOWN
        except Exception:
            # The application's; whatever it is, the transaction stays open.
            log.exception(
                "the checker of group %s failed for transaction %s; the broker will ask again",
                self._group,
                message.message_id,
            )
            return Outcome.UNKNOWN
        if not isinstance(outcome, Outcome):
            log.error(
                "the checker of group %s returned %r for transaction %s; expected Outcome.COMMIT, ROLLBACK or UNKNOWN",
                self._group,
                outcome,
                message.message_id,
            )
            return Outcome.UNKNOWN
        return outcome

    def close(self) -> None:
        """No check is answered any more; threads that run end by themselves."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def check_checker(checker: object) -> None:
    """Raise ``ConfigError`` for what cannot be called with a message.

    It would fail for the first time when a broker asks, and the transaction would be discarded in the end.
    """
    if not callable(checker) or not _takes_one(checker):
        raise ConfigError(
            f"invalid checker {checker!r}: expected a function that takes a message and returns an Outcome"
        )


def _takes_one(function: Callable[..., object]) -> bool:
    """Whether a function can be called with one argument, as far as it tells."""
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):
        # Some of those that are written in C do not.
        return True
    try:
        parameters.bind(None)
    except TypeError:
        return False
    return True
