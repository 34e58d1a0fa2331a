"""The two small text files of a Raft member, in DLedger's form (P1, P2).

``currterm`` has the term and the vote in it::

    currTerm=3
    voteLeader=n0

and, of TernMQ, ``filling=true`` while the member does not have all yet that was committed before it began.

``checkpoint`` has ``endIndex`` and ``committedIndex``, and three lines of TernMQ that tell where the log begins, if not
with entry 0: ``beginIndex``, ``beginPosition`` and ``beginTerm``, the term of the entry before. DLedger reads and
writes both files with Java's ``Properties``: the order of lines, spaces, comments and names that it does not know do
not matter.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Vote(NamedTuple):
    """A term, and the node that got this one's vote in it."""

    term: int
    voted_for: str | None
    is_filling: bool = False


class Saved(NamedTuple):
    """The content of ``checkpoint``; -1: none."""

    end_index: int = -1
    committed_index: int = -1
    #: First entry of the log and its position, and the term of the entry before it.
    begin_index: int = 0
    begin_position: int = 0
    begin_term: int = -1
    #: The last entry that was committed, was here, and was lost by damage. It is wanted again.
    lost_index: int = -1


_LINES: Final = {
    "end_index": "endIndex",
    "committed_index": "committedIndex",
    "begin_index": "beginIndex",
    "begin_position": "beginPosition",
    "begin_term": "beginTerm",
    "lost_index": "lostIndex",
}


def pack_vote(vote: Vote) -> bytes:
    """The content of ``currterm``."""
    filling = "filling=true\n" if vote.is_filling else ""
    return f"currTerm={vote.term}\nvoteLeader={vote.voted_for or ''}\n{filling}".encode()


def unpack_vote(data: bytes) -> Vote | None:
    """The content of ``currterm``; None if it does not show a term and a vote."""
    lines = _properties(data)
    term = _number(lines, "currTerm")
    if term is None or term < 0 or "voteLeader" not in lines:
        return None
    return Vote(term, lines["voteLeader"] or None, lines.get("filling") == "true")


def pack_saved(saved: Saved) -> bytes:
    """The content of ``checkpoint``."""
    fields = saved._asdict()
    return "".join(f"{name}={fields[field]}\n" for field, name in _LINES.items()).encode()


def unpack_saved(data: bytes) -> Saved:
    """The content of ``checkpoint``, as far as it can be understood: it is only a hint."""
    lines = _properties(data)
    numbers = {field: _number(lines, name) for field, name in _LINES.items()}
    return Saved(**{field: number for field, number in numbers.items() if number is not None})


def _properties(data: bytes) -> dict[str, str]:
    """The lines of a properties file, as far as DLedger writes such: names and values, comments with # or !."""
    lines = data.decode("latin-1").splitlines()
    pairs = (line.partition("=") for line in lines if line.strip() and line.lstrip()[0] not in "#!")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _number(lines: dict[str, str], name: str) -> int | None:
    try:
        return int(lines[name])
    except (KeyError, ValueError):
        return None
