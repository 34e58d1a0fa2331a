"""Machines of a test's own, and the network between them: what real sockets do when packets are lost.

Each host is a network namespace with one address. A router joins them, as a namespace, too, and drops without a word
what one host sends to another, if a test has cut that way: the senders learn it from time-outs alone, as with a real
network. Needs root, and ``ip`` (``script/bootstrap hosts``).

Nothing of it can be reached from outside of these namespaces, and nothing in them reaches the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Written into the router: it forwards for the hosts, and for nothing else.
_FORWARD = "echo 1 > /proc/sys/net/ipv4/ip_forward"


class Hosts:
    """Hosts by name. A way from one to another is cut for one direction; cut both for a partition."""

    def __init__(self, prefix: str, names: tuple[str, ...]) -> None:
        """``prefix``: of the namespaces, which the machine has by name."""
        self.prefix = prefix
        self._numbers = {name: number for number, name in enumerate(names, 1)}
        self._cut: set[tuple[str, str]] = set()

    def build(self) -> None:
        router = self._name("router")
        _ip("netns", "add", router)
        _run("ip", "netns", "exec", router, "sh", "-c", _FORWARD)
        for name, number in self._numbers.items():
            host = self._name(name)
            _ip("netns", "add", host)
            _ip("link", "add", f"to{number}", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", host)
            _ip("-n", router, "address", "add", f"10.77.{number}.1/24", "dev", f"to{number}")
            _ip("-n", host, "address", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip("-n", router, "link", "set", f"to{number}", "up")
            for device in ("eth0", "lo"):
                _ip("-n", host, "link", "set", device, "up")
            _ip("-n", host, "route", "add", "default", "via", f"10.77.{number}.1")

    def remove(self) -> None:
        """Interfaces and rules go with their namespaces."""
        for name in ("router", *self._numbers):
            if Path(f"/run/netns/{self._name(name)}").exists():
                _ip("netns", "delete", self._name(name))

    def address(self, host: str) -> str:
        return f"10.77.{self._numbers[host]}.2"

    def within(self, host: str) -> list[str]:
        """What a command line begins with to run on a host; the process is the program's own."""
        return ["ip", "netns", "exec", self._name(host)]

    def run(self, host: str, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a module of ours on a host to its end. It can cut ways, too: ``Hosts`` with the same prefix and names."""
        command = [*self.within(host), sys.executable, "-m", module, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def cut(self, sender: str, receiver: str) -> None:
        """What ``sender`` sends to ``receiver`` is lost from now on."""
        if (sender, receiver) not in self._cut:
            self._rule("add", sender, receiver)
            self._cut.add((sender, receiver))

    def part(self, host: str, *others: str) -> None:
        """Cut both ways between a host and others."""
        for other in others:
            self.cut(host, other)
            self.cut(other, host)

    def unplug(self, host: str) -> None:
        """Take its cable out: the router finds it no more, and tells so those who send to it."""
        _ip("-n", self._name(host), "link", "set", "eth0", "down")

    def mend(self) -> None:
        """All ways that were cut are open again."""
        for sender, receiver in self._cut:
            self._rule("delete", sender, receiver)
        self._cut.clear()

    def _rule(self, verb: str, sender: str, receiver: str) -> None:
        incoming = f"to{self._numbers[sender]}"
        _ip("-n", self._name("router"), "rule", verb, "iif", incoming, "to", self.address(receiver), "blackhole")

    def _name(self, host: str) -> str:
        return f"{self.prefix}-{host}"


@contextmanager
def hosts(*names: str) -> Iterator[Hosts]:
    """Hosts that are gone at the end. Needs root, as CI has it: a lost network is not to be left untested."""
    assert os.geteuid() == 0, "this test makes network namespaces: run it as root, or leave it out with --deselect"
    made = Hosts(f"ternmq{os.getpid()}", names)
    try:
        made.build()
        yield made
    finally:
        made.remove()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
