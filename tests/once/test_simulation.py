"""Guards and keys where everything fails: lives from seeds (S1). ``script/soak once`` runs them for hours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from ternmq.once import guard, keystore
from ternmq.once.guard import Guard, Held
from ternmq.once.keystore import Claim, Decide, KeyEntry, State, settle
from ternmq.testing.checkers import Broken
from tests.once.simulation import KEEP_MS, OnceSimulation
from tests.testing.seeds import live, live_twice

pytestmark = pytest.mark.usefixtures("silent")

SEEDS = 10


def test_effects_happen_once_and_leases_keep_others_away() -> None:
    """S1: consumers die and hang past their lease, the store is lost before and after a commit, its clock jumps."""
    live_twice("once", 0)
    for seed in range(1, SEEDS):
        live("once", seed)


def _always_held(entry: KeyEntry, token: str) -> bool:
    return True


def _held_by_any(entry: KeyEntry, token: str) -> bool:
    return entry.state is State.RUNNING


async def _not_renewed(self: Guard, ended: asyncio.Event, held: Held) -> None:
    await ended.wait()


_real_claim = Guard._claim


async def _done_first(self: Guard, name: str) -> Held | None:
    held = await _real_claim(self, name)
    if held is not None:
        await self.store.change(name, settle(held.token, State.DONE, KEEP_MS))
    return held


def _early(token: str, lease_ms: int) -> Decide[Claim]:
    real = keystore.claim(token, lease_ms)
    # A lease is renewed every third of it: up to two thirds too early is no harm.
    early_ms = lease_ms * 5 // 6
    return lambda entry, now_ms: real(entry, now_ms + (early_ms if entry and entry.state is State.RUNNING else 0))


BROKEN = [
    (keystore, "is_held", _always_held, "fenced effect of key .* happened 2 times"),
    pytest.param(keystore, "is_held", _held_by_any, "whose lease was renewed", marks=pytest.mark.nightly),
    (Guard, "_renew_until", _not_renewed, "whose lease was renewed"),
    (Guard, "_claim", _done_first, "happened 0 times|did not happen"),
    (guard, "claim", _early, "whose lease was renewed"),
]


@pytest.mark.parametrize(
    ("place", "name", "broken", "found"),
    BROKEN,
    ids=["no fence", "another's token", "lease not renewed", "done before the work", "taken over too early"],
)
def test_a_broken_rule_is_caught(place: Any, name: str, broken: Callable[..., Any], found: str) -> None:
    """S1."""
    with patch.object(place, name, broken), pytest.raises(Broken, match=found):
        for seed in range(10 * SEEDS):
            OnceSimulation(seed).run()
