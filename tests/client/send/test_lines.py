"""Lines of a client: taken by one thread at a time, and closed in the end, whoever ends them (B2)."""

from __future__ import annotations

import random
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from ternmq.client.send import lines as lines_module
from ternmq.client.send.lines import IDLE_S, LONE_SENDS, SendLines
from ternmq.errors import NetworkError
from ternmq.net.endpoint import dial_blocking
from ternmq.net.line import CallLine

#: Far beyond what anything here takes, also on a busy machine.
LONG_S = 60.0


class Dials:
    """Connections to a port that accepts them and says nothing."""

    def __init__(self, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self.made: list[socket.socket] = []
        #: Set when a connection may be made.
        self.may = threading.Event()
        self.may.set()
        self.begun = threading.Event()

    def __call__(self, address: str) -> socket.socket:
        self.begun.set()
        assert self.may.wait(LONG_S)
        made = dial_blocking(address, is_watched=True)
        self.made.append(made)
        return made


@contextmanager
def dialling() -> Iterator[Dials]:
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        dials = Dials(listener.getsockname()[1])
        yield dials
        assert [-1] * len(dials.made) == [made.fileno() for made in dials.made], "a connection is left open"


def wait_for_openers() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("ternmq-127.0.0.1"):
            thread.join(LONG_S)


def send_alone(lines: SendLines, address: str, count: int = LONE_SENDS) -> CallLine | None:
    """What a thread does that sends messages; the line in the end, if it is open."""
    for _ in range(count):
        lines.open_when_due(lines.to(address))
    wait_for_openers()
    return lines.to(address).take(0.0)


def test_a_line_is_opened_when_a_thread_has_sent_enough_and_taken_by_one() -> None:
    with dialling() as dials:
        lines = SendLines(dials, lambda: 0.0)
        assert None is send_alone(lines, dials.address, LONE_SENDS - 1)
        connection = send_alone(lines, dials.address, 1)
        line = lines.to(dials.address)
        assert connection is not None
        assert None is line.take(0.0), "another thread has it"
        line.give_back(is_sound=True)
        assert connection is line.take(0.0)
        line.give_back(is_sound=False)
        assert None is line.take(0.0)
        lines.close()
    assert 1 == len(dials.made)


def test_a_line_is_not_taken_after_a_while_without_a_send() -> None:
    """Firewalls forget idle connections without a word."""
    with dialling() as dials:
        lines = SendLines(dials, lambda: 0.0)
        assert send_alone(lines, dials.address) is not None
        line = lines.to(dials.address)
        line.give_back(is_sound=True)
        line.end_if_idle(IDLE_S)
        assert line.take(IDLE_S) is not None
        line.give_back(is_sound=True)
        assert None is line.take(3 * IDLE_S)
        assert None is line.connection


def test_a_line_that_ends_while_a_thread_has_it_is_closed_by_that_thread() -> None:
    with dialling() as dials:
        for at_once in (True, False):
            lines = SendLines(dials, lambda: 0.0)
            connection = send_alone(lines, dials.address)
            line = lines.to(dials.address)
            assert connection is not None
            if at_once:
                lines.close()
                with pytest.raises(NetworkError):
                    connection.call(1, [b"x"], LONG_S)
            else:
                lines.drop(dials.address)
                assert connection.is_quiet()
            line.give_back(is_sound=True)
            assert None is line.take(0.0)
            assert not line.count()


def test_a_line_that_ends_while_it_is_opened_is_closed_when_it_is_open() -> None:
    with dialling() as dials:
        lines = SendLines(dials, lambda: 0.0)
        dials.may.clear()
        for _ in range(LONE_SENDS + 10):
            lines.open_when_due(lines.to(dials.address))
        line = lines.to(dials.address)
        assert dials.begun.wait(LONG_S)
        assert None is line.take(0.0)
        lines.close()
        dials.may.set()
        wait_for_openers()
        assert 1 == len(dials.made)
        assert None is line.connection


def test_a_line_that_was_of_no_use_is_not_opened_again_soon() -> None:
    """A broker may close what it has too many of."""
    with dialling() as dials:
        lines = SendLines(dials, lambda: 0.0)
        assert send_alone(lines, dials.address) is not None
        lines.to(dials.address).give_back(is_sound=False)
        assert None is send_alone(lines, dials.address, 20 * LONE_SENDS)
        assert send_alone(lines, dials.address, 20 * LONE_SENDS) is not None
        lines.to(dials.address).give_back(is_sound=False)
        lines.close()
    assert 2 == len(dials.made)


def test_a_machine_that_gives_no_more_threads_has_no_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with dialling() as dials:
        lines = SendLines(dials, lambda: 0.0)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refuse)
            assert None is send_alone(lines, dials.address, 10 * LONE_SENDS)
        assert send_alone(lines, dials.address, 1_000) is not None
        lines.to(dials.address).give_back(is_sound=True)
        lines.close()


@pytest.fixture
def _restless() -> Iterator[None]:
    """Threads take turns often, wherever they are."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_restless")
@pytest.mark.parametrize("seed", range(5))
def test_whatever_threads_and_the_loop_do_one_has_a_line_and_all_are_closed(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines_module, "LONE_SENDS", 1)
    monkeypatch.setattr(lines_module, "_LONE_SENDS_AFTER_FAILURE", 2)
    chance = random.Random(seed)
    with dialling() as dials, ThreadPoolExecutor(6) as threads:
        lines = SendLines(dials, time.monotonic)
        users: dict[CallLine, list[int]] = {}
        is_over = threading.Event()

        def send(number: int) -> None:
            own = random.Random(number)
            while not is_over.is_set():
                line = lines.to(dials.address)
                connection = line.take(time.monotonic())
                if connection is None:
                    lines.open_when_due(line)
                    continue
                here = users.setdefault(connection, [])
                here.append(number)
                assert [number] == here, "two threads have one line"
                assert connection._socket.fileno() != -1, "it is closed, and a thread has it"
                here.remove(number)
                line.give_back(is_sound=own.random() < 0.9)

        sends = [threads.submit(send, number) for number in range(6)]
        while len(dials.made) < 100 and not any(sent.done() for sent in sends):
            if chance.random() < 0.1:
                lines.drop(dials.address)
            else:
                lines.tidy()
        is_over.set()
        for sent in sends:
            sent.result(LONG_S)
        lines.close()
        wait_for_openers()
