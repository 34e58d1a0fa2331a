"""The bytes of messages between members of a group (P3).

::

    4  length of what follows     kind and body
    1  kind
    n  body                       numbers of 8 bytes, flags of 1 byte, big endian

    1 vote           term, last index, last term, is it a pre-vote
    2 vote reply     term, granted, of a pre-vote
    3 append         term, index and term of the entry before, last index, commit, time; 1 + n heir (an id, or empty);
                     2 number of runs, each of index and term; then the entries, as they are in the log
    4 append reply   term, accepted, index, stored, hint: index and term, time
    5 transfer       term
    6 gone           term, index of the first entry that the leader has: not for the core, but for the member's node

Sender and receiver are those of the connection (``raft.greeting``). Bytes of the log are not copied when they are
packed. A decoded message is consistent in itself: entries of an append are consecutive, and their terms do not
decrease. Whether its data are these entries is checked with ``check_entries``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from ternmq.errors import RemoteProtocolError
from ternmq.raft.messages import (
    NO_INDEX,
    NO_TERM,
    Append,
    AppendReply,
    NodeId,
    RaftMessage,
    TransferNow,
    VoteReply,
    VoteRequest,
)
from ternmq.types import Buffer
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER_BYTES, unpack_entry_header

#: What a frame has besides the entries; runs of terms are few.
FRAME_EXTRA_BYTES: Final = 64 * 1024

_HEAD: Final = struct.Struct(">IB")
_LENGTH: Final = struct.Struct(">I")

_VOTE_KIND, _VOTE_REPLY_KIND, _APPEND_KIND, _APPEND_REPLY_KIND, _TRANSFER_KIND, _GONE_KIND = range(1, 7)
_VOTE: Final = struct.Struct(">qqqqB")
_VOTE_REPLY: Final = struct.Struct(">qBB")
_APPEND: Final = struct.Struct(">qqqqqqB")
_RUN_COUNT: Final = struct.Struct(">H")
_RUN: Final = struct.Struct(">qq")
_APPEND_REPLY: Final = struct.Struct(">qBqqqqq")
_TRANSFER: Final = struct.Struct(">q")
_GONE: Final = struct.Struct(">qq")


class EntriesGone(NamedTuple):
    """A leader has deleted entries that the receiver needs: its log begins with ``first_index`` now."""

    term: int
    first_index: int


def pack_frame(kind: int, fields: bytes, data: Sequence[Buffer] = (), data_bytes: int = 0) -> list[Buffer]:
    """A frame as a list of buffers; ``data`` are bytes of the log behind the fixed fields, ``data_bytes`` in all."""
    return [_HEAD.pack(1 + len(fields) + data_bytes, kind) + fields, *data]


def pack_gone(gone: EntriesGone) -> list[Buffer]:
    return pack_frame(_GONE_KIND, _GONE.pack(*gone))


def pack_message(message: RaftMessage, data: Sequence[Buffer] = ()) -> list[Buffer]:
    """The frame of a message. ``data`` are the entries of an append, in place of its own ``data``."""
    match message:
        case VoteRequest():
            fields = _VOTE.pack(message.term, message.last_index, message.last_term, message.commit, message.is_pre)
            return pack_frame(_VOTE_KIND, fields)
        case VoteReply():
            return pack_frame(_VOTE_REPLY_KIND, _VOTE_REPLY.pack(message.term, message.is_granted, message.is_pre))
        case Append():
            heir = (message.heir or "").encode()
            fields = b"".join(
                (
                    _APPEND.pack(
                        message.term,
                        message.prev_index,
                        message.prev_term,
                        message.last_index,
                        message.commit,
                        message.sent_ms,
                        len(heir),
                    ),
                    heir,
                    _RUN_COUNT.pack(len(message.runs)),
                    *(_RUN.pack(*run) for run in message.runs),
                )
            )
            return pack_frame(_APPEND_KIND, fields, data, sum(map(len, data)))
        case AppendReply():
            fields = _APPEND_REPLY.pack(
                message.term,
                message.is_accepted,
                message.index,
                message.stored,
                message.hint_index,
                message.hint_term,
                message.sent_ms,
            )
            return pack_frame(_APPEND_REPLY_KIND, fields)
        case TransferNow():
            return pack_frame(_TRANSFER_KIND, _TRANSFER.pack(message.term))


def unpack_message(kind: int, body: bytes, *, sender: NodeId, receiver: NodeId) -> RaftMessage | EntriesGone:
    """The message in a frame. Raises ``RemoteProtocolError``."""
    try:
        message = _unpack(kind, body, sender, receiver)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError(
            f"a Raft message of kind {kind} with {len(body)} bytes is not valid: {error}"
        ) from None
    if message is None:
        raise RemoteProtocolError(f"a Raft message of kind {kind} is not known; use the same version on all members")
    return message


def _unpack(kind: int, body: bytes, sender: NodeId, receiver: NodeId) -> RaftMessage | EntriesGone | None:
    match kind:
        case 1:
            term, last_index, last_term, commit, is_pre = _VOTE.unpack(body)
            _check(term >= 0 and last_index >= commit >= NO_INDEX and last_term >= NO_TERM and is_pre < 2)
            return VoteRequest(
                sender=sender,
                receiver=receiver,
                term=term,
                last_index=last_index,
                last_term=last_term,
                commit=commit,
                is_pre=bool(is_pre),
            )
        case 2:
            term, is_granted, is_pre = _VOTE_REPLY.unpack(body)
            _check(term >= 0 and is_granted < 2 and is_pre < 2)
            return VoteReply(
                sender=sender, receiver=receiver, term=term, is_granted=bool(is_granted), is_pre=bool(is_pre)
            )
        case 3:
            return _unpack_append(body, sender, receiver)
        case 4:
            term, is_accepted, index, stored, hint_index, hint_term, sent_ms = _APPEND_REPLY.unpack(body)
            _check(term >= 0 and is_accepted < 2 and min(index, stored, hint_index) >= NO_INDEX)
            _check(hint_term >= NO_TERM)
            return AppendReply(
                sender=sender,
                receiver=receiver,
                term=term,
                is_accepted=bool(is_accepted),
                index=index,
                stored=stored,
                hint_index=hint_index,
                hint_term=hint_term,
                sent_ms=sent_ms,
            )
        case 5:
            (term,) = _TRANSFER.unpack(body)
            _check(term >= 0)
            return TransferNow(sender=sender, receiver=receiver, term=term)
        case 6:
            gone = EntriesGone(*_GONE.unpack(body))
            _check(gone.term >= 0 and gone.first_index >= 0)
            return gone
    return None


def _unpack_append(body: bytes, sender: NodeId, receiver: NodeId) -> Append:
    term, prev_index, prev_term, last_index, commit, sent_ms, heir_bytes = _APPEND.unpack_from(body)
    at = _APPEND.size + heir_bytes
    heir = body[_APPEND.size : at].decode()
    (run_count,) = _RUN_COUNT.unpack_from(body, at)
    at += _RUN_COUNT.size
    # Each has an entry. Unpacked, a run takes ten times the bytes that it has here.
    _check(run_count * (_RUN.size + ENTRY_HEADER_BYTES) <= len(body) - at)
    runs = tuple(_RUN.unpack_from(body, at + number * _RUN.size) for number in range(run_count))
    at += run_count * _RUN.size
    _check(term >= 0 and prev_term >= NO_TERM and commit >= NO_INDEX)
    _check(not runs or runs[0][1] >= 0)
    message = Append(
        sender=sender,
        receiver=receiver,
        term=term,
        prev_index=prev_index,
        prev_term=prev_term,
        last_index=last_index,
        runs=runs,
        commit=commit,
        sent_ms=sent_ms,
        heir=heir or None,
        data=memoryview(body)[at:],
    )
    _check(message.is_well_formed and (at < len(body)) == bool(runs))
    return message


def _check(is_valid: bool) -> None:
    if not is_valid:
        raise RemoteProtocolError("the fields of a Raft message contradict each other")


def check_entries(message: Append, from_index: int | None = None) -> int:
    """Where in its data the entry ``from_index`` begins, without one the first. Raises ``RemoteProtocolError`` if the
    data are not whole entries with the indexes and terms that the message says."""
    data, at = message.data, 0
    found = 0
    runs = list(reversed(message.runs))
    term = NO_TERM
    for index in range(message.first_index, message.last_index + 1):
        if runs and runs[-1][0] == index:
            term = runs.pop()[1]
        if index == from_index:
            found = at
        place = unpack_entry_header(data, at) if at + ENTRY_HEADER_BYTES <= len(data) else None
        if place is None or place.index != index or place.term != term:
            raise RemoteProtocolError(f"an append does not have the entry {index} of term {term} where it should be")
        at += place.size
    if at != len(data):
        raise RemoteProtocolError(f"an append has {len(data)} bytes of entries; expected {at}")
    return found


class LinkDecoder:
    """Bytes in, kinds and bodies out. Keeps at most one frame."""

    __slots__ = ("_bytes_max", "_kept")

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: the largest frame; a larger one is refused before it is kept."""
        self._bytes_max = bytes_max
        self._kept = bytearray()

    @property
    def kept_bytes(self) -> int:
        """How much is kept for the next call."""
        return len(self._kept)

    def feed(self, data: Buffer) -> list[tuple[int, bytes]]:
        """All frames that are complete now. Raises ``RemoteProtocolError``."""
        kept = self._kept
        kept += data
        frames = []
        at, end = 0, len(kept)
        while end - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(kept, at)
            if not 0 < length <= self._bytes_max:
                raise RemoteProtocolError(f"a Raft message has {length} bytes; expected 1 to {self._bytes_max}")
            behind = at + _LENGTH.size + length
            if behind > end:
                break
            frames.append((kind, bytes(memoryview(kept)[at + _HEAD.size : behind])))
            at = behind
        del kept[:at]
        return frames
