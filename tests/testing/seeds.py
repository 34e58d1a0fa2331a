"""Seeds, and what to do with them: each lives once or twice, and a failure says how to see it again."""

from __future__ import annotations

from typing import Final, Protocol

from tests.once.simulation import OnceSimulation
from tests.outbox.simulation import OutboxSimulation
from tests.raft.group_simulation import RaftRunSimulation, RaftSimulation
from tests.replication.simulation import ReplicationSimulation
from tests.testing.delays import DelaySimulation
from tests.testing.groups import GroupSimulation
from tests.testing.orderly import OrderlySimulation
from tests.testing.pairs import PairSimulation
from tests.testing.pop_consumers import PopConsumerSimulation
from tests.testing.pops import PopSimulation
from tests.testing.promotions import PromotionSimulation
from tests.testing.shares import ShareConsumerSimulation
from tests.testing.transactions import TransactionSimulation

#: Events before a failure that are worth a look.
SHOWN_EVENTS: Final = 40


class Simulation(Protocol):
    """One life from one seed."""

    trace: list[tuple[object, ...]]

    def __init__(self, seed: int) -> None: ...

    def run(self) -> None:
        """Raises what it finds."""
        ...


SIMULATIONS: Final[dict[str, type[Simulation]]] = {
    "groups": GroupSimulation,
    "orderly": OrderlySimulation,
    "delays": DelaySimulation,
    "pops": PopSimulation,
    "pop-consumers": PopConsumerSimulation,
    "pairs": PairSimulation,
    "promotions": PromotionSimulation,
    "shares": ShareConsumerSimulation,
    "raft": RaftSimulation,
    "raft-runs": RaftRunSimulation,
    "replication": ReplicationSimulation,
    "transactions": TransactionSimulation,
    "outbox-seeds": OutboxSimulation,
    "once": OnceSimulation,
}


def live_twice(name: str, seed: int) -> Simulation:
    """Run a seed twice; raises what it finds, with the command that replays it. Both lives must be the same."""
    return live(name, seed, times=2)


def live(name: str, seed: int, *, times: int = 1) -> Simulation:
    """Run a seed, or several times the same; raises what it finds, with the command that replays it."""
    lives = [SIMULATIONS[name](seed) for _ in range(times)]
    running = lives[0]
    try:
        for running in lives:
            running.run()
            for event, again in zip(lives[0].trace, running.trace, strict=True):
                assert event == again, "something came from outside: not a seed, not the loop"
    except BaseException as error:
        error.add_note(f"Seed {seed} does it again: script/soak {name} --seed {seed} --seeds 1 --trace")
        error.add_note("The last events before:")
        for event in running.trace[-SHOWN_EVENTS:]:
            error.add_note("    " + " ".join(map(str, event)))
        raise
    return lives[0]
