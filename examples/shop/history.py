"""What customers see: the steps of their order, one after the other."""

from __future__ import annotations

import json

from sqlalchemy.orm import Session

from shop.schema import Step
from ternmq import ReceivedMessage


def on_step(message: ReceivedMessage, session: Session) -> None:
    """Write down what arrived, in the order of arrival. The books check it later."""
    step = json.loads(message.body)
    session.add(Step(order_id=step["order"], number=step["number"], step=step["step"]))
