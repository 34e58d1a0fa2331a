"""DLedger's rules in a few lines, for tests of mixed groups (P3): how a member of RocketMQ's answers and acts.

``Theirs`` is a model of ``DLedgerLeaderElector`` and ``DLedgerEntryPusher`` of 0.2.6 and 0.3.1.2, with their order of
checks, their times and their weaknesses: terms are raised in the state loop, votes for larger terms are answered «not
ready» first, entries of old terms are counted, nothing is written at the start of a term. ``Ours`` is a TernMQ member:
its core, and the translation. ``World`` carries calls between them, late, lost, or not at all.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, Final

from ternmq.raft.core import RaftCore
from ternmq.raft.dledger_answers import DLedgerAnswers
from ternmq.raft.dledger_calls import DLedgerCalls
from ternmq.raft.dledger_view import Todo
from ternmq.raft.group import Members, RaftCoreConfig
from ternmq.raft.messages import Append, AppendReply, HardState, VoteReply
from ternmq.raft.ready import RaftRole, Ready
from ternmq.raft.wire import EntriesGone
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.dledger import (
    ACCEPT,
    ALREADY_HAS_LEADER,
    ALREADY_VOTED,
    APPEND,
    COMMIT,
    COMPARE,
    EXPIRED_LEDGER_TERM,
    EXPIRED_VOTE_TERM,
    SMALL_LEDGER_END_INDEX,
    TERM_NOT_READY,
    TRUNCATE,
    Base,
    Code,
    DLedgerCode,
    DLedgerEntry,
    Metadata,
    Push,
    PushAnswer,
    VoteAnswer,
    VoteCall,
    split_entries,
)
from ternmq.wire.layouts.raft_entry import pack_entry_header

NAMES: Final = ("n0", "n1", "n2")
GROUP: Final = "g"
Answer = Callable[[Base], None]


def entry_bytes(index: int, term: int, position: int, payload: str) -> bytes:
    record = payload.encode()
    return pack_entry_header(index, term, position, record) + record


class Log:
    """Entries as bytes; it survives its process."""

    def __init__(self) -> None:
        self.entries: list[DLedgerEntry] = []

    first_index = 0
    #: Members are those of the settings.
    members = None
    members_index = -1

    @property
    def last_index(self) -> int:
        return len(self.entries) - 1

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else -1

    def term_of(self, index: int) -> int | None:
        return self.entries[index].term if 0 <= index < len(self.entries) else None

    def span(self, first_index: int, bytes_max: int) -> tuple[int, int]:
        del bytes_max
        last = min(first_index + 2, self.last_index)
        return last, 100 * (last - first_index + 1)

    def add(self, term: int, payload: str) -> None:
        position = sum(entry.size for entry in self.entries)
        self.entries.append(DLedgerEntry.of(entry_bytes(len(self.entries), term, position, payload)))


class Member:
    """What both kinds have."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.log = Log()
        self.is_up = True

    def called(self, call: Base, answer: Answer) -> None:
        raise NotImplementedError

    def tick(self) -> None:
        raise NotImplementedError

    def restart(self) -> None:
        raise NotImplementedError

    def put(self, payload: str) -> None:
        """As leader: a message of a client."""
        raise NotImplementedError

    @property
    def leads(self) -> int | None:
        """The term in which it leads."""
        raise NotImplementedError


class World:
    """Time, and what carries calls."""

    def __init__(self, seed: int, kinds: tuple[type[Member], ...]) -> None:
        self.random = Random(seed)
        self.now_ms = 0
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._number = count()
        self.cut: set[str] = set()
        self.loss = 0.0
        #: Term → who led it; payloads that a leader has acknowledged.
        self.leaders: dict[int, str] = {}
        self.acknowledged: set[str] = set()
        self.members: dict[str, Member] = {}
        for name, kind in zip(NAMES, kinds, strict=True):
            self.members[name] = kind(self, name)

    def at(self, delay_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._number), what))

    def _is_carried(self, sender: str, receiver: str) -> bool:
        return not {sender, receiver} & self.cut and self.random.random() >= self.loss

    def call(self, sender: str, receiver: str, body: Base, kind: type[Base], answered: Answer) -> None:
        """Carry a call there and its answer back, as bytes."""

        def back(answer: Base) -> None:
            def arrive() -> None:
                if self._is_carried(receiver, sender) and self.members[sender].is_up:
                    answered(decode(encode(answer), kind))

            self.at(self.random.randint(1, 20), arrive)

        def there() -> None:
            member = self.members[receiver]
            if member.is_up and self._is_carried(sender, receiver):
                member.called(decode(encode(body), type(body)), back)

        self.at(self.random.randint(1, 20), there)

    def run(self, for_ms: int) -> None:
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            self.now_ms += 10
            while self._events and self._events[0][0] <= self.now_ms:
                heapq.heappop(self._events)[2]()
            for member in self.members.values():
                if member.is_up:
                    member.tick()
                self.check(member)

    def check(self, member: Member) -> None:
        term = member.leads
        if term is not None and member.is_up:
            leader = self.leaders.setdefault(term, member.name)
            assert leader == member.name, f"{leader} and {member.name} both lead term {term}"

    @property
    def leader(self) -> Member | None:
        leading = [(each.leads, name) for name, each in self.members.items() if each.is_up and each.leads is not None]
        return self.members[max(leading)[1]] if leading else None

    def run_until(self, done: Callable[[], bool], *, at_most_ms: int = 120_000) -> None:
        end_ms = self.now_ms + at_most_ms
        while not done():
            assert self.now_ms < end_ms, "it does not happen"
            self.run(100)


class Ours(Member):
    """A TernMQ member."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.hard_state = HardState()
        self.committed = -1
        self.restart()

    def restart(self) -> None:
        others = [name for name in NAMES if name != self.name]
        self._gone: list[EntriesGone] = []
        config = RaftCoreConfig(
            self_id=self.name,
            members=Members(NAMES),
            heartbeat_ms=1_000,
            election_min_ms=6_000,
            election_max_ms=9_000,
            transfer_ms=3_000,
            is_mixed=True,
        )
        log: Any = self.log
        self.core = RaftCore(config, self.hard_state, log, self.world.random, self.world.now_ms, commit=-1)
        self._calls = {other: DLedgerCalls(GROUP, self.name, other, self) for other in others}
        self._answers = {other: DLedgerAnswers(self.name, other, self) for other in others}
        self._waits: dict[int, str] = {}

    # What the translation asks (``View``).

    @property
    def role(self) -> RaftRole:
        return self.core.role

    @property
    def term(self) -> int:
        return self.core.term

    @property
    def leader(self) -> str | None:
        return self.core.leader

    @property
    def commit(self) -> int:
        return self.core.commit

    @property
    def first_index(self) -> int:
        return 0

    @property
    def last_index(self) -> int:
        return self.log.last_index

    def term_of(self, index: int) -> int | None:
        return self.log.term_of(index)

    def is_led(self, now_ms: int) -> bool:
        return self.role is RaftRole.LEADER or now_ms - self.core.heard_ms < 4_000

    def entries(self, first: int, last: int) -> bytes | None:
        if last > self.last_index:
            return None
        return b"".join(entry.pack() for entry in self.log.entries[first : last + 1])

    # A member of the world.

    @property
    def leads(self) -> int | None:
        return self.core.term if self.core.role is RaftRole.LEADER else None

    def put(self, payload: str) -> None:
        if self.core.heir is None:
            self.log.add(self.core.term, payload)
            self._waits[self.log.last_index] = payload
            self._do(self.core.appended(self.world.now_ms))
            self._do(self.core.stored(self.log.last_index, self.world.now_ms))

    def tick(self) -> None:
        now_ms = self.world.now_ms
        if self.core.deadline_ms <= now_ms:
            self._do(self.core.tick(now_ms))
        for other, calls in self._calls.items():
            if calls.deadline_ms is not None and calls.deadline_ms <= now_ms:
                self._todo(other, calls.tick(now_ms))
        for other, answers in self._answers.items():
            if answers.deadline_ms is not None and answers.deadline_ms <= now_ms:
                self._todo(other, answers.tick(now_ms))

    def called(self, call: Base, answer: Answer) -> None:
        now_ms = self.world.now_ms
        if isinstance(call, Metadata):
            answer(Metadata(leader_id=self.leader))
            return
        sender = call.leader_id
        assert sender is not None
        answers = self._answers[sender]
        if isinstance(call, VoteCall):
            todo = answers.voted(answer, call, now_ms)
        elif isinstance(call, Push):
            todo = answers.pushed(answer, call, now_ms)
        else:
            todo = answers.heart_beat(answer, call, now_ms)
        self._todo(sender, todo)

    def _todo(self, other: str, todo: Todo) -> None:
        kinds: dict[DLedgerCode, type[Base]] = {
            DLedgerCode.METADATA: Metadata,
            DLedgerCode.VOTE: VoteAnswer,
            DLedgerCode.PUSH: PushAnswer,
        }
        calls = self._calls[other]
        for told, body in todo.answers:
            assert callable(told)
            told(body)
        for number, code, call in todo.calls:

            def answered(answer: Base, number: int = number) -> None:
                if calls is self._calls[other]:
                    self._todo(other, calls.answered(number, answer, self.world.now_ms))

            self.world.call(self.name, other, call, kinds.get(code, Base), answered)
        for message in todo.messages:
            if isinstance(message, EntriesGone):
                continue
            self._do(self.core.step(message, self.world.now_ms))

    def _do(self, ready: Ready) -> None:
        if ready.hard_state is not None:
            self.hard_state = ready.hard_state
        if ready.truncate_from is not None:
            assert ready.truncate_from > self.committed, "what is committed stays"
            del self.log.entries[ready.truncate_from :]
        if ready.append is not None:
            arrived = list(split_entries(bytes(ready.append.data)))
            self.log.entries += arrived[ready.append_from - ready.append.first_index :]
        if ready.role is not None:
            self._waits.clear()
        for message in ready.messages:
            if isinstance(message, AppendReply | VoteReply):
                self._todo(message.receiver, self._answers[message.receiver].replied(message, self.world.now_ms))
            else:
                if isinstance(message, Append):
                    assert message.last_index <= self.last_index
                self._todo(message.receiver, self._calls[message.receiver].send(message, self.world.now_ms))
        if ready.commit is not None:
            self.committed = max(self.committed, ready.commit)
            for index in [index for index in self._waits if index <= ready.commit]:
                self.world.acknowledged.add(self._waits.pop(index))
        if ready.append is not None:
            self._do(self.core.stored(self.log.last_index, self.world.now_ms))
        if ready.role is not None and ready.role.role is RaftRole.LEADER:
            self.put(f"term {ready.role.term}")


class Theirs(Member):
    """A RocketMQ broker."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.term = 0
        self.voted_for: str | None = None
        self.committed = -1
        self.restart()

    def restart(self) -> None:
        self._role = "candidate"
        self._leader: str | None = None
        self._known_term = -1
        self._raises = False
        self._must_raise = False
        self._vote_ms = 0
        self._round = 0
        self._heard_ms = self._beat_ms = self._quorum_ms = self.world.now_ms
        self._marks: dict[str, int] = {}
        self._phase: dict[str, str] = {}
        self._next: dict[str, int] = {}
        self._pending: dict[str, tuple[int, int]] = {}
        self._commit_ms: dict[str, int] = {}
        self._waits: dict[int, str] = {}
        self._queue: dict[int, tuple[Push, Answer, int]] = {}

    @property
    def leads(self) -> int | None:
        return self.term if self._role == "leader" else None

    @property
    def _others(self) -> list[str]:
        return [name for name in NAMES if name != self.name]

    def put(self, payload: str) -> None:
        self.log.add(self.term, payload)
        self._waits[self.log.last_index] = payload

    # Calls of others.

    def called(self, call: Base, answer: Answer) -> None:
        if isinstance(call, Metadata):
            answer(Metadata(leader_id=self._leader, peers=dict.fromkeys(NAMES, "")))
        elif isinstance(call, VoteCall):
            answer(self._vote(call, is_self=False))
        elif isinstance(call, Push):
            self._pushed(call, answer)
        else:
            answer(self._heart_beat(call))

    def _vote(self, call: VoteCall, *, is_self: bool) -> VoteAnswer:
        del is_self

        def result(name: str) -> VoteAnswer:
            return VoteAnswer(term=self.term, leader_id=call.leader_id, vote_result=name)

        if call.ledger_end_term < self.log.last_term:
            return result(EXPIRED_LEDGER_TERM)
        if call.ledger_end_term == self.log.last_term and call.ledger_end_index < self.log.last_index:
            return result(SMALL_LEDGER_END_INDEX)
        if call.term < self.term:
            return result(EXPIRED_VOTE_TERM)
        if call.term > self.term:
            self._stand(call.term)
            self._must_raise = True
            return result(TERM_NOT_READY)
        if self.voted_for not in (None, call.leader_id):
            return result(ALREADY_HAS_LEADER if self._leader is not None else ALREADY_VOTED)
        self.voted_for = call.leader_id
        return result(ACCEPT)

    def _heart_beat(self, call: Base) -> Base:
        if call.term < self.term:
            return Base(term=self.term, code=Code.EXPIRED_TERM)
        if call.term > self.term:
            self._stand(call.term)
            self._must_raise = True
            return Base(code=Code.TERM_NOT_READY)
        if self._leader is None:
            self._role, self._leader, self._raises = "follower", call.leader_id, False
        if self._leader != call.leader_id:
            return Base(code=Code.INCONSISTENT_LEADER)
        self._heard_ms = self.world.now_ms
        return Base()

    def _pushed(self, call: Push, answer: Answer) -> None:
        if self._role != "follower":
            return
        if call.type == APPEND:
            first = call.entries[0].index
            if first in self._queue:
                answer(self._push_answer(call, Code.REPEATED_PUSH))
            else:
                self._queue[first] = call, answer, self.world.now_ms
            self._write()
            return
        if call.type != COMMIT:
            self._queue.clear()
        is_leader = call.term == self.term and call.leader_id == self._leader
        code = Code.INCONSISTENT_STATE
        if call.type == COMMIT:
            self._commit(call)
            code = Code.SUCCESS
        elif call.type == COMPARE:
            assert call.entry is not None
            if call.entry.index <= self.log.last_index and self.log.entries[call.entry.index] == call.entry:
                code = Code.SUCCESS
        elif call.type == TRUNCATE and is_leader:
            assert call.entry is not None
            del self.log.entries[call.entry.index :]
            self.log.entries.append(call.entry)
            code = Code.SUCCESS
            self._commit(call)
        answer(self._push_answer(call, code))

    def _write(self) -> None:
        while (found := self._queue.pop(self.log.last_index + 1, None)) is not None:
            call, answer, _ = found
            if call.term == self.term and call.leader_id == self._leader:
                self.log.entries += call.entries
                answer(self._push_answer(call, Code.SUCCESS))
                self._commit(call)
            else:
                answer(self._push_answer(call, Code.INCONSISTENT_STATE))

    def _commit(self, call: Push) -> None:
        if call.term >= self.term:
            self.committed = max(self.committed, min(call.commit_index, self.log.last_index))

    def _push_answer(self, call: Push, code: Code) -> PushAnswer:
        return PushAnswer(
            code=code,
            term=call.term,
            index=call.entries[0].index if call.entries else None,
            count=len(call.entries),
            begin_index=0 if self.log.entries else -1,
            end_index=self.log.last_index,
        )

    # The state loop.

    def tick(self) -> None:
        now_ms = self.world.now_ms
        if self._role == "leader":
            self._lead(now_ms)
        elif self._role == "follower":
            late = [first for first, (_, _, since_ms) in self._queue.items() if now_ms - since_ms > 1_000]
            for first in sorted(late):
                call, answer, _ = self._queue.pop(first)
                entries = self.log.entries[first : first + len(call.entries)]
                is_there = tuple(entries) == call.entries
                answer(self._push_answer(call, Code.SUCCESS if is_there else Code.INCONSISTENT_STATE))
            if now_ms - self._heard_ms > 6_000:
                self._stand(self.term)
        elif now_ms >= self._vote_ms or self._must_raise:
            self._campaign(now_ms)

    def _stand(self, term: int) -> None:
        self._known_term = max(self._known_term, term)
        self._role, self._leader = "candidate", None
        self._waits.clear()
        self._queue.clear()

    def _soon_ms(self) -> int:
        return self.world.now_ms + self.world.random.randint(300, 1_000)

    def _campaign(self, now_ms: int) -> None:
        if self._raises or self._must_raise:
            self.term = max(self._known_term, self.term + 1) if self._known_term > self.term else self.term + 1
            self.voted_for = None
            self._raises = False
        if self._must_raise:
            self._must_raise = False
            self._vote_ms = self._soon_ms()
            return
        self._round += 1
        number, term = self._round, self.term
        self._vote_ms = now_ms + 3_000
        call = VoteCall(
            group=GROUP,
            leader_id=self.name,
            term=term,
            ledger_end_index=self.log.last_index,
            ledger_end_term=self.log.last_term,
        )
        results: list[VoteAnswer] = [self._vote(call, is_self=True)]

        def answered(answer: Base) -> None:
            assert isinstance(answer, VoteAnswer)
            results.append(answer)
            names = [each.vote_result for each in results]
            yes, not_ready = names.count(ACCEPT), names.count(TERM_NOT_READY)
            if len(results) == 3 or ALREADY_HAS_LEADER in names or yes + not_ready >= 2:
                decide()

        def decide() -> None:
            if number != self._round or self._role != "candidate" or self.term != term:
                return
            self._round += 1
            names = [each.vote_result for each in results]
            yes, not_ready = names.count(ACCEPT), names.count(TERM_NOT_READY)
            larger = max((each.term for each in results if each.vote_result == EXPIRED_VOTE_TERM), default=-1)
            ahead = names.count(EXPIRED_LEDGER_TERM) + names.count(SMALL_LEDGER_END_INDEX)
            self._vote_ms = self._soon_ms()
            if larger > term:
                self._raises = True
                self._stand(larger)
            elif ALREADY_HAS_LEADER in names:
                self._vote_ms += 6_000
            elif len(results) < 2:
                pass
            elif len(results) - ahead < 2:
                self._vote_ms += 1_000
            elif yes >= 2:
                self._become_leader()
            elif yes + not_ready >= 2:
                self._vote_ms = self.world.now_ms
            else:
                self._raises = True

        for other in self._others:
            self.world.call(self.name, other, call, VoteAnswer, answered)
        self.world.at(2_500, decide)

    def _become_leader(self) -> None:
        self._role, self._leader = "leader", self.name
        self._beat_ms, self._quorum_ms = -10_000, self.world.now_ms
        self._marks = dict.fromkeys(NAMES, -1)
        self._phase = dict.fromkeys(self._others, COMPARE)
        self._next = dict.fromkeys(self._others, -1)
        self._pending = {}

    def _lead(self, now_ms: int) -> None:
        if now_ms - self._beat_ms > 2_000:
            self._beat_ms = now_ms
            self._beat()
        if now_ms - self._quorum_ms > 6_000:
            self._stand(self.term)
            return
        for other in self._others:
            self._push(other, now_ms)
        self._marks[self.name] = self.log.last_index
        quorum = sorted(self._marks.values())[1]
        self.committed = max(self.committed, quorum)
        for index in [index for index in self._waits if index <= quorum]:
            self.world.acknowledged.add(self._waits.pop(index))

    def _beat(self) -> None:
        term = self.term

        def answered(answer: Base) -> None:
            if self._role != "leader" or self.term != term:
                return
            if answer.code == Code.SUCCESS:
                self._quorum_ms = self.world.now_ms
            elif answer.code == Code.TERM_NOT_READY:
                self._beat_ms = -10_000
            elif answer.code == Code.EXPIRED_TERM and answer.term > self.term:
                self._stand(answer.term)
            elif answer.code == Code.INCONSISTENT_LEADER:
                self._stand(term)

        for other in self._others:
            self.world.call(self.name, other, Base(group=GROUP, leader_id=self.name, term=term), Base, answered)

    def _push(self, other: str, now_ms: int) -> None:
        pending = self._pending.get(other)
        if pending is not None and now_ms < pending[1]:
            return
        kind, index = self._phase[other], self._next[other]
        last = self.log.last_index
        entry: DLedgerEntry | None = None
        if kind == COMPARE:
            if last < 0:
                return
            index = last if index < 0 or index > last else index
        elif kind == APPEND and index > last:
            if now_ms < self._commit_ms.get(other, 0):
                return
            kind = COMMIT
            self._commit_ms[other] = now_ms + 1_000
        if kind != COMMIT:
            entry = self.log.entries[index]
        call = Push(
            group=GROUP, leader_id=self.name, term=self.term, type=kind, entry=entry, commit_index=self.committed
        )
        number = now_ms * 10 + NAMES.index(other)
        if kind != COMMIT:
            self._pending[other] = number, now_ms + (1_000 if kind == APPEND else 3_000)
        term = self.term

        def answered(answer: Base) -> None:
            assert isinstance(answer, PushAnswer)
            if self._role != "leader" or self.term != term or self._pending.get(other, (0, 0))[0] != number:
                return
            if kind != COMMIT:
                del self._pending[other]
                self._next_push(other, kind, index, answer)

        self.world.call(self.name, other, call, PushAnswer, answered)

    def _next_push(self, other: str, kind: str, index: int, answer: PushAnswer) -> None:
        is_ok = answer.code == Code.SUCCESS
        if kind == APPEND:
            if is_ok:
                self._marks[other] = max(self._marks[other], index)
                self._next[other] = index + 1
            else:
                self._phase[other], self._next[other] = COMPARE, -1
        elif is_ok and (kind == TRUNCATE or index == answer.end_index):
            self._phase[other], self._next[other] = APPEND, index + 1
            self._marks[other] = max(self._marks[other], index)
        elif is_ok:
            self._phase[other], self._next[other] = TRUNCATE, index
        elif kind == TRUNCATE:
            self._phase[other], self._next[other] = COMPARE, -1
        elif answer.end_index < 0 or index == 0:
            self._phase[other], self._next[other] = TRUNCATE, 0
        else:
            self._next[other] = min(index - 1, answer.end_index)
