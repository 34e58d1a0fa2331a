"""How fast a busy broker is sent to (E4): a window of sends on their way, and a pause that grows.

A broker that refuses a send because it is busy has not stored it, so the send may go again, to the same queue, too. If
all refused sends went again at once, the broker would only become busier. So each topic of a broker that was busy has a
``SendPace``. (Of a topic, because a quota is of one topic, and others must not wait for it.)

- it sends nothing for ``PAUSE_FIRST_S``, doubled with each further refusal up to ``PAUSE_MAX_S``, half of it at random;
- of what was on its way, half is allowed afterwards, and a little more with each window that was answered well;
- what does not fit waits here, in the order in which it came, as long as its time limit allows.

Answers of one burst count once. A broker that answers well for long is forgotten. No clock, no loop: the time goes in.
"""

from __future__ import annotations

import random
from typing import Final, Protocol

PAUSE_FIRST_S: Final = 0.01
PAUSE_MAX_S: Final = 0.5
#: A window of this size does not slow anything down.
WINDOW_MAX: Final = 4_096


class Paced(Protocol):
    """What waits for its turn."""

    def go_on(self) -> None:
        """It is its turn; called once."""
        ...

    def close(self) -> None:
        """Its turn will not come: the client is closed."""
        ...


class SendPace:
    """Of one topic of a broker that was busy."""

    __slots__ = (
        "_answered",
        "_chance",
        "_is_releasing",
        "_pause_s",
        "_waiting",
        "is_timed",
        "out",
        "resume_at",
        "window",
    )

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._pause_s = 0.0
        #: Good answers since the window last changed.
        self._answered = 0
        #: In the order in which they came.
        self._waiting: dict[Paced, None] = {}
        #: Sends that may be on their way at the same time.
        self.window = WINDOW_MAX
        #: Until when nothing is sent.
        self.resume_at = 0.0
        #: Whether a timer will call ``release``.
        self.is_timed = False
        #: Sends that are on their way, since this pace exists.
        self.out = 0
        self._is_releasing = False

    @property
    def waits(self) -> bool:
        """Whether something waits for its turn."""
        return bool(self._waiting)

    @property
    def is_over(self) -> bool:
        """Whether it has no effect any more."""
        return self.window >= WINDOW_MAX and not self._waiting

    def busy(self, out: int, now: float) -> bool:
        """The broker refused a send while ``out`` others were on their way; whether this begins a new pause."""
        if now < self.resume_at:
            return False
        self._answered = 0
        self.window = max(1, min(self.window, out + 1) // 2)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S) or PAUSE_FIRST_S
        self.resume_at = now + self._pause_s * self._chance.uniform(0.5, 1.0)
        return True

    def done(self) -> None:
        """The broker has stored a message."""
        self._answered += 1
        if self._answered >= self.window:
            self._answered = 0
            self._pause_s = 0.0
            self.window += max(1, self.window // 4)

    def admits(self, now: float) -> bool:
        """Whether one more may be sent now, before all that waits."""
        return not self._waiting and self.out < self.window and now >= self.resume_at

    def wait(self, sending: Paced) -> None:
        self._waiting[sending] = None

    def forget(self, sending: Paced) -> None:
        """It waits no longer, if it did."""
        self._waiting.pop(sending, None)

    def release(self, now: float) -> None:
        """Let go on what has room. What goes on may fail at once, and call this again: one loop is enough."""
        if self._is_releasing:
            return
        self._is_releasing = True
        try:
            while self._waiting and self.out < self.window and now >= self.resume_at:
                sending = next(iter(self._waiting))
                del self._waiting[sending]
                sending.go_on()
        finally:
            self._is_releasing = False

    def give_up(self) -> list[Paced]:
        """All that waits; it waits no longer."""
        waiting, self._waiting = list(self._waiting), {}
        return waiting
