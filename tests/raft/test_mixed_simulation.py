"""Mixed groups by seed (P1, P3): TernMQ's core behind the translation, and a model of DLedger's rules.

Members are cut off, killed and started again, calls are lost. Checked at all times: one leader a term. At the end: a
leader, all that was acknowledged in its log, and equal logs.
"""

from __future__ import annotations

from typing import Any

import pytest

from ternmq.errors import RemoteProtocolError
from ternmq.raft.dledger_answers import DLedgerAnswers, _Tail
from ternmq.raft.dledger_calls import DLedgerCalls, _Sent
from ternmq.raft.dledger_view import Todo
from ternmq.raft.messages import NO_TERM
from ternmq.wire.bodies.dledger import (
    ACCEPT,
    APPEND,
    COMMIT,
    COMPARE,
    Base,
    Code,
    DLedgerEntry,
    Push,
    PushAnswer,
    VoteAnswer,
    VoteCall,
)
from tests.raft import dledger_model
from tests.raft.dledger_model import NAMES, Ours, Theirs, World, entry_bytes

#: Both shapes of a mixed group.
SHAPES = {"1+2": (Ours, Theirs, Theirs), "2+1": (Ours, Ours, Theirs)}
SEEDS = [
    *range(4),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(4, 16)),
    *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(16, 60)),
]


def simulate(seed: int, shape: str, *, rounds: int = 12) -> World:
    world = World(seed, SHAPES[shape])
    random = world.random
    number = 0

    def put(for_ms: int) -> None:
        nonlocal number
        end_ms = world.now_ms + for_ms
        while world.now_ms < end_ms:
            world.run(random.choice([50, 200, 1_000]))
            if (leader := world.leader) is not None:
                for _ in range(random.randint(0, 5)):
                    number += 1
                    leader.put(f"message {number}")

    for _ in range(rounds):
        name = random.choice([*NAMES, leader.name if (leader := world.leader) is not None else "n0"])
        member = world.members[name]
        match random.choice(["cut", "kill", "loss", "quiet"]):
            case "cut":
                world.cut.add(name)
            case "kill":
                member.is_up = False
            case "loss":
                world.loss = 0.2
        put(random.choice([2_000, 8_000, 20_000]))
        world.cut.clear()
        world.loss = 0.0
        if not member.is_up:
            member.restart()
            member.is_up = True
        put(random.choice([500, 5_000]))
    return world


def settle(world: World) -> None:
    """Wait for a leader that can commit, and until all have its log."""
    for attempt in range(3):
        world.run_until(lambda: world.leader is not None)
        world.leader.put(f"last {attempt}")  # type: ignore[union-attr]
        done = f"last {attempt}"
        try:
            world.run_until(lambda done=done: done in world.acknowledged, at_most_ms=40_000)  # type: ignore[misc]
            break
        except AssertionError:
            assert attempt < 2
    world.run_until(lambda: len({tuple(member.log.entries) for member in world.members.values()}) == 1)


def check(seed: int, shape: str) -> None:
    world = simulate(seed, shape)
    settle(world)
    stored = {entry.body.decode() for entry in world.members["n0"].log.entries}
    assert world.acknowledged <= stored
    assert len(world.acknowledged) > 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_mixed_group_loses_nothing(seed: int, shape: str) -> None:
    """P1, P3"""
    check(seed, shape)


class TakesAnything(DLedgerAnswers):
    """Entries are taken without a comparison: whatever is here before them counts as equal."""

    def _appended(self, told: object, call: Push, entries: tuple[DLedgerEntry, ...], now_ms: int) -> Todo:
        before = entries[0].index - 1
        term = self._view.term_of(before)
        self._tail = _Tail(call.term, before, NO_TERM if term is None else term)
        return super()._appended(told, call, entries, now_ms)


class NeverComparesAgain(DLedgerCalls):
    """Entries that are lost on their way stay lost."""

    def _realign(self, now_ms: int, todo: Todo) -> None:
        pass


class AlignsAtTheEnd(DLedgerCalls):
    """A follower counts as equal up to its end, whatever it has there."""

    def _compared(self, sent: _Sent, answer: PushAnswer, now_ms: int, todo: Todo) -> None:
        if answer.end_index <= self._view.last_index:
            self._align(answer.end_index, todo)
        else:
            super()._compared(sent, answer, now_ms, todo)


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("broken", [TakesAnything, NeverComparesAgain, AlignsAtTheEnd])
def test_a_broken_rule_is_found(broken: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """P1, P3: seeds 11, 2 and 0 when this was written."""
    monkeypatch.setattr(
        dledger_model, "DLedgerAnswers" if issubclass(broken, DLedgerAnswers) else "DLedgerCalls", broken
    )
    with pytest.raises((AssertionError, RemoteProtocolError)):
        for seed in range(60):
            for shape in SHAPES:
                check(seed, shape)


def test_an_entry_of_an_old_term_that_was_counted_can_be_replaced() -> None:
    """P1 (Raft's paper, 5.4.2): n1 counts an entry of its first term in its third, and dies; n2 has a later one.

    A member that believed the commit index of n1 could never follow n2.
    """
    world = World(0, (Ours, Theirs, Theirs))
    member = world.members["n0"]
    assert isinstance(member, Ours)
    member.log.add(1, "of all")
    member.restart()
    size = member.log.entries[0].size
    counted, later = (DLedgerEntry.of(entry_bytes(1, term, size, f"of term {term}")) for term in (1, 2))

    def call(body: Base) -> Base:
        answers: list[Base] = []
        member.called(body, answers.append)
        return answers[0]

    def push(sender: str, term: int, kind: str, entry: DLedgerEntry | None = None, commit: int = 0) -> Push:
        return Push(leader_id=sender, term=term, type=kind, entry=entry, commit_index=commit)

    assert Code.SUCCESS == call(Base(leader_id="n1", term=3)).code
    assert Code.SUCCESS == call(push("n1", 3, COMPARE, member.log.entries[0])).code
    assert Code.SUCCESS == call(push("n1", 3, APPEND, counted)).code
    assert Code.SUCCESS == call(push("n1", 3, COMMIT, commit=1)).code
    assert -1 == member.core.commit

    vote = call(VoteCall(leader_id="n2", term=4, ledger_end_index=1, ledger_end_term=2))
    assert isinstance(vote, VoteAnswer)
    assert ACCEPT == vote.vote_result
    assert Code.SUCCESS == call(Base(leader_id="n2", term=4)).code
    assert Code.INCONSISTENT_STATE == call(push("n2", 4, COMPARE, later)).code
    assert Code.SUCCESS == call(push("n2", 4, COMPARE, member.log.entries[0])).code
    assert Code.SUCCESS == call(push("n2", 4, APPEND, later)).code
    assert [1, 2] == [entry.term for entry in member.log.entries]
