"""How a leader begins its term, and how all members fold what is committed (P3, P4).

A member that wins an election first folds all that is confirmed, then appends the first record of its term, in a topic
of its own. When that record is committed, so is everything before it. Then all is dispatched, and ``leads``: from now
on the broker may take messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from ternmq import names
from ternmq.env import Env
from ternmq.errors import BrokerRefused, DiskFull, NotMaster
from ternmq.raft.core import RaftCore
from ternmq.raft.ready import Ready
from ternmq.rare_log import RareLog
from ternmq.store.durable.watermark import Watermark
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore

log = logging.getLogger(__name__)

#: Seconds of folding in one turn.
_FOLD_S: Final = 0.005
#: How long to wait after the disk has refused the first record.
_RETRY_S: Final = 0.2


class TermRecord(msgspec.Struct, frozen=True):
    """The body of the first record of a term."""

    term: int
    leader: str


class StartingMember(Protocol):
    """What is needed of this member (``raft.node.RaftNode``)."""

    @property
    def id(self) -> str: ...

    @property
    def core(self) -> RaftCore: ...

    @property
    def store(self) -> MessageStore: ...

    @property
    def committed(self) -> Watermark:
        """Position up to which a majority has the log."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def is_open(self) -> bool:
        """False: it is closed, or takes no part any more."""

    def wake(self) -> None: ...

    def do_now(self, call: Callable[[int], Ready], /) -> None: ...

    def fail(self, error: Exception, /) -> None: ...


class TermStart:
    def __init__(self, node: StartingMember, env: Env, store_host: bytes, logs: RareLog) -> None:
        self._node = node
        self._env = env
        self._store_host = store_host
        self._logs = logs
        self._loop = asyncio.get_running_loop()
        #: Where the first record of the current term ends; None: it is not written yet.
        self._end: int | None = None
        #: Folding is on its way.
        self._folds = False

    @property
    def is_written(self) -> bool:
        return self._end is not None

    def leads(self) -> bool:
        """Whether the first record of this leader's term is committed, and all is dispatched."""
        node, end = self._node, self._end
        return node.is_leader and end is not None and node.committed.value >= end and node.store.dispatched >= end

    def forget(self) -> None:
        """The role has changed: a new term has no record yet."""
        self._end = None

    def fold_soon(self) -> None:
        if not self._folds and self._node.is_open:
            self._folds = True
            self._loop.call_soon(self._fold)

    def _fold(self) -> None:
        self._folds = False
        node = self._node
        if not node.is_open:
            return
        try:
            if not node.store.follow(_FOLD_S):
                self.fold_soon()
            elif node.is_leader and self._end is None:
                self._begin()
        except Exception as error:
            node.fail(error)

    def _begin(self) -> None:
        """Write the first record of the term, behind all that this leader has."""
        node = self._node
        term = node.core.term
        body = msgspec.json.encode(TermRecord(term, node.id))
        now_ms = self._env.clock.now_ms()
        draft = Draft(names.RAFT_TERM_TOPIC, 0, body, "", now_ms, self._store_host)
        node.store.stop_following()
        try:
            node.store.refuse_writes(None)
            self._end = node.store.put(draft).end_offset
        except DiskFull as error:
            self._logs.warning("full", f"{node.id} cannot begin term {term}: {error}; it hands over")
            with contextlib.suppress(BrokerRefused):
                node.do_now(lambda now_ms: node.core.transfer(None, now_ms))
            self._loop.call_later(_RETRY_S, self.fold_soon)
        finally:
            node.store.refuse_writes(NotMaster(f"{node.id} has not begun term {term} yet"))
        node.wake()
