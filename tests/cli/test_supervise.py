"""What ``tern up`` plans (T1); the journeys with real processes are in ``test_journeys``."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.cli.supervise import BrokerPlan, plan_brokers
from ternmq.errors import ConfigError


def plans(*, count: int = 1, first_port: int = 10911, slaves: int = 0) -> list[BrokerPlan]:
    return plan_brokers(
        count=count,
        directory=Path("data"),
        first_port=first_port,
        host="127.0.0.1",
        name_server="127.0.0.1:9876",
        settings=["flushDiskType=SYNC_FLUSH"],
        slaves=slaves,
    )


def test_brokers_have_names_ports_and_directories_of_their_own() -> None:
    first, second = plans(count=2)

    assert first == BrokerPlan(
        "broker-a",
        (
            "brokerIP1=127.0.0.1",
            "flushDiskType=SYNC_FLUSH",
            "brokerName=broker-a",
            "listenPort=10911",
            f"storePathRootDir={Path('data/broker-a')}",
            "namesrvAddr=127.0.0.1:9876",
        ),
    )
    assert "broker-b" == second.name
    assert {"listenPort=10931", f"storePathRootDir={Path('data/broker-b')}"} < set(second.settings)


def test_slaves_have_the_name_of_their_broker_and_ports_between() -> None:
    """O1: the last value of a setting counts."""
    names = [plan.name for plan in plans(count=2, slaves=2)]
    assert [
        "broker-a",
        "broker-a-slave-1",
        "broker-a-slave-2",
        "broker-b",
        "broker-b-slave-1",
        "broker-b-slave-2",
    ] == names
    _, _, third, *_ = plans(count=2, slaves=2)
    settings = dict(each.split("=") for each in third.settings)
    assert ("broker-a", "2", "SLAVE", "10919") == tuple(
        settings[key] for key in ("brokerName", "brokerId", "brokerRole", "listenPort")
    )
    assert str(Path("data/broker-a-slave-2")) == settings["storePathRootDir"]
    with pytest.raises(ConfigError, match="--slaves"):
        plans(slaves=5)


def test_port_zero_takes_free_ports_for_all() -> None:
    assert ["listenPort=0", "listenPort=0"] == [plan.settings[3] for plan in plans(count=2, first_port=0)]


@pytest.mark.parametrize(("count", "port"), [(0, 10911), (27, 10911), (3, 65500)])
def test_more_than_there_is_room_for_is_refused(count: int, port: int) -> None:
    with pytest.raises(ConfigError, match=r"--broker"):
        plans(count=count, first_port=port)
