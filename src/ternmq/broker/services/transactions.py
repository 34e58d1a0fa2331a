"""Transactions as the broker offers them (J1, J2): one object for its whole life, that knows the one of this term.

The work is done by ``ternmq.transaction``; here are the settings, the way to producers, and what holds between terms:
no transaction can be ended then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Term
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import MessageIllegal, NoPermission, NotMaster
from ternmq.message import Property
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.store import MessageStore
from ternmq.transaction import half as halves
from ternmq.transaction.checker import TransactionChecker
from ternmq.transaction.half import Half
from ternmq.transaction.runs import TransactionForms, TransactionRun, TransactionRuns, TransactionTerms
from ternmq.transaction.transactions import CheckRules, Ending, Transactions
from ternmq.wire import properties as props
from ternmq.wire.record import Sysflag

if TYPE_CHECKING:
    from ternmq._native import Sends

#: Halves that are shown by one answer: each must be read.
LISTED_MAX: Final = 1_000
#: Characters of their names in one answer: a client may make keys of 16 kB.
LISTED_BYTES_MAX: Final = 1 << 20
_NO_TRANSACTION: Final = ~Sysflag.TRANSACTION_MASK
_PREPARED: Final = Sysflag.PREPARED


@dataclass(slots=True, frozen=True)
class Listed:
    """Open transactions, oldest first; ``next_offset`` is where the following ones begin, -1 behind the last."""

    halves: list[Half]
    next_offset: int
    open_count: int


class TransactionService:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MessageStore,
        take_in: Callable[[Draft], Placed],
        offsets: Offsets,
        topics: Topics,
        clients: Clients,
        clock: Clock,
        host: bytes,
    ) -> None:
        self._store = store
        self._take_in = take_in
        self._offsets = offsets
        self._topics = topics
        self._clients = clients
        self._clock = clock
        self._host = host
        self._checker: TransactionChecker | None = None
        self._runs = TransactionRuns(store.put_packed, memory_bytes=store.memory_bytes)
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._config = config
        if self._checker is not None:
            self._checker.apply(self._rules())

    def begin(self, _term: Term) -> TransactionChecker:
        """What checks in this term (``roles.RunnerFactory``)."""
        transactions = Transactions(
            self._store,
            take_in=self._take_in,
            offsets=self._offsets,
            make_discard_topic=lambda: self._topics.ensure(names.CHECK_MAX_TOPIC, queues=1),
            clock=self._clock,
            host=self._host,
        )
        self._checker = TransactionChecker(
            transactions,
            rules=self._rules(),
            producers=self._clients.producer_peers,
            may_ask=self._clients.may_have,
            clock=self._clock,
            broker_name=self._config.broker_name,
            retention_ms=self._retention_ms,
        )
        return self._checker

    def _retention_ms(self) -> int:
        return self._store.retention.reserved_ms

    def _rules(self) -> CheckRules:
        config = self._config
        return CheckRules(
            immunity_ms=config.transaction_time_out,
            interval_ms=config.transaction_check_interval,
            checks_max=config.transaction_check_max,
            wait_max_ms=config.transaction_wait_max,
        )

    # --- For sends --------------------------------------------------------------------------------------------------

    def prepare(self, properties: str, sysflag: int, *, group: str, reconsume_times: int) -> tuple[str, int]:
        """Properties and sysflag of a message that has the property TRAN_MSG. Raises ``NoPermission`` and
        ``MessageIllegal``.

        The property decides, as in RocketMQ, and the sysflag follows. A message that failed and is sent again by its
        consumer brings the property along; it is not part of a transaction any more.
        """
        is_retry = reconsume_times > 0 and props.find(properties, Property.DELAY) is not None
        sysflag &= _NO_TRANSACTION
        if is_retry or not halves.is_asked_for(properties):
            return properties, sysflag
        if self._config.reject_transaction_message:
            raise NoPermission(
                f"the broker[{self._config.broker_name}] sending transaction message is forbidden; it is "
                "configured with rejectTransactionMessage"
            )
        named = halves.find_group(properties)
        if len(named or group) > names.SERVED_GROUP_LENGTH_MAX:
            # It is kept in memory for each open transaction.
            raise MessageIllegal(
                f"the producer group of a transactional message has {len(named or group)} characters; use at most "
                f"{names.SERVED_GROUP_LENGTH_MAX}"
            )
        if named is None:
            properties = props.with_(props.closed(properties), Property.PRODUCER_GROUP, group)
        return properties, sysflag | _PREPARED

    def redirect(self, draft: Draft) -> None:
        """Make a half of a message that is part of a transaction, for the intake. Raises ``SystemBusy``."""
        open_max, checker = self._config.max_open_transactions, self._checker
        if checker is not None and checker.transactions.open_count >= open_max:
            halves.refuse_half(draft, open_max)
        halves.redirect(draft)

    def store_run(
        self,
        sends: Sends,
        first: int,
        is_plain: Callable[[str, int], bool],
        *,
        terms: TransactionTerms,
        forms: TransactionForms,
        born_host: bytes,
    ) -> TransactionRun | None:
        """Carry out halves and commits of one read, as far as they are plain (``TransactionRuns.store``).

        ``is_plain`` tells whether messages can go to a queue without further questions.
        """
        checker, config = self._checker, self._config
        if checker is None:
            return None
        transactions = checker.transactions
        # Near the limit, each half is looked at by itself.
        has_room = transactions.open_count + sends.count <= config.max_open_transactions
        may_begin = is_plain if has_room and not config.reject_transaction_message else _never
        return self._runs.store(sends, first, may_begin, transactions, terms=terms, forms=forms, born_host=born_host)

    # --- For producers and tools ------------------------------------------------------------------------------------

    def end(self, ending: Ending, check_topic: Callable[[str], None] | None = None) -> int | Awaitable[int]:
        """Commit or roll back a transaction; the log offset to wait for. See ``Transactions.end``."""
        transactions = self._transactions()
        if transactions.is_folded and not self._store.cold.is_cold(ending.log_offset):
            return transactions.end(ending, self._store.record_at(ending.log_offset), check_topic)
        return self._end_later(transactions, ending, check_topic)

    async def _end_later(
        self, transactions: Transactions, ending: Ending, check_topic: Callable[[str], None] | None
    ) -> int:
        await transactions.folded()
        ended = transactions.end(ending, await transactions.read(ending.log_offset), check_topic)
        return ended if isinstance(ended, int) else await ended

    async def resume(self, log_offset: int, offset_id: str) -> None:
        """Check a discarded half again."""
        transactions = self._transactions()
        await transactions.folded()
        await transactions.resume(log_offset, offset_id)

    async def listed(self, queue_offset: int, count_max: int) -> Listed:
        """Open transactions whose halves lie at ``queue_offset`` or behind."""
        transactions = self._transactions()
        await transactions.folded()
        await transactions.caught_up()
        open_halves = transactions.ledger.open
        count_max, bytes_left = max(1, min(count_max, LISTED_MAX)), LISTED_BYTES_MAX
        wanted: list[int] = []
        for page in transactions.ledger.pages(max(queue_offset, 0)):
            wanted += [at for at in transactions.ledger.on_page(page) if at >= queue_offset]
            if len(wanted) > count_max:
                break
        found: list[Half] = []
        for number, at in enumerate(wanted[:count_max], 1):
            one = transactions.find(at)
            if one is not None and not isinstance(one, tuple):
                one = await one
            if one is not None:
                half = one[1]
                found.append(half)
                bytes_left -= len(half.unique_key) + len(half.group) + len(half.topic)
            if bytes_left < 0:
                count_max = number
                break
        next_offset = wanted[count_max] if len(wanted) > count_max else -1
        return Listed(found, next_offset, len(open_halves))

    def _transactions(self) -> Transactions:
        if self._checker is None:
            raise NotMaster("this broker is not the master: end the transaction at the master")
        return self._checker.transactions


def _never(_topic: str, _queue_id: int) -> bool:
    return False
