"""A real Prometheus (``script/bootstrap prometheus``) that scrapes real servers and a client with the files of
``examples/monitoring``: every expression of the alert rules and of the dashboard has a value (T4)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from ternmq import Message, Producer, PushConsumer, ReceivedMessage, StartPosition
from ternmq.admin import Admin
from ternmq.client.metrics import ClientMetrics
from tests.cli.conftest import Start
from tests.cli.test_promote import MASTER, SLAVE, broker
from tests.interop.rocketmq import free_port

pytestmark = pytest.mark.long

MONITORING: Final = Path(__file__).parents[2] / "examples" / "monitoring"
#: A limit of an alert: it is reached by no healthy cluster, so what is compared must have a value.
_LIMIT: Final = re.compile(r" (==|>|<) [\d.]+")
_READY_S: Final = 120.0


def tool(name: str) -> str:
    found = shutil.which(name)
    assert found is not None, f"{name} is missing; run script/bootstrap prometheus"
    return found


def alerts() -> dict[str, str]:
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    return {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}


def panels() -> dict[str, str]:
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    return {panel["title"]: target["expr"] for panel in dashboard["panels"] for target in panel["targets"]}


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
    return body


@contextlib.contextmanager
def prometheus(directory: Path, targets: list[str]) -> Iterator[str]:
    """The address of a server with the project's settings, other targets, and no time to waste."""
    settings = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    settings["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    [job] = settings["scrape_configs"]
    job["static_configs"] = [{"targets": targets}]
    directory.mkdir()
    shutil.copy(MONITORING / "alerts.yml", directory)
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_port()}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
            ],
            stderr=log,
        )
    try:
        yield f"http://{address}"
    finally:
        process.terminate()
        process.wait(60)


@contextlib.asynccontextmanager
async def serving_text(metrics: ClientMetrics) -> AsyncIterator[str]:
    """A web server of an application, which gives out the metrics of its clients."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        text = metrics.text().encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nConnection: close\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


class Asked:
    """What Prometheus answers."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def series(self, expression: str) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode({"query": expression})
        answer = json.loads(await asyncio.to_thread(read, f"{self._address}/api/v1/query?{query}"))
        assert "success" == answer["status"], answer
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    async def rules(self) -> dict[str, str]:
        """The health of each rule."""
        answer = json.loads(await asyncio.to_thread(read, f"{self._address}/api/v1/rules"))
        return {rule["name"]: rule["health"] for group in answer["data"]["groups"] for rule in group["rules"]}

    async def comes(self, expressions: dict[str, str]) -> None:
        """Wait until each expression has a value: rates need two scrapes."""
        missing = set(expressions)
        try:
            async with asyncio.timeout(_READY_S):
                while missing:
                    for name in sorted(missing):
                        with contextlib.suppress(OSError):
                            if await self.series(expressions[name]):
                                missing.remove(name)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            pytest.fail(f"no series for {sorted(missing)}")


def linted(text: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([tool("promtool"), "check", "metrics"], input=text, capture_output=True, check=False)


def test_promtool_takes_the_files() -> None:
    """T4."""
    for words in (("check", "rules", MONITORING / "alerts.yml"), ("check", "config", MONITORING / "prometheus.yml")):
        done = subprocess.run([tool("promtool"), *words], capture_output=True, text=True, check=False)
        assert 0 == done.returncode, done.stdout + done.stderr


async def work(names: str, metrics: ClientMetrics) -> None:
    """What gives a value to every series: messages, a group that lags without members, a dead letter, a quota."""
    async with Admin(names) as admin:
        await admin.topics.create("orders", queues=1)
        await admin.groups.create("careless", retry_max=0)
        await admin.quotas.set_topic("orders", messages=1_000_000)
        async with Producer("shop", name_servers=names, hooks=[metrics.sends]) as producer:
            await producer.send(Message("orders", b"first"))
        seen = asyncio.Event()

        async def refuse(_message: ReceivedMessage) -> None:
            seen.set()
            raise ValueError("never")

        consumer = PushConsumer(
            "careless", refuse, name_servers=names, start=StartPosition.FIRST, hooks=[metrics.consumption]
        )
        consumer.subscribe("orders")
        async with consumer:
            await asyncio.wait_for(seen.wait(), _READY_S)
            # A refused message is passed over when the broker has it as a dead letter.
            async with asyncio.timeout(_READY_S):
                while not await admin.dead_letters.groups():
                    await asyncio.sleep(0.1)
        # It has left, and lags.
        async with Producer("shop", name_servers=names, hooks=[metrics.sends]) as producer:
            await producer.send(Message("orders", b"second"))


async def test_every_expression_has_a_value_in_a_real_prometheus(start: Start, tmp_path: Path) -> None:
    """T4, D5: broker, slave, name server and client; each rule is evaluated without an error."""
    ports = [free_port() for _ in range(3)]
    names = start("namesrv", "-p", "0", "--set", "bindAddress=127.0.0.1", "--set", f"httpPort={ports[0]}").name_server
    for name, settings, port in (("one", MASTER, ports[1]), ("two", SLAVE, ports[2])):
        broker(start, tmp_path / name, names, settings | {"httpPort": port})
    metrics = ClientMetrics()
    await work(names, metrics)
    # Those that have something to do while it is looked at.
    consumer = PushConsumer("billing", lambda _: None, name_servers=names, start=StartPosition.FIRST)
    consumer.subscribe("orders")
    for port in ports:
        text = await asyncio.to_thread(read, f"http://127.0.0.1:{port}/metrics")
        done = await asyncio.to_thread(linted, text)
        # 3: what a linter of names would like otherwise; RocketMQ's are as they are.
        assert done.returncode in (0, 3), done.stderr.decode()
    async with (
        consumer,
        Producer("shop", name_servers=names) as producer,
        serving_text(metrics) as application,
    ):
        await producer.send(Message("orders", b"third"))
        targets = [*(f"127.0.0.1:{port}" for port in ports), application]
        with prometheus(tmp_path / "prometheus", targets) as address:
            asked = Asked(address)
            of_alerts = {name: _LIMIT.sub("", expression) for name, expression in alerts().items()}
            of_panels = {name: expression.replace("$broker", ".*") for name, expression in panels().items()}
            of_client = {
                f"client {kind}": f'ternmq_client_{kind}_messages_total{{topic="orders"}}'
                for kind in ("send", "process")
            }
            await asked.comes({**of_alerts, **of_panels, **of_client})
            up = {one["metric"]["instance"]: one["value"][1] for one in await asked.series("up")}
            assert dict.fromkeys(targets, "1") == up
            async with asyncio.timeout(_READY_S):
                while "unknown" in (health := await asked.rules()).values():
                    await asyncio.sleep(0.2)
            assert dict.fromkeys(alerts(), "ok") == health
