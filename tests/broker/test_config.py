"""Settings of a broker: wrong ones are named, with what they may be (T2)."""

from __future__ import annotations

from typing import Any

import pytest

from ternmq.broker import flow
from ternmq.broker.config import BrokerConfig
from ternmq.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"broker_name": ""}, "brokerName = '' is no name"),
        ({"broker_name": "a:b"}, "brokerName = 'a:b' is no name; use 1 to 127 letters"),
        ({"broker_cluster_name": "my cluster"}, "brokerClusterName = 'my cluster' is no name"),
        ({"listen_port": 70_000}, "listenPort = 70000 is out of range; set it to 0 … 65535"),
        ({"broker_id": -1}, "brokerId = -1 is out of range"),
        ({"broker_permission": 9}, "brokerPermission = 9 is out of range; set it to 0 … 7"),
        ({"default_topic_queue_nums": 0}, "defaultTopicQueueNums = 0 is out of range"),
        ({"register_name_server_period": 5}, "registerNameServerPeriod = 5 is out of range; set it to 10000 … 60000"),
        ({"flush_consumer_offset_interval": 0}, "flushConsumerOffsetInterval = 0 is out of range"),
        ({"region_id": "a\x02b"}, "regionId"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_may_be(changes: dict[str, Any], sentence: str) -> None:
    """T2"""
    with pytest.raises(ConfigError, match=sentence.replace("…", ".")):
        BrokerConfig(**({"broker_name": "broker-a"} | changes))


def test_a_host_s_name_is_a_broker_s_name() -> None:
    """T2: the default, whatever the machine is called."""
    assert BrokerConfig(broker_name="node-1.example.com").broker_name == "node-1.example.com"
    assert BrokerConfig().broker_name


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1 ; b:2;", "a:1,b:2"])
def test_name_servers_are_separated_by_semicolons(text: str) -> None:
    """A2"""
    assert BrokerConfig(broker_name="b", namesrv_addr=text).name_servers == ("a:1", "b:2")


def test_the_lanes_have_the_bounds_of_the_settings() -> None:
    """B3, M1"""
    config = BrokerConfig(broker_name="b", send_thread_pool_queue_capacity=7, wait_time_mills_in_send_queue=8)

    lanes = {lane.name: (lane.capacity, lane.wait_max_ms) for lane in flow.lanes(config)}

    assert lanes == {
        "send": (7, 8),
        "pull": (100_000, 5_000),
        "query": (20_000, 0),
        "client": (50_000, 31_000),
        "admin": (10_000, 5_000),
    }
