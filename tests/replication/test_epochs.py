"""Which master wrote which part of a log, and where two logs part (O1)."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import CorruptFile
from ternmq.replication.config import BrokerRole
from ternmq.replication.epochs import Epoch, Epochs, common_end, next_number
from ternmq.replication.memory import GivenRole, Memory
from ternmq.store.disk.file_disk import FileDisk


def epochs(*pairs: tuple[int, int]) -> Epochs:
    return Epochs.of(Epoch(*pair) for pair in pairs)


def test_the_file_has_the_form_of_rocketmq() -> None:
    """O1: the example is that of RocketMQ's own class, with its checksum."""
    text = b"2\n773307083\n7-7000\n8-8000\n"
    assert epochs((7, 7000), (8, 8000)) == Epochs.parse(text)
    assert text == epochs((7, 7000), (8, 8000)).format()
    assert epochs((7, 7000)) == Epochs.parse(b"1\n0\n7-7000\n")


@pytest.mark.parametrize(
    "data",
    [b"", b"1\n", b"2\n0\n1-0\n", b"1\n5\n1-0\n", b"1\n0\n1-0-3\n", b"1\n0\nx-0\n", b"2\n0\n2-0\n1-5\n", b"\xff"],
)
def test_a_file_that_is_damaged_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "epochFileCheckpoint").write_bytes(data)
    with pytest.raises(CorruptFile, match="nothing is cut automatically"):
        Memory(FileDisk(), tmp_path)


def test_epochs_without_records_do_not_count() -> None:
    known = epochs((1, 0), (2, 900), (5, 1000))
    assert epochs((1, 0), (2, 900)) == known.within(1000)
    assert epochs((1, 0)) == known.within(900) == known.within(0)
    assert epochs((1, 0), (6, 900)) == known.begun(900, 6)
    assert epochs((6, 0)) == known.begun(0, 6)


@pytest.mark.parametrize(
    ("ours", "our_end", "theirs", "their_end", "expected"),
    [
        (epochs((1, 0)), 1000, epochs((1, 0), (2, 900)), 1500, 900),
        (epochs((1, 0)), 1000, epochs((1, 0), (2, 900)), 900, 900),
        (epochs((1, 0)), 850, epochs((1, 0), (2, 900)), 1500, 850),
        (epochs((1, 0), (2, 900)), 1000, epochs((1, 0), (3, 950)), 1500, 900),
        (epochs((1, 0), (2, 900)), 1000, epochs((1, 0), (2, 900), (4, 970)), 1500, 970),
        (epochs((3, 0)), 1000, epochs((1, 0), (4, 900)), 1500, 0),
    ],
)
def test_two_logs_are_equal_up_to_the_end_of_their_last_common_epoch(
    ours: Epochs, our_end: int, theirs: Epochs, their_end: int, expected: int
) -> None:
    assert expected == common_end(ours, our_end, theirs, their_end)
    assert expected == common_end(theirs, their_end, ours, our_end)


@given(st.data())
def test_the_common_end_is_where_histories_part(data: st.DataObject) -> None:
    """O1: two nodes that take turns as master, the other following or not, against logs as lists of who wrote what."""
    logs: list[list[tuple[int, int]]] = [[], []]
    known = [Epochs(), Epochs()]
    newest = 1
    master = 0
    for step in range(data.draw(st.integers(1, 12))):
        logs[master] += [(newest, step)] * data.draw(st.integers(0, 5))
        other = 1 - master
        shared = next((at for at, (one, two) in enumerate(zip(*logs, strict=False)) if one != two), min(map(len, logs)))
        end = common_end(known[other], len(logs[other]), known[master], len(logs[master]))
        assert end <= shared or known[0].within(len(logs[0])) == known[1].within(len(logs[1]))
        if data.draw(st.booleans()):
            # The other one is cut to the common end, and follows, perhaps not to the end.
            logs[other] = (
                logs[other][:end] + logs[master][end : data.draw(st.integers(end, max(end, len(logs[master]))))]
            )
            known[other] = known[master]
        if data.draw(st.booleans()):
            newest += 1
            known[other] = known[other].begun(len(logs[other]), newest)
            master = other


def test_a_role_is_kept_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    memory = Memory(FileDisk(), tmp_path)
    assert memory.given is None
    role = GivenRole(BrokerRole.SYNC_MASTER, 0, 1, replaced=("10.0.0.1:10911",))
    memory.keep_role(role)
    memory.keep_epochs(epochs((1, 0), (2, 900)))
    again = Memory(FileDisk(), tmp_path)
    assert (role, epochs((1, 0), (2, 900))) == (again.given, again.epochs)
    for text in ("{}", '{"role":"SLAVE","brokerId":0}', '{"role":"SYNC_MASTER","brokerId":2}', "x"):
        (tmp_path / "config" / "role.json").write_text(text)
        with pytest.raises(CorruptFile, match="remove it"):
            Memory(FileDisk(), tmp_path)


def test_no_two_brokers_begin_the_same_epoch() -> None:
    """O1: whatever each of them has heard of; and the next number is larger than all that it has heard of."""
    known = range(1, 1000)
    begun = [{next_number(newest, broker_id) for newest in known} for broker_id in (0, 1, 2, 99)]
    assert sum(map(len, begun)) == len(set().union(*begun))
    assert all(next_number(newest, broker_id) > newest for newest in known for broker_id in (0, 99, 100, 1 << 40))
    assert [101, 200, 301] == [next_number(1, 1), next_number(101, 0), next_number(200, 1)]
