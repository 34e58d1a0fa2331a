"""One seed, one life of a group that shares a topic, on one broker that breaks (R1–R3).

Consumers pull, confirm what they did, late, twice, with gaps, in the name of others and beyond what they have; they
hang, die, leave, and start again under the same name. The broker stops, is killed, loses power, begins new terms, and
deletes old segments. Always:

- each message that was stored, and not deleted by retention, is confirmed in the end by a consumer that had it;
- an ack that a consumer may not send is refused, and confirms nothing;
- while the broker lives, no message that is confirmed is handed out again, and none to two consumers at a time;
- the state that a new term folds is the one that the old term had.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from random import Random
from typing import Final

from ternmq.errors import InvalidParameter, NoMessage
from ternmq.share.share_log import ShareLog
from ternmq.share.state import ShareState
from tests.share.world import GROUP, HOUR_S, RETRY_TOPIC, TOPIC, InHand, Options, World

NAMES: Final = ("ann", "bob", "cid", "dee")


class Broken(AssertionError):
    """A rule does not hold."""


class _Consumer:
    """What a consumer knows of one topic: what it was given, in order, and what of it is done."""

    def __init__(self) -> None:
        self.given: list[InHand] = []
        self.last: InHand | None = None
        #: Ranges that it confirmed already, to be sent once more.
        self.sent: list[tuple[InHand, InHand]] = []


class ShareSimulation:
    """``run`` raises ``Broken``."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.trace: list[tuple[object, ...]] = []
        self.world = World(
            Options(
                queues=random.choice((1, 2, 4)),
                offline_ms=random.choice((5_000, 180_000, int(24 * HOUR_S * 1000))),
                gone_ms=random.choice((10_000, 172_800_000)),
                checkpoint_actions=random.choice((3, 20, 20_000)),
                held_max=random.choice((5, 10_000)),
            ),
            seed=seed,
        )
        self._sent = 0
        #: Messages that are not deleted, and where they lie.
        self._places: dict[bytes, int] = {}
        self._confirmed: Counter[bytes] = Counter()
        #: Of this life of the broker, by queue and offset: which consumer was given a message, and which are confirmed.
        self._given_to: dict[tuple[str, int, int], str] = {}
        self._done: set[tuple[str, int, int]] = set()
        self._consumers: dict[tuple[str, str], _Consumer] = {}
        self._hold_ms = random.choice((0, 0, 20_000))

    def run(self) -> None:
        try:
            steps = (
                (self._send, 6),
                (self._pull, 10),
                (self._ack, 8),
                (self._ack_wrongly, 3),
                (self._ack_with_gap, 1),
                (self._ack_again, 2),
                (self._restart_consumer, 1),
                (self._leave, 1),
                (self._hold, 1),
                (self._pass_time, 3),
                (self._flush, 2),
                (self._save, 2),
                (self._change_term, 1),
                (self._stop, 0.5),
                (self._kill, 0.5),
                (self._cut_power, 1),
                (self._clean, 0.2),
            )
            calls, weights = [call for call, _ in steps], [weight for _, weight in steps]
            for _ in range(self.random.choice((40, 120, 250))):
                self.random.choices(calls, weights)[0]()
            self._drain()
        finally:
            self.world.end()

    # --- Consumers ----------------------------------------------------------------------------------------------

    def _send(self) -> None:
        for _ in range(self.random.choice((1, 3, 10))):
            body = b"%d" % self._sent
            placed = self.world.send(body, self.random.randrange(self.world.options.queues))
            self._places[body] = placed.log_offset
            self._sent += 1
            self._note("send", body)
        # What is sent is on the disk; what becomes of it need not be.
        self.world.store.flush_now()

    def _some(self) -> tuple[str, str]:
        topic = RETRY_TOPIC if self.world.has_retries() and self.random.random() < 0.3 else TOPIC
        return self.random.choice(NAMES), topic

    def _known(self, name: str, topic: str) -> _Consumer:
        return self._consumers.setdefault((name, topic), _Consumer())

    def _pull(self) -> None:
        self._pull_as(*self._some(), count_max=self.random.choice((1, 3, 8)))

    def _pull_as(self, name: str, topic: str, *, count_max: int) -> list[InHand]:
        consumer = self._known(name, topic)
        last = consumer.last
        known = self.world.master.state.find(GROUP, topic, name)
        unconfirmed = known.acked + 1 if known is not None and known.runs else None
        found = self.world.pull(
            name,
            topic=topic,
            count_max=count_max,
            held=last.number if last is not None else -1,
            life=last.life if last is not None else 0,
            hold_ms=self._hold_ms,
        )
        if last is None and unconfirmed is not None and (not found or found[0].number < unconfirmed):
            raise Broken(f"{name} starts again and does not get first what it did not confirm")
        for message in found:
            self._note("pulled", name, message.body, message.number)
            place = _place(message)
            if place in self._done:
                raise Broken(f"{place} is confirmed, and {name} is given it again")
            if (holder := self._given_to.setdefault(place, name)) != name:
                raise Broken(f"{place} is given to {name}, and was given to {holder}")
        lost_on_its_way = found and self.random.random() < 0.1
        if not lost_on_its_way and found:
            consumer.given += found
            consumer.last = found[-1]
        return found

    def _ack(self) -> None:
        name, topic = self._some()
        self._ack_as(name, topic, self.random.choice((1, 2, 100)))

    def _ack_as(self, name: str, topic: str, count: int) -> None:
        """Confirm the first messages that a consumer has, as far as they were given in one life."""
        consumer = self._known(name, topic)
        batch: list[InHand] = []
        for message in consumer.given[:count]:
            if batch and (message.life != batch[0].life or message.number != batch[-1].number + 1):
                break
            batch.append(message)
        if batch:
            del consumer.given[: len(batch)]
            self._confirm(name, consumer, batch)

    def _confirm(self, name: str, consumer: _Consumer, batch: list[InHand]) -> None:
        # Done by the consumer, whatever the broker makes of it.
        for message in batch:
            self._confirmed[message.body] += 1
        try:
            self.world.ack(name, batch[0], batch[-1])
        except (NoMessage, InvalidParameter) as error:
            self._note("refused", name, batch[0].number, str(error)[:40])
            return
        self._note("acked", name, batch[0].number, batch[-1].number)
        consumer.sent.append((batch[0], batch[-1]))
        # What was given before a crash may be another's by now, and an ack of it has no effect.
        self._done |= {place for message in batch if self._given_to.get(place := _place(message)) == name}

    def _ack_wrongly(self) -> None:
        """Numbers that are not the consumer's own: refused, or without effect."""
        name, topic = self._some()
        consumer = self._known(name, topic)
        known = self.world.master.state.find(GROUP, topic, name)
        before = _dump(self.world.master.state)
        last = consumer.last
        base = last or InHand(b"", topic, 0, 0, 0, 0, 0)
        wrong = self.random.choice(("beyond", "life", "backwards"))
        pulled = known.pulled if known is not None else -1
        if wrong == "beyond":
            first = final = base._replace(number=pulled + self.random.choice((1, 7)))
        elif wrong == "life":
            first = base._replace(number=0, life=base.life + 1)
            final = first._replace(number=max(pulled, 0))
        else:
            first, final = base._replace(number=3), base._replace(number=2)
        with contextlib.suppress(NoMessage, InvalidParameter):
            self.world.ack(name, first, final)
        if _dump(self.world.master.state) != before:
            raise Broken(f"an ack of {name} that is {wrong} has changed what consumers hold")

    def _ack_with_gap(self) -> None:
        """A consumer passes over what it has: that must come again, to any consumer."""
        name, topic = self._some()
        consumer = self._known(name, topic)
        if len(consumer.given) < 2:
            return
        batch = [consumer.given[-1]]
        consumer.given = []
        self._confirm(name, consumer, batch)

    def _ack_again(self) -> None:
        name, topic = self._some()
        consumer = self._known(name, topic)
        if consumer.sent:
            first, last = self.random.choice(consumer.sent)
            before = _dump(self.world.master.state)
            try:
                self.world.ack(name, first, last)
            except (NoMessage, InvalidParameter):
                return
            if before != _dump(self.world.master.state):
                raise Broken(f"an ack of {name} that came twice has confirmed something")

    def _restart_consumer(self) -> None:
        """It died, and starts again with the same name: it knows nothing."""
        name, topic = self._some()
        consumer = self._known(name, topic)
        consumer.given, consumer.last = [], None
        self._note("restarted", name, topic)

    def _leave(self) -> None:
        name, topic = self._some()
        self.world.leave(name, topic)
        consumer = self._known(name, topic)
        consumer.given, consumer.last = [], None
        self._note("left", name, topic)

    def _hold(self) -> None:
        name, topic = self._some()
        consumer = self._known(name, topic)
        if consumer.given:
            try:
                self.world.hold(name, consumer.given[-1], self.random.choice((0, 1_000, 60_000)))
            except (NoMessage, InvalidParameter):
                return

    # --- The broker ---------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        seconds = self.random.choice((0.5, 2, 30, 400))
        for name, topic in self._consumers:
            if self.random.random() < 0.6:
                self.world.beat(name, topic)
        self.world.clock.advance(seconds)
        self.world.tend()

    def _flush(self) -> None:
        self.world.store.flush_now()

    def _save(self) -> None:
        self.world.save()

    def _change_term(self) -> None:
        before = _dump(self.world.master.state)
        self.world.change_term()
        if (after := _dump(self.world.master.state)) != before:
            raise Broken(f"a new term folds another state: {after} instead of {before}")
        self._note("term")

    def _stop(self) -> None:
        before = _dump(self.world.master.state)
        self.world.stop()
        self.world.start()
        if (after := _dump(self.world.master.state)) != before:
            raise Broken(f"after a stop the state is another: {after} instead of {before}")
        self._note("stopped")

    def _kill(self) -> None:
        self.world.kill()
        self.world.start()
        self._crash("killed")

    def _cut_power(self) -> None:
        self.world.cut_power()
        self.world.start()
        self._crash("power cut")

    def _crash(self, why: str) -> None:
        # What was handed out and confirmed may come again.
        self._given_to.clear()
        self._done.clear()
        for consumer in self._consumers.values():
            consumer.sent.clear()
        self._note(why)

    def _clean(self) -> None:
        self.world.clean()
        low = self.world.store.min_log_offset
        for body in [body for body, log_offset in self._places.items() if log_offset < low]:
            del self._places[body]
        self.world.tend()
        self._note("cleaned", low)

    # --- The end ------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Let consumers that do all they should take what is left."""
        self._note("drain")
        quiet = 0
        while quiet < 3:
            # Those that died before hold something: they are offline in the end.
            self.world.clock.advance(self.world.options.offline_ms / 1000 + 1)
            self.world.tend()
            count = 0
            for topic in (TOPIC, RETRY_TOPIC) if self.world.has_retries() else (TOPIC,):
                while True:
                    for consumer in [self._known("end", topic)]:
                        found = self._pull_as("end", topic, count_max=8)
                        while consumer.given:
                            self._ack_as("end", topic, 100)
                    if not found:
                        break
                    count += len(found)
            quiet = 0 if count else quiet + 1
        missing = [body for body in self._places if not self._confirmed[body]]
        if missing:
            raise Broken(f"lost: {missing}")
        held = [place.held for place in self.world.master.state.places.values()]
        if any(held):
            raise Broken("all is confirmed, and something is held")
        folded = ShareLog(self.world.store, self.world.tables.offsets, host=b"", clock=self.world.clock).fold()
        if _dump(folded) != _dump(self.world.master.state):
            raise Broken("the log does not say what the broker knows")

    def _note(self, *event: object) -> None:
        self.trace.append(event)


def _dump(state: ShareState) -> object:
    """All of a state."""
    return {
        key: (
            dict(place.cursors),
            {name: (log.pulled, [run.as_held() for run in log.runs]) for name, log in place.consumers.items()},
        )
        for key, place in state.places.items()
    }


def _place(message: InHand) -> tuple[str, int, int]:
    return message.topic, message.queue_id, message.queue_offset
