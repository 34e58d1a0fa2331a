"""Each rule of whole brokers that is broken on purpose is found by a seed (P1–P4): else the simulation proves nothing.

``test_broken_rules`` does the same to the core alone. The seeds are those of the table in
docs/decisions/0035-raft-proof.md. After a change of the simulation other seeds find them:
``python -m tests.raft.test_broken_groups 100`` searches.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final
from unittest.mock import PropertyMock, patch

import pytest

from ternmq.raft.log import RaftLog
from ternmq.raft.messages import NO_INDEX
from ternmq.raft.node import RaftNode
from tests.raft import breakages
from tests.raft.group_simulation import RaftSimulation, SlowSyncs, VerySlowSyncs

pytestmark = pytest.mark.usefixtures("silent")

Broken = Callable[[], AbstractContextManager[object]]


def _core(core: type) -> Broken:
    return lambda: patch("ternmq.raft.node.RaftCore", core)


def _has_role(node: RaftNode) -> bool:
    return node.is_leader


#: Rule → how it is broken, and the seed that finds it.
RULES: Final[dict[str, tuple[Broken, int]]] = {
    # One that was stopped also finds out when it is asked for its status, as followers do: without that, too.
    "a leader serves reads with a lease only": (
        lambda: patch.multiple(RaftNode, has_lease=_has_role, _turn_if_late=lambda _node: None),
        25,
    ),
    "a member that is not the leader serves no reads": (
        lambda: patch("ternmq.broker.raft_reads.RaftReads._of_follower", lambda _reads, **_: None),
        1,
    ),
    "term and vote are on the disk when they are told": (
        lambda: patch("ternmq.raft.node.TermFile.save", lambda _file, _vote: None),
        0,
    ),
    "one vote a term": (_core(breakages.VotesTwice), 38),
    "votes only for logs that have everything": (_core(breakages.VotesForAnyLog), 21),
    "what differs is dropped": (_core(breakages.KeepsWhatDiffers), 9),
    "a member that lost committed entries does not vote": (
        lambda: patch.object(RaftLog, "lost", PropertyMock(return_value=NO_INDEX), create=True),
        82,
    ),
}

#: The same where syncs take their time: how slow they are.
DISK_RULES: Final[dict[str, tuple[Broken, int, type[SlowSyncs]]]] = {
    "an entry counts when it is on the disk": (
        lambda: patch.object(RaftNode, "_stored_now", lambda node: node.log.last_index),
        29,
        SlowSyncs,
    ),
    "what is shown is committed": (_core(breakages.CommitsEarly), 11, VerySlowSyncs),
}


def finds(seed: int, broken: Broken, simulation: type[RaftSimulation] = RaftSimulation) -> str | None:
    """What this life shows, if anything."""
    try:
        with broken():
            simulation(seed).run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_found(rule: str) -> None:
    broken, seed = RULES[rule]
    assert finds(seed, nullcontext) is None, "nothing is wrong with this life"
    assert finds(seed, broken) is not None


@pytest.mark.parametrize("rule", DISK_RULES)
def test_a_broken_rule_of_disks_is_found(rule: str) -> None:
    broken, seed, simulation = DISK_RULES[rule]
    assert finds(seed, nullcontext, simulation) is None, "nothing is wrong with this life"
    assert finds(seed, broken, simulation) is not None


def search(seeds: int, *names: str) -> None:
    """Print the first seed that finds each rule, as rows of the table in the decision."""
    logging.disable(logging.CRITICAL)
    plain: dict[str, tuple[Broken, int, type[RaftSimulation]]]
    plain = {rule: (broken, seed, RaftSimulation) for rule, (broken, seed) in RULES.items()}
    for rule, (broken, _, simulation) in (plain | DISK_RULES).items():
        if not names or any(name in rule for name in names):
            lives = ((seed, finds(seed, broken, simulation)) for seed in range(seeds))
            seed, wrong = next((life for life in lives if life[1]), (-1, ""))
            sys.stdout.write(f"| {rule} | {seed} | {(wrong or '')[:200]} |\n")
            sys.stdout.flush()


if __name__ == "__main__":
    search(int(sys.argv[1]), *sys.argv[2:])
