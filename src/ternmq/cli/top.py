"""``tern top``: a live screen of brokers, topics and groups (T1).

Keys: q quits, s sorts by the next column, p pauses. The cluster is asked by a task of its own, so keys are answered at
once, also while a broker does not answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ternmq.admin.loads import GroupLoad, TopicLoad
from ternmq.cli.busiest import Busiest
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run, serve
from ternmq.cli.times import format_ms
from ternmq.cli.top_screen import (
    ALL_COLUMNS,
    BROKER_COLUMNS,
    GROUP_COLUMNS,
    TOPIC_COLUMNS,
    Snapshot,
    SortOrder,
    all_rows,
    broker_rows,
    draw,
    group_rows,
    topic_rows,
)
from ternmq.cli.watch import ENTER_SCREEN, LEAVE_SCREEN, fitted
from ternmq.env import SystemClock
from ternmq.errors import TernError
from ternmq.tasks import Tasks

if TYPE_CHECKING:
    from ternmq.admin import Admin

EVERY_S: Final = 2.0
#: Topics and groups that are asked for in each round: the busiest, and others in turn.
COUNT_MAX: Final = 500


def top(
    every: Annotated[
        float, typer.Option("--every", min=0.2, metavar="SECONDS", help="Between two looks at the cluster.")
    ] = EVERY_S,
    once: Annotated[bool, typer.Option("--once", help="Print it once, as in a pipe, and end.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show brokers, topics and groups live: rates, lag, memory and disks, as `top` shows processes.

    Of more than 500 topics or groups, each look asks for the busiest and for some of the others in turn.

    Keys: q quits, s changes the order (rate, size or lag, name), p pauses. Rates of brokers are those of the last 10
    seconds, rates of topics and groups those of the last minute.

    Examples:

        tern top

        tern top --once --json
    """
    if once or as_json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _print(name_servers, as_json=as_json)
        return
    with _keys_at_once():
        serve(_live(name_servers, every))


class _Looks:
    """Looks at a cluster, one after the other; each is a snapshot of all that is known by then."""

    def __init__(self, admin: Admin, *, count_max: int) -> None:
        self._admin = admin
        self._topics = Busiest[TopicLoad](count_max, lambda one: one.topic, lambda one: (one.in_s, one.messages))
        self._groups = Busiest[GroupLoad](count_max, lambda one: one.group, lambda one: (one.out_s, one.lag))
        self._counts = {"topics": 0, "groups": 0}

    async def next(self) -> Snapshot:
        admin = self._admin
        brokers, topics, groups = await asyncio.gather(
            admin.brokers.loads(),
            admin.topics.loads(choose=lambda names: self._choose("topics", self._topics, names)),
            admin.groups.loads(choose=lambda names: self._choose("groups", self._groups, names)),
        )
        self._topics.learn(topics)
        self._groups.learn(groups)
        return Snapshot(
            format_ms(SystemClock().now_ms())[11:19],
            brokers,
            self._topics.known,
            self._groups.known,
            topic_count=self._counts["topics"],
            group_count=self._counts["groups"],
        )

    def _choose(self, kind: str, busiest: Busiest[Any], names: list[str]) -> list[str]:
        self._counts[kind] = len(names)
        return busiest.choose(names)


# --- Once -----------------------------------------------------------------------------------------------------------


def _print(name_servers: str, *, as_json: bool) -> None:
    from ternmq.admin import Admin

    async def work() -> Snapshot:
        async with Admin(name_servers) as admin:
            return await _Looks(admin, count_max=sys.maxsize).next()

    found = run(work())
    output = Output(as_json=as_json)
    if as_json:
        fields: dict[str, object] = {
            kind: [asdict(one) for one in getattr(found, kind)] for kind in ("brokers", "topics", "groups")
        }
        output.item(fields, "")
        return
    if output.as_csv:  # one table: a file of CSV has one heading
        output.rows(all_rows(found), columns=ALL_COLUMNS, empty="")
        return
    output.rows(broker_rows(found), columns=BROKER_COLUMNS, empty="no brokers are registered")
    output.rows(topic_rows(found, SortOrder.RATE), columns=TOPIC_COLUMNS, empty="no topics yet")
    output.rows(group_rows(found, SortOrder.RATE), columns=GROUP_COLUMNS, empty="no groups yet")


# --- Live -----------------------------------------------------------------------------------------------------------


class _Screen:
    """What is shown, and what keys do to it."""

    def __init__(self, first: Snapshot, order: SortOrder) -> None:
        self.snapshot = first
        self.order = order
        self.trouble = ""
        self.paused = False
        self.ended = asyncio.Event()

    def key(self, char: str) -> None:
        match char:
            case "q" | "Q" | "\x03":  # Ctrl-C, too
                self.ended.set()
            case "s":
                self.order = self.order.next()
            case "p":
                self.paused = not self.paused
            case _:
                return
        self.show()

    def show(self) -> None:
        size = shutil.get_terminal_size()
        lines = draw(
            self.snapshot,
            order=self.order,
            width=size.columns,
            height=size.lines - 1,
            paused=self.paused,
            trouble=self.trouble,
        )
        sys.stdout.write(fitted("\n".join(lines), lines=size.lines - 1))
        sys.stdout.flush()


async def _live(name_servers: str, every_s: float) -> None:
    from ternmq.admin import Admin

    async with Admin(name_servers) as admin:
        looks = _Looks(admin, count_max=COUNT_MAX)
        # An error in the first look ends the command as usual.
        screen = _Screen(await looks.next(), SortOrder.RATE)
        loop = asyncio.get_running_loop()

        async def refresh() -> None:
            while True:
                await asyncio.sleep(every_s)
                if screen.paused:
                    continue
                try:
                    screen.snapshot, screen.trouble = await looks.next(), ""
                except TernError as error:
                    screen.trouble = f"{error}; trying again in {every_s:g} s"
                if not screen.paused:
                    screen.show()

        def typed() -> None:
            chars = sys.stdin.read(1)
            if chars:
                screen.key(chars)
            else:
                screen.ended.set()  # the terminal is gone

        sys.stdout.write(ENTER_SCREEN)
        loop.add_reader(sys.stdin.fileno(), typed)
        try:
            screen.show()
            async with Tasks() as tasks:
                tasks.create_task(refresh())
                await screen.ended.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            sys.stdout.write(LEAVE_SCREEN)
            sys.stdout.flush()


@contextlib.contextmanager
def _keys_at_once() -> Iterator[None]:
    """Keys arrive when they are pressed, and are not shown. Windows has no such modes: there Ctrl-C ends it."""
    try:
        import termios
        import tty
    except ImportError:
        yield
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
