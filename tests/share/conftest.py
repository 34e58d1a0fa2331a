"""Worlds for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.share.world import Make, Options, World


@pytest.fixture
def make() -> Iterator[Make]:
    """Worlds that end with the test."""
    worlds: list[World] = []

    def make(options: Options) -> World:
        worlds.append(World(options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()
