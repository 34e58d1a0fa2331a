"""Taking messages out of queues for a group: what each way (``pop``, ``share``) wants, and needs of the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ternmq.store.read.query import GetResult
from ternmq.types import Accepts, IsOver, Matches


class TakeStore(Protocol):
    """What taking needs of the message store."""

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int | None = None,
        matches: Matches | None = None,
        accepts: Accepts | None = None,
        is_over: IsOver | None = None,
        leave_cold: bool = False,
    ) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class TakeWish:
    """What a consumer wants of a topic."""

    group: str
    topic: str
    count_max: int
    #: Which messages: by the code of their tags, and by their properties.
    matches: Matches | None = None
    accepts: Accepts | None = None
    #: Whether ``accepts`` has taken enough time for one request.
    is_over: IsOver | None = None
    #: Whether a group that is new to a queue begins behind its last message.
    from_last: bool = False
    ordered: bool = False
