"""Reading a directory without opening it (U3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.errors import StoreError
from ternmq.store.read.reader import LogReader
from tests.store.small import draft, files, quiet_store, small_config


def test_a_running_store_can_be_read(tmp_path: Path) -> None:
    """U3: in log order, over segments, from anywhere; and nothing changes."""
    with quiet_store(small_config(tmp_path)) as store:
        places = [store.put(draft(f"t{number % 3}", 0, b"%d" % number * 300)) for number in range(30)]
        before = files(tmp_path)

        reader = LogReader(tmp_path)
        assert [placed.log_offset for placed in places] == [record.log_offset for record in reader]
        assert (store.written, "") == (reader.position, reader.trouble)
        tail = LogReader(tmp_path, log_offset=places[20].log_offset, check_crc=False)
        assert 10 == len(list(tail))
        assert before == files(tmp_path)


def test_a_damaged_record_ends_the_scan_with_a_reason(tmp_path: Path) -> None:
    """U3, C8."""
    with quiet_store(small_config(tmp_path)) as store:
        first = store.put(draft(body=b"a" * 50))
        store.put(draft(body=b"b" * 50))
    (path,) = (tmp_path / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    data[first.end_offset + 100] ^= 1
    path.write_bytes(data)

    reader = LogReader(tmp_path)
    assert 1 == len(list(reader))
    assert first.end_offset == reader.position
    assert "does not match its CRC" in reader.trouble
    assert 2 == len(list(LogReader(tmp_path, check_crc=False)))


def test_a_directory_without_a_log_is_named(tmp_path: Path) -> None:
    """U3."""
    with pytest.raises(StoreError, match=r"there is no log in .* give the directory that storePathRootDir names"):
        LogReader(tmp_path)
