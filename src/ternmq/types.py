"""Types that all layers share."""

from __future__ import annotations

from typing import TypeAlias

#: Bytes, or a view of bytes that somebody else owns (``collections.abc.Buffer`` exists only from Python 3.12 on).
Buffer: TypeAlias = bytes | bytearray | memoryview
