"""Which slaves a TernMQ master lets follow, and what it says to the others (O1)."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from ternmq.errors import RemoteProtocolError
from ternmq.replication.epochs import EPOCHS_MAX, HEARD_MAX, Epoch, Epochs
from ternmq.replication.handshake import (
    VERSION,
    BrokerNode,
    HandshakeVerdict,
    MasterHello,
    Refusal,
    SlaveHello,
    decode,
    encode,
    epochs_of,
    first_check,
    judge,
)
from ternmq.replication.history import (
    SAMPLED_BYTES_MAX,
    SAMPLES_MAX,
    WINDOW_BYTES,
    Comparison,
    Sample,
    check_bounds,
    compare,
    digest,
    ranges,
    sample,
)
from ternmq.replication.stream import pack_text

SEGMENT = 1 << 20
MASTER = MasterHello(VERSION, BrokerNode("c", "broker-a", 0, "10.0.0.1:10911"), SEGMENT, 2 * SEGMENT, 5 * SEGMENT + 77)
SLAVE = SlaveHello(
    VERSION, BrokerNode("c", "broker-a", 1, "10.0.0.2:10911"), SEGMENT, begin=2 * SEGMENT, end=4 * SEGMENT, samples=[]
)
EQUAL = Comparison(equal=3, equal_up_to=4 * SEGMENT)
NOTHING = Comparison()


def changed(slave: SlaveHello = SLAVE, **changes: object) -> SlaveHello:
    return msgspec.structs.replace(slave, **changes)


def test_a_slave_with_the_same_history_goes_on_where_it_ends() -> None:
    """O1."""
    assert HandshakeVerdict(start=4 * SEGMENT) == judge(SLAVE, MASTER, EQUAL)
    assert first_check(SLAVE, MASTER) is None


def test_an_empty_slave_gets_everything_or_the_last_file() -> None:
    """O1: everything, unless it wants what RocketMQ would send."""
    empty = changed(begin=0, end=0)
    assert HandshakeVerdict(start=2 * SEGMENT) == judge(empty, MASTER, NOTHING)
    assert HandshakeVerdict(start=5 * SEGMENT) == judge(changed(empty, from_last_file=True), MASTER, NOTHING)
    nothing_yet = msgspec.structs.replace(MASTER, begin=0, end=0)
    assert HandshakeVerdict(start=0) == judge(changed(empty, from_last_file=True), nothing_yet, NOTHING)


def test_a_slave_that_has_only_begun_goes_on_where_it_began() -> None:
    """O1: it was stopped before the first record was complete; there is nothing to compare."""
    assert HandshakeVerdict(start=3 * SEGMENT) == judge(changed(begin=3 * SEGMENT, end=3 * SEGMENT), MASTER, NOTHING)


@pytest.mark.parametrize(
    ("slave", "comparison", "refusal"),
    [
        (changed(end=5 * SEGMENT + 78), EQUAL, Refusal.AHEAD),
        (changed(begin=0, end=2 * SEGMENT - 1), NOTHING, Refusal.GONE),
        (SLAVE, Comparison(equal=1, equal_up_to=9, differs_at=10), Refusal.OTHER_HISTORY),
        (changed(end=9 * SEGMENT), Comparison(equal=1, equal_up_to=9, differs_at=10), Refusal.OTHER_HISTORY),
        (SLAVE, NOTHING, Refusal.OTHER_HISTORY),
    ],
)
def test_a_slave_that_would_keep_or_overwrite_records_is_refused(
    slave: SlaveHello, comparison: Comparison, refusal: Refusal
) -> None:
    """O1: ahead, too far behind, another history, or nothing that tells."""
    verdict = judge(slave, MASTER, comparison)
    assert (-1, refusal) == (verdict.start, verdict.refusal)
    assert "empty" in verdict.reason or "tern store cut" in verdict.reason


@pytest.mark.parametrize(
    ("slave", "refusal"),
    [
        (changed(version=VERSION + 1), Refusal.VERSION),
        (changed(segment_bytes=SEGMENT * 2), Refusal.OTHER_SEGMENTS),
        (changed(place=BrokerNode("c", "broker-b", 1, "")), Refusal.OTHER_BROKER),
        (changed(place=BrokerNode("other", "broker-a", 1, "")), Refusal.OTHER_BROKER),
        (changed(place=BrokerNode("c", "broker-a", 0, "")), Refusal.OTHER_BROKER),
        (changed(place=BrokerNode("c", "broker-a", -1, "")), Refusal.OTHER_BROKER),
        (changed(begin=10, end=9), Refusal.OTHER_HISTORY),
    ],
)
def test_a_node_that_is_no_slave_of_this_master_is_refused(slave: SlaveHello, refusal: Refusal) -> None:
    """O1, O2: a wrong address in a config file must not mix two logs."""
    verdict = first_check(slave, MASTER)
    assert verdict is not None
    assert refusal is verdict.refusal


def test_texts_survive_the_wire_and_damage_is_an_error() -> None:
    """O1."""
    with_sample = changed(samples=[Sample(1, 2, "ab")])
    assert with_sample == decode(encode(with_sample), SlaveHello)
    assert MASTER == decode(encode(MASTER), MasterHello)
    refused = HandshakeVerdict(refusal=Refusal.AHEAD, reason="more")
    assert refused == decode(encode(refused), HandshakeVerdict)
    for data in (b"", b"{", b"[]", b'{"version":"x"}', b"\xff\xfe", b'{"x":' + b"[" * 16_000):
        with pytest.raises(RemoteProtocolError):
            decode(data, MasterHello)
    with pytest.raises(RemoteProtocolError):
        decode(b'{"refusal":"NO_SUCH"}', HandshakeVerdict)


# --- Samples ---------------------------------------------------------------------------------------------------------


def samples_of(data: bytes, *, begin: int = 0, segment_bytes: int = SEGMENT) -> list[Sample]:
    wanted = ranges(begin, len(data), segment_bytes=segment_bytes)
    found = [sample(at, data[at : at + length]) for at, length in wanted]
    return [each for each in found if each is not None]


def against(data: bytes, samples: list[Sample]) -> Comparison:
    return compare(samples, lambda each: digest(data[each.log_offset : each.end]) if each.end <= len(data) else None)


@pytest.mark.parametrize("seed", range(20))
def test_a_copy_is_recognised_and_a_changed_log_too(seed: int) -> None:
    """O1: a difference near the end is always found, however long both went on afterwards."""
    chance = Random(seed)
    log = chance.randbytes(chance.choice((1, 100, 5000, 300_000)))
    longer = log + chance.randbytes(chance.choice((0, 1, 5000)))
    same = against(longer, samples_of(log))
    assert (-1, len(log.rstrip(b"\0"))) == (same.differs_at, same.equal_up_to)
    assert same.equal
    at = chance.randrange(max(0, len(log) - WINDOW_BYTES), len(log))
    other = bytearray(longer)
    other[at] ^= 1
    differing = against(bytes(other), samples_of(log))
    assert 0 <= differing.differs_at <= at


def test_what_stands_behind_a_blank_does_not_count() -> None:
    """O1: a recovered slave has zeros there, and its master may have anything."""
    segment = 4096
    ours = b"r" * 4000 + b"blank!!!" + bytes(88)
    theirs = ours[:4008] + b"x" * 88
    comparison = against(theirs + b"more", samples_of(ours, segment_bytes=segment))
    assert (1, -1) == (comparison.equal, comparison.differs_at)


def test_samples_tell_about_where_logs_part() -> None:
    """O1: older samples narrow it down; all are few."""
    chance = Random(4)
    log = chance.randbytes(1 << 20)
    other = log[:300_000] + chance.randbytes(len(log) - 300_000)
    samples = samples_of(log, segment_bytes=4096)
    assert len(samples) <= SAMPLES_MAX
    assert not check_bounds(samples, segment_bytes=4096)
    found = against(other, samples)
    assert found.equal_up_to <= 300_000 <= found.differs_at + 4096


@pytest.mark.parametrize(
    "samples",
    [
        [Sample(0, 10, "")] * (SAMPLES_MAX + 1),
        [Sample(0, SAMPLED_BYTES_MAX + 1, "")],
        [Sample(-1, 10, "")],
        [Sample(0, 0, "")],
        [Sample(SEGMENT - 1, 2, "")],
    ],
)
def test_samples_that_would_cost_much_are_refused(samples: list[Sample]) -> None:
    """O1: a master reads no more for a stranger than for a slave."""
    assert check_bounds(samples, segment_bytes=SEGMENT)


@pytest.mark.parametrize("name", ["end", "logOffset", "brokerId"])
def test_numbers_of_a_thousand_digits_are_refused(name: str) -> None:
    """O1: they would be in each log line about this slave."""
    whole = msgspec.structs.replace(SLAVE, samples=[Sample(0, 1, "x")])
    text = encode(whole).decode()
    at = text.index(f'"{name}":') + len(name) + 3
    text = text[:at] + "9" * 1000 + text[at + 1 :]

    with pytest.raises(RemoteProtocolError, match="not valid"):
        decode(text.encode(), SlaveHello)


def test_the_greeting_of_a_node_that_was_promoted_often_fits_into_a_text() -> None:
    """O1: with the largest numbers, and as many samples as there can be."""
    known = Epochs()
    for number in range(2, 1000):
        known = known.begun((1 << 62) + number, (1 << 61) + number)
    assert known.newest == (1 << 61) + 999
    assert known == Epochs.parse(known.format())
    samples = [Sample((1 << 62) + number, WINDOW_BYTES, digest(b"")) for number in range(SAMPLES_MAX)]
    for hello in (
        msgspec.structs.replace(MASTER, epochs=list(known.entries)),
        changed(epochs=list(known.entries), samples=samples, begin=1 << 62, end=1 << 62),
    ):
        assert pack_text(encode(hello))


@pytest.mark.parametrize(
    ("epochs", "words"),
    [
        ([Epoch(number, number) for number in range(1, EPOCHS_MAX + 2)], "it has 101 epochs, more than the 100"),
        ([Epoch(1, 0), Epoch(HEARD_MAX + 1, 5)], r"epoch 4294967297 is larger than 4294967296.*stop the broker at"),
        ([Epoch(2, 0), Epoch(1, 5)], "epoch 1 does not follow epoch 2"),
        ([Epoch(-5, 0)], "the first epoch is not valid"),
        ([Epoch(1, -1)], "the first epoch is not valid"),
    ],
    ids=["many", "huge", "order", "negative", "negative start"],
)
def test_epochs_of_another_node_are_bounded(epochs: list[Epoch], words: str) -> None:
    """O1: they are kept, told on, and the next promotion begins after them."""
    for hello in (msgspec.structs.replace(MASTER, epochs=epochs), changed(epochs=epochs)):
        with pytest.raises(RemoteProtocolError, match=words):
            epochs_of(hello)
    assert HEARD_MAX == epochs_of(changed(epochs=[Epoch(1, 0), Epoch(HEARD_MAX, 5)])).newest
