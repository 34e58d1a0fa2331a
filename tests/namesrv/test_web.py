"""Probes and metrics of a name server, on a port of its own (T4)."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ternmq.broker.broker import Broker
from ternmq.errors import ConfigError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.namesrv.web import NameServerWeb
from ternmq.net.http import HttpRequest
from tests.auth.accounts import acl_in
from tests.broker.calls import settings, small_store
from tests.broker.test_web import Site
from tests.interop.rocketmq import free_port


def config(port: int, **more: object) -> NamesrvConfig:
    return NamesrvConfig(listen_port=0, bind_address="127.0.0.1", http_port=port, **more)  # type: ignore[arg-type]


async def test_a_name_server_tells_that_it_lives_and_what_it_knows(tmp_path: Path) -> None:
    """T4."""
    port = free_port()
    async with NameServer(config(port)) as name_server:
        site = Site(port)
        before = [await site.get(f"/{probe}") for probe in ("healthz", "readyz")]
        broker = Broker(settings(namesrv_addr=f"127.0.0.1:{name_server.port}"), small_store(tmp_path))
        async with broker:
            status, text = await site.get("/metrics")
        nothing = await site.get("/topics")

    found = {
        (sample.name, sample.labels.get("role", "") + sample.labels.get("processor", "")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }
    assert [(200, "ok\n")] * 2 == [(code, body.rstrip("\n") + "\n") for code, body in before]
    assert (200, 404) == (status, nothing[0])
    assert (1, "DefaultCluster") == (
        found["ternmq_registered_brokers", "master"].value,
        found["ternmq_registered_brokers", "master"].labels["broker_cluster"],
    )
    assert 1 == found["ternmq_registered_broker_names", ""].value
    assert 0 < found["rocketmq_topic_number", ""].value
    assert 0 < found["ternmq_request_wait_milliseconds_count", "broker"].value
    assert 0 < found["process_resident_memory_bytes", ""].value
    assert "namesrv" == found["ternmq_connections", ""].labels["node_type"]


async def test_with_access_control_only_this_machine_reads_metrics(tmp_path: Path) -> None:
    """T4, N1: they name brokers, and a name server has no accounts for HTTP."""
    acl_in(tmp_path / "conf")
    port = free_port()
    async with NameServer(config(port, acl_enable=True, acl_path=tmp_path / "conf")):
        assert 200 == (await Site(port).get("/metrics"))[0]
    web = object.__new__(NameServerWeb)
    web._is_guarded = True
    answer = await web.answer(HttpRequest(("metrics",), {}, "", ip="10.0.0.9", address="10.0.0.9:1", is_tls=True))
    assert (403, True) == (answer.status, b"its own machine" in answer.body)


def test_a_port_that_is_none_is_refused() -> None:
    """T2."""
    with pytest.raises(ConfigError, match="invalid httpPort 70000: expected 0 to 65535"):
        config(70_000)
