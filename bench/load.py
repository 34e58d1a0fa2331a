"""Runs the Java program ``TernLoad`` against a system, and reads the CPU time of both around the measurement."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.systems import POP_VERSION, ROCKETMQ_VERSION, System, cpu_s
from ternmq.admin.blocking import SyncAdmin
from ternmq.wire.bodies.clients import RequestMode
from tests.interop import jvm

_numbers: Final = itertools.count()


@dataclass(slots=True, frozen=True)
class Measured:
    """One run of load. Latencies are those of a call; ``-1`` where there are none."""

    messages: int
    seconds: float
    rate: float
    cpu_us_per_message: float
    #: CPU time of the load's own JVM: what the machine spends whatever the broker is.
    client_cpu_us_per_message: float
    p50_us: int = -1
    p99_us: int = -1
    max_us: int = -1
    failed: int = 0


def send(system: System, directory: Path, **options: object) -> Measured:
    """Sends of ``threads`` threads; see ``TernLoad.java`` for the options."""
    return send_with({}, system, directory, **options)


def send_with(properties: Mapping[str, str], system: System, directory: Path, **options: object) -> Measured:
    """The same, with these system properties of the JVM."""
    return _run(system, directory, "send", begin="warm", options=options, properties=properties)


def consume(system: System, directory: Path, **options: object) -> Measured:
    """Push consumption of ``count`` waiting messages."""
    return _run(system, directory, "consume", begin="first", options=options)


def pop(system: System, directory: Path, **options: object) -> Measured:
    """The same with RocketMQ 5's client, by pop."""
    with SyncAdmin(system.namesrv) as admin:
        admin.groups.set_mode(str(options["group"]), str(options["topic"]), RequestMode.POP)
    options["pop"] = True
    return _run(system, directory, "consume", begin="first", options=options, version=POP_VERSION)


def transactions(system: System, directory: Path, **options: object) -> tuple[Measured, int]:
    """Transactions that are committed at once; and how many messages the topic has then, with those of the warm-up.

    Java's client sends the commit one-way, so its calls alone do not tell that messages were committed.
    """
    measured = _run(system, directory, "send", begin="warm", options={**options, "transactional": True})
    with SyncAdmin(system.namesrv) as admin:
        stored = -1
        while (now := _stored(admin, str(options["topic"]))) != stored:
            stored = now
            time.sleep(1.0)
    return measured, stored


def _stored(admin: SyncAdmin, topic: str) -> int:
    return sum(queue.max_offset for queue in admin.topics.status(topic))


def latency(system: System, directory: Path, **options: object) -> Measured:
    """From the scheduled time of a send to the listener, at a fixed rate."""
    return _run(system, directory, "latency", begin="warm", options=options)


def _run(
    system: System,
    directory: Path,
    command: str,
    *,
    begin: str,
    options: dict[str, object],
    version: str = ROCKETMQ_VERSION,
    properties: Mapping[str, str] | None = None,
) -> Measured:
    home = directory / f"load-{next(_numbers)}-{command}"
    arguments = jvm.command(
        version,
        "ternmq.TernLoad",
        command,
        home=home,
        heap_mb=1024,
        flags=("-Xms512m", "-XX:+UseParallelGC"),
        properties=properties,
    )
    errors_path = home / "stderr.log"
    with errors_path.open("w") as errors:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=jvm.environment(home),
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(json.dumps({"namesrv": system.namesrv, **options}) + "\n")
        process.stdin.flush()
        cpu_before_s = client_before_s = 0.0
        for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            if event["event"] == begin:
                cpu_before_s, client_before_s = system.cpu_s(), cpu_s(process.pid)
            elif event["event"] == "measured":
                return _measured(event, system.cpu_s() - cpu_before_s, cpu_s(process.pid) - client_before_s)
            else:
                raise SystemExit(f"{system.name}: {command} failed: {event}\n{jvm.tail(errors_path)}")
        raise SystemExit(f"{system.name}: {command} ended without a result\n{jvm.tail(errors_path)}")
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def _measured(event: dict[str, Any], broker_s: float, client_s: float) -> Measured:
    messages = int(event["messages"])
    us_of_each = 1e6 / max(1, messages)
    return Measured(
        messages=messages,
        seconds=round(event["seconds"], 3),
        rate=round(event["rate"], 1),
        cpu_us_per_message=round(broker_s * us_of_each, 2),
        client_cpu_us_per_message=round(client_s * us_of_each, 2),
        p50_us=event.get("p50Us", -1),
        p99_us=event.get("p99Us", -1),
        max_us=event.get("maxUs", -1),
        failed=event.get("failed", 0),
    )
