"""A broker that dies between any two appends, from seeds (J1, J2).

``tests/testing/transactions.py`` kills whole processes between two turns of their loop; here the broker ends *within* a
turn: after the message and before its op, after a copy and before the op of its original. Then it starts again, on what
a kill or a power cut has left. Producers answer checks by what their database says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from ternmq import names
from ternmq.errors import SystemFailure
from ternmq.message import Outcome
from ternmq.transaction.transactions import Ending
from ternmq.wire.record import Record
from ternmq.wire.requests import CheckTransaction
from tests.transaction.world import Asked, Killed, World, in_virtual_time

pytestmark = pytest.mark.usefixtures("silent")

PORTION = 40


class _Life:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        # Without an index only the end of its queue tells that a message is stored, which a power cut may take.
        self.has_index = self.random.random() < 0.7
        self.world = World(seed, message_index_enable=self.has_index)
        #: How the local work of each transaction ended; the database, which does not die.
        self.rows: dict[str, Outcome] = {}
        self.open: list[Ending] = []

    async def live(self) -> None:
        world, random = self.world, self.random
        world.producers = [Asked(self._answer), Asked(self._answer)]
        world.start()
        await world.folded()
        for _ in range(90):
            if random.random() < 0.15:
                world.puts_left = random.randrange(6)
            try:
                await self._act()
            except Killed:
                world.puts_left = 0
            if world.puts_left == 0:
                await self._die()
        world.puts_left = None
        # All members are there, and honest.
        for _ in range(20):
            if not world.open:
                break
            await asyncio.sleep(30)
        self._check()
        await world.stop()

    async def _act(self) -> None:
        random, world = self.random, self.world
        match random.choice(("begin", "begin", "end", "end", "wait", "wait", "repeat")):
            case "begin":
                ending = world.send(b"%d" % len(self.rows))
                # SYNC_FLUSH: the producer hears of it when it is on the disk.
                world.store.flush_now()
                self.rows[ending.transaction_id] = random.choice((Outcome.COMMIT, Outcome.COMMIT, Outcome.ROLLBACK))
                self.open.append(ending)
            case "end" if self.open:
                self._end(self.open.pop(random.randrange(len(self.open))))
            case "repeat" if self.open:
                self._end(random.choice(self.open))
            case "wait":
                await asyncio.sleep(random.choice((0.1, 2.0, 31.0)))

    def _end(self, ending: Ending) -> None:
        try:
            self.world.end(ending, self.rows[ending.transaction_id])
        except SystemFailure as error:
            # A checker was faster, and nothing tells how it ended.
            if self.has_index or "cannot be told without an index" not in str(error):
                raise

    def _answer(self, check: CheckTransaction, _: Record) -> None:
        assert check.transaction_id is not None
        outcome = self.rows.get(check.transaction_id, Outcome.ROLLBACK)
        if self.random.random() < 0.3:
            return
        asyncio.get_running_loop().call_later(self.random.choice((0.0, 1.0, 40.0)), self._answered, check, outcome)

    def _answered(self, check: CheckTransaction, outcome: Outcome) -> None:
        try:
            self.world.answer(check, outcome)
        except Killed:
            self.world.puts_left = 0
        except SystemFailure as error:
            # The half it names may be lost with its queue, but never with another outcome.
            if self.has_index and "there is no half message" not in str(error):
                raise

    async def _die(self) -> None:
        if self.random.random() < 0.5:
            await self.world.kill()
        else:
            await self.world.cut_power()
        self.world.start()
        await self.world.folded()

    def _check(self) -> None:
        stored = Counter(str(_key(record)) for record in self.world.records())
        wanted = Counter({key: 1 for key, outcome in self.rows.items() if outcome is Outcome.COMMIT})
        assert wanted == stored
        assert 0 == self.world.open
        assert [] == self.world.records(names.CHECK_MAX_TOPIC)


def _key(record: Record) -> str:
    return dict(pair.split("\x01") for pair in record.properties.split("\x02") if pair)["UNIQ_KEY"]


@pytest.mark.parametrize("first", range(0, 120, PORTION))
def test_a_broker_that_dies_between_any_two_appends_delivers_once(first: int) -> None:
    """J1, J2: each message whose local work was committed is stored once, none of the others is."""

    async def lives() -> None:
        for seed in range(first, first + PORTION):
            try:
                await _Life(seed).live()
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise

    in_virtual_time(lives())
