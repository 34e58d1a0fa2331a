"""Keys in memory, for tests: consumers of other processes know nothing of them, and they end with the process (S1)."""

from __future__ import annotations

from threading import Lock

from ternmq.env import Clock, SystemClock
from ternmq.once.keystore import Decide, KeyEntry, T


class MemoryKeys:
    """A ``KeyStore`` in this process. May be used in any thread and loop."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self.name = "memory"
        self._clock = clock or SystemClock()
        self._entries: dict[str, KeyEntry] = {}
        self._lock = Lock()

    async def change(self, key: str, decide: Decide[T]) -> T:
        with self._lock:
            entry = self._entries.get(key)
            result, changed = decide(entry, self._clock.now_ms())
            if changed is not None:
                self._entries[key] = changed
            return result

    async def purge(self, count_max: int) -> int:
        with self._lock:
            now_ms = self._clock.now_ms()
            over = [key for key, entry in self._entries.items() if entry.is_over(now_ms)][:count_max]
            for key in over:
                del self._entries[key]
            return len(over)
