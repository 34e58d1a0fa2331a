"""What all tests share: Hypothesis without deadlines, as a busy machine is no failure; and who runs beside whom.

`script/test` runs the tests in two processes. Those that share servers which take seconds to start (a Spark session,
RocketMQ's brokers) stay together in one of them, and begin first; other files go where there is room, each as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.slow import listed

settings.register_profile("ternmq", deadline=None, print_blob=True)
settings.load_profile("ternmq")

pytest_plugins = ["tests.databases"]

#: Directories whose tests share servers, in the order in which they begin.
TOGETHER: Final = ("tests/spark", "tests/interop")
#: Files in them that start processes of their own, and share nothing.
ALONE: Final = ("browser", "killed", "cluster", "tour", "elsewhere", "store_exchange", "store_layout", "on_ternmq")


@pytest.fixture
def silent() -> Iterator[None]:
    """Nothing is logged: in a simulation, nodes die a thousand times, and each logs it."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def scope_of(nodeid: str) -> str:
    """What a test stays together with."""
    path = PurePosixPath(nodeid.partition("::")[0])
    together = next((directory for directory in TOGETHER if path.is_relative_to(directory)), None)
    return together if together is not None and not any(word in path.stem for word in ALONE) else str(path)


class Scheduler(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        # In the order of collection, see below; not by the number of tests.
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduler:
    return Scheduler(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> tuple[int, bool]:
        scope = scope_of(item.nodeid)
        fixtures: list[str] = getattr(item, "fixturenames", [])
        # RocketMQ's brokers take a quarter of a core each with nothing to do: start them late.
        uses_rocketmq = any("rocketmq" in name for name in fixtures)
        return (TOGETHER.index(scope), uses_rocketmq) if scope in TOGETHER else (len(TOGETHER), False)

    items.sort(key=rank)
    slow = listed()
    for item in items:
        if item.nodeid.partition("[")[0] in slow:
            item.add_marker(pytest.mark.long)
