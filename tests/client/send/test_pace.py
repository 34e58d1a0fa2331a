"""The pace of sends to a busy broker (E4). Producers with it are in ``test_producer.py``."""

from __future__ import annotations

import random

from ternmq.client.send.pace import SendPace


class Sending:
    """Goes on when it may, and counts itself as a send does."""

    def __init__(self, pace: SendPace, *, fails: bool = False) -> None:
        self.pace = pace
        self.has_gone = False
        self._fails = fails

    def go_on(self) -> None:
        self.has_gone = True
        if self._fails:
            # It has ended, which lets the next one go: from within.
            self.pace.release(9.0)
        else:
            self.pace.out += 1

    def close(self) -> None:
        raise AssertionError("nothing is closed here")


def busy_pace() -> SendPace:
    pace = SendPace(random.Random(1))
    pace.busy(3, 0.0)
    return pace


def test_nothing_goes_before_the_pause_is_over_also_if_a_timer_comes_early() -> None:
    """E4: those of uvloop do; the caller sets another one."""
    pace = busy_pace()
    sending = Sending(pace)
    pace.wait(sending)
    pace.release(pace.resume_at - 0.0005)
    assert (False, True) == (sending.has_gone, pace.waits)
    pace.release(pace.resume_at)
    assert (True, False) == (sending.has_gone, pace.waits)


def test_only_sends_of_the_window_are_on_their_way() -> None:
    """E4: each that ends makes room for one."""
    pace = busy_pace()
    sendings = [Sending(pace) for _ in range(5)]
    for sending in sendings:
        pace.wait(sending)
    pace.release(9.0)
    assert 2 == pace.window == sum(sending.has_gone for sending in sendings)
    pace.out -= 1
    pace.release(9.0)
    assert 3 == sum(sending.has_gone for sending in sendings)


def test_sends_that_fail_at_once_do_not_pile_up_calls() -> None:
    """E4: a thousand of them, as when a client is closed."""
    pace = busy_pace()
    sendings = [Sending(pace, fails=True) for _ in range(5_000)]
    for sending in sendings:
        pace.wait(sending)
    pace.release(9.0)
    assert all(sending.has_gone for sending in sendings)


def test_what_waits_can_be_given_up() -> None:
    pace = busy_pace()
    sending = Sending(pace)
    pace.wait(sending)
    assert [sending] == pace.give_up()
    assert not pace.waits
