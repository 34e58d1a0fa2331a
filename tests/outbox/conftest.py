"""A cluster for all tests of the outbox, and what is in its topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ternmq import EmbeddedCluster
from tests.no_delays import NO_DELAYS


@pytest.fixture(scope="package")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"messageDelayLevel": NO_DELAYS}) as running:
        yield running
