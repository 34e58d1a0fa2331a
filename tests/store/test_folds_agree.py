"""What is derived from fresh records equals what is derived from the log again, byte for byte (C2, C4, C5)."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TypeAlias

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from tests.manual_clock import ManualClock
from tests.store.small import BORN, log_queues_index, quiet_store, small_config

NAMES = ("TAGS", "KEYS", "UNIQ_KEY", "DELAY", "MYTAGS", "TAGSX", "K", "")
VALUES = ("", "a", "b", "a b", " a  b ", "1", "18", "99", "x\x01y", "TAGS\x01a", "TAGS", "é", "0A" * 16, "\0")

#: A topic, and what stands in the properties of each message; several are a batch.
Put: TypeAlias = tuple[str, list[str]]

texts = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)
puts = st.lists(
    st.tuples(st.sampled_from(("orders", SCHEDULE_TOPIC)), st.lists(texts, min_size=1, max_size=3)), max_size=12
)


def put(store: MessageStore, topic: str, properties: list[str]) -> None:
    if len(properties) == 1:
        store.put(Draft(topic, 0, b"x", properties[0], 1, BORN))
    else:
        parcels = [(0, b"x", text.encode()) for text in properties]
        store.put_batch("orders", 0, parcels, born_time_ms=1, born_host=BORN, more_properties=b"CLUSTER\x01c\x02")


@settings(max_examples=100, deadline=None)
@given(puts, st.booleans())
@example([("orders", ["TAGS\x01\x02"]), ("orders", ["TAGS\x01a\x02TAGS\x01\x02"])], False)
@example([("orders", ["TAGS\x01a\x02TAGS\x01\x02"]), ("orders", ["TAGS\x01\x02"])], False)
@example([("orders", ["TAGS\x01\x02", "TAGS\x01a\x02TAGS\x01\x02"])], False)
def test_fresh_and_folded_again_are_the_same_bytes(sent: list[Put], ends_open: bool) -> None:
    """Point 13: with names twice, empty values, and names and values that look like others."""
    with tempfile.TemporaryDirectory() as directory:
        config = small_config(Path(directory), mapped_file_size_commit_log=1 << 14, max_index_num=1000)
        clock = ManualClock()
        with quiet_store(config, clock=clock) as store:
            for topic, properties in sent:
                put(store, topic, properties)
                if ends_open and len(properties) == 1:
                    # Before RocketMQ 5.2 the last pair had no end.
                    put(store, topic, [properties[0].removesuffix("\x02")])
                clock.advance(1)
        fresh = log_queues_index(Path(directory))
        for kind in ("consumequeue", "index"):
            shutil.rmtree(Path(directory) / kind, ignore_errors=True)
        with quiet_store(config, clock=clock):
            pass
        assert fresh == log_queues_index(Path(directory))
