"""Where the next records of a log may be packed (C1)."""

from __future__ import annotations


class Window:
    """Where the next records may be packed. A log has one; the writer looks at it without a call.

    Only the log that it belongs to moves it. What a writer packs there exists when it is sealed.
    """

    __slots__ = ("at", "base", "limit", "page")

    def __init__(self) -> None:
        self.page = memoryview(b"")
        #: Log offset of the page's first byte.
        self.base = 0
        #: Log offset of the next record: behind its lead.
        self.at = 0
        #: The next record must end here or before, or ``reserve`` must be called first.
        self.limit = -1

    def shut(self) -> None:
        """Let the next append call ``reserve``."""
        self.limit = -1
