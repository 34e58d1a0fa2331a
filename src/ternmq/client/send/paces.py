"""The paces of all brokers that were busy (E4): who waits for which, and the timers that let them go on.

What a pace allows is decided in ``pace``. A broker that is not busy has none, so that a send looks into an empty dict.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ternmq.client.send.pace import SendPace
from ternmq.env import Env


class Paces:
    """Of one producer. ``calls_open`` says how many requests are on their way to an address. All methods belong to the
    loop's thread."""

    def __init__(self, env: Env, calls_open: Callable[[str], int]) -> None:
        self._env = env
        self._calls_open = calls_open
        #: By address and topic.
        self.by_place: Final[dict[tuple[str, str], SendPace]] = {}

    def slow_down(self, address: str, topic: str) -> None:
        """A broker has refused a send because it is busy."""
        pace = self.by_place.get((address, topic))
        if pace is None:
            pace = self.by_place[address, topic] = SendPace(self._env.random)
            # Those before this pace were not counted.
            out = self._calls_open(address)
        else:
            out = pace.out
        pace.busy(out, self._env.clock.monotonic())

    def release(self, address: str, topic: str) -> None:
        """Let go on what waits for a broker that was busy, as far as it has room."""
        pace = self.by_place.get((address, topic))
        if pace is None:
            return
        now = self._env.clock.monotonic()
        pace.release(now)
        if pace.is_over:
            del self.by_place[address, topic]
        elif pace.waits and not pace.is_timed and now < pace.resume_at:
            # Also after a timer that came a little early, as those of uvloop do.
            pace.is_timed = True
            asyncio.get_running_loop().call_later(pace.resume_at - now, self._resume, address, topic)

    def _resume(self, address: str, topic: str) -> None:
        pace = self.by_place.get((address, topic))
        if pace is not None:
            pace.is_timed = False
            self.release(address, topic)

    def close(self) -> None:
        """End what waits."""
        paces = list(self.by_place.values())
        self.by_place.clear()
        for pace in paces:
            for sending in pace.give_up():
                sending.close()
