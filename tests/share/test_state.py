"""Actions and the state that they fold to (R1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.share import state as state_module
from ternmq.share.actions import (
    LOST,
    Ack,
    Cursors,
    Forget,
    Gone,
    Hold,
    Holding,
    Mark,
    MoveRuns,
    Pull,
    ShareAction,
    decode,
    encode,
)
from ternmq.share.members import Life, Lives
from ternmq.share.pull_log import PullLog, Run
from ternmq.share.state import ShareState

GROUPS = st.sampled_from(["billing", "audit"])
CONSUMERS = st.sampled_from(["ann", "bob"])
NUMBERS = st.integers(0, 30)


def dump(state: ShareState) -> object:
    return {
        key: (
            place.cursors,
            place.is_ordered,
            {
                name: (log.pulled, log.held, [run.as_held() for run in log.runs])
                for name, log in place.consumers.items()
            },
        )
        for key, place in state.places.items()
    }


@st.composite
def histories(draw: st.DrawFn) -> list[ShareAction]:
    """Actions as a broker would write them: numbers go on."""
    state = ShareState()
    actions: list[ShareAction] = []
    for kind in draw(
        st.lists(st.sampled_from(["pull", "ack", "hold", "move", "gone", "forget", "cursors"]), max_size=25)
    ):
        group, consumer = draw(GROUPS), draw(CONSUMERS)
        log = state.find(group, "orders", consumer)
        first, last = sorted((draw(NUMBERS), draw(NUMBERS)))
        action: ShareAction
        if kind == "pull":
            runs = draw(st.lists(st.tuples(st.integers(0, 3), NUMBERS, st.integers(1, 5)), max_size=4))
            start = log.pulled + 1 if log is not None else 0
            action = Pull(group, "orders", consumer, start, draw(NUMBERS), draw(NUMBERS), runs, [(0, draw(NUMBERS))])
        elif kind == "ack":
            action = Ack(group, "orders", consumer, first, last)
        elif kind == "hold":
            action = Hold(group, "orders", consumer, first, last, draw(NUMBERS))
        elif kind == "move":
            to = draw(st.sampled_from([LOST, "cid"]))
            other = state.find(group, "orders", to)
            held = log.within(first, last) if log is not None else []
            if not held:
                continue
            at, stretches = other.pulled + 1 if other else 0, [(run.queue_id, run.offset, run.count) for run in held]
            action = MoveRuns(group, "orders", consumer, first, last, to, at, 1, 0, stretches)
        elif kind == "gone":
            action = Gone(group, "orders", consumer)
        elif kind == "forget":
            action = Forget(group, "")
        else:
            is_ordered = draw(st.sampled_from([None, True, False]))
            action = Cursors(group, "orders", [(draw(st.integers(0, 3)), draw(NUMBERS))], is_ordered)
        state.apply(action)
        actions.append(action)
    return actions


@given(histories(), st.data())
def test_a_fold_from_a_checkpoint_gives_the_same_as_one_from_the_beginning(
    actions: list[ShareAction], data: st.DataObject
) -> None:
    """R1: wherever the checkpoint is, and with actions between its pieces."""
    border = data.draw(st.integers(0, len(actions)))
    whole, master = ShareState(), ShareState()
    for action in actions[:border]:
        master.apply(action)
    later = list(actions[border:])
    log: list[ShareAction] = [*actions[:border]]
    mark = len(log)
    log.append(Mark(1))
    pieces = master.checkpoint()
    for piece in pieces:
        log += piece
        if data.draw(st.booleans()) and later:
            action = later.pop(0)
            master.apply(action)
            log.append(action)
    for action in later:
        master.apply(action)
        log.append(action)
    for action in log:
        whole.apply(decode(encode(action)))
    short = ShareState()
    for action in log[mark:]:
        short.apply(decode(encode(action)))
    assert dump(master) == dump(whole) == dump(short)
    for state in (master, whole, short):
        assert state.run_count == sum(
            len(log.runs) for place in state.places.values() for log in place.consumers.values()
        )
        assert state.consumer_count == sum(len(place.consumers) for place in state.places.values())
        assert state.cursor_count == sum(len(place.cursors) for place in state.places.values())


def test_a_checkpoint_of_a_long_pull_log_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: no record is larger than a message may be."""
    monkeypatch.setattr(state_module, "_RUNS_MAX", 2)
    state = ShareState()
    runs = [(0, 2 * number, 1) for number in range(5)]
    state.apply(Pull("billing", "orders", "ann", 0, 1, 0, runs, [(0, 10)]))
    pieces = list(state.checkpoint())
    assert [1, 3] == [len(piece) for piece in pieces]
    again = ShareState()
    for piece in pieces:
        for action in piece:
            again.apply(action)
    assert dump(state) == dump(again)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_action_are_refused(body: bytes) -> None:
    """R1: whatever lies in the topic, the fold goes on."""
    try:
        action = decode(body)
    except RemoteProtocolError:
        return
    ShareState().apply(action)


@given(histories(), st.integers(0, 200), st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_another_action(actions: list[ShareAction], at: int, bits: int) -> None:
    """R1."""
    for action in actions:
        body = bytearray(encode(action))
        body[at % len(body)] ^= bits
        try:
            ShareState().apply(decode(bytes(body)))
        except RemoteProtocolError:
            continue


def test_numbers_that_cannot_be_are_refused() -> None:
    """R1."""
    for body in (
        encode([2, "billing", "orders", "ann", -1, 1, 0, [], []]),
        encode([2, "billing", "orders", "ann", 0, 1, 0, [[0, 0, 0]], []]),
        encode([3, "billing", "orders", "ann", 0, 2**63]),
        encode([99]),
        b"",
    ):
        with pytest.raises(RemoteProtocolError, match="no action"):
            decode(body)


@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2)), min_size=1, max_size=8),
    st.lists(st.tuples(NUMBERS, NUMBERS, st.sampled_from(["remove", "hold"])), max_size=8),
)
def test_a_pull_log_is_a_table_of_numbers(pulls: list[tuple[int, int]], steps: list[tuple[int, int, str]]) -> None:
    """R1: whatever is removed, each number that is left means the message that it meant before."""
    log = PullLog()
    model: dict[int, tuple[int, int, int]] = {}
    offsets = [0, 0, 0]
    for count, queue_id in pulls:
        log.add(Run(log.pulled + 1, queue_id, offsets[queue_id], count, 1, 5))
        for number in range(count):
            model[log.pulled - count + 1 + number] = queue_id, offsets[queue_id] + number, 5
        offsets[queue_id] += count
    for one, other, step in steps:
        first, last = sorted((one, other))
        meant = [number for number in model if first <= number <= last]
        if step == "remove":
            assert len(meant) == sum(run.count for run in log.remove(first, last))
            for number in meant:
                del model[number]
        else:
            log.hold(first, last, 9)
            for number in meant:
                model[number] = (*model[number][:2], 9)
    found = {run.first + at: (run.queue_id, run.offset + at, run.due_ms) for run in log.runs for at in range(run.count)}
    assert model == found
    assert len(model) == log.held
    assert log.acked == min(model, default=log.pulled + 1) - 1


def test_a_consumer_knows_only_what_it_was_given_in_its_life() -> None:
    """R1, R2: numbers that were given out again in another life are not those that the consumer has."""
    log = PullLog()
    log.add(Run(0, 0, 0, 4, life=7, due_ms=0))
    log.add(Run(4, 0, 10, 4, life=8, due_ms=0))
    assert 2 == log.known_to(2, 7)
    assert 3 == log.known_to(6, 7), "it was told 4 … 6 in a life of which the log knows nothing"
    assert 6 == log.known_to(6, 8)
    assert -1 == log.known_to(6, 9)
    assert -1 == log.known_to(-1, 0)


def test_consumers_are_online_offline_and_gone() -> None:
    """R3."""
    lives, place = Lives(offline_s=180, gone_s=172_800), ("billing", "orders")
    lives.seen(place, "ann", 0.0)
    assert [Life.ONLINE, Life.OFFLINE, Life.GONE] == [lives.of(place, "ann", at) for at in (179, 180, 172_800)]
    lives.left(place, "ann", 10.0)
    assert Life.OFFLINE is lives.of(place, "ann", 11.0)
    assert (True, False) == (lives.has_left(place, "ann"), lives.is_silent(place, "ann", 11.0))
    lives.seen(place, "ann", 12.0)
    assert Life.ONLINE is lives.of(place, "ann", 13.0)
    lives.forget(place, "ann")
    assert (0, []) == (lives.count, lives.places())


def test_a_holding_that_cannot_be_is_cut() -> None:
    """R1: runs out of order, or beyond what was given out."""
    state = ShareState()
    state.apply(Holding("billing", "orders", "ann", 5, [(0, 0, 0, 3, 1, 0), (1, 0, 9, 1, 1, 0), (4, 0, 5, 9, 1, 0)]))
    log = state.find("billing", "orders", "ann")
    assert log is not None
    assert (3, 5) == (log.held, log.pulled)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(1, 5)), max_size=8),
    st.lists(st.tuples(st.sampled_from(["remove", "hold"]), st.integers(-2, 45), st.integers(-2, 45)), max_size=8),
)
def test_a_pull_log_knows_each_number_however_it_is_cut(
    runs: list[tuple[int, int, int]], steps: list[tuple[str, int, int]]
) -> None:
    """R1: ranges in any order, empty ones, and beyond what is held, against a table of single numbers."""
    log, known = PullLog(), dict[int, tuple[int, int, int]]()
    for queue_id, offset, count in runs:
        known |= {log.pulled + 1 + at: (queue_id, offset + at, 7) for at in range(count)}
        log.add(Run(log.pulled + 1, queue_id, offset, count, 1, 7))

    def told(parts: list[Run]) -> dict[int, tuple[int, int, int]]:
        return {run.first + at: (run.queue_id, run.offset + at, run.due_ms) for run in parts for at in range(run.count)}

    for due_ms, (kind, first, last) in enumerate(steps, 8):
        meant = {number: found for number, found in known.items() if first <= number <= last}
        assert meant == told(log.within(first, last))
        if kind == "remove":
            assert meant == told(log.remove(first, last))
            known = {number: found for number, found in known.items() if number not in meant}
        else:
            log.hold(first, last, due_ms)
            known |= {number: (queue_id, offset, due_ms) for number, (queue_id, offset, _) in meant.items()}
        assert (known, len(known)) == (told(log.runs), log.held)
        assert {number for number in known if number > first} <= set(told(list(log.behind(first))))


def test_a_consumer_that_holds_thousands_of_runs_is_soon_done() -> None:
    """R2: a filter that lets every other message through makes a run of each. When such a consumer leaves, each is
    moved by an action; with a look at all runs for each of them that stopped a broker for minutes."""
    state = ShareState()
    count = 10_000
    state.apply(Pull("billing", "orders", "ann", 0, 1, 0, [(0, 2 * at, 1) for at in range(count)], []))
    for at in range(count):
        state.apply(Hold("billing", "orders", "ann", at, at, 5 + at))
        state.apply(MoveRuns("billing", "orders", "ann", at, at, LOST, at, 1, 0, [(0, 2 * at, 1)]))
    lost = state.find("billing", "orders", LOST)
    assert lost is not None
    assert (count, count) == (lost.held, state.run_count)
