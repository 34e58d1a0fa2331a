"""Types that all layers share."""

from __future__ import annotations

from typing import TypeAlias

#: Bytes, or a view of bytes that another object owns (``collections.abc.Buffer`` requires Python 3.12).
Buffer: TypeAlias = bytes | bytearray | memoryview
