"""Who the members of a group are, as its log says (P1, P3).

A change of members is an entry: a record of ``names.RAFT_MEMBERS_TOPIC`` that names *all* members from then on. It
counts for a member as soon as it is in that member's log, committed or not, and no more when it is taken back. Until a
log has such an entry, the members are those of ``dLegerPeers``.

Changes are made one at a time, and by one member: so the majorities before and after have a member in common (Ongaro's
thesis, 4.1). Three rules make it safe, all in ``RaftCore.check_change``: the change before must be committed; the
leader must have committed an entry of its own term, or a change that an earlier leader left behind may still come true;
and nothing but one member may differ.

A new member is a *learner* first: it gets the log, and nothing depends on it. When it keeps up, the leader makes it a
voter, with a second change.

The file ``members`` keeps the changes that may matter: the newest that is committed, and those behind it. It is on the
disk *before* the entry is in the log, so no entry is ever missed. One in the file that the log does not have does not
count, and is taken out of the file soon (``tidy``): retention may delete entries, and of one that is deleted the file
alone tells whether it was there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ternmq import names
from ternmq.errors import UNREADABLE, ConfigError, CorruptFile, CorruptRecord
from ternmq.net.endpoint import split_address
from ternmq.raft.config import MEMBER_ID, MEMBERS_MAX, Member
from ternmq.raft.group import Members
from ternmq.raft.messages import NO_INDEX
from ternmq.store.disk.base import Disk
from ternmq.types import Buffer
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import Int64

#: The flag of such a record: other records need not be looked at. An application may use it, too; the topic decides.
MEMBERS_FLAG: Final = 0x7E524D42


class ListedMember(msgspec.Struct, frozen=True, rename="camel"):
    """A member of a group, as an entry names it."""

    id: str
    #: ``host:port`` of its Raft port.
    address: str
    votes: bool = True

    @property
    def member(self) -> Member:
        return Member(self.id, self.address)


class MembersRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The body of a record: all members."""

    members: tuple[ListedMember, ...]


class Change(msgspec.Struct, frozen=True, rename="camel"):
    """An entry that names the members."""

    index: Int64
    term: Int64
    members: tuple[ListedMember, ...]


_encode: Final = msgspec.json.Encoder().encode
_records: Final = msgspec.json.Decoder(MembersRecord)
_changes: Final = msgspec.json.Decoder(tuple[Change, ...])


def pack_body(peers: Sequence[ListedMember]) -> bytes:
    """The body of the record that names these members."""
    return _encode(MembersRecord(tuple(peers)))


def peers_in(record: Buffer) -> tuple[ListedMember, ...] | None:
    """The members that a record names; None if it is not such a record, or names none that could be.

    All nodes must find the same: so what it depends on is in the record only.
    """
    try:
        found = unpack_record(record)
        if found.topic != names.RAFT_MEMBERS_TOPIC:
            return None
        peers = _records.decode(found.body).members
        check_peers(peers)
    except (CorruptRecord, ConfigError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return peers


def check_peers(peers: Sequence[ListedMember]) -> None:
    """Raises ``ConfigError`` for what is no group."""
    for values in ([peer.id for peer in peers], [peer.address for peer in peers]):
        if doubled := next((value for value in values if values.count(value) > 1), None):
            raise ConfigError(f"{doubled} is a member already; each member needs its own id and address")
    if len(peers) > MEMBERS_MAX:
        raise ConfigError(f"a Raft group has at most {MEMBERS_MAX} members")
    if not any(peer.votes for peer in peers):
        raise ConfigError("a Raft group needs at least one member that votes")
    for peer in peers:
        if not MEMBER_ID.match(peer.id):
            raise ConfigError(f"invalid member {peer.id!r}: expected an id such as n3")
        split_address(peer.address)


def describe(peers: Sequence[ListedMember]) -> str:
    """Who they are, for people."""
    return ", ".join(f"{peer.id} ({peer.address}{'' if peer.votes else ', learner'})" for peer in peers)


def members_of(peers: Sequence[ListedMember]) -> Members:
    """The same for the core, which knows no addresses."""
    return Members(tuple(peer.id for peer in peers if peer.votes), tuple(peer.id for peer in peers if not peer.votes))


class Membership:
    """The changes in one log. Belongs to the store's thread."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        #: In the order of the log; and as the file has them.
        self._changes: tuple[Change, ...] = ()
        self._saved: tuple[Change, ...] = ()
        self._members: Members | None = None

    def load(self, *, first_index: int, has: Callable[[Change], bool]) -> None:
        """Take the changes that the log ``has``, or has deleted. Raises ``CorruptFile``."""
        data = self._disk.read(self._path)
        try:
            changes = _changes.decode(data) if data is not None else ()
            for change in changes:
                check_peers(change.members)
        except (*UNREADABLE, ConfigError) as error:
            raise CorruptFile(
                f"{self._path} does not show the members of the group: {error}; move the directory of this member "
                "away and start it again: it gets the log from the group",
                path=str(self._path),
            ) from None
        self._saved = changes
        self._keep(tuple(each for each in changes if each.index < first_index or has(each)))

    @property
    def newest(self) -> Change | None:
        """The entry that counts; None: the settings do."""
        return self._changes[-1] if self._changes else None

    @property
    def index(self) -> int:
        return self._changes[-1].index if self._changes else NO_INDEX

    @property
    def members(self) -> Members | None:
        """For the core; the same object until it changes."""
        return self._members

    def committed(self, index: int) -> Change | None:
        """The newest change up to an entry: for a member that begins behind it."""
        return next((each for each in reversed(self._changes) if each.index <= index), None)

    def add(self, change: Change, *, committed: int) -> None:
        """The next entry will be this one. Durable when it returns. Raises ``StoreError``; then it must not be
        appended."""
        kept = self.committed(committed)
        changes = tuple(each for each in self._changes if kept is None or each.index >= kept.index)
        changes = (*(each for each in changes if each.index < change.index), change)
        self._save(changes)
        self._keep(changes)

    def cut(self, index: int) -> None:
        """The entries from ``index`` on are taken back, or have not come. The file still has them; see ``tidy``."""
        if self._changes and self._changes[-1].index >= index:
            self._keep(tuple(each for each in self._changes if each.index < index))

    def tidy(self) -> None:
        """Before retention deletes more: take out of the file what the log does not have. Once entries behind that are
        deleted, it would be taken for one of them. Raises ``StoreError``."""
        if self._saved != self._changes:
            self._save(self._changes)

    def _save(self, changes: tuple[Change, ...]) -> None:
        self._disk.replace(self._path, _encode(changes))
        self._saved = changes

    def _keep(self, changes: tuple[Change, ...]) -> None:
        self._changes = changes
        self._members = members_of(changes[-1].members) if changes else None


def save_change(disk: Disk, path: Path, change: Change | None) -> None:
    """Let a member that begins anew know its group (``raft.filling``). Raises ``StoreError``."""
    if change is None:
        disk.remove(path)
        disk.sync_names(path.parent)
    else:
        disk.replace(path, _encode((change,)))
