"""Recorded directories, unpacked once for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.small import RECORDED, RecordedStore, unpack_stores


@pytest.fixture(scope="session")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded")
    unpack_stores(path)
    return path


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, unpacked: Path, tmp_path: Path) -> RecordedStore:
    """Each recorded directory in turn."""
    return RecordedStore(unpacked, request.param, tmp_path)


@pytest.fixture
def crashed(unpacked: Path, tmp_path: Path) -> RecordedStore:
    """The one whose broker was killed."""
    return RecordedStore(unpacked, "rocketmq-4.9.4-crashed", tmp_path)
