"""Answers of slaves that a reader must not follow (O3).

A reader asks a slave because the master suggested it, or because the master is away. A slave may have less than its
master: at the end, as it lags, and at the beginning, as an empty slave of RocketMQ starts with the last file. TernMQ's
slaves let such a reader wait. Those of RocketMQ answer at once and repeat the offset of the question.
"""

from __future__ import annotations

from typing import Final

from ternmq.errors import NetworkError
from ternmq.message import MessageQueue
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import PullReply

#: The remark of a slave of RocketMQ 5 without ``slaveReadEnable``, which takes no pulls at all.
_REJECTED: Final = "[REJECTREQUEST]"
_WAITS: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})


def check_slave(queue: MessageQueue, asked_offset: int, response: Response) -> None:
    """Raise ``NetworkError`` for an answer of a slave to a pull if only the master can help."""
    if response.code == ResponseCode.SYSTEM_BUSY and (response.remark or "").startswith(_REJECTED):
        raise NetworkError(
            f"the slave of {queue.broker_name} refuses to be read; set slaveReadEnable=true on it",
            address=queue.broker_name,
        )
    if response.code in _WAITS:
        begin = response.read(PullReply).min_offset
        if asked_offset < begin:
            raise NetworkError(
                f"the slave of {queue.broker_name} has {queue} from queue offset {begin} on; older messages, from "
                f"{asked_offset} on, may be on the master, which is away",
                address=queue.broker_name,
            )
