"""The records of the ledger, and when two runs contradict each other (U2). A core.

Records are messages of TERNMQ_SPARK_LEDGER with the key ``query/batch``, in JSON; the tag is one of three:

- *mark*: a run looks for earlier decisions. It is the fence (``ledger``), and contains all brokers that had the ledger
  at that time.
- *decision*: the chunks, the queue of each, the ends of those queues at that time, and the topic and checkpoint
  that it is for.
- *done*: all chunks of a decision, given by its message id, are published; or there were no rows.

Any client can write records to that topic. A record that is unreadable or invalid is ignored, and so is a "done"
without its decision. That protects against accidents only: there is no secret in a record, so a client that
may write to the ledger can deceive the sink.

Two runs of one batch
    Spark's query id is part of the checkpoint. So a copy of a checkpoint is the same query, and a checkpoint that was
    restored from a backup runs batches again with other rows. ``check_same`` distinguishes such a run from one that
    Spark repeats after a failure: the same topic, the same checkpoint, the same rows. Rows are compared as a set, by
    their number and the sum of their checksums, because a second run divides them into other tasks and chunks.

Records of earlier builds have no topic, checkpoint and checksums; missing values are not compared. Earlier
builds ignore unknown values.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ternmq import names
from ternmq.errors import ConfigError
from ternmq.message import MessageQueue
from ternmq.spark.sink.rows import CHECKSUM_MODULO, CHUNK_ID_LENGTH, CHUNK_ROWS_MAX, DELAY_LEVEL_MAX, TIMED

LEDGER_TOPIC: Final = f"{names.SPARK_PREFIX}LEDGER"
STAGE_TOPIC: Final = f"{names.SPARK_PREFIX}STAGE"

#: The checksum of a chunk whose record has none.
UNKNOWN: Final = -1
#: Used instead of the id of a decision if a batch needed none.
NO_ROWS: Final = "no rows"


class WorkKind(enum.Enum):
    """How a work is identified."""

    STREAM = "stream"
    WRITE = "writeId"
    TRANSACTION = "txnAppId"


#: What to do if a work of this kind contradicts the ledger.
_CURES: Final = {
    WorkKind.STREAM: (
        "Nothing was written by this run. A checkpoint that was copied, or restored from a backup, is still the same "
        "query: give this one another identity with the option txnAppId, or begin with a new checkpointLocation. "
        "Rows that the other run wrote are then written again"
    ),
    WorkKind.WRITE: "Nothing was written by this run; use another writeId for other rows",
    WorkKind.TRANSACTION: (
        "Nothing was written by this run; use a higher txnVersion, or another txnAppId, for other rows"
    ),
}


class SinkWork(NamedTuple):
    """One micro-batch of a query, or one batch write."""

    query: str
    batch: int
    kind: WorkKind = WorkKind.STREAM

    @property
    def key(self) -> str:
        return f"{self.query}/{self.batch}"

    def batch_of_key(self, key: str) -> int | None:
        """The number of a batch of this query; None for the keys of others."""
        query, _, number = key.rpartition("/")
        if query != self.query or not (number.isascii() and number.isdecimal() and len(number) < 20):
            return None
        return int(number)


class BatchConflict(ConfigError):
    """A run of a batch is not a repetition of the run that is in the ledger."""

    def __init__(self, work: SinkWork, reason: str) -> None:
        self.work = work
        super().__init__(f"{reason}. {_CURES[work.kind]}")


# --- Records ------------------------------------------------------------------------------------------------------


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A chunk in the stage; sent from the executor to the committer, and part of decisions."""

    #: Its queue in the stage.
    stage: MessageQueue
    stage_offset: int
    chunk_id: str
    topic: str
    #: Its target queue; always set in a decision.
    queue: MessageQueue | None
    delay: int
    rows: int
    #: Of its rows, without their ids (``sink.rows``).
    checksum: int = UNKNOWN


class LedgerMark(msgspec.Struct, frozen=True, tag="mark", tag_field="kind"):
    brokers: list[str]


class LedgerDecision(msgspec.Struct, frozen=True, tag="decision", tag_field="kind"):
    chunks: list[Staged]
    #: The end of each queue of the chunks, before any of them was sent.
    ends: list[tuple[MessageQueue, int]]
    #: The topic of all rows; empty: each row has its own. None: not recorded.
    target: str | None = None
    #: The option checkpointLocation; empty: unknown.
    checkpoint: str = ""
    #: The id of an earlier decision that this one replaces.
    replaces: str = ""


class Done(msgspec.Struct, frozen=True, tag="done", tag_field="kind"):
    #: The id of its decision, or ``NO_ROWS``; empty: the only one.
    decision: str = ""


LedgerEntry: TypeAlias = LedgerMark | LedgerDecision | Done

_decoder: Final[msgspec.json.Decoder[LedgerEntry]] = msgspec.json.Decoder(LedgerEntry)
encode: Final = msgspec.json.Encoder().encode


def decode(body: bytes) -> LedgerEntry:
    """A valid entry; raises ``ValueError`` with the reason if it is not."""
    entry = _decoder.decode(body)
    if isinstance(entry, LedgerDecision):
        _check_decision(entry)
    return entry


def _check_decision(decision: LedgerDecision) -> None:
    ends = dict(decision.ends)
    if any(queue.queue_id < 0 or end < 0 for queue, end in ends.items()):
        raise ValueError("a queue or its end is below 0")
    for chunk in decision.chunks:
        if chunk.stage.topic != STAGE_TOPIC or min(chunk.stage.queue_id, chunk.stage_offset) < 0:
            raise ValueError(f"a chunk is not in the stage, but at {chunk.stage}, {chunk.stage_offset}")
        if len(chunk.chunk_id) != CHUNK_ID_LENGTH:
            raise ValueError(f"{chunk.chunk_id!r} is not the id of a chunk")
        if not 0 < chunk.rows <= CHUNK_ROWS_MAX or not TIMED <= chunk.delay <= DELAY_LEVEL_MAX:
            raise ValueError(f"a chunk has {chunk.rows} rows with the delay {chunk.delay}")
        if chunk.queue is None or chunk.queue.topic != chunk.topic:
            raise ValueError(f"a chunk for {chunk.topic!r} has the target {chunk.queue}")
        if not ends.keys() >= set(landings(chunk)):
            raise ValueError(f"there is no end of {chunk.queue}")


def landings(chunk: Staged) -> Sequence[MessageQueue]:
    """The queues in which the rows of a chunk are visible when they are stored."""
    queue = chunk.queue
    assert queue is not None
    if chunk.delay <= 0:
        # Also rows with a delivery time, if it is in the past.
        return (queue,)
    # A broker with fewer levels uses its last one.
    return [MessageQueue(names.SCHEDULE_TOPIC, queue.broker_name, level) for level in range(chunk.delay)]


# --- Results ----------------------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A record of the ledger and its position. They sort by position."""

    store_time_ms: int
    queue_offset: int
    queue: MessageQueue
    #: The id of the message.
    entry_id: str
    batch: int
    entry: LedgerEntry


@dataclass(slots=True, frozen=True)
class BatchOutcome:
    """What the ledger contains about a batch."""

    #: The valid decision, and its id.
    decision: LedgerDecision
    decision_id: str
    is_done: bool


def outcome(entries: Sequence[Found], batch: int) -> BatchOutcome | None:
    """The first decision of a batch, or its replacement; None if there is none."""
    own = sorted((one for one in entries if one.batch == batch), key=lambda one: one[:2])
    decisions = [(one, one.entry) for one in own if isinstance(one.entry, LedgerDecision)]
    done = {one.entry.decision for one in own if isinstance(one.entry, Done)}
    # A decision that was appended twice, because the first reply was lost, counts once.
    is_only = len({place.entry_id for place, _ in decisions}) == 1
    counting: tuple[Found, LedgerDecision] | None = None
    for place, decision in decisions:
        # Not just any that is not replaced: a second one, written while the first was valid, never becomes valid.
        if counting is None or decision.replaces == counting[0].entry_id:
            counting = place, decision
    if counting is None:
        return None
    place, decision = counting
    is_done = place.entry_id in done or (is_only and "" in done)
    return BatchOutcome(decision, place.entry_id, is_done)


def orphans(entries: Sequence[Found], batch: int) -> list[Found]:
    """Records that say "done" of a decision that does not exist."""
    own = [one for one in entries if one.batch == batch]
    decisions = {one.entry_id for one in own if isinstance(one.entry, LedgerDecision)}
    return [
        one
        for one in own
        if isinstance(one.entry, Done)
        and one.entry.decision != NO_ROWS
        and (one.entry.decision not in decisions if one.entry.decision else not decisions)
    ]


def latest_decided(entries: Sequence[Found]) -> int | None:
    """The highest batch that has a decision."""
    return max((one.batch for one in entries if isinstance(one.entry, LedgerDecision)), default=None)


# --- Whether two runs are the same --------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class RunIdentity:
    """The identity of a run, besides its rows."""

    #: As in ``LedgerDecision``.
    target: str = ""
    checkpoint: str = ""
    #: The former location of the checkpoint.
    moved_from: str = ""
    #: The query computes other rows each time: those of the first run are used.
    any_rows: bool = False


def same_place(checkpoint: str) -> str:
    """A checkpoint's location in one of its usual spellings."""
    scheme, _, path = checkpoint.partition(":")
    if scheme == "file":
        checkpoint = "/" + path.lstrip("/")
    return checkpoint.rstrip("/") or checkpoint


def check_same(
    work: SinkWork, claim: RunIdentity, staged: Sequence[Staged], found: LedgerDecision | None, latest: int | None
) -> None:
    """Raise ``BatchConflict`` unless a run may continue from the state of the ledger.

    ``found`` is the decision of the batch, ``latest`` the last batch of the query that has one.
    """
    is_past = latest is not None and latest > work.batch
    if found is None:
        if is_past:
            # Spark begins a batch when the one before is committed, so it never goes back by itself.
            raise BatchConflict(
                work, f"the batch {work.key} was never written, but the later {work.query}/{latest} was"
            )
        return
    if found.target is not None and found.target != claim.target:
        raise BatchConflict(
            work,
            f"the batch {work.key} was decided for {_topic(found.target)} before, and this run writes to "
            f"{_topic(claim.target)}; run it with the former once to finish it, and change the topic then",
        )
    known = same_place(found.checkpoint)
    if known and claim.checkpoint and known not in map(same_place, (claim.checkpoint, claim.moved_from)):
        raise BatchConflict(
            work,
            f"the batch {work.key} was decided by a query with the checkpoint {found.checkpoint}, and this one has "
            f"{claim.checkpoint}; if the checkpoint was moved, and no query uses the former any more, set the option "
            f"checkpointMovedFrom to {found.checkpoint}",
        )
    before, now = _sum(found.chunks), _sum(staged)
    if before is None or now is None or before == now or (claim.any_rows and not is_past):
        return
    raise BatchConflict(
        work,
        f"the batch {work.key} was decided with {before[0]} rows before, and this run has {now[0]}"
        f"{' others' if before[0] == now[0] else ''}; if the query computes other rows each time that it runs (rand(), "
        "uuid(), sums of doubles), set the option replayedRows to any: then those of the first run count",
    )


def _sum(chunks: Sequence[Staged]) -> tuple[int, int] | None:
    """Number and checksum of all rows; None if a record is too old to have them."""
    if any(chunk.checksum == UNKNOWN for chunk in chunks):
        return None
    return sum(chunk.rows for chunk in chunks), sum(chunk.checksum for chunk in chunks) % CHECKSUM_MODULO


def _topic(target: str) -> str:
    return f"the topic {target!r}" if target else "the topics that rows name"
