"""Open transactions, and those that were given up (J2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.admin.brokers import BrokerAdmin, BrokerInfo
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import BrokerMissing, RequestNotSupported
from ternmq.names import CHECK_MAX_TOPIC
from ternmq.net.peer import format_address
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.transactions import OpenTransactions
from ternmq.wire.codes import RequestCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests_admin import ListTransactions, ResumeCheck

_PAGE: Final = 500


@dataclass(slots=True, frozen=True)
class OpenTransactionInfo:
    """A transaction that is neither committed nor rolled back.

    Args:
        broker: Name of its broker.
        transaction_id: Its id, which is the id of its message.
        group: The producer group that is asked how it ended.
        topic: Where the message goes when it is committed.
        queue_id: The queue of the message.
        checks: How often a producer was asked.
        born_time_ms: When it began, by the clock of its producer, in ms since 1970.
        store_time_ms: When it was last written: when it began, or when a producer was last asked.
    """

    broker: str
    transaction_id: str
    group: str
    topic: str
    queue_id: int
    checks: int
    born_time_ms: int
    store_time_ms: int


class TransactionAdmin:
    """Open and discarded transactions: ``admin.transactions``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin) -> None:
        self._instance = instance
        self._brokers = brokers

    async def open(self, *, group: str | None = None, count_max: int = 1_000) -> list[OpenTransactionInfo]:
        """The open transactions of all masters, the oldest of each first; ``count_max`` at most.

        ``group`` chooses those of one producer group. Raises ``RequestNotSupported`` for brokers of RocketMQ, which do
        not tell.
        """
        found: list[OpenTransactionInfo] = []
        for broker in await self._brokers.masters():
            next_offset = 0
            while next_offset >= 0 and len(found) < count_max:
                page = await self._page(broker, next_offset)
                next_offset = page.next_offset
                found += [
                    OpenTransactionInfo(
                        broker.name,
                        one.transaction_id,
                        one.producer_group,
                        one.topic,
                        one.queue_id,
                        one.check_times,
                        one.born_timestamp,
                        one.store_timestamp,
                    )
                    for one in page.transactions
                    if group in (None, one.producer_group)
                ]
        return found[:count_max]

    async def count(self) -> dict[str, int]:
        """How many transactions are open, by the name of the master."""
        masters = await self._brokers.masters()
        return {broker.name: (await self._page(broker, 0, count_max=1)).open_count for broker in masters}

    async def resume(self, offset_id: str, *, broker: str | None = None) -> None:
        """Have a discarded transaction checked again.

        ``offset_id`` is that of its message in the topic TRANS_CHECK_MAX_TIME_TOPIC. It names the address that the
        broker had then; if that has changed since, give the name of the ``broker``.

        Raises ``InvalidName`` for what is not an offset id, ``BrokerMissing`` for an unknown broker, and
        ``SystemFailure`` for a message that is not there.
        """
        ip, port, _ = parse_offset_id(offset_id)
        await self._instance.ask(
            format_address(ip, port) if broker is None else await self._master(broker),
            RequestCode.RESUME_CHECK_HALF_MESSAGE,
            ResumeCheck(message_id=offset_id, topic=CHECK_MAX_TOPIC),
        )

    async def _master(self, name: str) -> str:
        """The address of a master."""
        masters = await self._brokers.masters()
        for broker in masters:
            if broker.name == name:
                return broker.address
        known = ", ".join(sorted(broker.name for broker in masters))
        raise BrokerMissing(f"there is no master {name!r}; the registered ones are {known}")

    async def _page(self, broker: BrokerInfo, queue_offset: int, *, count_max: int = _PAGE) -> OpenTransactions:
        header = ListTransactions(queue_offset=queue_offset, count_max=count_max)
        try:
            response = await self._instance.ask(broker.address, RequestCode.LIST_TRANSACTIONS, header)
        except RequestNotSupported as error:
            raise RequestNotSupported(
                f"{broker.name} does not list open transactions; it is a broker of RocketMQ, or an older TernMQ",
                broker=broker.name,
            ) from error
        return decode(response.body, OpenTransactions)
