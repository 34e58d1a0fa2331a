"""Random pops, acks, changes, crashes and restarts, against a list of messages (F9).

Whatever happens, at the end every unacknowledged message is popped again. While a broker lives, no consumer gets a
message that is hidden or acked. What was handed out before a crash may come again, whatever became of it; a stop is no
crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.pop.world import InHand, Options, World


@dataclass(slots=True)
class Known:
    """What is known of one message."""

    #: No consumer may have it before this time.
    hidden_until_ms: int = 0
    was_delivered: bool = False
    was_acked: bool = False
    #: Handed out before a crash: there may be two of it now, one in the queue and one in a check point.
    may_repeat: bool = False


class Pops(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.known: dict[bytes, Known] = {}
        self.in_hand: list[InHand] = []

    @initialize(enabled=st.booleans(), retry_v2=st.booleans(), count_max=st.sampled_from([0, 3, 1000]))
    def begin(self, enabled: bool, retry_v2: bool, count_max: int) -> None:
        options = Options(enabled=enabled, retry_v2=retry_v2, count_max=count_max, carry_records=3)
        self.world = World(options)

    # --- What clients do ----------------------------------------------------------------------------------------

    @rule(queue_id=st.integers(0, 1), count=st.integers(1, 5))
    def send(self, queue_id: int, count: int) -> None:
        for _ in range(count):
            body = b"%d" % len(self.known)
            self.known[body] = Known()
            self.world.send(body, queue_id)
        # What is sent is on the disk; what pop does with it need not be.
        self.world.store.flush_now()

    @rule(count_max=st.integers(1, 4), invisible_ms=st.sampled_from([1_000, 5_000, 60_000, 600_000]))
    def pop(self, count_max: int, invisible_ms: int) -> None:
        for message in self.world.pop_everywhere(count_max=count_max, invisible_ms=invisible_ms):
            self.delivered(message, invisible_ms)
            self.in_hand.append(message)

    def delivered(self, message: InHand, invisible_ms: int) -> None:
        known, now_ms = self.known[message.body], self.world.clock.now_ms()
        if not known.may_repeat:
            assert not known.was_acked, f"{message.body!r} was acked, and comes again"
            assert known.hidden_until_ms <= now_ms, f"{message.body!r} is hidden, and comes"
        known.hidden_until_ms = now_ms + invisible_ms
        known.was_delivered = True

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        message = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        if self.world.ack(message):
            self.known[message.body].was_acked = True

    @precondition(lambda self: self.in_hand)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 1_000, 30_000]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        message = self.in_hand.pop(data.draw(st.integers(0, len(self.in_hand) - 1)))
        changed = self.world.change(message, invisible_ms)
        if changed is not None:
            self.in_hand.append(changed)
            self.known[message.body].hidden_until_ms = self.world.clock.now_ms() + invisible_ms

    # --- What happens to the broker -------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 0.5, 4, 11, 61]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule()
    def flush(self) -> None:
        self.world.store.flush_now()

    @rule()
    def save(self) -> None:
        self.world.save()

    @rule()
    def tend(self) -> None:
        self.world.buffer.tend()

    @rule()
    def stop(self) -> None:
        self.world.stop()
        self.world.start()

    @rule()
    def kill(self) -> None:
        self.world.kill()
        self.crashed()

    @rule(seed=st.integers(0, 2**32))
    def cut_power(self, seed: int) -> None:
        self.world.cut_power(Random(seed))
        self.crashed()

    def crashed(self) -> None:
        self.world.start()
        for known in self.known.values():
            known.may_repeat |= known.was_delivered

    # --- The end ------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.drain()
            self.world.stop()

    def drain(self) -> None:
        """Let all times pass, and take everything that is left."""
        quiet = 0
        while quiet < 3:
            self.world.pass_time(700)
            self.world.store.flush_now()
            found = self.world.pop_everywhere()
            for message in found:
                self.delivered(message, 60_000)
                assert self.world.ack(message)
                self.known[message.body].was_acked = True
            quiet = 0 if found else quiet + 1
        assert [] == [body for body, known in self.known.items() if not known.was_acked], "lost"
        assert 0 == len(self.world.buffer), "all is acked, and something is in flight"
        # After a stop, nothing of this is to be done again.
        self.world.stop()
        self.world.start()
        assert 0 == len(self.world.buffer)
        assert [] == self.world.pop_everywhere()


TestPops = Pops.TestCase
TestPops.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
