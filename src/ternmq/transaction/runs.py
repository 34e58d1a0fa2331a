"""Halves and commits of one read, stored together (J1, E1), where compiled kernels are used.

A producer writes the commit of one transaction together with the half of its next one, so they come in turns. One
kernel packs both, in their order: halves as ``half.redirect`` and ``RecordWriter.put`` would leave them, and messages
as ``Transactions.end`` would store them. It stops at the first request that is not plain: no transaction, a rollback, a
half that is closed, in doubt, a copy, large, of another group or in an earlier segment, or a property about which
others decide. The op records follow at the end of the turn, as always.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ternmq import names
from ternmq.kernels import native
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.log.run import PackedRun, PackingRoom, RunPart
from ternmq.transaction.half import QUEUE_ID
from ternmq.transaction.transactions import Transactions

if TYPE_CHECKING:
    from ternmq._native import ReplyForm, Sends, SendTerms
    from ternmq.store.log.run import RunPacker


class TransactionTerms(NamedTuple):
    """What all runs share."""

    half: SendTerms
    commit: SendTerms


class TransactionForms(NamedTuple):
    """What the replies are made of: to a half, and to a commit what stands before and behind its opaque."""

    half: ReplyForm
    commit: tuple[bytes, bytes]


class TransactionRun(NamedTuple):
    """What became of a run."""

    #: Number of the first request that is not carried out.
    next: int
    #: Of all halves that are stored: the topic of their messages, how many, and the bytes of their bodies.
    sent: list[tuple[str, int, int]]
    #: As frames.
    replies: bytes


class TransactionRuns:
    """Belongs to the broker's loop."""

    def __init__(self, put: Callable[[RunPacker], bool], *, memory_bytes: int) -> None:
        """``put`` is that of the store (``RunWriter.put_packed``). Records further back than ``memory_bytes`` are not
        read."""
        self._put = put
        self._memory_bytes = memory_bytes

    def store(
        self,
        sends: Sends,
        first: int,
        may_begin: Callable[[str, int], bool],
        transactions: Transactions,
        *,
        terms: TransactionTerms,
        forms: TransactionForms,
        born_host: bytes,
    ) -> TransactionRun | None:
        """Carry out requests from number ``first`` on, up to one that is not plain; None if that is the first.

        ``may_begin`` tells whether messages for a queue can become halves without further questions.
        """
        places = sends.places
        open_halves = transactions.open_for_run()
        run: TransactionRun | None = None
        closed: list[int] = []

        def pack(room: PackingRoom) -> PackedRun | None:
            nonlocal run, closed
            half_queue = room.table.get((names.HALF_TOPIC, QUEUE_ID))
            # The first half makes the queue.
            if half_queue is None or half_queue.is_special:
                return None
            targets: list[ConsumeQueue | None] = []

            def target(topic: str, queue_id: int) -> tuple[int, bytes] | None:
                queue = room.table.get((topic, queue_id))
                if queue is not None and (queue.is_special or names.is_internal_topic(topic)):
                    queue = None
                targets.append(queue)
                return None if queue is None else (queue.next_offset, queue.topic_part)

            made = native.store_transactions(
                sends,
                terms.half,
                terms.commit,
                forms.half,
                forms.commit,
                first,
                room.page,
                room.at,
                room.end,
                log_offset=room.log_offset,
                from_offset=room.log_offset - self._memory_bytes,
                store_time_ms=room.store_time_ms,
                born_host=born_host,
                group_bytes_max=names.SERVED_GROUP_LENGTH_MAX,
                may_begin=[may_begin(*place) for place in places],
                open_halves=open_halves,
                in_doubt=transactions.in_doubt,
                queue_offset=half_queue.next_offset,
                topic_field=half_queue.topic_part,
                target=target,
            )
            if made is None:
                return None
            number, end_offset, last_offset, halves, sent, messages, closed, keys, replies = made
            run = TransactionRun(number, [(places[place][0], count, size) for place, count, size in sent], replies)
            parts: list[RunPart] = [(half_queue, *halves)] if halves is not None else []
            parts += [(targets[place], *rest) for place, *rest in messages]  # type: ignore[misc]  # it has entries
            return PackedRun(end_offset, last_offset, parts, keys)

        try:
            if not self._put(pack):
                return None
        except Exception:
            transactions.in_doubt.update(closed)
            raise
        if closed:
            transactions.committed(closed)
        return run
