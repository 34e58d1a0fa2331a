"""A member without what it needs gets it from the leader: one whose disk is new, or that was away until the leader had
deleted what it needs next (P1, P2).

::

    member                                                        leader
      | ◀────── gone: my log begins with entry 5000 ──────────────── |     (or: its entries begin behind an old log)
      | ─ ask: what is there? ─────────────────────────────────────▶ |     holds still what changes: a snapshot
      | ◀────────────────────────── files, first entry, deletions ── |
      | ─ ask: 1 MiB of a file ────────────────────────────────────▶ |     one at a time, each with its CRC
      | ◀───────────────────────────────────────────────── bytes ─── |
      |  … all are in ``fill/``; the plan is on the disk in ``fill.json``
      |  the broker closes, files change places, the broker opens
      | ◀────────────────────── entries from 5000 on, as always ──── |

Files are those that no entry brings: messages that wait for their time (the files of derived parts), and the log of the
single broker that the group began with. The log itself comes in appends, because each of them is checked, bounded, goes
on after a crash where it was, and makes data files that are equal byte for byte.

Safety. A log is dropped only if the member's own core agrees that the leader cannot continue it (``RaftCore.lacks``):
all that is committed of it was deleted by the leader, because it was old. From that decision on the member is silent,
until it begins anew. So it has not answered for any entry that is dropped and counts, and votes as before: with the
last entry that the leader has deleted as its own last one (Raft's paper, 7). A member that lost its disk has lost
answers, too: it is filling, and does not vote until it has all again. So is one to which the leader cannot say the term
of that entry. ``currterm`` says so before anything is dropped; term and vote stay.

A crash: without ``fill.json`` what was copied is removed, and asked for anew. With it, files change places at the next
start (``Plan.carry_out``, any number of times), before the store looks at them. A plan that is not on the disk when the
broker closes is never written (``FillingPlaces.end``): the next life may answer for entries that it would drop. Nor
is a part of a file: it could come between those of the next copy.

Bounds: one chunk under way, ``raftCatchUpBytesPerSecond``. What both sides say, and the leader's, is in
``raft.copies``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import Final, Protocol
from zlib import crc32

import msgspec

from ternmq.errors import UNREADABLE, ConfigError, CorruptFile, RemoteProtocolError, StoreError, TernError
from ternmq.raft.copies import (
    ASK_KIND,
    CHUNK_BYTES,
    CONTENT,
    CONTENT_BYTES_MAX,
    FORGET_S,
    OLD,
    Ask,
    Content,
    FillingAnswer,
    FillingSender,
    Opened,
    pack_answer,
    pack_ask,
    unpack_answer,
    unpack_ask,
)
from ternmq.raft.log import RaftPaths
from ternmq.raft.membership import check_peers, save_change
from ternmq.raft.term_file import CommitFile, TermFile
from ternmq.rare_log import RareLog
from ternmq.store.disk.base import Disk
from ternmq.store.disk.segment import NAME_DIGITS
from ternmq.types import Buffer
from ternmq.wire.layouts.raft_state import Saved, Vote

log = logging.getLogger(__name__)

#: How long an answer may take before the question is asked again, and how often that is done.
ANSWER_S: Final = 5.0
_TRIES: Final = 6
#: How long a member waits after a copy that failed.
_PAUSE_S: Final = 2.0


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """``fill.json``: what this member will be, and whether its files are in their places."""

    content: Content
    is_placed: bool = False
    #: Whether it has answered for nothing that it drops and that counts.
    keeps_vote: bool = False


_encode: Final = msgspec.json.Encoder().encode
_openings: Final = msgspec.json.Decoder(Opened)
_contents: Final = msgspec.json.Decoder(Content)
_plans: Final = msgspec.json.Decoder(Plan)


class FillingPlaces:
    """Where the files of this member are, and how they are exchanged. Methods block; any one thread at a time."""

    def __init__(
        self, disk: Disk, root: Path, paths: RaftPaths, *, part_directories: Sequence[Path], segment_bytes: int
    ) -> None:
        self._disk = disk
        self._root = root
        self._paths = paths
        self._parts = tuple(part_directories)
        self._segment_bytes = segment_bytes
        self._note = paths.home / "fill.json"
        self._changing = Lock()
        self._is_over = False
        self.staging: Final = paths.home / "fill"

    def plan(self) -> Plan | None:
        """What is under way; None if nothing is. Raises ``CorruptFile``."""
        data = self._disk.read(self._note)
        if data is None:
            return None
        try:
            return _plans.decode(data)
        except UNREADABLE as error:
            raise CorruptFile(
                f"{self._note} cannot be read: {error}; move the directory of this member away and start it again: it "
                "gets the log from the group",
                path=str(self._note),
            ) from None

    def target(self, name: str) -> Path:
        """Where a copied file belongs. Raises ``RemoteProtocolError`` for a name that has no place here."""
        pure = PurePosixPath(name)
        if pure.parent == PurePosixPath(OLD):
            if pure.name.isascii() and pure.name.isdigit() and len(pure.name) == NAME_DIGITS and self._paths.old:
                return self._paths.old[0] / pure.name
        elif not pure.is_absolute() and ".." not in pure.parts and (self._root / pure).parent in self._parts:
            return self._root / pure
        raise RemoteProtocolError(f"the leader sent a file {name[:100]!r}, which has no place here")

    def check(self, content: Content) -> None:
        """Raises ``RemoteProtocolError`` for what cannot be the content of a leader of this group."""
        old = [each for each in content.files if each.name.startswith(f"{OLD}/")]
        names = [each.name for each in content.files]
        if (
            content.segment_bytes != self._segment_bytes
            or content.first_index < 0
            or content.position < 0
            or content.position % self._segment_bytes
            or len(set(names)) < len(names)
            or any(each.length_bytes < 0 for each in content.files)
            or any(each.length_bytes != self._segment_bytes for each in old)
            or (content.first_index > 0 and old)
        ):
            raise RemoteProtocolError("the leader sent a description of its files that contradicts itself")
        for name in names:
            self.target(name)
        try:
            if content.members is not None:
                check_peers(content.members.members)
        except ConfigError as error:
            raise RemoteProtocolError(f"the leader sent members that cannot be: {error}") from None

    def begin(self) -> None:
        """Remove what an earlier copy has left. Raises ``StoreError``."""
        with self._alive():
            self._disk.remove(self.staging)

    def write(self, name: str, at: int, data: bytes) -> None:
        """A part of a file has come. Raises ``StoreError``."""
        with self._alive(), closing(self._disk.open_file(self._staged(name), create_size=0)) as file:
            file.write(at, data)

    def finish(self, content: Content, *, keeps_vote: bool) -> None:
        """All files have come: from now on a start exchanges them. Raises ``StoreError``."""
        disk = self._disk
        for each in content.files:
            path = self._staged(each.name)
            if not each.length_bytes:
                disk.open_file(path, create_size=0).close()
            disk.sync_file(path)
        for directory in {self._staged(each.name).parent for each in content.files} | {self.staging, self._paths.home}:
            disk.sync_names(directory)
        with self._alive():
            self._save(Plan(content, keeps_vote=keeps_vote))

    def end(self) -> None:
        """The life that these belong to ends, while a thread may still copy or decide: from now on it changes nothing.
        A plan that came later would drop, at some start, what the next life has answered for."""
        with self._changing:
            self._is_over = True

    @contextmanager
    def _alive(self) -> Iterator[None]:
        with self._changing:
            if self._is_over:
                raise StoreError(f"nothing is written for {self._note} any more: the broker has closed")
            yield

    def give_up(self) -> None:
        """What ``finish`` began does not count. Raises ``StoreError``."""
        with self._alive():
            self._disk.remove(self._note)
            self._disk.sync_names(self._note.parent)

    def carry_out(self) -> None:
        """Before the store is opened: exchange files, if that was decided and is not done. Raises ``StoreError``."""
        plan = self.plan()
        disk, paths, root = self._disk, self._paths, self._root
        if plan is None or plan.is_placed:
            disk.remove(self.staging)
            return
        content = plan.content
        terms = TermFile(disk, paths.home / "currterm")
        vote = terms.load()
        # First: a member without its log must not vote as if it had one.
        terms.save(Vote(vote.term, vote.voted_for, is_filling=vote.is_filling or not plan.keeps_vote))
        log.warning(
            "the log of this member is replaced: it begins with entry %d at log offset %d, as that of its leader",
            content.first_index,
            content.position,
        )
        # What an earlier attempt has put into its place is not staged any more.
        staged = self._staged_names(content)
        placed = {self.target(each.name) for each in content.files if each.name not in staged}
        for directory in dict.fromkeys((*paths.data, *paths.old)):
            # The directory stays: it may be a mount point.
            for entry in disk.list(directory):
                is_segment = not entry.is_directory and entry.name.isascii() and entry.name.isdigit()
                if is_segment and directory / entry.name not in placed:
                    disk.remove(directory / entry.name)
            disk.sync_names(directory)
        for path in (
            paths.home / "index",
            paths.home / "checkpoint",
            *(
                root / name
                for name in ("consumequeue", "consumequeue_ext", "index", "checkpoint", "deletedTopics.json")
            ),
        ):
            disk.remove(path)
        for directory in self._parts:
            for entry in disk.list(directory):
                if directory / entry.name not in placed:
                    disk.remove(directory / entry.name)
            disk.sync_names(directory)
        for directory in (root, paths.home):
            disk.sync_names(directory)
        for each in content.files:
            if each.name in staged:
                disk.move(self._staged(each.name), self.target(each.name))
        if content.position and not any(each.name.startswith(f"{OLD}/") for each in content.files):
            before = content.first_index - 1
            begin = (content.first_index, content.position, content.prev_term)
            save_change(disk, paths.home / "members", content.members)
            CommitFile(disk, paths.home / "checkpoint").save(Saved(before, before, *begin))
        self._save(msgspec.structs.replace(plan, is_placed=True))
        disk.remove(self.staging)

    def done(self) -> None:
        """This member has all: forget the plan."""
        self._disk.remove(self._note)

    def _staged_names(self, content: Content) -> set[str]:
        paths = {self._staged(each.name): each.name for each in content.files}
        found = {
            directory / entry.name
            for directory in {path.parent for path in paths}
            for entry in self._disk.list(directory)
        }
        return {name for path, name in paths.items() if path in found}

    def _staged(self, name: str) -> Path:
        return self.staging / name

    def _save(self, plan: Plan) -> None:
        self._disk.replace(self._note, _encode(plan))


class FillingMember(Protocol):
    """What is needed of the member that is filled (``raft.missing.Missing``)."""

    def may_begin_anew(self, leader: str, content: Content, /) -> bool:
        """Whether it follows ``leader``, and its log, which is to be replaced, cannot be continued."""

    def fall_silent(self, content: Content, /) -> bool:
        """Take and answer nothing from now on: the log of this member is given up. Returns whether it keeps its
        vote."""

    def go_on(self) -> None:
        """The log is not given up."""


class _Failed(TernError):
    """This copy does not work out; another one may."""


class Filling:
    """Both sides for one member. Belongs to the loop; ``ask_for`` may be called again and again.

    ``member`` is asked at the last moment whether its log is to be dropped.
    ``on_ready``: the broker is to close, call ``FillingPlaces.carry_out``, and open again.
    """

    def __init__(
        self,
        places: FillingPlaces,
        sender: FillingSender,
        *,
        send: Callable[[str, list[Buffer]], object],
        member: FillingMember,
        on_ready: Callable[[], None],
        bytes_per_second: int = 0,
        self_id: str = "",
    ) -> None:
        self._places = places
        self._sender = sender
        self._send = send
        self._member = member
        self._on_ready = on_ready
        self._bytes_per_second = bytes_per_second
        self._id = self_id
        self._wanted = asyncio.Event()
        self._leader = ""
        self._number = 0
        self._waiting: asyncio.Future[tuple[FillingAnswer, bytes]] | None = None
        self._asked: asyncio.Queue[tuple[str, Ask]] = asyncio.Queue(maxsize=16)
        self._logs = RareLog(log, asyncio.get_running_loop().time)
        #: What is going on, for tools; empty if nothing is.
        self.progress = ""
        #: The log is given up: the plan is on the disk, or will be, and must stay there until it is carried out.
        self._is_decided = False

    def ask_for(self, leader: str) -> None:
        """This member cannot go on by itself: get what it needs from ``leader``."""
        self._leader = leader
        self._wanted.set()

    def filled(self) -> None:
        """This member has all that was committed before it began. Told with each copy of tables, which go on until the
        broker closes: what is known of this life's beginning is no news for the next one."""
        if self._is_decided:
            return
        try:
            self._places.done()
        except StoreError as error:
            log.warning("a note of the copy could not be removed: %s; the next start does it", error)

    def deliver(self, sender: str, kind: int, body: bytes) -> None:
        """A frame of another member. Raises ``RemoteProtocolError``."""
        if kind == ASK_KIND:
            ask = unpack_ask(body)
            # One that is dropped is asked again.
            if not self._asked.full():
                self._asked.put_nowait((sender, ask))
            return
        answer, data = unpack_answer(body)
        waiting = self._waiting
        if waiting is not None and not waiting.done() and (sender, answer.number) == (self._leader, self._number):
            waiting.set_result((answer, data))

    async def serve(self) -> None:
        """Answer other members, one at a time; ends by being cancelled."""
        while True:
            try:
                async with asyncio.timeout(FORGET_S):
                    to, ask = await self._asked.get()
            except TimeoutError:
                self._sender.forget()
                continue
            answer, data = await self._sender.answer(ask, to)
            self._send(to, pack_answer(answer, data))

    async def run(self) -> None:
        """Copy when that is asked for; ends by being cancelled, or when the broker is to open anew."""
        try:
            await self._copy_when_asked()
        finally:
            self._places.end()

    async def _copy_when_asked(self) -> None:
        while True:
            self._wanted.clear()
            await self._wanted.wait()
            leader = self._leader
            try:
                if await self._copy(leader):
                    self._on_ready()
                    return
            except (TernError, OSError) as error:
                self._logs.warning("failed", f"{self._id} could not copy the files of {leader}: {error}; retrying")
            self.progress = ""
            await asyncio.sleep(_PAUSE_S)

    async def _copy(self, leader: str) -> bool:
        """Have all files of ``leader`` in their waiting place; False if they are not needed any more."""
        places = self._places
        copy, content = await self._content(leader)
        places.check(content)
        if not self._member.may_begin_anew(leader, content):
            return False
        total_bytes = sum(each.length_bytes for each in content.files)
        log.warning(
            "%s lacks entries that %s has deleted: it begins anew with entry %d, after a copy of %d files, %d bytes",
            self._id,
            leader,
            content.first_index,
            len(content.files),
            total_bytes,
        )
        await asyncio.to_thread(places.begin)
        done_bytes = 0
        for each in content.files:
            at = 0
            while at < each.length_bytes:
                if self._leader != leader:
                    raise _Failed(f"{self._leader} leads now")
                self.progress = f"copying files of {leader}: {done_bytes} of {total_bytes} bytes"
                data = await self._chunk(leader, Ask(0, copy, each.name, at), each.length_bytes - at)
                await asyncio.to_thread(places.write, each.name, at, data)
                at += len(data)
                done_bytes += len(data)
                if self._bytes_per_second:
                    await asyncio.sleep(len(data) / self._bytes_per_second)
        if not self._member.may_begin_anew(leader, content):
            return False
        keeps_vote = self._member.fall_silent(content)
        self._is_decided = True
        try:
            await asyncio.to_thread(places.finish, content, keeps_vote=keeps_vote)
        except StoreError:
            # The plan may be there all the same. If it cannot be removed, this member stays silent until it is started.
            await asyncio.to_thread(places.give_up)
            self._is_decided = False
            self._member.go_on()
            raise
        self.progress = "beginning anew"
        return True

    async def _content(self, leader: str) -> tuple[int, Content]:
        try:
            opened = _openings.decode(await self._exchange(leader, Ask(0)))
            if not 0 < opened.content_bytes <= CONTENT_BYTES_MAX:
                raise RemoteProtocolError(f"{leader} describes its files in {opened.content_bytes} bytes")
            data = bytearray()
            while (rest_bytes := opened.content_bytes - len(data)) > 0:
                data += await self._chunk(leader, Ask(0, opened.copy, CONTENT, len(data)), rest_bytes)
            return opened.copy, _contents.decode(data)
        except UNREADABLE as error:
            raise RemoteProtocolError(f"{leader} sent a description of its files that is not valid: {error}") from None

    async def _chunk(self, leader: str, ask: Ask, rest_bytes: int) -> bytes:
        data = await self._exchange(leader, ask)
        if not 0 < len(data) <= min(rest_bytes, CHUNK_BYTES):
            raise RemoteProtocolError(f"{leader} sent {len(data)} bytes of {ask.name}; expected 1 to {rest_bytes}")
        return data

    async def _exchange(self, leader: str, ask: Ask) -> bytes:
        """Ask until there is an answer. Raises ``TernError``."""
        loop = asyncio.get_running_loop()
        for _ in range(_TRIES):
            self._number += 1
            waiting: asyncio.Future[tuple[FillingAnswer, bytes]] = loop.create_future()
            self._waiting = waiting
            self._send(leader, pack_ask(msgspec.structs.replace(ask, number=self._number)))
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer, data = await waiting
            except TimeoutError:
                continue
            finally:
                self._waiting = None
            if answer.reason:
                raise _Failed(answer.reason)
            if crc32(data) != answer.crc:
                raise RemoteProtocolError(f"{leader} sent bytes that do not match their CRC")
            return data
        raise _Failed(f"{leader} does not answer")
