"""Ends of transactions, 37, and what tools ask about them, 323 and 15003 (J1, J2).

Java's and Go's clients send END_TRANSACTION one-way and learn nothing of a refusal: the next check settles it. Ours
waits for the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import Final

from ternmq.broker.flow import ADMIN, SEND
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.transactions import TransactionService
from ternmq.errors import InvalidName, InvalidParameter, SystemFailure
from ternmq.message import Outcome
from ternmq.net.gate import Action, Rule, check_send
from ternmq.net.peer import Peer, Route
from ternmq.net.runs import RunHandler
from ternmq.transaction.transactions import Ending
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.transactions import OpenTransaction, OpenTransactions
from ternmq.wire.codes import FLAG_ONEWAY, JSON, RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import EndTransaction
from ternmq.wire.requests_admin import ListTransactions, ResumeCheck
from ternmq.wire.template import ReplyTemplate

_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}
#: The answer to a transaction that was ended.
ENDED: Final = ReplyTemplate({}, {})


class TransactionHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, transactions: TransactionService, intake: Intake, runs: RunHandler) -> None:
        """``runs`` takes ends of transactions together with sends."""
        self._transactions = transactions
        self._end = transactions.end
        self._intake = intake
        self._runs = runs

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.END_TRANSACTION: Route(
                self.end, SEND, Rule(Action.PUB, topic="topic"), takes_body=False, runs=self._runs
            ),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: Route(
                # The half is found by its id: the topic that the request names proves nothing.
                self.resume,
                ADMIN,
                Rule(Action.ADMIN),
                takes_body=False,
            ),
            RequestCode.LIST_TRANSACTIONS: Route(self.listed, ADMIN, Rule(Action.ADMIN), takes_body=False),
        }

    def end(self, peer: Peer, request: Request[EndTransaction]) -> Reply | bytes | Awaitable[Reply | None] | None:
        """Commit or roll back; the answer follows when the disk has it, if the broker waits for it."""
        header = request.fields
        outcome = _OUTCOMES.get(header.decision)
        if outcome is None:
            raise InvalidParameter(
                f"invalid commitOrRollback {header.decision}: expected 8 (commit), 12 (rollback) or 0"
            )
        if outcome is Outcome.UNKNOWN:
            # Nothing to do: it is checked again.
            return Reply()
        ended = self._end(
            Ending(
                header.producer_group,
                outcome,
                header.log_offset,
                header.queue_offset,
                header.transaction_id or "",
            ),
            # The half is found by its place: the topic that the request names may be another one, or none.
            partial(check_send, peer.access) if peer.access is not None else None,
        )
        return (
            self._answer(peer, request, ended) if isinstance(ended, int) else self._answer_later(peer, request, ended)
        )

    async def _answer_later(self, peer: Peer, request: Request[EndTransaction], ended: Awaitable[int]) -> Reply | None:
        reply = self._answer(peer, request, await ended)
        if reply is not None:
            peer.reply(request, reply)
        return None

    def _answer(self, peer: Peer, request: Request[EndTransaction], end_offset: int) -> Reply | bytes | None:
        if request.flag & FLAG_ONEWAY:
            return None
        if end_offset and self._intake.safety.is_awaited:
            self._intake.when_safe(end_offset, lambda code: peer.reply(request, Reply(code)))
            return None
        return ENDED.fill((request.opaque,)) if request.serial == JSON else Reply()

    async def resume(self, _peer: Peer, request: Request[ResumeCheck]) -> Reply:
        """Check a discarded half again, from the first time on."""
        message_id = request.fields.message_id
        try:
            _, _, log_offset = parse_offset_id(message_id)
        except InvalidName as error:
            raise SystemFailure(str(error)) from None
        await self._transactions.resume(log_offset, message_id)
        return Reply()

    async def listed(self, _peer: Peer, request: Request[ListTransactions]) -> Reply:
        """Open transactions, without their bodies."""
        header = request.fields
        listed = await self._transactions.listed(header.queue_offset, header.count_max)
        return Reply(
            body=encode(
                OpenTransactions(
                    transactions=[
                        OpenTransaction(
                            transaction_id=half.unique_key,
                            topic=half.topic,
                            queue_id=half.queue_id,
                            producer_group=half.group,
                            queue_offset=half.queue_offset,
                            check_times=half.checks,
                            born_timestamp=half.born_time_ms,
                            store_timestamp=half.store_time_ms,
                        )
                        for half in listed.halves
                    ],
                    next_offset=listed.next_offset,
                    open_count=listed.open_count,
                )
            )
        )
