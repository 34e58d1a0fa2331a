"""Settings by namespace and key (A5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.errors import InvalidParameter
from ternmq.files import TableFile
from ternmq.namesrv.kv import KvConfig


def test_a_setting_is_kept_until_it_is_deleted() -> None:
    """A5."""
    kv = KvConfig()
    kv.load()
    kv.put("n", "k", "v")
    kv.put("n", "l", "w")

    assert kv.get("n", "k") == "v"
    assert kv.get("n", "x") is None
    assert kv.of_namespace("n") == {"k": "v", "l": "w"}
    kv.delete("n", "k")
    kv.delete("n", "l")
    kv.delete("m", "l")
    assert kv.of_namespace("n") is None


def test_settings_survive_a_restart_where_there_is_a_file(tmp_path: Path) -> None:
    """A5: in RocketMQ's form."""
    file = TableFile(tmp_path / "kvConfig.json")
    kv = KvConfig(file)
    kv.load()
    kv.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4;broker-b:4")

    assert file.path.read_bytes() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"orders":"broker-a:4;broker-b:4"}}}'
    restarted = KvConfig(file)
    restarted.load()
    assert restarted.get("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4;broker-b:4"


def test_settings_are_bounded_by_bytes(tmp_path: Path) -> None:
    """Issue 13, 6: a name server kept settings of any number and size; and counts those of its file."""
    file = TableFile(tmp_path / "kvConfig.json")
    kv = KvConfig(file, bytes_max=1_000)
    kv.put("n", "k", "v" * 600)
    with pytest.raises(InvalidParameter, match="maxKvConfigBytes"):
        kv.put("n", "l", "v" * 600)
    kv.put("n", "k", "w" * 900)
    restarted = KvConfig(file, bytes_max=1_000)
    restarted.load()
    with pytest.raises(InvalidParameter, match="maxKvConfigBytes"):
        restarted.put("m", "l", "v" * 200)

    restarted.delete("n", "k")

    restarted.put("m", "l", "v" * 900)
    assert restarted.of_namespace("n") is None
