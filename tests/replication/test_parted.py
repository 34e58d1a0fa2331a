"""A slave whose log parts from its master's: cut where a promotion explains it, and nowhere else (O1)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from ternmq.replication.epochs import Epoch, Epochs
from ternmq.replication.handshake import Refusal
from ternmq.replication.memory import Memory
from ternmq.replication.session import MustCut
from ternmq.replication.slave import SlaveState
from ternmq.store.cut import cut_log
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.paths import LogPaths
from ternmq.store.store import MessageStore
from tests.replication.world import following, opened_store, serving, until
from tests.store.small import draft, log_queues_index


async def parted(root: Path, *, more: int) -> int:
    """Two stores with ten records in common; the first has ``more`` of its own. Returns where they part."""
    async with serving(root / "one") as one:
        common = one.put(10)
        async with following(root / "two", one.address) as two:
            await two.reaches(common)
        one.put(more, body=b"only here")
    return common


def never(cut: MustCut) -> None:
    pytest.fail(f"it is cut: {cut}")


def promoted(common: int, number: int = 2) -> Epochs:
    return Epochs((Epoch(1, 0), Epoch(number, common)))


@pytest.mark.parametrize(("more", "later"), [(5, 0), (5, 1), (1, 40), (40, 3)])
async def test_an_old_master_is_cut_where_the_new_one_was_promoted(tmp_path: Path, more: int, later: int) -> None:
    """O1: ahead of it, or with other records before its end."""
    common = await parted(tmp_path, more=more)
    cuts: list[MustCut] = []
    async with serving(tmp_path / "two", epochs=promoted(common)) as master:
        master.put(later, body=b"of the new master")
        async with following(tmp_path / "one", master.address, on_cut=cuts.append) as old:
            await old.comes_to(SlaveState.CUTTING)
            assert [common] == [cut.log_offset for cut in cuts]
            assert not master.master.replicas.status(), "one that only asks is no copy"
        cut_log(
            FileDisk(),
            tmp_path / "one",
            LogPaths([tmp_path / "one" / "commitlog"]),
            segment_bytes=4096,
            log_offset=common,
        )
        async with following(tmp_path / "one", master.address, on_cut=cuts.append) as old:
            await old.reaches(master.put(3))
            assert 1 == len(cuts)
            assert promoted(common) == Memory(FileDisk(), tmp_path / "one").epochs
    ours, theirs = (log_queues_index(tmp_path / name) for name in ("one", "two"))
    assert ours[:2] == theirs[:2]


async def test_a_slave_that_has_all_bytes_needs_no_cut(tmp_path: Path) -> None:
    """O1: whatever its epochs say; it takes over those of its master."""
    common = await parted(tmp_path, more=0)
    async with (
        serving(tmp_path / "one", epochs=promoted(common - 1)) as master,
        following(tmp_path / "two", master.address, on_cut=never) as slave,
    ):
        await slave.reaches(master.put(3))
    assert promoted(common - 1) == Memory(FileDisk(), tmp_path / "two").epochs


@pytest.mark.parametrize("number", [1, 2])
async def test_nothing_is_cut_without_a_later_epoch(tmp_path: Path, number: int) -> None:
    """O1: the master lost the end of its log, or both were promoted: an operator decides."""
    common = await parted(tmp_path, more=5)
    if number > 1:
        Memory(FileDisk(), tmp_path / "one").keep_epochs(Epochs((Epoch(1, 0), Epoch(2, common - 200))))
    epochs = promoted(common) if number > 1 else Epochs()
    async with (
        serving(tmp_path / "two", epochs=epochs) as master,
        following(tmp_path / "one", master.address, on_cut=never) as old,
    ):
        await old.comes_to(SlaveState.REFUSED)
        assert Refusal.AHEAD is old.slave.refusal
        assert "tern store cut" in old.slave.trouble


async def test_nothing_is_cut_if_the_bytes_before_the_common_end_differ(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: epochs of the same numbers do not make two logs of one history."""
    for name in ("one", "two"):
        async with opened_store(tmp_path / name) as store:
            for number in range(20):
                store.put(draft(body=f"{name} {number}".encode()))
    async with serving(tmp_path / "two", epochs=promoted(1000)) as master:
        with caplog.at_level(logging.ERROR):
            async with following(tmp_path / "one", master.address, on_cut=never) as old:
                await until(lambda: old.slave.state is SlaveState.REFUSED)
                assert Refusal.OTHER_HISTORY is old.slave.refusal
    assert "OTHER_HISTORY" in caplog.text


async def test_a_slave_of_a_later_epoch_does_not_follow_an_older_master(tmp_path: Path) -> None:
    """O1: it was promoted since, and its messages count."""
    common = await parted(tmp_path, more=0)
    async with opened_store(tmp_path / "two") as store:
        store.put(draft(body=b"of the new master"))
    Memory(FileDisk(), tmp_path / "two").keep_epochs(promoted(common))
    async with serving(tmp_path / "one") as master:
        master.put(30)
        async with following(tmp_path / "two", master.address, on_cut=never) as slave:
            await slave.comes_to(SlaveState.REFUSED)
            assert Refusal.OLD_MASTER is slave.slave.refusal


@pytest.mark.parametrize("more", [1, 5])
async def test_two_epochs_of_one_number_and_start_are_parted_at_their_beginning(tmp_path: Path, more: int) -> None:
    """O1: both were promoted at the same place, each without the other; a later promotion decides. The log that is cut
    ends before the end of that epoch in the other, or behind it."""
    common = await parted(tmp_path, more=more)
    async with opened_store(tmp_path / "two") as store:
        for _ in range(7):
            store.put(draft(body=b"of the other master"))
    Memory(FileDisk(), tmp_path / "one").keep_epochs(promoted(common))
    cuts: list[MustCut] = []
    epochs = Epochs((Epoch(1, 0), Epoch(2, common), Epoch(3, common + 500)))
    async with (
        serving(tmp_path / "two", epochs=epochs) as master,
        following(tmp_path / "one", master.address, on_cut=cuts.append) as old,
    ):
        master.put(3)
        await old.comes_to(SlaveState.CUTTING)
    assert [common] == [cut.log_offset for cut in cuts]


@pytest.mark.parametrize(
    "epochs",
    [
        Epochs(tuple(Epoch(number, 0) for number in range(1, 600))),
        Epochs((Epoch(1, 0), Epoch((1 << 63) - 1, 100))),
    ],
    ids=["many", "huge"],
)
async def test_a_slave_does_not_keep_epochs_that_no_master_has(
    tmp_path: Path, epochs: Epochs, caplog: pytest.LogCaptureFixture
) -> None:
    """O1: from a master that is broken or hostile. After the largest number, no broker could be promoted any more."""
    async with serving(tmp_path / "one", epochs=epochs) as master, following(tmp_path / "two", master.address) as slave:
        master.put(3)
        await until(lambda: "the handshake of replication is not valid" in caplog.text)
        assert 0 == slave.store.written
    assert Epochs() == Memory(FileDisk(), tmp_path / "two").epochs
    async with serving(tmp_path / "one") as master, following(tmp_path / "two", master.address) as slave:
        await slave.reaches(master.put(1))


@pytest.mark.parametrize(
    ("deletions", "words"),
    [
        ({f"t{number}": 1 << 40 for number in range(9)}, "more than 8 deleted topics"),
        ({"t" * 300: 1 << 40}, "a topic whose name has 300 characters"),
    ],
    ids=["many", "long"],
)
async def test_deletions_that_wait_for_the_log_are_bounded(
    tmp_path: Path,
    deletions: dict[str, int],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """O4: a master that is broken or hostile tells of many, at log offsets that do not come."""
    monkeypatch.setattr("ternmq.replication.session.DELETIONS_MAX", 8)
    monkeypatch.setattr(MessageStore, "deletions", deletions)
    async with serving(tmp_path / "one") as master, following(tmp_path / "two", master.address):
        master.put(3)
        await until(lambda: words in caplog.text)
