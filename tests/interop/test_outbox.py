"""The outbox on Apache's brokers (J3): its messages are ordinary ones, in batches, in order, delayed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from ternmq import Message
from ternmq.outbox.sqlalchemy import Outbox
from tests.interop.rocketmq import RocketMQ
from tests.outbox.topics import messages_of, wait_for

pytestmark = pytest.mark.interop


def test_messages_of_a_transaction_arrive_on_rocketmq(any_rocketmq: RocketMQ, tmp_path: Path) -> None:
    """J3: with the ids that they got when they were saved."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine, name_servers=any_rocketmq.address)
    outbox.create()
    topic = f"outbox-{tmp_path.name}"
    messages = [
        *(Message(topic, b"a%d" % number, sharding_key="a", keys=f"k{number}", tags="new") for number in range(20)),
        *(Message(topic, b"free", properties={"n": "1"}) for _ in range(20)),
        Message(topic, b"x" * 20_000),
        Message(topic, b"delayed", delay_level=1),
    ]
    with outbox:
        with Session(engine) as session, session.begin():
            ids = outbox.send(session, *messages)
        with Session(engine) as session:
            outbox.send(session, Message(topic, b"never"))
            session.rollback()
        wait_for(lambda: len(asyncio.run(messages_of(any_rocketmq.address, topic))) >= len(messages))
    engine.dispose()

    found = asyncio.run(messages_of(any_rocketmq.address, topic))
    assert sorted(ids) == sorted(message.message_id for message in found)
    assert [b"a%d" % number for number in range(20)] == [one.body for one in found if one.body.startswith(b"a")]
    assert {b"x" * 20_000, b"delayed", b"free"} < {one.body for one in found}
