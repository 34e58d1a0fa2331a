"""A steady rate of sends that gives way when the broker is busy. Pure: times in, pauses out."""

from __future__ import annotations

from typing import Final

#: The pause after a refusal; each further one in a row doubles it, up to the second.
BACK_OFF_S: Final = 0.01
BACK_OFF_S_MAX: Final = 1.0


class Pace:
    """``rate`` messages a second, ``batch`` at a time, as long as the broker takes them.

    What could not be sent in time is not sent later in a burst: the rate that was reached is smaller, and is reported.
    """

    def __init__(self, *, rate: int, batch: int, now_s: float) -> None:
        self._step_s = batch / rate
        self._batch = batch
        self._began_s = self._due_s = now_s
        self._back_off_s = BACK_OFF_S
        #: Messages that were sent, and batches that were refused.
        self.sent = 0
        self.refused = 0

    def after_send(self, now_s: float) -> float:
        """A batch was sent; how long to wait before the next one."""
        self.sent += self._batch
        self._back_off_s = BACK_OFF_S
        # A pause or a slow answer moves all that follows.
        self._due_s = max(self._due_s + self._step_s, now_s)
        return self._due_s - now_s

    def after_refusal(self, now_s: float) -> float:
        """The broker was busy; how long to wait before the next attempt."""
        self.refused += 1
        pause_s, self._back_off_s = self._back_off_s, min(self._back_off_s * 2, BACK_OFF_S_MAX)
        self._due_s = now_s + pause_s
        return pause_s

    def rate(self, now_s: float) -> float:
        """Messages a second that were reached."""
        return self.sent / max(now_s - self._began_s, 1e-9)
