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
from ternmq.net.gate import Action, Rule, check_half
from ternmq.net.peer import Peer, Route
from ternmq.transaction.transactions import Ending
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.transactions import OpenTransaction, OpenTransactions
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import EndTransaction
from ternmq.wire.requests_admin import ListTransactions, ResumeCheck

_OUTCOMES: Final = {int(outcome): outcome for outcome in Outcome}


class TransactionHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, transactions: TransactionService, intake: Intake) -> None:
        self._transactions = transactions
        self._intake = intake

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.END_TRANSACTION: Route(self.end, SEND, Rule(Action.PUB, topic="topic"), takes_body=False),
            RequestCode.RESUME_CHECK_HALF_MESSAGE: Route(
                self.resume, ADMIN, Rule(Action.ADMIN, topic="topic"), takes_body=False
            ),
            RequestCode.LIST_TRANSACTIONS: Route(self.listed, ADMIN, Rule(Action.ADMIN), takes_body=False),
        }

    def end(self, peer: Peer, request: Request[EndTransaction]) -> Reply | Awaitable[Reply | None] | None:
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
        ended = self._transactions.end(
            Ending(
                group=header.producer_group,
                outcome=outcome,
                log_offset=header.log_offset,
                queue_offset=header.queue_offset,
                transaction_id=header.transaction_id or "",
                # A request names any topic, or none (RocketMQ 4): what counts is that of the half.
                check_topic=partial(check_half, peer.access) if peer.access is not None else None,
            )
        )
        return (
            self._answer(peer, request, ended) if isinstance(ended, int) else self._answer_later(peer, request, ended)
        )

    async def _answer_later(self, peer: Peer, request: Request[EndTransaction], ended: Awaitable[int]) -> Reply | None:
        return self._answer(peer, request, await ended)

    def _answer(self, peer: Peer, request: Request[EndTransaction], end_offset: int) -> Reply | None:
        if not end_offset or not self._intake.safety.is_awaited:
            return Reply()
        self._intake.when_safe(end_offset, lambda code: peer.reply(request, Reply(code)))
        return None

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
