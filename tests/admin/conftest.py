"""One cluster of two brokers and an admin for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ternmq.admin import Admin
from ternmq.embedded import EmbeddedCluster


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.name_servers) as admin:
        yield admin
