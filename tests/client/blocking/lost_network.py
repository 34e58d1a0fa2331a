"""A thread that sends by itself while the machine of a broker goes without a word, run on a host of its own by
``test_own_sends_failover``."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from ternmq import Message, SyncProducer
from tests.cli.conftest import Serving
from tests.client.blocking.own_sends import LONG_MS, open_line, open_lines
from tests.client.blocking.test_own_sends_failover import wait_for_masters
from tests.hosts import Hosts

HOSTS: Final = ("client", "dying", "other")


def lose(net: Hosts, names: str) -> None:
    """No send fails, and those that are not the first do not wait for the machine."""
    wait_for_masters(names, 2)
    with SyncProducer("shop", name_servers=names) as producer:
        open_line(producer, count=2)
        brokers = Counter(producer.send(Message("orders", b"x")).queue.broker_name for _ in range(100))
        assert {"dying", "other"} == set(brokers), brokers
        running = producer._async._running
        assert running is not None
        address = running.sender.instance.broker_address("dying")
        net.part("client", "dying")
        brokers = Counter(
            producer.send(Message("orders", b"x"), timeout_ms=LONG_MS).queue.broker_name for _ in range(500)
        )
        assert {"other": 500} == brokers, brokers
        assert {address} == running.sender.instance.connections.silent
        assert all(line.address != address for line in open_lines(producer))
        net.mend()
        open_line(producer, count=2)


def main() -> None:
    net, directory = Hosts(sys.argv[1], HOSTS), Path(sys.argv[2])
    with ExitStack() as stack:

        def serve(host: str, *arguments: str) -> Serving:
            log = directory / f"{host}-{arguments[0]}.log"
            own = ("--set", f"bindAddress={net.address(host)}")
            serving = Serving(*arguments, *own, log=log, within=net.within(host))
            stack.callback(serving.wait)
            stack.callback(serving.process.terminate)
            return serving

        names = serve("other", "namesrv", "-p", "0").name_server
        for host in ("dying", "other"):
            settings = {
                "brokerName": host,
                "brokerIP1": net.address(host),
                "listenPort": 0,
                "storePathRootDir": directory / host,
            }
            flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
            serve(host, "broker", "-n", names, *flags)
        lose(net, names)


if __name__ == "__main__":
    main()
