"""What is in flight: check points, and how far they let a group's offset go (F9). Pure.

A pop takes messages of a queue for a group and makes one *check point* of them: which queue offsets, since when, hidden
for how long. Acks set bits in it. It ends when all bits are set, or when its time is over and the messages that were
not acked have been written to the retry topic.

Pops move on at once, from ``next_offset`` of the queue. The group's *committed* offset, which a broker that was killed
begins with again, follows more slowly, through a ``PopWindow``: step by step in the order of the pops, and past a step
only when its check point has ended or lies in the revive log. So whatever the killed broker had in memory alone lies
behind the committed offset, and is popped again.

    popped    |■ ck 1, acked |■ ck 2, in the revive log |□ ck 3 |■ ck 4, acked |
                                                        ↑ committed            ↑ next_offset

A step that rests on a record (the check point in the revive log, a copy in the retry topic) is passed when the disk
has that record: the committed offset is saved to a file of its own, and a power cut could keep that and lose the other.

A ``PopWindow`` also tells how far the revive log is done with: there, each step is one check point in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

#: Group, topic, queue id. The topic is the retry topic for what was popped from there.
GroupQueue = tuple[str, str, int]


class WindowStep:
    """One stretch of a queue, up to ``end``. ``safe_at`` is the log offset that the disk must have before it counts."""

    __slots__ = ("end", "is_settled", "safe_at")

    def __init__(self, end: int) -> None:
        self.end = end
        self.is_settled = False
        self.safe_at = 0

    def rest_on(self, end_offset: int) -> None:
        """What happened to this stretch is in the log before ``end_offset``."""
        self.safe_at = max(self.safe_at, end_offset)


class PopWindow:
    """Steps in order."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: deque[WindowStep] = deque()

    def __len__(self) -> int:
        return len(self._steps)

    def add(self, end: int) -> WindowStep:
        step = WindowStep(end)
        self._steps.append(step)
        return step

    def advance(self, safe: int) -> int | None:
        """Pass the settled steps whose records are safe, as the log is up to ``safe``.

        Returns the end of the last one, None if there was none.
        """
        steps = self._steps
        end: int | None = None
        while steps and steps[0].is_settled and steps[0].safe_at <= safe:
            end = steps.popleft().end
        return end

    @property
    def waits_for(self) -> int | None:
        """Log offset that the disk must have for the next step; None if that is not what it waits for."""
        return self._steps[0].safe_at if self._steps and self._steps[0].is_settled else None


class CheckPoint:
    """Messages of one queue that one pop handed out."""

    __slots__ = (
        "_all_bits",
        "acked",
        "failures",
        "invisible_ms",
        "is_over",
        "offsets",
        "pop_time_ms",
        "queue",
        "read_at",
        "revive_queue_id",
        "start_offset",
        "step",
        "stored",
    )

    def __init__(
        self,
        queue: PoppedQueue,
        *,
        start_offset: int,
        pop_time_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
        revive_queue_id: int,
        acked: int = 0,
        read_at: int | None = None,
    ) -> None:
        self.queue = queue
        #: With the pop time the name of this check point, in handles and in the revive log.
        self.start_offset = start_offset
        self.pop_time_ms = pop_time_ms
        self.invisible_ms = invisible_ms
        #: Queue offsets of the messages, at most 32.
        self.offsets = offsets
        self._all_bits = (1 << len(offsets)) - 1
        #: Bit i is set when ``offsets[i]`` is done.
        self.acked = acked
        self.revive_queue_id = revive_queue_id
        #: Log offset of the record that it was made of, if it was read from the revive log.
        self.read_at = read_at
        #: Its place in the queue's window; None if it has none: a changed invisible time, or read from the revive log.
        self.step: WindowStep | None = None
        #: Its place in the window of the revive log, once it lies there.
        self.stored: WindowStep | None = None
        #: How often the retry topic did not take its messages.
        self.failures = 0
        self.is_over = False

    @property
    def due_ms(self) -> int:
        """When its messages are visible again."""
        return self.pop_time_ms + self.invisible_ms

    def bits(self, queue_offsets: Iterable[int]) -> int:
        """The bits of these messages, of those that it has."""
        offsets, bits = self.offsets, 0
        if queue_offsets == offsets:
            # All of them, both as ranges: the usual ack of a fast consumer.
            return self._all_bits
        for queue_offset in queue_offsets:
            if queue_offset in offsets:
                bits |= 1 << offsets.index(queue_offset)
        return bits

    def holds(self, queue_offset: int) -> bool:
        """Whether this message is in flight here, not acked yet."""
        return bool(self.bits((queue_offset,)) & ~self.acked)

    @property
    def is_acked(self) -> bool:
        return self.acked == self._all_bits

    def open_offsets(self) -> list[int]:
        """Queue offsets of the messages that are not acked."""
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]


class PoppedQueue:
    """One queue, for one group, while something of it is in flight."""

    __slots__ = ("check_points", "is_waiting", "key", "next_offset", "window")

    def __init__(self, key: GroupQueue) -> None:
        self.key = key
        self.window = PopWindow()
        #: Where the next pop begins, while the window has steps; else at the committed offset.
        self.next_offset = -1
        #: By start offset and pop time.
        self.check_points: dict[tuple[int, int], CheckPoint] = {}
        #: Whether the window is looked at when the disk has more.
        self.is_waiting = False


class CheckPoints:
    """All that is in flight on a broker."""

    def __init__(self) -> None:
        self._queues: dict[GroupQueue, PoppedQueue] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[CheckPoint]:
        for key in self.queue_keys():
            yield from self.of(key)

    def queue_keys(self) -> list[GroupQueue]:
        """Queues of which something is in flight."""
        return list(self._queues)

    def next_offset(self, key: GroupQueue, committed: int) -> int:
        """Where the next pop begins; ``committed`` is what the group's offset says."""
        queue = self._queues.get(key)
        # Larger than what was popped here if the group has pulled in between.
        return committed if queue is None or not len(queue.window) else max(queue.next_offset, committed)

    def is_popping(self, key: GroupQueue) -> bool:
        """Whether the committed offset follows check points of this queue."""
        queue = self._queues.get(key)
        return queue is not None and len(queue.window) > 0

    def queue(self, key: GroupQueue) -> PoppedQueue:
        """The queue, new if nothing of it was in flight."""
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = PoppedQueue(key)
        return queue

    def find(self, key: GroupQueue, start_offset: int, pop_time_ms: int) -> CheckPoint | None:
        queue = self._queues.get(key)
        return None if queue is None else queue.check_points.get((start_offset, pop_time_ms))

    def of(self, key: GroupQueue) -> list[CheckPoint]:
        """What is in flight of one queue."""
        queue = self._queues.get(key)
        return [] if queue is None else list(queue.check_points.values())

    def add(self, check_point: CheckPoint) -> None:
        """Let it be found. One of the same name, from before a reset in the same millisecond, is over."""
        name = check_point.start_offset, check_point.pop_time_ms
        queue = check_point.queue
        old = queue.check_points.get(name)
        if old is not None:
            self.end(old)
        queue.check_points[name] = check_point
        # The end of the old one may have made the queue idle.
        self._queues[queue.key] = queue
        self._count += 1

    def popped(self, check_point: CheckPoint, next_offset: int) -> None:
        """A pop took the queue's messages up to ``next_offset``, and made this check point of them."""
        self.add(check_point)
        queue = check_point.queue
        check_point.step = queue.window.add(next_offset)
        queue.next_offset = next_offset

    def skipped(self, key: GroupQueue, next_offset: int) -> PoppedQueue:
        """A pop found nothing that its filter lets through up to ``next_offset``."""
        queue = self.queue(key)
        queue.window.add(next_offset).is_settled = True
        queue.next_offset = next_offset
        return queue

    def end(self, check_point: CheckPoint, *, safe_at: int = 0) -> None:
        """Nothing of it is in flight any more: all acked, or written again before the log offset ``safe_at``."""
        check_point.is_over = True
        del check_point.queue.check_points[check_point.start_offset, check_point.pop_time_ms]
        self._count -= 1
        for step in (check_point.step, check_point.stored):
            if step is not None:
                step.is_settled = True
                step.rest_on(safe_at)
        self.forget_if_idle(check_point.queue)

    def detach(self, key: GroupQueue) -> None:
        """The group was moved in this queue: what is in flight stays so, but has no say any more in how far it is."""
        queue = self._queues.get(key)
        if queue is None:
            return
        queue.window = PopWindow()
        for check_point in queue.check_points.values():
            check_point.step = None
        self.forget_if_idle(queue)

    def forget_if_idle(self, queue: PoppedQueue) -> None:
        if not queue.check_points and not len(queue.window) and self._queues.get(queue.key) is queue:
            del self._queues[queue.key]
