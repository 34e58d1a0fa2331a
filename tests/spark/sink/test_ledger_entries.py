"""What counts in the ledger, and when two runs of a batch are not of the same (U2; issue 13, point 11)."""

from __future__ import annotations

import msgspec
import pytest

from ternmq.message import MessageQueue
from ternmq.spark.sink.ledger_entries import (
    LEDGER_TOPIC,
    STAGE_TOPIC,
    UNKNOWN,
    BatchConflict,
    Done,
    Found,
    LedgerDecision,
    LedgerEntry,
    LedgerMark,
    RunIdentity,
    SinkWork,
    Staged,
    WorkKind,
    check_same,
    decode,
    encode,
    latest_decided,
    orphans,
    outcome,
    same_place,
)

LEDGER = MessageQueue(LEDGER_TOPIC, "a", 3)
STAGE = MessageQueue(STAGE_TOPIC, "a", 0)
ORDERS = MessageQueue("orders", "b", 1)
CHUNK = Staged(STAGE, 7, "0" * 28, "orders", ORDERS, 0, 10, 12345)
OTHERS = [msgspec.structs.replace(CHUNK, checksum=54321)]
DECISION = LedgerDecision([CHUNK], [(ORDERS, 99)], "orders", "/checkpoints/orders")
WORK = SinkWork("q", 5)
CLAIM = RunIdentity("orders", "/checkpoints/orders")


def found(*entries: tuple[str, LedgerEntry], batch: int = 5) -> list[Found]:
    return [Found(1_000, at, LEDGER, entry_id, batch, entry) for at, (entry_id, entry) in enumerate(entries)]


# --- Records ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [LedgerMark(["a", "b"]), DECISION, Done("D")])
def test_an_entry_is_what_it_was(entry: LedgerEntry) -> None:
    assert entry == decode(encode(entry))


def test_entries_of_earlier_builds_are_read() -> None:
    """A stream goes on over an update of TernMQ, in the middle of a batch."""
    old = (
        b'{"kind":"decision","chunks":[[["TERNMQ_SPARK_STAGE","a",0],7,"0000000000000000000000000000","orders",'
        b'["orders","b",1],0,10]],"ends":[[["orders","b",1],99]]}'
    )
    entry = decode(old)
    assert LedgerDecision([msgspec.structs.replace(CHUNK, checksum=UNKNOWN)], [(ORDERS, 99)]) == entry
    assert Done() == decode(b'{"kind":"done"}')
    check_same(WORK, CLAIM, [CHUNK], entry, 5)
    known = outcome(found(("D", entry), ("D", entry), ("E", Done())), 5)
    assert known is not None
    assert known.is_done


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"garbage",
        b"\xff\xfe",
        b"[]",
        b'{"kind":"verdict"}',
        b'{"kind":"decision"}',
        b'{"kind":"mark","brokers":"a"}',
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, queue=None)], [(ORDERS, 99)])),
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, topic="other")], [(ORDERS, 99)])),
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, stage=ORDERS)], [(ORDERS, 99)])),
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, stage_offset=-1)], [(ORDERS, 99)])),
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, chunk_id="short")], [(ORDERS, 99)])),
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, rows=10**11)], [(ORDERS, 99)])),
        encode(LedgerDecision([msgspec.structs.replace(CHUNK, delay=10**9)], [(ORDERS, 99)])),
        encode(LedgerDecision([CHUNK], [])),
        encode(LedgerDecision([CHUNK], [(ORDERS, -1)])),
    ],
)
def test_what_cannot_be_true_is_not_an_entry(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(body)


@pytest.mark.parametrize(
    ("key", "batch"),
    [
        ("q/6", 6),
        ("q/0", 0),
        ("p/6", None),
        ("q", None),
        ("q/", None),
        ("q/-1", None),
        ("q/²", None),
        ("q/" + "9" * 5_000, None),
    ],
)
def test_a_key_names_query_and_batch(key: str, batch: int | None) -> None:
    assert batch == WORK.batch_of_key(key)


# --- What counts --------------------------------------------------------------------------------------------------


def test_the_first_decision_counts_unless_another_replaces_it() -> None:
    second = LedgerDecision([], [], "orders")
    known = outcome(found(("M", LedgerMark(["a"])), ("A", DECISION), ("B", second)), 5)
    assert known is not None
    assert (DECISION, "A", False) == (known.decision, known.decision_id, known.is_done)
    replacing = msgspec.structs.replace(second, replaces="A")
    known = outcome(found(("A", DECISION), ("B", replacing)), 5)
    assert known is not None
    assert (replacing, "B") == (known.decision, known.decision_id)
    assert None is outcome(found(("A", DECISION), batch=6), 5)


def test_a_decision_that_came_second_does_not_count_when_the_first_is_replaced() -> None:
    """Two drivers decided, and later a broker with rows of the first decision was retired. The run that replaced it
    has published its own; another one, finishing the second, would write all rows once more."""
    second, third = LedgerDecision([], [], "orders"), LedgerDecision([], [], "orders", replaces="A")
    known = outcome(found(("A", DECISION), ("B", second), ("C", third), ("D", Done("C"))), 5)
    assert known is not None
    assert ("C", True) == (known.decision_id, known.is_done)


def test_done_counts_with_its_decision_only() -> None:
    """A forged «done» would lose the batch; so would one of a decision that another has replaced."""
    known = outcome(found(("A", DECISION), ("D", Done("A"))), 5)
    assert known is not None
    assert known.is_done
    for forged in (Done(), Done("A")):
        entries = found(("M", LedgerMark(["a"])), ("D", forged))
        assert None is outcome(entries, 5)
        assert ["D"] == [one.entry_id for one in orphans(entries, 5)]
    known = outcome(found(("A", DECISION), ("D", Done("another"))), 5)
    assert known is not None
    assert not known.is_done
    replacing = msgspec.structs.replace(DECISION, replaces="A")
    for done in (Done(), Done("A")):
        known = outcome(found(("A", DECISION), ("D", done), ("B", replacing)), 5)
        assert known is not None
        assert ("B", False) == (known.decision_id, known.is_done)


def test_only_decisions_make_a_batch_the_latest() -> None:
    """Marks of an empty batch say nothing of rows."""
    entries = [*found(("A", DECISION)), *found(("B", DECISION), batch=7), *found(("M", LedgerMark([])), batch=9)]
    assert 7 == latest_decided(entries)
    assert None is latest_decided(found(("M", LedgerMark([]))))


# --- Two runs of a batch --------------------------------------------------------------------------------------------


def test_rows_are_the_same_however_they_are_divided() -> None:
    halves = [
        msgspec.structs.replace(CHUNK, chunk_id="1" * 28, rows=4, checksum=2**64 - 5),
        msgspec.structs.replace(CHUNK, chunk_id="2" * 28, rows=6, checksum=12350, queue=None),
    ]
    check_same(WORK, CLAIM, halves, DECISION, 5)
    check_same(WORK, CLAIM, halves, None, 4)
    # Also after later batches: to skip it drops no rows.
    check_same(WORK, CLAIM, halves, DECISION, 9)


@pytest.mark.parametrize(
    ("claim", "staged", "decision", "latest", "sentence"),
    [
        (
            RunIdentity("bills", CLAIM.checkpoint),
            [CHUNK],
            DECISION,
            5,
            "for the topic 'orders' before, and .* topic 'bills'",
        ),
        (RunIdentity("", CLAIM.checkpoint), [CHUNK], DECISION, 5, "this run writes to the topics that rows name"),
        (
            RunIdentity("orders", "/copy"),
            [CHUNK],
            DECISION,
            5,
            "set the option checkpointMovedFrom to /checkpoints/orders",
        ),
        (CLAIM, OTHERS, DECISION, 5, "decided with 10 rows before, and this run has 10 others; .* replayedRows to any"),
        (CLAIM, [], DECISION, 5, "decided with 10 rows before, and this run has 0;"),
        (RunIdentity("orders", any_rows=True), OTHERS, DECISION, 6, "this run has 10 others"),
        (CLAIM, [CHUNK], None, 6, "never written, but the later q/6 was"),
        (CLAIM, [], None, 6, "the later q/6 was"),
    ],
)
def test_a_copied_or_rewound_checkpoint_is_told_with_the_cure(
    claim: RunIdentity, staged: list[Staged], decision: LedgerDecision | None, latest: int, sentence: str
) -> None:
    with pytest.raises(BatchConflict, match=rf"the batch q/5 was .*{sentence}.*with the option txnAppId"):
        check_same(WORK, claim, staged, decision, latest)


@pytest.mark.parametrize(
    "claim",
    [
        RunIdentity("orders", "/new", moved_from="file:/checkpoints/orders"),
        RunIdentity("orders", "file:///checkpoints/orders/"),
        RunIdentity("orders"),
    ],
)
def test_a_checkpoint_may_be_moved_or_spelled_otherwise(claim: RunIdentity) -> None:
    check_same(WORK, claim, [CHUNK], DECISION, 5)


def test_queries_that_compute_other_rows_each_time_say_so() -> None:
    """As long as it is the last batch, which Spark may repeat."""
    check_same(WORK, RunIdentity("orders", any_rows=True), OTHERS, DECISION, 5)


@pytest.mark.parametrize(
    ("kind", "cure"), [(WorkKind.WRITE, "another writeId"), (WorkKind.TRANSACTION, "a higher txnVersion")]
)
def test_batch_writes_have_cures_of_their_own(kind: WorkKind, cure: str) -> None:
    with pytest.raises(BatchConflict, match=f"Nothing was written by this run; use {cure}"):
        check_same(SinkWork("q", 5, kind), CLAIM, OTHERS, DECISION, 5)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("/a/b", "/a/b"),
        ("/a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b/", "/a/b"),
        ("hdfs://host/a", "hdfs://host/a"),
        ("s3a://bucket/a/", "s3a://bucket/a"),
        ("relative/a", "relative/a"),
        ("/", "/"),
        ("", ""),
    ],
)
def test_common_spellings_of_one_place(given: str, place: str) -> None:
    assert place == same_place(given)
