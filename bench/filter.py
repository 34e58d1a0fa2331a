"""SQL filters: messages per second on one core. Run: python -m bench.filter [messages]

A store with messages of 128 bytes and nine properties, as clients send them. Three comparisons, written as users would;
half of the messages pass the first, a quarter the second, an eighth all. The CPU time of the thread is measured:

- *filter*: from the bytes of a record to the result: properties found, decoded, and the expression evaluated;
- *pull*: ``store.get`` over the whole queue, from the queue entries to views of matching records, properties read from
  the log. Goal: 300,000 messages per second.

Then the same with Bloom maps beside the queue, which avoid reading records that do not match, and the cost of these
maps when a message is stored.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import Filters, Wanted
from ternmq.env import SystemClock
from ternmq.files import TableFile
from ternmq.store.store import Draft, MessageStore, StoreConfig
from ternmq.wire.bodies.clients import ConsumerData, SubscriptionData
from ternmq.wire.properties import join
from ternmq.wire.record import peek_properties

sys.path.insert(0, str(Path(__file__).parent))
from bench.store import HOST

SQL = "amount > 5 AND region = 'eu' AND weight < 10.5"
#: The same, but all three comparisons are made for each message, and it passes.
SQL_ALL = "amount > 1 AND region <> 'cn' AND weight < 99.5"
ROUNDS = 5


def properties(number: int, *, differ: bool = False) -> str:
    """As a client sends them; of few values, or all different."""
    return join(
        {
            "UNIQ_KEY": f"7F0000010A2B4C5D6E7F0001{number:08X}",
            "WAIT": "true",
            "TAGS": "paid",
            "KEYS": f"order-{number}",
            "amount": str(5 + number) if differ else str(9 if number & 1 else 3),
            "region": "eu" if number & 2 else "us",
            "weight": f"{number % 90}.{number}" if differ else "7.25" if number & 4 else "12.5",
            "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        }
    )


def best(work: Callable[[], int]) -> float:
    """The best of some rounds, in messages a second of CPU time."""
    rates = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        count = work()
        rates.append(count / (time.thread_time() - began))
    return max(rates)


def filters(root: Path) -> Filters:
    clock = SystemClock()
    config = BrokerConfig(broker_name="bench", enable_property_filter=True)
    clients = Clients(clock)
    table = Filters(TableFile(root / "consumerFilter.json"), clock, clients, config)
    said = SubscriptionData(topic="orders", sub_string=SQL, expression_type="SQL92")
    data = ConsumerData(group_name="billing", subscription_data_set=[said])
    clients.add_consumer(data, None, "bench", language="PYTHON", version=1)  # type: ignore[arg-type]
    table.register({"billing": [said]})
    return table


def records_of(store: MessageStore, count: int) -> list[memoryview]:
    places = [
        place
        for queue_offset in range(0, count, 500)
        for place in store.entries("orders", 0, queue_offset, min(500, count - queue_offset))
    ]
    views = [store.record_at(place.log_offset, place.size) for place in places]
    return [view for view in views if view is not None]


def filtered(records: list[memoryview], wanted: Wanted, passed: int) -> int:
    """Ask a filter about all records; how many there are."""
    accepts, found = wanted.accepts, 0
    assert accepts is not None
    for record in records:
        text = peek_properties(record, 0, len(record))
        if text is not None and accepts(text):
            found += 1
    assert found == passed, (found, passed)
    return len(records)


def drained(store: MessageStore, wanted: Wanted, passed: int) -> int:
    """Read the whole queue through a filter; how many messages it has."""
    queue_offset, end, found = 0, store.max_offset("orders", 0), 0
    while queue_offset < end:
        result = store.get(
            "orders",
            0,
            queue_offset,
            count_max=32,
            matches=wanted.matches,
            may_pass=wanted.may_pass,
            accepts=wanted.accepts,
        )
        queue_offset = result.next_offset
        found += result.count
    assert found == passed, (found, passed)
    return end


def stored(root: Path, count: int, *, table: Filters | None, differ: bool = False) -> tuple[MessageStore, float]:
    """A store with the messages, with Bloom maps if there is a table; and its puts a second."""
    store = MessageStore.open(
        StoreConfig(store_path_root_dir=root, enable_consume_queue_ext=table is not None),
        store_host=HOST,
        clock=SystemClock(),
        bits=table.bits if table is not None else None,
    )
    time.sleep(0.002)  # maps count from the millisecond after the filter's birth
    drafts = [Draft("orders", 0, b"x" * 128, properties(number, differ=differ), 1, HOST) for number in range(count)]
    began = time.thread_time()
    for draft in drafts:
        store.put(draft)
    return store, count / (time.thread_time() - began)


def main(count: int) -> None:
    count -= count % 8
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        table = filters(root)
        wanted = table.of_heartbeat("billing", "orders", 0)
        all_wanted = table.of_request("billing", "orders", "SQL92", SQL_ALL)
        print(f"{SQL}: {count:,} messages, 1 of 8 passes")
        store, rate = stored(root / "plain", count, table=None)
        records = records_of(store, count)
        print(f"filter                    {best(lambda: filtered(records, wanted, count // 8)):>12,.0f} messages/s")
        print(f"filter, all pass          {best(lambda: filtered(records, all_wanted, count)):>12,.0f} messages/s")
        print(f"pull                      {best(lambda: drained(store, wanted, count // 8)):>12,.0f} messages/s")
        print(f"pull, all pass            {best(lambda: drained(store, all_wanted, count)):>12,.0f} messages/s")
        print(f"pull without a filter     {best(lambda: drained(store, Wanted(), count)):>12,.0f} messages/s")
        print(f"put                       {rate:>12,.0f} messages/s")
        store.close()
        store, _ = stored(root / "differ", count, table=None, differ=True)
        print(f"pull, all pass and differ {best(lambda: drained(store, all_wanted, count)):>12,.0f} messages/s")
        store.close()
        store, rate = stored(root / "maps", count, table=table)
        print(f"pull with Bloom maps      {best(lambda: drained(store, wanted, count // 8)):>12,.0f} messages/s")
        print(f"put with Bloom maps       {rate:>12,.0f} messages/s")
        store.close()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
