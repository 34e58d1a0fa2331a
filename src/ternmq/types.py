"""Types that all layers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

#: Bytes, or a view of bytes that another object owns (``collections.abc.Buffer`` requires Python 3.12).
Buffer: TypeAlias = bytes | bytearray | memoryview

#: Whether a message passes a filter, by its tags code; by its property text.
Matches: TypeAlias = Callable[[int], bool]
Accepts: TypeAlias = Callable[[str], bool]
#: Whether the work on one request has taken long enough.
IsOver: TypeAlias = Callable[[], bool]
