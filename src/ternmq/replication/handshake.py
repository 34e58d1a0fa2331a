"""What two TernMQ nodes tell each other before the log flows, and what the master makes of it (O1).

::

    slave                                        master
      | ── probe ─────────────────────────────────▶ |
      | ◀─────────────── MasterHello ────────────── |   who it is, from where to where its log reaches
      | ── SlaveHello ────────────────────────────▶ |   the same, and samples of the log (``replication.history``)
      | ◀─────────── HandshakeVerdict ───────────── |   where the log flows from, or why it does not

A slave is refused when it would keep or overwrite records that the master does not have: when its log is longer, or
holds other records. A refusal has a code for programs and a sentence with the cure.

If a promotion explains the difference (the master is in a later epoch, ``replication.epochs``), the slave asks again,
as if its log ended at the common end. If the bytes before that are equal, it cuts its log there, and follows. In no
other case does it cut anything.

Texts are JSON. A node ignores fields that it does not know, and refuses another version.
"""

from __future__ import annotations

import enum
from typing import Final, TypeVar

import msgspec

from ternmq.errors import UNREADABLE, RemoteProtocolError
from ternmq.replication.epochs import EPOCHS_MAX, FILE_NAME, HEARD_MAX, Epoch, Epochs
from ternmq.replication.history import Comparison, Sample
from ternmq.wire.requests import Int64

VERSION: Final = 1


class Refusal(enum.Enum):
    """Why a slave may not follow."""

    VERSION = "VERSION"
    #: It did not prove that it may have the log.
    NOT_ADMITTED = "NOT_ADMITTED"
    #: It is a slave of another broker, or no slave.
    OTHER_BROKER = "OTHER_BROKER"
    #: Another broker with its id follows already.
    SAME_ID = "SAME_ID"
    OTHER_SEGMENTS = "OTHER_SEGMENTS"
    #: It has more than its master.
    AHEAD = "AHEAD"
    #: The master does not have any more what it needs next.
    GONE = "GONE"
    #: Before its end stand other records than in the master's log.
    OTHER_HISTORY = "OTHER_HISTORY"
    #: The slave has records of a later master.
    OLD_MASTER = "OLD_MASTER"


class BrokerNode(msgspec.Struct, frozen=True, rename="camel"):
    """A node of a broker set."""

    cluster: str
    broker: str
    broker_id: Int64
    #: ``ip:port`` of its remoting port.
    address: str


class MasterHello(msgspec.Struct, frozen=True, rename="camel"):
    version: Int64
    place: BrokerNode
    segment_bytes: Int64
    begin: Int64
    end: Int64
    epochs: list[Epoch] = []
    #: SYNC_MASTER or ASYNC_MASTER; empty from nodes that did not tell yet.
    role: str = ""


class SlaveHello(msgspec.Struct, frozen=True, rename="camel"):
    version: Int64
    place: BrokerNode
    segment_bytes: Int64
    #: Both 0 while there is no log at all; equal where a log has begun, and has no record yet.
    begin: Int64
    end: Int64
    samples: list[Sample] = []
    #: An empty slave wants the last segment only, as a slave of RocketMQ gets it.
    from_last_file: bool = False
    epochs: list[Epoch] = []
    #: It only asks whether it could follow from ``end``: its log is longer, and would be cut there first.
    only_asks: bool = False
    #: Whether sends may wait for it (``countsAsCopy``).
    counts: bool = True


class HandshakeVerdict(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``start`` is where the log flows from; below 0 it does not, and ``refusal`` says why."""

    start: Int64 = -1
    refusal: Refusal | None = None
    reason: str = ""


T = TypeVar("T", MasterHello, SlaveHello, HandshakeVerdict)

encode: Final = msgspec.json.Encoder().encode


def decode(data: bytes, kind: type[T]) -> T:
    """Raises ``RemoteProtocolError``."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"the handshake of replication is not valid: {error}") from None


def epochs_of(hello: MasterHello | SlaveHello) -> Epochs:
    """Raises ``RemoteProtocolError``. Who is asked keeps these epochs, and promotions begin after the last of them."""
    try:
        if len(hello.epochs) > EPOCHS_MAX:
            raise ValueError(f"it has {len(hello.epochs)} epochs, more than the {EPOCHS_MAX} that are read")
        epochs = Epochs.of(hello.epochs)
        if epochs.newest > HEARD_MAX:
            raise ValueError(
                f"epoch {epochs.newest} is larger than {HEARD_MAX}, which no promotion begins; stop the broker at "
                f"{hello.place.address[:100]!r}, and restore its {FILE_NAME} from a copy, or remove it"
            )
    except ValueError as error:
        raise RemoteProtocolError(f"the handshake of replication is not valid: {error}") from None
    return epochs


def first_check(slave: SlaveHello, master: MasterHello) -> HandshakeVerdict | None:
    """What is refused whatever the logs hold; None if they must be compared."""
    ours, theirs = master.place, slave.place
    if slave.version != VERSION:
        return HandshakeVerdict(
            refusal=Refusal.VERSION,
            reason=f"the slave speaks version {slave.version} of the handshake and the master version {VERSION}; "
            "install the same version of TernMQ on both",
        )
    is_same_set = (theirs.cluster, theirs.broker) == (ours.cluster, ours.broker)
    if not is_same_set or theirs.broker_id < 0 or theirs.broker_id == ours.broker_id:
        return HandshakeVerdict(
            refusal=Refusal.OTHER_BROKER,
            reason=f"{theirs.broker[:100]!r} of cluster {theirs.cluster[:100]!r} with id {theirs.broker_id} cannot be "
            f"a slave of {ours.broker!r} of cluster {ours.cluster!r} with id {ours.broker_id}; give it the same "
            "brokerName and brokerClusterName, a brokerId of its own above 0, and the address of its own master",
        )
    if slave.segment_bytes != master.segment_bytes:
        return HandshakeVerdict(
            refusal=Refusal.OTHER_SEGMENTS,
            reason=f"the slave has log files of {slave.segment_bytes} bytes and the master of {master.segment_bytes}; "
            "set mappedFileSizeCommitLog of an empty slave to the master's value",
        )
    if slave.begin < 0 or slave.end < slave.begin:
        return HandshakeVerdict(refusal=Refusal.OTHER_HISTORY, reason="the log of the slave ends before it begins")
    ours_newest, theirs_newest = epochs_of(master).newest, epochs_of(slave).newest
    if theirs_newest > ours_newest:
        return HandshakeVerdict(
            refusal=Refusal.OLD_MASTER,
            reason=f"the slave has records of epoch {theirs_newest}, and its master is of epoch {ours_newest}: another "
            "broker was promoted since. Start that one as master; or promote the slave, if its messages count",
        )
    return None


def same_id(slave: SlaveHello, other: str) -> HandshakeVerdict:
    """Two brokers with one id would count as one copy, and take each other's connection."""
    return HandshakeVerdict(
        refusal=Refusal.SAME_ID,
        reason=f"{other} follows already with the id {slave.place.broker_id}; give this slave another brokerId. If "
        "it has moved, it can follow when the old connection has been silent for some seconds",
    )


def judge(slave: SlaveHello, master: MasterHello, comparison: Comparison) -> HandshakeVerdict:
    """Whether a slave follows, and from where; ``comparison`` is of its samples and the master's log."""
    if not slave.end:
        last = max(master.begin, (master.end - 1) // master.segment_bytes * master.segment_bytes)
        return HandshakeVerdict(start=last if slave.from_last_file else master.begin)
    if comparison.differs_at >= 0:
        return HandshakeVerdict(
            refusal=Refusal.OTHER_HISTORY,
            reason=f"the logs differ: equal up to log offset {comparison.equal_up_to} at most, and different at "
            f"{comparison.differs_at}. Both nodes were masters at some time, or one was restored from a copy. Keep the "
            "directory of the node whose messages count; empty that of the other, which then copies all, or cut it "
            "with `tern store cut`",
        )
    if slave.end > master.end:
        return HandshakeVerdict(
            refusal=Refusal.AHEAD,
            reason=f"the slave has {slave.end - master.end} bytes that the master does not have (its log ends at "
            f"{slave.end}, the master's at {master.end}): the master lost the end of its log. To keep these messages, "
            "make the slave the master with `tern broker promote`; to drop them, stop the slave and run "
            f"`tern store cut DIR --at {master.end}`",
        )
    if slave.end < master.begin:
        return HandshakeVerdict(
            refusal=Refusal.GONE,
            reason=f"the slave needs the log from {slave.end} on, and the master has deleted all before "
            f"{master.begin}; empty the directory of the slave, which then copies all that the master has",
        )
    if not comparison.equal and slave.begin < slave.end:
        return HandshakeVerdict(
            refusal=Refusal.OTHER_HISTORY,
            reason=f"no part of the slave's log up to {slave.end} can be compared with the master's, which begins at "
            f"{master.begin}; empty the directory of the slave, which then copies all that the master has",
        )
    return HandshakeVerdict(start=slave.end)
