"""Who pops what (F9, G1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.allocation import Averagely
from ternmq.broker.tables.included import Included
from ternmq.files import TableFile
from ternmq.message import MessageQueue
from ternmq.pop.assign import RequestModeTable, popped_queues
from ternmq.wire.bodies.clients import GroupRequestMode, RequestMode

QUEUES = [MessageQueue("orders", broker, queue_id) for broker in ("a", "b") for queue_id in range(4)]
MEMBERS = ["one", "two", "three", "four"]


def modes(path: Path, **defaults: object) -> RequestModeTable:
    given: dict[str, object] = {"default_mode": RequestMode.PULL, "default_share": -1}
    file = TableFile(path / "messageRequestMode.json")
    table = RequestModeTable(file, included=Included(), **(given | defaults))  # type: ignore[arg-type]
    table.load()
    return table


def pops(group: str = "poppers", share: int = 2) -> GroupRequestMode:
    return GroupRequestMode(topic="orders", consumer_group=group, mode=RequestMode.POP, pop_share_queue_num=share)


@pytest.mark.parametrize("share", [-1, 0, 3, 9])
def test_without_a_share_each_member_pops_every_broker(share: int) -> None:
    """F9: queue -1 is all of them."""
    expected = [MessageQueue("orders", broker, -1) for broker in ("a", "b")]

    assert expected == popped_queues(Averagely(), "one", QUEUES, MEMBERS, share=share)


def test_with_a_share_a_member_pops_its_own_queues_and_those_of_its_followers() -> None:
    """F9: so each queue has share + 1 members."""
    found = {member: popped_queues(Averagely(), member, QUEUES, MEMBERS, share=1) for member in MEMBERS}

    own = {member: Averagely().allocate(member, QUEUES, MEMBERS) for member in MEMBERS}
    # Sorted: four, one, three, two.
    assert sorted(own["one"] + own["three"]) == found["one"]
    assert sorted(own["two"] + own["four"]) == found["two"]
    assert {2} == {sum(queue in mine for mine in found.values()) for queue in QUEUES}
    assert [] == popped_queues(Averagely(), "stranger", QUEUES, MEMBERS, share=1)


def test_more_members_than_queues_have_one_each() -> None:
    """F9"""
    found = [popped_queues(Averagely(), member, QUEUES[:2], MEMBERS, share=1) for member in sorted(MEMBERS)]

    assert [[QUEUES[0]], [QUEUES[1]], [QUEUES[0]], [QUEUES[1]]] == found


def test_modes_outlive_the_broker(tmp_path: Path) -> None:
    """F9"""
    modes(tmp_path).put(pops())

    table = modes(tmp_path)

    assert pops() == table.find("poppers", "orders")
    assert RequestMode.PULL is table.find("others", "orders").mode
    table.forget(topic="orders")
    assert RequestMode.PULL is modes(tmp_path).find("poppers", "orders").mode


def test_the_default_mode_does_not_hold_for_retry_topics(tmp_path: Path) -> None:
    """F9: they are pulled, always."""
    table = modes(tmp_path, default_mode=RequestMode.POP, default_share=3)

    assert (RequestMode.POP, 3) == (table.find("g", "t").mode, table.find("g", "t").pop_share_queue_num)
    assert RequestMode.PULL is table.find("g", "%RETRY%g").mode


def test_a_file_of_rocketmqs_is_read(tmp_path: Path) -> None:
    """F9, V3"""
    text = (
        '{\n\t"messageRequestModeMap":{\n\t\t"orders":{\n\t\t\t"poppers":{"consumerGroup":"poppers","mode":"POP",'
        '"popShareQueueNum":2,"topic":"orders"}\n\t\t}\n\t}\n}'
    )
    (tmp_path / "messageRequestMode.json").write_text(text)

    assert pops() == modes(tmp_path).find("poppers", "orders")
