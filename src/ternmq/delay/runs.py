"""Sends with a delivery time of one read, stored together (I2, E1), where compiled kernels are used.

A kernel packs them as records of the timer topic, as ``Timer.redirect`` and ``RecordWriter.put`` would leave them, and
makes their replies with recall handles. It stops at the first message that is not plain: without a time, with one that
is past or beyond the limit, or with a property about which ``Timer`` has to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ternmq import names
from ternmq.kernels import native
from ternmq.store.log.run import PackedRun, PackingRoom

if TYPE_CHECKING:
    from ternmq._native import ReplyForm, Sends, SendTerms
    from ternmq.store.log.run import RunPacker


class TimedRun(NamedTuple):
    """What became of a run."""

    #: Number of the first send that is not stored.
    next: int
    #: Of all that are stored: their own topic, how many, and the bytes of their bodies.
    sent: list[tuple[str, int, int]]
    #: As frames.
    replies: bytes


class TimedRuns:
    """Belongs to the broker's loop."""

    def __init__(self, put: Callable[[RunPacker], bool], *, broker_name: str, max_delay_ms: int) -> None:
        """``put`` is that of the store (``RunWriter.put_packed``)."""
        self._put = put
        self._broker_name = broker_name
        self._max_delay_ms = max_delay_ms

    def store(
        self,
        sends: Sends,
        first: int,
        is_plain: Callable[[str, int], bool],
        *,
        terms: SendTerms,
        form: ReplyForm,
        born_host: bytes,
    ) -> TimedRun | None:
        """Store sends from number ``first`` on, up to one that is not plain or has no time; None if that is the first.

        ``is_plain`` tells whether sends can go to a queue without further questions.
        """
        places = sends.places
        may_wait = [
            is_plain(*place) and not names.is_internal_topic(place[0]) and not names.is_derived_topic(place[0])
            for place in places
        ]
        if not any(may_wait):
            return None
        run: TimedRun | None = None

        def pack(room: PackingRoom) -> PackedRun | None:
            nonlocal run
            queue = room.table.get((names.WHEEL_TOPIC, 0))
            # The first message makes the queue. Units beside its entries are made of facts.
            if queue is None or queue.ext is not None:
                return None
            made = native.store_timed_sends(
                sends,
                terms,
                form,
                first,
                room.page,
                room.at,
                room.end,
                log_offset=room.log_offset,
                store_time_ms=room.store_time_ms,
                max_delay_ms=self._max_delay_ms,
                born_host=born_host,
                broker_name=self._broker_name,
                may_wait=may_wait,
                queue_offset=queue.next_offset,
                topic_field=queue.topic_part,
            )
            if made is None:
                return None
            number, end_offset, last_offset, added, sent, keys, replies = made
            run = TimedRun(number, [(places[place][0], count, size) for place, count, size in sent], replies)
            return PackedRun(end_offset, last_offset, [(queue, *added)], keys)

        return run if self._put(pack) else None
