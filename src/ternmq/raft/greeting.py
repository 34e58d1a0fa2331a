"""What two members of a group tell each other before messages flow (P3).

::

    member that dials                           member that was dialled
      | ── "TERNRAFT", hello ──────────────────────▶ |   who I am, whom I look for, how our logs look
      | ◀─────────────────────────── challenge ───── |   only where callers are checked: a number to sign
      | ── proof ──────────────────────────────────▶ |   signed as an admin (``net.proof``)
      | ◀───────────────────────────── welcome ───── |   or a refusal with its reason; then the connection ends
      | ── messages (``raft.wire``) ───────────────▶ |   in this direction only

Each member dials each other one, so a pair has two connections. Texts are JSON behind their length. A member ignores
fields that it does not know, and refuses another version, another group, and any caller that is not a member: a program
that found the port by chance, or a broker with the settings of another group.
"""

from __future__ import annotations

import struct
from typing import Final, TypeVar

import msgspec

from ternmq.errors import UNREADABLE, RemoteProtocolError
from ternmq.wire.frame import TLS_SPOKEN, speaks_tls
from ternmq.wire.requests import Int64

VERSION: Final = 1
MAGIC: Final = b"TERNRAFT"
#: Bytes of one text: a dozen short names.
TEXT_BYTES_MAX: Final = 16 * 1024
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, rename="camel"):
    version: Int64
    group: str
    cluster: str
    broker: str
    #: Member ids of the caller, and of the one that it wants to reach.
    sender: str
    receiver: str
    #: Ids of all members that the caller knows.
    members: tuple[str, ...]
    #: Size of its log files: bytes have the same places on all members.
    segment_bytes: Int64
    #: Where clients reach the broker; the others copy the tables of the leader from there.
    address: str = ""
    #: Where other members reach it, and the entry of its log that names the members; -1: it has none.
    raft_address: str = ""
    members_index: Int64 = -1
    #: Who may be a member of its group (``raftPeerProtocol``).
    peer_protocol: str = "ternmq"


class Welcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """``reason`` says why no messages are taken; empty: they are, once ``nonce`` is signed, if there is one."""

    reason: str = ""
    nonce: str = ""


class LinkProof(msgspec.Struct, frozen=True, rename="camel"):
    """The ext fields of a signed request."""

    fields: dict[str, str]


Greeting = Hello | Welcome | LinkProof
T = TypeVar("T", Hello, Welcome, LinkProof)
_encode: Final = msgspec.json.Encoder().encode


def statement(hello: Hello) -> bytes:
    """What the proof of a caller covers beside the number: who calls whom."""
    return b"member of a Raft group: " + _encode(
        (hello.group, hello.cluster, hello.broker, hello.sender, hello.receiver)
    )


def pack(text: Greeting) -> bytes:
    """The bytes of a text; a hello begins with the magic."""
    data = _encode(text)
    return (MAGIC if isinstance(text, Hello) else b"") + _LENGTH.pack(len(data)) + data


class TextReader:
    """Reads one text from the beginning of a connection, and keeps what follows it."""

    __slots__ = ("_kept", "_kind", "_magic")

    def __init__(self, kind: type[Greeting]) -> None:
        self._kind = kind
        self._magic = MAGIC if kind is Hello else b""
        self._kept = b""

    def feed(self, data: bytes) -> tuple[Greeting, bytes] | None:
        """The text and the bytes behind it; None if it is not complete yet. Raises ``RemoteProtocolError``."""
        kept = self._kept = self._kept + data
        if kept.startswith(b"\0") and self._magic:
            raise RemoteProtocolError(
                "it speaks DLedger's protocol, as a RocketMQ broker does; for a group with RocketMQ brokers set "
                "raftPeerProtocol=dledger on all TernMQ members"
            )
        if not kept.startswith(self._magic[: len(kept)]):
            if len(kept) == 1:
                return None  # One more byte, and it is known what it speaks.
            raise RemoteProtocolError(TLS_SPOKEN if speaks_tls(kept) else "it does not speak TernMQ's Raft protocol")
        at = len(self._magic) + _LENGTH.size
        if len(kept) < at:
            return None
        (size,) = _LENGTH.unpack_from(kept, len(self._magic))
        if not 0 < size <= TEXT_BYTES_MAX:
            raise RemoteProtocolError(f"a greeting has {size} bytes; expected 1 to {TEXT_BYTES_MAX}")
        if len(kept) < at + size:
            return None
        self._kept = b""
        try:
            return msgspec.json.decode(kept[at : at + size], type=self._kind), kept[at + size :]
        except UNREADABLE as error:
            raise RemoteProtocolError(f"a greeting is not valid: {error}") from None


def refusal(theirs: Hello, ours: Hello) -> str:
    """Why a caller is refused, with the cure; empty if it is a member of this group. ``ours`` is what we would say."""
    if theirs.version != VERSION:
        return (
            f"it speaks version {theirs.version} of the Raft protocol, and {ours.sender} version {VERSION}; install "
            "the same version of TernMQ on all members"
        )
    for name, their_value, our_value in (
        ("dLegerGroup", theirs.group, ours.group),
        ("brokerClusterName", theirs.cluster, ours.cluster),
        ("brokerName", theirs.broker, ours.broker),
        ("raftPeerProtocol", theirs.peer_protocol, ours.peer_protocol),
    ):
        if their_value != our_value:
            return (
                f"it has {name}={their_value[:100]!r}, and {ours.sender} has {our_value!r}; all members of a group "
                f"need the same {name}. Check the addresses in dLegerPeers, too"
            )
    if theirs.receiver != ours.sender:
        return (
            f"it looks for {theirs.receiver[:20]!r}, and this is {ours.sender}; use the same dLegerPeers on all "
            "members, with the right addresses, and check dLegerSelfId"
        )
    if theirs.sender == ours.sender:
        return f"it is {ours.sender} itself, or another broker with dLegerSelfId={ours.sender}; each needs its own"
    # One that knows a later change may be a member by it.
    if theirs.sender not in ours.members and (theirs.members_index <= ours.members_index or not theirs.raft_address):
        if ours.members_index >= 0:
            return (
                f"{theirs.sender[:20]!r} is not a member of the group ({', '.join(ours.members)}): it was removed, or "
                "is not added yet (`tern raft add`)"
            )
        return (
            f"{theirs.sender[:20]!r} is not in dLegerPeers of {ours.sender} ({', '.join(ours.members)}); use the same "
            "dLegerPeers on all members, or add it to the group that runs (raftJoin=true, `tern raft add`)"
        )
    if theirs.members_index == ours.members_index == -1 and set(theirs.members) != set(ours.members):
        return (
            f"its dLegerPeers has other members ({', '.join(theirs.members)[:200]}) than that of {ours.sender} "
            f"({', '.join(ours.members)}); use the same dLegerPeers on all members"
        )
    if theirs.segment_bytes != ours.segment_bytes:
        return (
            f"its log files have {theirs.segment_bytes} bytes, and those of {ours.sender} {ours.segment_bytes}; use "
            "the same mappedFileSizeCommitLog on all members"
        )
    return ""
