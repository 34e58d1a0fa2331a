"""The calls between members of RocketMQ's DLedger, 0.2.6 and 0.3.1.2 (P3; replication.md C).

They are frames of the remoting protocol on the port of the group. The header has the code of the call only, and that of
a response is always a success: what counts is in the body, JSON with the fields of ``Base`` and those of the call. Java
leaves null out, so all others have its defaults here. Fields that Java derives from others (``batch``, ``count`` of a
request, …) are ignored by both sides.

``DLedgerEntry`` is an entry of the log as DLedger's JSON has it: the header field by field, the record as base64. Its
two CRCs are signed there, as all numbers of Java.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Final, Self

from ternmq.errors import RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.bodies.codec import Body
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER, ENTRY_HEADER_BYTES, ENTRY_MAGIC
from ternmq.wire.requests import Int64

#: The largest entry that DLedger can read or write, header included (``DLedgerMmapFileStore.localEntryBuffer``).
ENTRY_BYTES_MAX: Final = 4 * 1024 * 1024

_UNSIGNED: Final = 0xFFFF_FFFF


class DLedgerCode(IntEnum):
    """``DLedgerRequestCode``."""

    METADATA = 50000
    VOTE = 51001
    HEART_BEAT = 51002
    PUSH = 51004
    LEADERSHIP_TRANSFER = 51005


class Code(IntEnum):
    """``DLedgerResponseCode``: those that matter here."""

    SUCCESS = 200
    NETWORK_ERROR = 302
    UNSUPPORTED = 303
    UNKNOWN_GROUP = 400
    UNKNOWN_MEMBER = 401
    EXPIRED_TERM = 403
    NOT_FOLLOWER = 405
    INCONSISTENT_STATE = 406
    INCONSISTENT_TERM = 407
    INCONSISTENT_LEADER = 409
    UNEXPECTED_ARGUMENT = 411
    REPEATED_PUSH = 413
    TERM_NOT_READY = 416
    TAKE_LEADERSHIP_FAILED = 418


#: ``VoteResponse.RESULT``, by name.
ACCEPT: Final = "ACCEPT"
ALREADY_VOTED: Final = "REJECT_ALREADY_VOTED"
ALREADY_HAS_LEADER: Final = "REJECT_ALREADY_HAS_LEADER"
EXPIRED_VOTE_TERM: Final = "REJECT_EXPIRED_VOTE_TERM"
TERM_NOT_READY: Final = "REJECT_TERM_NOT_READY"
TERM_SMALL_THAN_LEDGER: Final = "REJECT_TERM_SMALL_THAN_LEDGER"
EXPIRED_LEDGER_TERM: Final = "REJECT_EXPIRED_LEDGER_TERM"
SMALL_LEDGER_END_INDEX: Final = "REJECT_SMALL_LEDGER_END_INDEX"

#: ``PushEntryRequest.Type``, by name.
APPEND: Final = "APPEND"
COMMIT: Final = "COMMIT"
COMPARE: Final = "COMPARE"
TRUNCATE: Final = "TRUNCATE"


class Base(Body, frozen=True, kw_only=True):
    """What every call and every response has. ``remote_id`` is the addressee. DLedger 0.2.6 has no ``local_id`` in
    most calls: the sender is ``leader_id``, which is the candidate in a vote."""

    group: str | None = None
    remote_id: str | None = None
    local_id: str | None = None
    code: Int64 = Code.SUCCESS.value
    leader_id: str | None = None
    term: Int64 = -1


class Metadata(Base, frozen=True, kw_only=True):
    """``peers``: member id to address. ``ternmq`` is ours: the member that answers is TernMQ, and wants to be greeted
    as such (``raft.greeting``)."""

    peers: dict[str, str] | None = None
    ternmq: Int64 = 0


class VoteCall(Base, frozen=True, kw_only=True):
    ledger_end_index: Int64 = -1
    ledger_end_term: Int64 = -1


class VoteAnswer(Base, frozen=True, kw_only=True):
    vote_result: str = "UNKNOWN"


class DLedgerEntry(Body, frozen=True, kw_only=True):
    magic: Int64 = 0
    size: Int64 = 0
    index: Int64 = 0
    term: Int64 = 0
    pos: Int64 = 0
    channel: Int64 = 0
    chain_crc: Int64 = 0
    body_crc: Int64 = 0
    body: bytes = b""

    @classmethod
    def of(cls, data: Buffer) -> Self:
        """The entry whose bytes these are, as in the log."""
        magic, size, index, term, pos, channel, chain_crc, body_crc, _ = ENTRY_HEADER.unpack_from(data)
        return cls(
            magic=magic,
            size=size,
            index=index,
            term=term,
            pos=pos,
            channel=channel,
            chain_crc=_signed(chain_crc),
            body_crc=_signed(body_crc),
            body=bytes(data[ENTRY_HEADER_BYTES:]),
        )

    def pack(self) -> bytes:
        """The bytes of this entry in the log. Raises ``RemoteProtocolError`` if it cannot be one."""
        if self.magic != ENTRY_MAGIC or self.size != ENTRY_HEADER_BYTES + len(self.body) or self.index < 0:
            raise RemoteProtocolError(
                f"entry {self.index} of another member has magic {self.magic} and size {self.size} with "
                f"{len(self.body)} bytes of a record"
            )
        try:
            header = ENTRY_HEADER.pack(
                self.magic,
                self.size,
                self.index,
                self.term,
                self.pos,
                self.channel,
                self.chain_crc & _UNSIGNED,
                self.body_crc & _UNSIGNED,
                len(self.body),
            )
        except struct.error as error:
            raise RemoteProtocolError(f"entry {self.index} of another member is not valid: {error}") from None
        return header + self.body


class Push(Base, frozen=True, kw_only=True):
    """A leader's call. APPEND has ``entry`` or ``batch_entry``; COMPARE and TRUNCATE have ``entry``; COMMIT none."""

    type: str = "none"
    entry: DLedgerEntry | None = None
    batch_entry: tuple[DLedgerEntry, ...] = ()
    commit_index: Int64 = -1

    @property
    def entries(self) -> tuple[DLedgerEntry, ...]:
        return self.batch_entry or (() if self.entry is None else (self.entry,))


class PushAnswer(Base, frozen=True, kw_only=True):
    """``index`` and ``count`` are those of the call. ``begin_index`` to ``end_index`` is what the follower has."""

    index: Int64 | None = None
    count: Int64 = 0
    begin_index: Int64 = 0
    end_index: Int64 = 0


class LeaderTransfer(Base, frozen=True, kw_only=True):
    """The leader ``transfer_id`` wants ``transferee_id`` to lead, as soon as that has the entry."""

    transfer_id: str | None = None
    transferee_id: str | None = None
    take_leadership_ledger_index: Int64 = 0


def split_entries(data: bytes) -> Iterator[DLedgerEntry]:
    """The entries in bytes of the log."""
    at = 0
    view = memoryview(data)
    while at < len(data):
        size = ENTRY_HEADER.unpack_from(data, at)[1]
        yield DLedgerEntry.of(view[at : at + size])
        at += size


def _signed(number: int) -> int:
    return number - (1 << 32) if number >= 1 << 31 else number
