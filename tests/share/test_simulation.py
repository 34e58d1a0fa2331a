"""Shared consumption on a broker that breaks, from seeds (R1–R3); rules broken on purpose are caught by some seed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ternmq.broker.services.share_term import ShareTerm
from ternmq.broker.services.sharing import Sharing
from ternmq.share.actions import LOST, Ack, Cursors, Pull, ShareAction
from ternmq.share.pull_log import Run
from ternmq.share.retry import Rewriter
from ternmq.share.share_log import ShareLog
from ternmq.share.state import Place, ShareState
from ternmq.share.take import ShareTaker
from ternmq.store.log.draft import Placed
from ternmq.store.read.query import QueueEntry
from tests.share.simulation import ShareSimulation
from tests.testing.portions import portions

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 50


@pytest.mark.parametrize("first", portions(200, PORTION, few=100))
def test_nothing_is_lost_and_nothing_confirmed_that_was_not(first: int) -> None:
    """R1, R2, R3: consumers die, hang, confirm late, twice and what is not theirs; the broker crashes at any step."""
    for seed in range(first, first + PORTION):
        simulation = ShareSimulation(seed)
        try:
            simulation.run()
        except BaseException as error:
            error.add_note(f"seed {seed}: ShareSimulation({seed}).run()")
            for event in simulation.trace[-40:]:
                error.add_note("    " + " ".join(map(str, event)))
            raise


# --- Rules broken on purpose ----------------------------------------------------------------------------------------


def _is_caught() -> bool:
    for seed in range(300):
        try:
            ShareSimulation(seed).run()
        except AssertionError:
            return True
    return False


def test_moving_the_cursor_before_the_pull_is_written_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: a power cut between the two would lose the messages."""
    write = ShareLog.write

    def cursors_first(self: ShareLog, action: ShareAction) -> Placed:
        if isinstance(action, Pull):
            write(self, Cursors(action.group, action.topic, action.cursors))
        return write(self, action)

    monkeypatch.setattr(ShareLog, "write", cursors_first)
    assert _is_caught()


def test_an_ack_of_another_life_that_counts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: after a power cut it would confirm messages that the consumer never saw."""
    monkeypatch.setattr(Sharing, "_own_runs", lambda _self, known, _life, first, last: known.within(first, last))
    assert _is_caught()


def test_an_ack_that_confirms_what_it_passes_over_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2."""

    def confirm(_self: Sharing, term: ShareTerm, place: Place, consumer: str, gap: Sequence[Run]) -> None:
        for run in gap:
            term.do(Ack(place.group, place.topic, consumer, run.first, run.last))

    monkeypatch.setattr(Sharing, "_lose", confirm)
    assert _is_caught()


def test_lost_messages_that_are_not_written_again_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2."""

    async def forget(_self: Rewriter, _place: Place, _entry: QueueEntry) -> int:
        return 1

    monkeypatch.setattr(Rewriter, "_write", forget)
    assert _is_caught()


def test_lost_messages_that_are_confirmed_before_they_are_written_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R2: a crash in between would lose them."""

    async def confirm_first(self: Rewriter, place: Place) -> bool:
        lost = place.consumers.get(LOST)
        if lost is None or not lost.runs:
            return False
        run = lost.runs[0]
        self._confirm(place, run.first, run.count, gone=0)
        for entry in self._store.entries(place.topic, run.queue_id, run.offset, run.count):
            await self._write(place, entry)
        return True

    monkeypatch.setattr(Rewriter, "rewrite", confirm_first)
    assert _is_caught()


def test_a_consumer_that_does_not_get_first_what_it_has_not_confirmed_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R2."""
    monkeypatch.setattr(ShareTaker, "take_again", lambda *_args, **_options: False)
    assert _is_caught()


def test_what_a_dead_consumer_held_and_no_one_gets_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R3."""
    monkeypatch.setattr(ShareTerm, "go_offline", lambda *_args: None)
    monkeypatch.setattr(ShareTerm, "give_up", lambda *_args: False)
    assert _is_caught()


def test_numbers_that_shift_when_retention_deletes_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: a run of which the first messages are gone must know which ones are left."""

    def shifted(self: Run, first: int, last: int) -> Run:
        return Run(first, self.queue_id, self.offset, last - first + 1, self.life, self.due_ms)

    monkeypatch.setattr(Run, "part", shifted)
    assert _is_caught()


def test_a_fold_that_leaves_an_action_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1: slaves, followers and a restart know what the master knew."""
    fold = ShareLog.fold

    def forgetful(self: ShareLog) -> ShareState:
        with monkeypatch.context() as patched:
            patched.setattr(ShareState, "_move", lambda _self, _action: None)
            return fold(self)

    monkeypatch.setattr(ShareLog, "fold", forgetful)
    assert _is_caught()
