"""Who is next within a lane (R4): the pure core, without a loop or a clock."""

from __future__ import annotations

import random
from collections import Counter

from ternmq.net.mailboxes import PAST_KEY_LENGTH_MAX, PAST_MAX, Mailboxes


class Lane:
    """Mailboxes that are served one job at a time; ``cost`` seconds each, by key."""

    def __init__(self, **cost: float) -> None:
        self.boxes = Mailboxes()
        self.cost = cost
        self.used: Counter[str] = Counter()

    def add(self, key: str | None, count: int = 1, topic: str | None = None) -> None:
        for number in range(count):
            if key is None:
                if not self.boxes.plain.jobs and self.boxes.ready:
                    self.boxes.level_plain()
                self.boxes.plain.jobs.append((None, number, 0.0, 0))
            else:
                self.boxes.add(key, (topic, number, 0.0, 0), topic)

    def serve(self) -> tuple[str | None, int]:
        """Run the next job; its key and number."""
        key, _, number = self.serve_topic()
        return key, number

    def serve_topic(self) -> tuple[str | None, str | None, int]:
        """The same, and its topic."""
        box = self.boxes.choose()
        topic, number, _, _ = box.jobs.popleft()
        cost = self.cost.get(box.key or "plain", 1.0)
        self.used[box.key or "plain"] += cost  # type: ignore[assignment]  # seconds
        if box.key is None:
            box.used += cost
        else:
            self.boxes.done(box, 1, 0)
            self.boxes.put_back(box, cost)
        if not self.boxes.count and self.boxes.has_keys:
            self.boxes.rest()
        return box.key, topic, number


def test_a_group_with_one_request_does_not_wait_behind_the_storm_of_another() -> None:
    """R4: a group with 100 consumers cannot starve one with 2."""
    lane = Lane()
    lane.add("storm", 1000)
    served = [lane.serve() for _ in range(10)]
    lane.add("quiet", 2)

    served = [lane.serve() for _ in range(4)]

    assert {("quiet", 0), ("quiet", 1)} <= {*served}


def test_jobs_of_one_key_keep_their_order() -> None:
    """R4"""
    lane = Lane()
    for key in "aba":
        lane.add(key, 5)

    served = [lane.serve() for _ in range(15)]

    assert [0, 1, 2, 3, 4, 0, 1, 2, 3, 4] == [number for key, number in served if key == "a"]
    assert [0, 1, 2, 3, 4] == [number for key, number in served if key == "b"]


def test_time_is_shared_not_the_number_of_requests() -> None:
    """R4: a group with slow filters pays with its own slices."""
    lane = Lane(slow=10.0, quick=1.0)
    lane.add("slow", 1000)
    lane.add("quick", 1000)

    for _ in range(550):
        lane.serve()

    assert abs(lane.used["slow"] - lane.used["quick"]) <= 10.0


def test_requests_without_a_key_have_their_share() -> None:
    """R4: sends and the messages that consumers send back share a lane."""
    lane = Lane()
    lane.add(None, 500)
    for _ in range(100):
        lane.serve()
    lane.add("group", 500)

    served = Counter(lane.serve()[0] for _ in range(200))

    assert {None: 100, "group": 100} == served


def test_requests_without_a_key_that_come_late_start_level() -> None:
    """R4: neither before all others nor after them, whatever they used when they were alone."""
    lane = Lane()
    lane.add(None, 100)
    for _ in range(100):
        lane.serve()
    lane.add("group", 500)
    for _ in range(50):
        lane.serve()
    lane.add(None, 100)

    served = Counter(lane.serve()[0] for _ in range(100))

    assert abs(served[None] - served["group"]) <= 2


def test_a_group_that_was_idle_does_not_spend_what_it_saved() -> None:
    """R4: QMQ gave up ordering by total time for this reason."""
    lane = Lane()
    lane.add("busy", 10_000)
    for _ in range(5_000):
        lane.serve()
    lane.add("back", 1_000)

    served = Counter(lane.serve()[0] for _ in range(200))

    assert abs(served["busy"] - served["back"]) <= 1


def test_a_group_that_asks_for_one_slow_thing_at_a_time_is_charged_for_it() -> None:
    """R4: its mailbox is empty between its requests, and is not forgotten meanwhile."""
    lane = Lane(slow=10.0, quick=1.0)
    lane.add("quick", 1_000)
    lane.add("slow")
    for _ in range(500):
        if lane.serve()[0] == "slow":
            lane.add("slow")

    assert abs(lane.used["slow"] - lane.used["quick"]) <= 20.0


def test_a_small_topic_does_not_wait_behind_a_huge_one_of_its_group() -> None:
    """R4: by group alone, it waited for all requests of the group that were there before."""
    lane = Lane()
    lane.add("group", 1000, topic="huge")
    lane.add("group", 2, topic="urgent")

    served = [lane.serve_topic()[1:] for _ in range(5)]

    assert [("huge", 0), ("urgent", 0), ("huge", 1), ("urgent", 1), ("huge", 2)] == served


def test_a_group_gains_nothing_by_consuming_many_topics() -> None:
    """R4: turns are taken by groups first."""
    lane = Lane()
    for number in range(100):
        lane.add("many", 10, topic=f"topic-{number}")
    lane.add("one", 1000, topic="topic-0")

    served = Counter(lane.serve()[0] for _ in range(400))

    assert {"many": 200, "one": 200} == served


def test_topics_that_come_while_others_wait_have_the_next_turn_but_those() -> None:
    """R4: in the order of their coming, whether one had its turn lately or not."""
    lane = Lane()
    for topic in "abc":
        lane.add("group", 2, topic=topic)

    first = lane.serve_topic()[1]
    lane.add("group", 1, topic="d")
    served = [lane.serve_topic()[1] for _ in range(6)]

    assert ("a", [*"bcadbc"]) == (first, served)


def test_the_topic_with_the_most_requests_gives_way_within_its_group() -> None:
    """R4, M1: the huge topic of a group, not the urgent one, although its request is the newest."""
    lane = Lane()
    lane.add("storm", 2, topic="huge")
    lane.add("storm", 1, topic="urgent")
    box = lane.boxes.victim("few")
    assert box is not None

    taken = [lane.boxes.take(box)[:2] for _ in range(2)]

    assert [("huge", 1), ("huge", 0)] == taken
    assert ("storm", "urgent", 0) == lane.serve_topic()
    assert 0 == lane.boxes.count


def test_the_oldest_request_of_any_topic_is_told() -> None:
    """D6: how long the head of a lane has waited."""
    boxes = Mailboxes()
    for topic, arrived in (("huge", 3.0), ("urgent", 2.0), ("huge", 1.0)):
        boxes.add("group", (None, topic, arrived, 0), topic)

    assert 2.0 == boxes.oldest()
    assert None is Mailboxes().oldest()


def test_the_longest_mailbox_gives_way_and_the_longest_itself_does_not() -> None:
    """R4, M1: a storm of one group pushes back that group only."""
    lane = Lane()
    lane.add("storm", 10)
    lane.add("few", 2)

    victims = [lane.boxes.victim(key) for key in ("few", "new", None, "storm")]

    assert ["storm", "storm", "storm", None] == [None if box is None else box.key for box in victims]
    lane.add(None, 20)
    assert lane.boxes.plain is lane.boxes.victim("storm")
    assert None is lane.boxes.victim(None)


def test_the_heaviest_mailbox_is_found_also_after_another_one_was_served() -> None:
    """R4, M1: by bytes; only one with several jobs gives one up, and only for a mailbox with fewer bytes."""
    boxes = Mailboxes()
    for key, size in (("served", 500), ("served", 500), ("few", 100), ("few", 100), ("one", 300), ("tiny", 1)):
        boxes.add(key, (None, key, 0.0, size))
    assert "served" == getattr(boxes.heaviest("tiny", 1, 0), "key", None)
    box = boxes.choose()
    box.jobs.clear()
    boxes.done(box, 2, 1000)
    boxes.put_back(box, 1.0)

    assert None is boxes.heaviest("tiny", 1, 0), "the heaviest has one job"
    boxes.add("few", (None, "few", 0.0, 200))
    assert "few" == getattr(boxes.heaviest("tiny", 1, 0), "key", None)
    assert None is boxes.heaviest("few", 1, 0)
    assert 701 == boxes.keyed_bytes


def test_what_is_remembered_is_bounded_and_forgotten_when_nothing_waits() -> None:
    """M1: clients may invent any number of groups."""
    lane = Lane()
    lane.add("last", PAST_MAX * 3)
    for number in range(PAST_MAX * 2):
        lane.add(f"group-{number}")
        lane.serve()

    assert len(lane.boxes._past) <= PAST_MAX
    while lane.boxes.count:
        lane.serve()
    assert not lane.boxes._past
    assert lane.boxes.find("last") is None


def test_what_is_remembered_is_bounded_in_bytes() -> None:
    """M1: a key is what a header says, and a header may have a megabyte; no such group can be served."""
    lane = Lane()
    lane.add("last", 20)
    for number in range(10):
        lane.add(str(number) * 100_000)
        lane.serve()

    assert sum(map(len, lane.boxes._past)) <= PAST_MAX * PAST_KEY_LENGTH_MAX
    assert not any(len(key) > PAST_KEY_LENGTH_MAX for key in lane.boxes._past)
    while lane.boxes.count:
        lane.serve()
    assert 10 == sum(used == 1.0 for used in lane.used.values())


def test_every_job_is_served_once_whatever_comes_in_between() -> None:
    """R4: random adding and serving, against a count."""
    for seed in range(20):
        chance = random.Random(seed)
        lane = Lane(a=0.1, b=5.0)
        added: Counter[tuple[str | None, str | None]] = Counter()
        served: Counter[tuple[str | None, str | None]] = Counter()
        for _ in range(2_000):
            chosen = chance.random()
            if lane.boxes.count and chosen < 0.5:
                served[lane.serve_topic()[:2]] += 1
            elif chosen < 0.55 and (box := lane.boxes.victim("d")) is not None and box.key is not None:
                served[box.key, lane.boxes.take(box)[0]] += 1
            else:
                key = chance.choice([None, "a", "b", "c"])
                topic = chance.choice([None, "huge", "urgent", "third"]) if key is not None else None
                lane.add(key, topic=topic)
                added[key, topic] += 1
            boxes = [box for key in "abc" if (box := lane.boxes.find(key)) is not None]
            assert lane.boxes.keyed == sum(box.count for box in boxes), f"seed {seed}"
        while lane.boxes.count:
            served[lane.serve_topic()[:2]] += 1

        assert added == served, f"seed {seed}"
