"""What must hold in each group at each time, whatever breaks (P1, P3)."""

from __future__ import annotations

from itertools import combinations

from tests.raft.memory_log import Entry, MemoryLog


class Wrong(AssertionError):
    """A rule does not hold."""


class Checkers:
    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        #: What was committed first at each index.
        self.committed: list[Entry] = []
        #: And in which term that was. It is never the term of a later leader than the one that counted.
        self._terms: list[int] = []
        #: Payload → index, of what senders were told to be safe.
        self.acknowledged: dict[str, int] = {}

    def leads(self, node: str, term: int, log: MemoryLog) -> None:
        if self.leaders.setdefault(term, node) != node:
            raise Wrong(f"one leader a term: {node} and {self.leaders[term]} lead term {term}")
        for index in range(log.first_index, len(self.committed)):
            # A leader that was elected long ago, and stood still, need not have what others have committed since.
            if self._terms[index] >= term:
                break
            if index > log.last_index or log.between(index, index)[0] != self.committed[index]:
                raise Wrong(f"leader completeness: {node} leads term {term} without the committed entry {index}")

    def commits(self, node: str, term: int, before: int, index: int, log: MemoryLog) -> None:
        """``node`` takes the entries behind ``before``, up to ``index``, as committed, in this term."""
        if index > log.last_index:
            raise Wrong(f"{node} commits entry {index}, but its log ends at {log.last_index}")
        for at in range(max(before + 1, log.first_index), index + 1):
            entry = log.between(at, at)[0]
            if at < len(self.committed):
                if self.committed[at] != entry:
                    raise Wrong(f"committed entries change: {at} was {self.committed[at]}, at {node} it is {entry}")
            elif at > len(self.committed):
                raise Wrong(f"{node} commits entry {at} before entry {len(self.committed)}")
            else:
                self.committed.append(entry)
                self._terms.append(term)

    def acknowledges(self, payload: str, index: int, holders: int, quorum: int) -> None:
        if holders < quorum:
            raise Wrong(f"{payload} is acknowledged, and only {holders} members have it where it counts")
        self.acknowledged[payload] = index

    def truncates(self, node: str, index: int, commit: int) -> None:
        if index <= commit:
            raise Wrong(f"{node} drops entry {index}, and entries up to {commit} are committed")

    def logs_match(self, logs: dict[str, MemoryLog]) -> None:
        for (one, a), (other, b) in combinations(logs.items(), 2):
            last = min(a.last_index, b.last_index)
            first = max(a.first_index, b.first_index)
            while last >= first and a.term_of(last) != b.term_of(last):
                last -= 1
            if last >= first and a.between(first, last) != b.between(first, last):
                raise Wrong(f"log matching: {one} and {other} agree in the term of entry {last}, and differ before")

    def acknowledged_is_kept(self, logs: dict[str, MemoryLog]) -> None:
        for node, log in logs.items():
            for payload, index in self.acknowledged.items():
                if index >= log.first_index and (
                    index > log.last_index or log.between(index, index)[0].payload != payload
                ):
                    raise Wrong(f"acknowledged entries are kept: {node} has lost {payload} at {index}")
