"""How many queues, members, brokers, and how much disk a load needs (T1): a calculator without a cluster.

The rules, and where the numbers come from, are in docs/guides/command-line.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

#: Bytes of a record besides its body, topic and properties: 91 fixed, and some 110 of a usual message.
RECORD_EXTRA_BYTES: Final = 200
#: Of each message in a queue file, and in the index if it has a key and an id.
QUEUE_ENTRY_BYTES: Final = 20
INDEX_ENTRY_BYTES: Final = 2 * 28
#: Brokers delete old segments from diskMaxUsedSpaceRatio on: less than that is to be filled.
DISK_FILL: Final = 0.70
#: Peaks, restarts of members, retries: twice the average.
HEADROOM: Final = 2.0
#: Each member gets whole queues; with twice as many, one member less changes little for the others.
QUEUES_PER_MEMBER: Final = 2
QUEUES_MIN: Final = 4


@dataclass(slots=True, frozen=True)
class Sizing:
    """What a load needs.

    Attributes:
        at_once: Messages in progress at once, on average, with headroom (Little's law).
        members: Consumer processes.
        queues: Queues of the topic, on all brokers together.
        masters: Brokers that take messages.
        disk_bytes: Disk of each broker, masters and replicas alike.
        network_bytes_s: Bytes a second into one master, and to its replicas and consumers.
    """

    at_once: int
    members: int
    queues: int
    masters: int
    disk_bytes: int
    network_bytes_s: int


def size(
    *,
    rate: float,
    body_bytes: int,
    retention_h: float,
    work_ms: float,
    threads: int,
    members_min: int,
    orderly: bool,
    broker_rate: float,
    replicas: int,
    groups: int,
) -> Sizing:
    """For ``rate`` messages a second of ``body_bytes``, kept for ``retention_h`` hours; each takes a consumer
    ``work_ms``, and a member works on ``threads`` at once. Orderly consumers work on one message of a queue at a time.
    """
    at_once = max(1, math.ceil(rate * work_ms / 1000 * HEADROOM))
    members = max(members_min, math.ceil(at_once / threads))
    queues = max(QUEUES_MIN, members * QUEUES_PER_MEMBER, at_once if orderly else 0)
    masters = max(1, math.ceil(rate * HEADROOM / broker_rate))
    # The same number on each broker.
    queues = math.ceil(queues / masters) * masters
    stored = body_bytes + RECORD_EXTRA_BYTES + QUEUE_ENTRY_BYTES + INDEX_ENTRY_BYTES
    disk = rate * retention_h * 3600 * stored / masters / DISK_FILL
    network = rate / masters * (body_bytes + RECORD_EXTRA_BYTES) * (1 + replicas + groups)
    return Sizing(at_once, members, queues, masters, math.ceil(disk), math.ceil(network))
