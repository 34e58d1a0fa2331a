"""How other threads call the store's thread (C6).

With an event loop, ``notify`` brings a call to it. Without one, calls wait here until the owner of the store makes a
call that looks for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

StoreJob = Callable[[], object]


class JobBox:
    """``post`` may be called by any thread, the rest belongs to the store's."""

    __slots__ = ("_jobs", "_notify", "has_loop")

    def __init__(self, notify: Callable[[StoreJob], object] | None) -> None:
        self._notify = notify
        self._jobs: deque[StoreJob] = deque()
        #: Whether calls come by themselves.
        self.has_loop = notify is not None

    def __len__(self) -> int:
        return len(self._jobs)

    def post(self, job: StoreJob) -> None:
        """Have ``job`` called on the store's thread."""
        if self._notify is not None:
            self._notify(job)
        else:
            self._jobs.append(job)

    def pick_up(self) -> None:
        """Call what waits."""
        while self._jobs:
            self._jobs.popleft()()
