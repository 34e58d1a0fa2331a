"""Light queues of RocketMQ: further queues that a record is in, besides its own (C11).

With ``enableMultiDispatch`` and ``enableLmq`` a message names queues of its own in a property, ``%LMQ%a,%LMQ%b``, and
RocketMQ adds the queue offsets that it got there to the record. TernMQ neither makes such queues nor gives such
offsets. But a directory of RocketMQ may have some, and a fold of its log must not lose their entries. Only then are
these properties looked at: any client can send them, and no client shall get into queues that way. Light queues
themselves show it, and where they were thrown away, the table that RocketMQ keeps only with ``enableLmq``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ternmq.wire.properties import find

#: Topics of light queues begin with this; each has one queue, number 0.
LIGHT_PREFIX: Final = "%LMQ%"

#: In ``config/``: how far consumers of light queues are.
LIGHT_TABLE: Final = "lmqConsumerOffset.json"

#: Properties: the queues, and a record's queue offset in each.
_NAMES: Final = "INNER_MULTI_DISPATCH"
OFFSETS_PROPERTY: Final = "INNER_MULTI_QUEUE_OFFSET"


def light_places(properties: str) -> Iterator[tuple[str, int]]:
    """Topic and queue offset of a record in each light queue that it is in."""
    if OFFSETS_PROPERTY not in properties:
        return
    names, offsets = find(properties, _NAMES) or "", find(properties, OFFSETS_PROPERTY) or ""
    for name, offset in zip(names.split(","), offsets.split(","), strict=False):
        if name.startswith(LIGHT_PREFIX) and offset.isascii() and offset.isdigit():
            yield name, int(offset)
