"""The subscription groups of a broker (D2)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ternmq.broker.tables.groups import Groups
from ternmq.errors import GroupMissing, InvalidParameter
from ternmq.files import TableFile
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from tests.manual_clock import ManualClock
from tests.recordings import DATA


def table(path: Path, *, auto_create: bool = True) -> Groups:
    file = TableFile(path / "subscriptionGroup.json")
    groups = Groups(file, ManualClock(), broker_name="broker-a", auto_create=auto_create)
    groups.load()
    return groups


def test_a_group_comes_into_being_when_it_is_first_used(tmp_path: Path) -> None:
    """D2: with RocketMQ's defaults, and it is there after a restart."""
    config = table(tmp_path).find("g")

    assert (config.consume_enable, config.retry_queue_nums, config.retry_max_times) == (True, 1, 16)
    assert table(tmp_path, auto_create=False).find("g") == config


def test_without_auto_creation_an_unknown_group_is_refused_with_the_cure(tmp_path: Path) -> None:
    """D2: but tools and the system itself always work."""
    groups = table(tmp_path, auto_create=False)

    with pytest.raises(GroupMissing, match=r"subscription group \[g\] does not exist.*autoCreateSubscriptionGroup"):
        groups.find("g")
    assert groups.find("TOOLS_CONSUMER").consume_enable
    assert groups.find("CID_RMQ_SYS_TRANS").consume_enable


def test_looking_at_a_group_does_not_create_it(tmp_path: Path) -> None:
    groups = table(tmp_path)

    assert groups.get("g") is None
    assert "g" not in groups.all


@pytest.mark.parametrize("name", ["", "a b", "g" * 249])
def test_a_name_that_no_group_can_have_creates_nothing(tmp_path: Path, name: str) -> None:
    groups = table(tmp_path)

    with pytest.raises(GroupMissing):
        groups.find(name)
    with pytest.raises(InvalidParameter):
        groups.put(SubscriptionGroupConfig(group_name=name))
    assert name not in groups.all


def test_a_changed_group_is_kept_and_a_deleted_one_forgotten(tmp_path: Path) -> None:
    groups = table(tmp_path)
    changed = SubscriptionGroupConfig(group_name="g", consume_enable=False, retry_max_times=3)

    groups.put(changed)
    assert table(tmp_path).get("g") == changed

    groups.delete("g")
    assert table(tmp_path).get("g") is None
    with pytest.raises(InvalidParameter):
        groups.delete("TOOLS_CONSUMER")


@pytest.mark.parametrize("version", ["4.9.4", "5.2.0"])
def test_a_file_of_rocketmq_is_read(tmp_path: Path, version: str) -> None:
    """C11."""
    name = f"rocketmq-{version}-clean"
    shutil.unpack_archive(DATA / "stores" / f"{name}.tar.gz", tmp_path, filter="data")

    assert table(tmp_path / name / "config", auto_create=False).find("golden_push").retry_queue_nums == 1
