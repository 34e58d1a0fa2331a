"""What a broker measures, for Prometheus (T4, D5)."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ternmq.broker import metrics
from ternmq.net import exposition
from ternmq.store.config import FlushDiskType
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import EndTransaction, PullSysflag, SendMessage, UpdateOffset
from ternmq.wire.requests_share import ShareAck, SharePull, SharePullReply
from tests.auth.accounts import BILLING, BOSS, acl_in
from tests.broker.calls import FAR_MS, Caller, dialled, v2
from tests.broker.test_web import Site, site_of

MONITORING = Path(__file__).parents[2] / "examples" / "monitoring"
#: Names of metrics in PromQL; ``up`` is Prometheus' own.
_NAME = re.compile(r"\b(?:(?:rocketmq|ternmq|process)_[a-z_]+|up(?=\{))")

Series = dict[tuple[str, str, str], float]


async def scrape(site: Site, credentials: Credentials | None = None) -> tuple[Series, set[str]]:
    """Name, topic and group → value, as Prometheus reads them; and the names of all metrics."""
    status, text = await site.get("/metrics", credentials)
    assert 200 == status, text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    series = {
        (each.name, each.labels.get("topic", ""), each.labels.get("consumer_group", "")): each.value for each in samples
    }
    for each in samples:
        if not each.name.startswith(("process_", "ternmq_metrics_left_out")):
            assert ("DefaultCluster", "broker") == (each.labels["cluster"], each.labels["node_type"])
    return series, {each.name for each in samples}


async def commit(caller: Caller, group: str, topic: str, queue_offset: int) -> None:
    header = UpdateOffset(consumer_group=group, topic=topic, queue_id=0, commit_offset=queue_offset)
    assert 0 == (await caller.call(RequestCode.UPDATE_CONSUMER_OFFSET, header)).code


async def test_counts_and_lag_are_those_of_the_broker(tmp_path: Path) -> None:
    """D5, T4: what went in and out, and what a group has not read."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        for number in range(5):
            await caller.sent("orders", b"%d" % number)
        # A group that the broker does not know is not counted: any name could be made up.
        await caller.heartbeat("billing", {"orders": "*"})
        await caller.records("orders", 0, consumer_group="billing")
        await commit(caller, "billing", "orders", 3)
        series, names = await scrape(site)

    assert 5 == series["rocketmq_messages_in_total", "orders", ""]
    assert 0 < series["rocketmq_throughput_in_total", "orders", ""]
    assert 5 == series["rocketmq_messages_out_total", "orders", "billing"]
    assert 2 == series["rocketmq_consumer_lag_messages", "orders", "billing"]
    assert 0 <= series["rocketmq_consumer_lag_latency_milliseconds", "orders", "billing"] < 60_000
    assert (
        100 < series["ternmq_consumer_lag_bytes", "orders", "billing"] < series["rocketmq_storage_size_bytes", "", ""]
    )
    assert 0 < series["rocketmq_storage_size_bytes", "", ""]
    assert {"ternmq_build_info", "ternmq_broker_role", "ternmq_refused_requests_total"} <= names
    assert 0 < series["process_resident_memory_bytes", "", ""]


async def test_the_lag_in_time_of_old_messages_is_read_from_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T4, D5: for so many groups; of the others it is not told."""
    monkeypatch.setattr(metrics, "OLD_MAX", 1)
    store = {"access_message_in_memory_max_ratio": 0}
    async with site_of(tmp_path, store=store) as (running, site), dialled(running.address) as caller:
        for topic, count in (("orders", 2), ("bills", 5)):
            for _ in range(count):
                await caller.sent(topic, b"1")
            await caller.heartbeat("billing", {topic: "*"})
            await commit(caller, "billing", topic, 0)
        series, _ = await scrape(site)
    assert 0 <= series["rocketmq_consumer_lag_latency_milliseconds", "bills", "billing"] < 600_000
    assert ("rocketmq_consumer_lag_latency_milliseconds", "orders", "billing") not in series
    assert 2 == series["rocketmq_consumer_lag_messages", "orders", "billing"]


async def test_waits_of_requests_are_counted_in_buckets(tmp_path: Path) -> None:
    """D5, T4: each send once, alone or in a run; the runtime table has the same, as RocketMQ writes it."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        properties = {"UNIQ_KEY": "7F000001000018B4AAC2000000000001"}
        await caller.sent("orders", b"0", properties=properties)
        await asyncio.gather(*(caller.sent("orders", b"1", properties=properties) for _ in range(60)))
        _, text = await site.get("/metrics")
        response = await caller.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    found = {
        sample.labels["le"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "ternmq_request_wait_milliseconds_bucket" and sample.labels["processor"] == "send"
    }
    assert [61] == [value for bound, value in found.items() if bound == "+Inf"]
    assert list(found.values()) == sorted(found.values())
    told = decode(response.body, KvTable).table["putMessageDistributeTime"]
    spans = re.findall(r"\[([^\]]+)\]:(\d+) ", told)
    assert 61 == sum(int(count) for _, count in spans)
    told_spans = "<=0ms 0~10ms 10~50ms 50~100ms 100~200ms 200~500ms 500ms~1s 1~2s 2~3s 3~4s 4~5s 5~10s 10s~"
    assert told_spans == " ".join(span for span, _ in spans)


Rpcs = dict[tuple[str, str, str, str], float]


async def rpcs_of(site: Site) -> Rpcs:
    """Request code, response code, whether it was a long poll, result → how many."""
    _, text = await site.get("/metrics")
    labels = ("request_code", "response_code", "is_long_polling", "result")
    return {
        (sample.labels[labels[0]], sample.labels[labels[1]], sample.labels[labels[2]], sample.labels[labels[3]]): (
            sample.value
        )
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "rocketmq_rpc_latency_milliseconds_count" and sample.labels["protocol_type"] == "remoting"
    }


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_the_time_of_each_request_is_counted_by_its_codes(tmp_path: Path, flush: str) -> None:
    """D5, T4: each once, whether it came alone or in a run, was answered at once, or when the disk had it."""
    store = {"flush_disk_type": FlushDiskType[flush]}
    async with site_of(tmp_path, store=store) as (running, site), dialled(running.address) as caller:
        properties = {"UNIQ_KEY": "7F000001000018B4AAC2000000000001"}
        await caller.sent("orders", b"0", properties=properties)
        await asyncio.gather(*(caller.sent("orders", b"1", properties=properties) for _ in range(60)))
        old = SendMessage(producer_group="p", topic="orders", queue_id=0)
        assert 0 == (await caller.call(RequestCode.SEND_MESSAGE, old, b"2")).code
        refused = ResponseCode((await caller.send("orders", b"3", queue_id=1_000)).code)
        caller.peer.call_oneway(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0), b"4")
        await caller.heartbeat("billing", {"orders": "*"})
        assert 61 + 2 == len(await caller.arrived("orders", 61 + 2, consumer_group="billing"))
        held: dict[str, Any] = {
            "sysflag": PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
            "suspend_timeout_ms": FAR_MS,
            "consumer_group": "billing",
        }
        waiting = asyncio.create_task(caller.pull("orders", 63, **held))
        await caller.call(75_000)
        await caller.sent("orders", b"5")
        await waiting
        found = await rpcs_of(site)

    plain = ("false", "success")
    assert 62 == found["send_message_v2", "success", *plain]
    assert 1 == found["send_message", "success", *plain]
    assert 1 == found["send_message_v2", refused.name.lower(), *plain]
    assert 1 == found["send_message_v2", "success", "false", "oneway"]
    assert 1 == found["heart_beat", "success", *plain]
    assert 1 == found["other", "request_code_not_supported", *plain]
    assert 1 <= found["pull_message", "success", *plain]
    assert 1 <= found["pull_message", "success", "true", "success"]


async def test_ends_of_transactions_are_told_from_the_sends_among_which_they_came(tmp_path: Path) -> None:
    """D5, L3: they are handled in one run, and have rows of their own."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        half = {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "7F000001000018B4AAC2000000000001"}
        await caller.sent("orders", b"0")
        halves = [await caller.sent("orders", b"1", properties=half, sysflag=4) for _ in range(4)]
        ends = [
            EndTransaction(
                topic="orders",
                producer_group="p",
                queue_offset=each.queue_offset,
                log_offset=int(each.message_id[16:], 16),
                decision=8,
                message_id=each.message_id,
                transaction_id=each.transaction_id,
            )
            for each in halves
        ]
        more = [caller.send("orders", b"2", properties=half, sysflag=4) for _ in range(3)]
        answers = await asyncio.gather(*(caller.call(RequestCode.END_TRANSACTION, end) for end in ends), *more)
        assert {0} == {answer.code for answer in answers}
        found = await rpcs_of(site)

    assert 4 == found["end_transaction", "success", "false", "success"]
    assert 8 == found["send_message_v2", "success", "false", "success"]


async def test_shared_consumption_has_the_measures_that_qmqs_operators_know(tmp_path: Path) -> None:
    """R2–R4: lost acks and when, expired, time-outs, retries, offline tasks, and the time of a group's slices."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        for number in range(3):
            await caller.sent("orders", b"%d" % number)
        fields: dict[str, Any] = {"consumer_group": "billing", "topic": "orders", "consumer": "worker"}
        response = await caller.call(RequestCode.SHARE_PULL, SharePull(**fields, count_max=3))
        life = response.read(SharePullReply).life
        assert 0 == (await caller.call(RequestCode.SHARE_ACK, ShareAck(**fields, life=life, first=2, last=2))).code
        series, names = await scrape(site)

    assert (1, 1) == (series["ternmq_share_pulls_total", "", ""], series["ternmq_share_acks_total", "", ""])
    assert 2 == series["ternmq_share_lost_acks_total", "", ""], "messages 0 and 1 were passed over"
    assert 0 < series["ternmq_share_lost_ack_time_seconds", "", ""]
    assert 0 < series["ternmq_group_seconds_total", "", "billing"]
    assert 2 == series["ternmq_group_slices_total", "", "billing"]
    counters = ("expired", "ack_timeouts", "retried", "offline_tasks", "refused_acks")
    assert {f"ternmq_share_{name}_total" for name in counters} <= names
    gauges = ("waiting", "consumers", "held", "retry_waiting", "state_bytes")
    assert {f"ternmq_share_{name}" for name in gauges} <= names


async def test_a_metric_has_a_bounded_number_of_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: and says how many it lacks."""
    monkeypatch.setattr(exposition, "SERIES_MAX", 3)
    monkeypatch.setattr(exposition, "SLICE_ROWS", 2)
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        for number in range(8):
            await caller.sent(f"t{number}", b"1")
        text = (await site.get("/metrics"))[1]
    assert 3 == len(re.findall(r"^rocketmq_messages_in_total\{", text, re.MULTILINE))
    assert 'ternmq_metrics_left_out{metric="rocketmq_messages_in"} 5.0' in text


async def test_they_name_topics_and_groups_of_others_so_an_admin_reads_them(tmp_path: Path) -> None:
    """T4, N1: as lists of all groups on the port for clients."""
    acl_in(tmp_path / "conf")
    async with site_of(tmp_path, acl_enable=True, acl_path=tmp_path / "conf") as (_, site):
        assert 401 == (await site.get("/metrics"))[0]
        assert 403 == (await site.get("/metrics", Credentials(BILLING.access_key, "not-the-secret")))[0]
        assert 403 == (await site.get("/metrics", BILLING))[0]
        await scrape(site, BOSS)


async def test_one_text_is_made_at_a_time_and_given_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T4: making it takes CPU of the broker."""
    made: list[bytes] = []

    def text(reading: Any) -> bytes:
        made.append(make(reading))
        return made[-1]

    make = exposition.Exposition.text
    monkeypatch.setattr(exposition.Exposition, "text", text)
    async with site_of(tmp_path) as (_, site):
        answers = await asyncio.gather(*(site.get("/metrics") for _ in range(8)))
        assert {(200, made[0].decode())} == set(answers)
        assert 1 == len(made)
        monkeypatch.setattr(exposition, "KEPT_S", 0.0)
        await site.get("/metrics")
    assert 2 == len(made)


async def test_dashboard_and_alerts_ask_for_metrics_that_exist(tmp_path: Path) -> None:
    """T4: the files of ``examples/monitoring``."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        await caller.sent("orders", b"1")
        await caller.records("orders", 0, consumer_group="billing")
        await commit(caller, "billing", "orders", 1)
        # One that needs a slave is declared without a value.
        text = (await site.get("/metrics"))[1]
    served = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    rules = yaml.safe_load((MONITORING / "alerts.yml").read_text())
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    dashboard = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(alerts) >= 6
    assert len(queries) >= 10
    for query in (*alerts, *queries):
        asked = set(_NAME.findall(query))
        assert asked
        assert {name.removesuffix("_bucket") for name in asked} <= served | {"up"}, query
