"""Versions of the broker's tables: each change counts on, so that others see at a glance whether theirs is old (A2)."""

from __future__ import annotations

from ternmq.wire.bodies.topics import DataVersion


def counted_on(version: DataVersion, now_ms: int) -> DataVersion:
    """The version after one more change."""
    return DataVersion(counter=version.counter + 1, timestamp=now_ms, state_version=version.state_version or 0)
