"""What a member lacks of what was committed before it began, and from when on it has that (P1; decisions/0027).

A member that begins with an empty log has lost its disk, or its group is new: it cannot tell. One whose log ends before
what it knew as committed has lost that by damage. Either may have answered for entries that it does not have. So it is
*filling*: with its vote a member could lead that lacks them, too. It gives no vote, and does not lead, once anything is
committed, until it has

- all that the leader of a term knew as committed when it was first heard, and
- the first entry of the leader's own term: whatever was committed in earlier terms is before that one.

Where the leader had committed none of its own entries when it was first heard, the first one will do, if it has
committed none until that has come here: then no answer of an earlier life of this member is among what it has counted.
(Its connection ended when that of the new life greeted.) DLedger's leaders do not always tell what they have committed,
so they must have told of an entry of their own.

A leader (of a new group) has its own first commit to reach: later ones may run ahead of a slow disk for ever.
"""

from __future__ import annotations

from ternmq.raft.group import Members
from ternmq.raft.matching import last_up_to
from ternmq.raft.messages import NO_INDEX
from ternmq.raft.ready import EntryTerms


class Gap:
    """``is_open``: this member is filling. ``lost``: entries up to this were committed, and are lost by damage."""

    __slots__ = ("_goal", "_is_mixed", "_leader_commit", "_terms", "is_open", "lost")

    def __init__(self, terms: EntryTerms, *, is_open: bool, lost: int, is_mixed: bool) -> None:
        self._terms = terms
        self._is_mixed = is_mixed
        #: Kept on the disk by the owner, as the filling takes longer than a life may last.
        self.is_open = is_open or terms.last_index == NO_INDEX or lost != NO_INDEX
        self.lost = lost
        #: What the leader knows as committed, as far as it has told: at last, and what is needed of that.
        self._leader_commit = NO_INDEX
        self._goal: int | None = None

    def knows_of_commits(self, commit: int) -> bool:
        """Whether the group has committed anything, as far as this member knows; ``commit`` is its own commit index. A
        leader changes members only when it has committed an entry."""
        return max(commit, self.lost, self._terms.members_index) != NO_INDEX

    def takes_all(self, members: Members, settings: Members) -> bool:
        """Whether it takes all voters to commit. Then a candidate has all that was committed, and none can replace the
        vote of this member. The log, which says who the ``members`` are, may be only the beginning of the group's; then
        the settings must agree."""
        known = [members] if self.lost != NO_INDEX else [members, settings]
        return all(each.quorum == len(each.voters) for each in known)

    def forget(self) -> None:
        """There is another leader, or none."""
        self._leader_commit = NO_INDEX
        self._goal = None

    def heard(self, commit: int) -> None:
        """The leader knows this as committed."""
        self._leader_commit = max(self._leader_commit, commit)
        if self._goal is None:
            self._goal = self._leader_commit

    def led(self, commit: int, term: int) -> None:
        """As leader of this term: this is committed."""
        if self._goal is None and self._terms.term_of(commit) == term:
            self._goal = commit

    def is_filled(self, stored: int, term: int) -> bool:
        """Whether this member has all that it needs, with all up to ``stored`` where it counts, in a term whose leader
        it follows or is."""
        if self._goal is None:
            return False
        first = last_up_to(self._terms, self._terms.last_index, term - 1) + 1
        if self._goal < first <= self._terms.last_index:
            known = self._leader_commit
            self._goal = known if self._is_mixed else max(first, known)
        return first <= self._goal <= stored
