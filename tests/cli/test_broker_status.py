"""The table of ``tern broker status`` (O1, T1)."""

from __future__ import annotations

import pytest

from ternmq.admin.brokers import BrokerInfo, BrokerState
from ternmq.cli.brokers import _at_risk, _show
from ternmq.cli.output import Output
from ternmq.replication.slave import SlaveState
from ternmq.wire.bodies.replication import BrokerStatus, FollowedMaster, SlaveLine


def state(broker_id: int, port: int, role: str, **more: object) -> BrokerState:
    address = f"10.0.0.{broker_id + 1}:{port}"
    status = BrokerStatus(broker="broker-a", broker_id=broker_id, address=address, role=role, epoch=1, **more)  # type: ignore[arg-type]
    return BrokerState(BrokerInfo("DefaultCluster", "broker-a", broker_id, address), status)


@pytest.mark.parametrize(
    ("slave_state", "lag"),
    [(SlaveState.FOLLOWING, ["4096", "1.5", "yes"]), (SlaveState.REFUSED, ["-", "-", "-"])],
)
def test_the_lag_of_a_slave_is_what_its_master_says_while_it_follows(
    slave_state: SlaveState, lag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """O1: in bytes and seconds. A slave that is refused because another one has its id does not show that one's lag."""
    line = SlaveLine(broker_id=1, state="sending", lag_bytes=4096, lag_ms=1500, in_sync=True)
    followed = FollowedMaster(address="10.0.0.1:10912", state=slave_state.value)
    _show(
        Output(as_json=False),
        [state(0, 10911, "SYNC_MASTER", slaves=[line]), state(1, 10911, "SLAVE", master=followed)],
    )
    row = capsys.readouterr().out.splitlines()[-1].split("\t")
    assert [slave_state.value, *lag] == row[-4:]


def test_a_promotion_tells_what_could_be_lost() -> None:
    """O1: in bytes and messages, as far as the slave knows."""
    followed = FollowedMaster(state="connecting", known_end=10_000, known_ms_ago=1500)
    slave = state(1, 10911, "SLAVE", master=followed, log_end=8_000, messages=40).status
    assert slave is not None
    assert "1.5 s ago it lacked 2000 bytes of its master (about 10 messages)" in _at_risk(slave)
