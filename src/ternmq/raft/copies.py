"""What a member that is filled asks for, and what its leader has for it (P1, P2; ``raft.filling`` has the whole story).

Frames over the connections between members, one question at a time. A *snapshot* of the leader's files is kept for each
member that copies, with the small last files of derived parts in memory: a second member must not end the copy of the
first. Where there is no room for both, the second one waits until the first copy has ended, and is in front of those
that ask after it, the first one included: of members that fail again and again, none keeps another one waiting.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final, Protocol
from zlib import crc32

import msgspec

from ternmq.errors import UNREADABLE, RemoteProtocolError, StoreError
from ternmq.raft.membership import Change
from ternmq.raft.wire import pack_frame
from ternmq.store.disk.base import Disk
from ternmq.types import Buffer
from ternmq.wire.requests import Int64

#: Kinds of frames, beside those of ``raft.wire``.
ASK_KIND: Final = 7
ANSWER_KIND: Final = 8
#: Bytes of a file in one answer.
CHUNK_BYTES: Final = 256 * 1024
#: Bytes of a question: a name and some numbers.
ASK_BYTES_MAX: Final = 1024
#: Files of one copy, and their bytes that the sender keeps in memory, for all members together.
FILES_MAX: Final = 100_000
KEPT_BYTES_MAX: Final = 64 << 20
#: How long the sender keeps what it told of its files, and the place of a member that waits; longer than a member asks
#: again.
FORGET_S: Final = 120.0
_LENGTH: Final = struct.Struct(">I")
OLD: Final = "old"
#: The description of a copy is a file of it.
CONTENT: Final = "content"
CONTENT_BYTES_MAX: Final = 32 << 20


class Ask(msgspec.Struct, frozen=True, rename="camel"):
    """``name`` is empty: what is there? Else: a part of that file of the snapshot ``copy``."""

    number: Int64
    copy: Int64 = 0
    name: str = ""
    at: Int64 = 0


class Opened(msgspec.Struct, frozen=True, rename="camel"):
    """There is a snapshot, whose description (``Content``) is a file of this length."""

    copy: Int64
    content_bytes: Int64


class CopiedFile(msgspec.Struct, frozen=True, rename="camel"):
    """``name``: of a derived part, below the store's directory; of the old log ``old/00000000000000000000``."""

    name: str
    length_bytes: Int64


class Content(msgspec.Struct, frozen=True, rename="camel"):
    """What a member that begins anew needs to know."""

    #: Where the leader's log begins: its first entry, where that lies, and the term of the one before (-1: unknown).
    first_index: Int64
    position: Int64
    prev_term: Int64
    segment_bytes: Int64
    files: tuple[CopiedFile, ...] = ()
    #: Topic → log offset of its deletion.
    deletions: dict[str, Int64] = {}
    #: The entry that names the members, if it is before the first one.
    members: Change | None = None


class FillingAnswer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Bytes of a file, or of the content, follow behind it. ``reason``: why there is none; the copy begins anew."""

    number: Int64
    crc: Int64 = 0
    reason: str = ""


_encode: Final = msgspec.json.Encoder().encode
_asks: Final = msgspec.json.Decoder(Ask)
_answers: Final = msgspec.json.Decoder(FillingAnswer)


def pack_ask(ask: Ask) -> list[Buffer]:
    return pack_frame(ASK_KIND, _encode(ask))


def pack_answer(answer: FillingAnswer, data: bytes = b"") -> list[Buffer]:
    text = _encode(answer)
    return pack_frame(ANSWER_KIND, _LENGTH.pack(len(text)) + text, [data], len(data))


def unpack_ask(body: bytes) -> Ask:
    """Raises ``RemoteProtocolError``."""
    if len(body) > ASK_BYTES_MAX:
        raise RemoteProtocolError(f"a question for files has {len(body)} bytes; expected at most {ASK_BYTES_MAX}")
    try:
        return _asks.decode(body)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"a question for files is not valid: {error}") from None


def unpack_answer(body: bytes) -> tuple[FillingAnswer, bytes]:
    """Raises ``RemoteProtocolError``."""
    try:
        (size,) = _LENGTH.unpack_from(body)
        if size > len(body) - _LENGTH.size:
            raise RemoteProtocolError("an answer with bytes of a file is cut short")
        answer = _answers.decode(body[_LENGTH.size : _LENGTH.size + size])
    except (struct.error, *UNREADABLE) as error:
        raise RemoteProtocolError(f"an answer with bytes of a file is not valid: {error}") from None
    return answer, body[_LENGTH.size + size :]


class FillingSource(Protocol):
    """What a leader has for a member that begins anew."""

    def begin(self) -> tuple[int, int, int]:
        """The first entry of the log, its position, and the term of the entry before it (-1: unknown)."""

    def old_segments(self) -> Sequence[Path]:
        """The files of the old log in front of the entries."""

    def part_files(self) -> Sequence[Sequence[Path]]:
        """The files of each derived part, of which the last makes the others count."""

    def deletions(self) -> Mapping[str, int]: ...

    def members(self, index: int) -> Change | None:
        """The newest entry up to ``index`` that names the members."""


@dataclass(slots=True)
class _Copied:
    """What one member copies."""

    number: int
    #: Path and length of each file, or its bytes.
    files: dict[str, tuple[Path, int] | bytes]
    #: When it was asked for last.
    asked_s: float

    @property
    def kept_bytes(self) -> int:
        return sum(len(each) for each in self.files.values() if isinstance(each, bytes))


class FillingSender:
    """The leader's side. ``answer`` belongs to the loop, one call at a time."""

    def __init__(self, disk: Disk, root: Path, source: FillingSource, *, segment_bytes: int) -> None:
        self._disk = disk
        self._root = root
        self._source = source
        self._segment_bytes = segment_bytes
        self._number = 0
        #: By member.
        self._snapshots: dict[str, _Copied] = {}
        #: Members that there is no room for, in their order: what they need, and when they asked last.
        self._waiting: dict[str, tuple[int, float]] = {}

    async def answer(self, ask: Ask, member: str) -> tuple[FillingAnswer, bytes]:
        now_s = asyncio.get_running_loop().time()
        try:
            if not ask.name:
                self._snapshots.pop(member, None)
                snapshot, content_bytes = await self._snapshot(member, now_s)
                self._snapshots[member] = snapshot
                data = _encode(Opened(snapshot.number, content_bytes))
            elif (
                (kept := self._snapshots.get(member)) is None
                or ask.copy != kept.number
                or (file := kept.files.get(ask.name)) is None
            ):
                return FillingAnswer(ask.number, reason="the files have changed; begin anew"), b""
            elif isinstance(file, bytes):
                kept.asked_s = now_s
                data = file[max(ask.at, 0) : max(ask.at, 0) + CHUNK_BYTES]
            else:
                kept.asked_s = now_s
                path, length_bytes = file
                wanted = max(min(CHUNK_BYTES, length_bytes - ask.at), 0)
                data = await asyncio.to_thread(self._disk.read_at, path, max(ask.at, 0), wanted)
                if len(data) < wanted:
                    return FillingAnswer(ask.number, reason=f"{ask.name} was deleted; begin anew"), b""
        except StoreError as error:
            return FillingAnswer(ask.number, reason=str(error)), b""
        return FillingAnswer(ask.number, crc32(data)), data

    def forget(self) -> None:
        """No member copies any more."""
        self._snapshots.clear()
        self._waiting.clear()

    def _make_room(self, member: str, kept_bytes: int, now_s: float) -> None:
        """Raises ``StoreError`` if this member has to wait for others."""
        since_s = now_s - FORGET_S
        self._snapshots = {name: each for name, each in self._snapshots.items() if each.asked_s >= since_s}
        waiting = self._waiting = {name: each for name, each in self._waiting.items() if each[1] >= since_s}
        before = sum(each.kept_bytes for each in self._snapshots.values())
        before += sum(
            needed for needed, _ in (waiting[name] for name in takewhile(lambda name: name != member, waiting))
        )
        if before and before + kept_bytes > KEPT_BYTES_MAX:
            waiting[member] = kept_bytes, now_s
            others = sorted({*self._snapshots, *waiting} - {member})
            raise StoreError(f"it is the turn of {', '.join(others)} to copy files; there is no room for one more copy")
        waiting.pop(member, None)

    async def _snapshot(self, member: str, now_s: float) -> tuple[_Copied, int]:
        """What there is now, and the length of its description."""
        source, disk = self._source, self._disk
        # First of all: what derived parts have reaches at least to where the log begins.
        first_index, position, prev_term = source.begin()
        deletions = dict(source.deletions())
        parts = [paths for paths in source.part_files() if paths]
        old = source.old_segments()
        count = sum(map(len, parts)) + len(old)
        # Before they are read: a leader has no memory for files of any length.
        kept_bytes = sum(self._lengths(paths[-1:]).get(paths[-1], 0) for paths in parts)
        if kept_bytes > KEPT_BYTES_MAX or count > FILES_MAX:
            raise StoreError(
                f"there are {count} files of delayed messages, with counts of {kept_bytes} bytes: too much for one copy"
            )
        self._make_room(member, kept_bytes, now_s)
        files: dict[str, tuple[Path, int] | bytes] = {}
        for paths in parts:
            *others, last = paths
            # What it counts is in the others, which only grow.
            counts = await asyncio.to_thread(disk.read, last)
            if counts is None:
                continue
            lengths = self._lengths(others)
            for path in others:
                files[self._name(path)] = path, lengths.get(path, 0)
            files[self._name(last)] = counts
        for path in old:
            files[f"{OLD}/{path.name}"] = path, self._segment_bytes
        content = Content(
            first_index,
            position,
            prev_term,
            self._segment_bytes,
            tuple(CopiedFile(name, len(f) if isinstance(f, bytes) else f[1]) for name, f in files.items()),
            deletions,
            source.members(first_index - 1),
        )
        files[CONTENT] = description = _encode(content)
        self._number += 1
        return _Copied(self._number, files, now_s), len(description)

    def _lengths(self, paths: Sequence[Path]) -> dict[Path, int]:
        """The length of each file in the directories of these."""
        directories = {path.parent for path in paths}
        return {
            directory / each.name: each.length_bytes for directory in directories for each in self._disk.list(directory)
        }

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()
