"""The failure matrix of the docs is what the simulation shows (O1, O2, C6)."""

from __future__ import annotations

import pytest

from ternmq.store.config import FlushDiskType
from tests.replication import matrix
from tests.replication.matrix import Cell, Copies, Failure, Lost, Measured, WrongCell

pytestmark = pytest.mark.usefixtures("silent")

#: How often a failure happens until it has cost as much as it can.
LIVES_MAX = 20


#: The others of the table run at night.
ALWAYS = (Failure.PROCESS_CRASH, Failure.POWER_CUT, Failure.MACHINE_LOST)


@pytest.mark.parametrize(
    "failure", [pytest.param(each, marks=() if each in ALWAYS else pytest.mark.nightly) for each in Failure]
)
def test_a_failure_costs_what_the_docs_say(failure: Failure) -> None:
    """O1, O2, C6: not more in any life, and as much in some."""
    for cell in matrix.cells(failure):
        expected, measured = matrix.documented_cells()[cell], Measured()
        for seed in range(LIVES_MAX):
            measured += matrix.measure(cell, [seed])
            if seed + 1 >= matrix.SEEDS and expected is matrix.judge(cell, measured):
                break
        actual = matrix.judge(cell, measured)
        assert expected is actual, f"{cell}: {measured}; run `python -m tests.replication.matrix --write`"


def test_the_table_of_the_docs_is_that_of_the_simulation() -> None:
    """O2: the same rows, columns and words."""
    assert matrix.table(matrix.documented_cells()) == matrix.documented()


def test_a_loss_beyond_every_promise_has_no_words() -> None:
    """O2, C6: a table cannot be made of it."""
    some = Measured(acknowledged=10, lost=2, oldest_lost_s=1.0)
    alone = Cell(Failure.POWER_CUT, FlushDiskType.ASYNC_FLUSH, Copies.ALONE)
    assert Lost.UNFLUSHED is matrix.judge(alone, some)
    with pytest.raises(WrongCell):
        matrix.judge(alone, Measured(acknowledged=10, lost=2, oldest_lost_s=60.0))
    with pytest.raises(WrongCell):
        matrix.judge(Cell(Failure.POWER_CUT, FlushDiskType.SYNC_FLUSH, Copies.ALONE), some)
    with pytest.raises(WrongCell):
        matrix.judge(Cell(Failure.MACHINE_LOST, FlushDiskType.ASYNC_FLUSH, Copies.SYNC_MASTER), some)
