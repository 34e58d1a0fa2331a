"""Light queues, which RocketMQ makes and TernMQ must not lose (C11); records as RocketMQ 4.9.4 writes them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ternmq.store.derived.light import light_places
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.verify import verify
from ternmq.wire.properties import join
from tests.manual_clock import ManualClock
from tests.store.small import bodies, draft, quiet_store, small_config

LIGHT = "%LMQ%a"


def test_a_record_names_its_places() -> None:
    text = join({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b,orders", "INNER_MULTI_QUEUE_OFFSET": "7,0,3"})

    assert [("%LMQ%a", 7), ("%LMQ%b", 0)] == [*light_places(text)]


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"INNER_MULTI_DISPATCH": LIGHT},
        {"INNER_MULTI_QUEUE_OFFSET": "1"},
        {"INNER_MULTI_DISPATCH": LIGHT, "INNER_MULTI_QUEUE_OFFSET": "-1"},
        {"INNER_MULTI_DISPATCH": "../a", "INNER_MULTI_QUEUE_OFFSET": "1"},
    ],
)
def test_what_a_client_may_have_sent_names_none(properties: dict[str, str]) -> None:
    assert [] == [*light_places(join(properties))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with three messages that are in a light queue as well, as RocketMQ leaves it."""
    with quiet_store(small_config(tmp_path)) as store:
        placed = []
        for number in range(3):
            places = {"INNER_MULTI_DISPATCH": LIGHT, "INNER_MULTI_QUEUE_OFFSET": f"{number}"}
            placed.append(store.put(draft("mqtt", number, b"%d" % number, KEYS="k", **places)))
        store.put(draft("mqtt", 0, b"plain"))
    queues = ConsumeQueues(FileDisk(), tmp_path / "consumequeue", file_bytes=100)
    for one in placed:
        queues.make(LIGHT, 0).append(one.log_offset, one.end_offset - one.log_offset, 0)
    queues.close()
    return tmp_path


@pytest.mark.parametrize("is_killed", [False, True])
def test_they_are_served_also_after_a_crash(is_killed: bool, root: Path) -> None:
    """C8, C11: when RocketMQ was killed, their entries are folded again like all others."""
    if is_killed:
        (root / "abort").touch()
    with quiet_store(small_config(root)) as store:
        assert [b"0", b"1", b"2"] == bodies(store, LIGHT)
        assert [b"0", b"plain"] == bodies(store, "mqtt")
    assert [] == verify(root).findings


def test_they_are_made_again_when_all_queues_are_lost(root: Path) -> None:
    """C5, C11: what shows then that RocketMQ had some is the table of their consumers."""
    shutil.rmtree(root / "consumequeue")
    (root / "config").mkdir()
    (root / "config" / "lmqConsumerOffset.json").write_text("{}")
    with quiet_store(small_config(root)) as store:
        assert [b"0", b"1", b"2"] == bodies(store, LIGHT)
        assert [b"0", b"plain"] == bodies(store, "mqtt")
    assert [] == verify(root).findings


def test_tools_know_them(root: Path) -> None:
    """C5: missing entries are found, and made again."""
    path = root / "consumequeue" / LIGHT / "0" / f"{0:020d}"
    path.write_bytes(bytes(100))
    assert ["queue-missing"] == [fault.kind for fault in verify(root).faults]

    rebuild(root, clock=ManualClock())

    with quiet_store(small_config(root)) as store:
        assert [b"0", b"1", b"2"] == bodies(store, LIGHT)


def test_nobody_gets_into_queues_that_way(tmp_path: Path) -> None:
    """Where RocketMQ has made no light queues, such properties are a client's own."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft(INNER_MULTI_DISPATCH=LIGHT, INNER_MULTI_QUEUE_OFFSET="0"))
    (tmp_path / "abort").touch()
    with quiet_store(small_config(tmp_path)) as store:
        assert [("orders", 0)] == [*store.queues()]
