"""Where two logs are equal, by indexes and terms alone (P3; "Log Matching" of Raft's paper).

Two logs that have an entry of one index and term in common have all before it in common, and terms never decrease along
a log. So a few lookups find where a long log differs: a member that is far behind, or lies, must not stop another one.
"""

from __future__ import annotations

from typing import Final

from ternmq.raft.messages import NO_TERM, Append
from ternmq.raft.ready import EntryTerms

#: Runs of entries of one term in an append: so many elections without a message between them are rare, and the frame
#: has room for them (``raft.wire.FRAME_EXTRA_BYTES``).
RUNS_MAX: Final = 1_024


def first_difference(terms: EntryTerms, append: Append, commit: int) -> int | None:
    """The first entry of the message that is not in this log, or has another term; None if all are there. The entry
    before those of the message is equal, and so is all up to ``commit``."""
    if append.last_index <= commit:
        return None
    low, high = max(append.prev_index, commit), min(append.last_index, terms.last_index)
    if high <= low:
        return low + 1 if append.last_index > low else None
    if terms.term_of(high) == append.term_of(high):
        return high + 1 if append.last_index > high else None
    while high - low > 1:  # equal at low, different at high
        middle = (low + high) // 2
        if terms.term_of(middle) == append.term_of(middle):
            low = middle
        else:
            high = middle
    return high


def last_candidate(terms: EntryTerms, append: Append, commit: int) -> int:
    """Where this log may be equal to the leader's, if it is not at the entry before those of the message: at the last
    entry whose term is not larger than the leader's there, and not before ``commit``."""
    index = min(append.prev_index - 1, terms.last_index)
    if append.prev_term == NO_TERM:
        index = commit
    elif index > commit:
        index = last_up_to(terms, index, append.prev_term)
    return max(index, commit)


def last_up_to(terms: EntryTerms, index: int, term: int) -> int:
    """The last entry, up to ``index``, whose term is not larger than this; or whose term is not known, because it was
    deleted."""
    low, high = terms.first_index - 2, index
    if high <= low or (found := terms.term_of(high)) is None or found <= term:
        return high
    while high - low > 1:  # low is wanted, high is of a larger term
        middle = (low + high) // 2
        if (found := terms.term_of(middle)) is None or found <= term:
            low = middle
        else:
            high = middle
    return low


def runs(terms: EntryTerms, first: int, last: int) -> tuple[tuple[int, int], ...]:
    """(index, term) of the first entry and of each whose term differs from the one before, one more than ``RUNS_MAX``
    at most. Entries between two of one term are of that term."""
    found: list[tuple[int, int]] = []
    end_term = terms.term_of(last) if first <= last else None
    while first <= last:
        term = terms.term_of(first)
        assert term is not None, f"entry {first} is not in the log"
        found.append((first, term))
        if term == end_term or len(found) > RUNS_MAX:
            break
        low, high = first, last  # term_of(low) == term < term_of(high)
        while high - low > 1:
            middle = (low + high) // 2
            if terms.term_of(middle) == term:
                low = middle
            else:
                high = middle
        first = high
    return tuple(found)
