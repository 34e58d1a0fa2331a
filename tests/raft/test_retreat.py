"""How a leader and a follower find where their logs part: few lookups and few messages, however long they are (P3)."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.raft.core import RaftCore
from ternmq.raft.matching import last_up_to
from ternmq.raft.messages import AppendReply, HardState
from tests.raft.group import append, config, core, reply
from tests.raft.group import entries as entries_of
from tests.raft.memory_log import MemoryLog
from tests.raft.test_leading import NOW, elected, leader, sent

LONG = 200_000
#: Two searches through a log of that length, and some single lookups.
LOOKUPS_MAX = 100


class CountingLog(MemoryLog):
    """Counts how often a term is looked up."""

    lookups = 0

    def term_of(self, index: int) -> int | None:
        self.lookups += 1
        return super().term_of(index)


def long_member(*terms: int) -> tuple[RaftCore, CountingLog]:
    log = CountingLog(entries_of(*terms))
    return RaftCore(config(), HardState(max(terms)), log, Random(0), 0), log


def test_a_follower_that_names_an_old_term_does_not_stop_a_leader_with_a_long_log() -> None:
    """Its own entries of that term may be true, or a lie."""
    member, log = long_member(1, *[5] * LONG)
    elected(member)
    log.lookups = 0
    ready = member.step(reply("n1", 6, LONG, refused=True, hint_index=LONG - 1, hint_term=2, sent_ms=NOW), NOW)
    assert [(1, 0)] == sent(ready)
    assert log.lookups <= LOOKUPS_MAX


def test_a_leader_of_an_old_term_does_not_stop_a_follower_with_a_long_log() -> None:
    member, log = long_member(1, *[5] * LONG)
    log.lookups = 0
    (refusal,) = member.step(append(9, LONG, 3), NOW).messages
    assert isinstance(refusal, AppendReply)
    assert (0, 1) == (refusal.hint_index, refusal.hint_term)
    assert log.lookups <= LOOKUPS_MAX


@pytest.mark.parametrize("hint_index", [99, 100, 1 << 60])
def test_a_follower_that_refuses_and_names_the_same_place_is_probed_further_back(hint_index: int) -> None:
    member = leader(*[1] * 100)
    lie = reply("n1", 2, 99, refused=True, hint_index=hint_index, hint_term=1, sent_ms=NOW)
    assert [(99, 98)] == sent(member.step(lie, NOW))


def test_a_follower_that_refuses_everything_is_probed_down_to_the_beginning_and_no_further() -> None:
    member = leader(1, 1)
    for index in (1, 0, -1):
        lie = reply("n1", 2, index, refused=True, hint_index=index, hint_term=1, sent_ms=NOW)
        assert [(max(index, 0), max(index - 1, -1))] == sent(member.step(lie, NOW))


TERMS = st.lists(st.integers(1, 6), max_size=30).map(sorted)


@given(terms=TERMS, first=st.integers(0, 5), index=st.integers(-1, 40), term=st.integers(0, 7))
def test_the_search_finds_what_a_walk_finds(terms: list[int], first: int, index: int, term: int) -> None:
    log = MemoryLog(entries_of(*[1] * first, *terms)[first:], first_index=first, prev_term=1 if first else None)
    index = min(index, log.last_index)
    walked = index
    while (found := log.term_of(walked)) is not None and found > term:
        walked -= 1
    assert walked == last_up_to(log, index, term)


@given(common=TERMS, own=TERMS, theirs=TERMS)
def test_two_logs_agree_after_no_more_messages_than_they_have_terms(
    common: list[int], own: list[int], theirs: list[int]
) -> None:
    """Behind a common part both have entries that the other one has not."""
    last = max(common, default=0)
    follower = core(*common, *(last + 2 * term for term in own), self_id="n1", term=50)
    member = leader(*common, *(last + 2 * term + 1 for term in theirs), term=50)
    probe = next(message for message in member.tick(NOW + 150).messages if message.receiver == "n1")
    for _ in range(2 + len({*own, *theirs, *common})):
        (answer,) = follower.step(probe, NOW + 150).messages
        assert isinstance(answer, AppendReply)
        if answer.is_accepted:
            assert len(common) - 1 == answer.index
            return
        ready = member.step(answer, NOW + 150)
        probe = next(message for message in ready.messages if message.receiver == "n1")
    pytest.fail("they do not agree")
