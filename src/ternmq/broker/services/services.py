"""All services of one broker, put together: rules, which know no connection (E, F, H, I, J).

The services need each other in few places: what is sent passes through the redirects of delays and transactions, and a
committed message passes through the intake again. ``add_permissions`` and ``add_runners`` give the roles what only a
master does.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Roles, Switch
from ternmq.broker.services.access import Access
from ternmq.broker.services.catalog import Catalog
from ternmq.broker.services.delaying import Delaying
from ternmq.broker.services.drift import Copies, ReadDrift
from ternmq.broker.services.inspection import Inspection
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.offset_events import OffsetEvents
from ternmq.broker.services.polls import Polls
from ternmq.broker.services.popping import Popping
from ternmq.broker.services.positions import Positions
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.reading import Reading
from ternmq.broker.services.retry import Retries
from ternmq.broker.services.sending import Sending
from ternmq.broker.services.sharing import Sharing
from ternmq.broker.services.table_journal import TableJournal
from ternmq.broker.services.transactions import TransactionService
from ternmq.broker.tables.included import TableNumbers
from ternmq.broker.tables.tables import Tables
from ternmq.delay.alarm import Alarm
from ternmq.delay.delivery import Delivery
from ternmq.delay.levels import MARK as DELAY_MARK
from ternmq.delay.progress import DelayProgress
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import MARKS as TIMER_MARKS
from ternmq.delay.timer import Timer
from ternmq.env import Env
from ternmq.errors import NotMaster
from ternmq.files import TableFiles
from ternmq.store.store import MessageStore
from ternmq.transaction.half import MARK as TRANSACTION_MARK
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.bodies.raft import TableChange
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.ids import UniqueIds


class Services:
    """What a broker can do, by what it is about. Leaving ``stack`` writes and closes what they have in memory."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        store: MessageStore,
        tables: Tables,
        table_file: TableFiles,
        polls: Polls,
        schedule: ScheduleLog,
        alarm: Alarm,
        roles: Roles,
        copies: Copies,
        published: Callable[[], Awaitable[None]],
        has_journal: bool,
        env: Env,
        ip: str,
        store_host: bytes,
        stack: AsyncExitStack,
    ) -> None:
        """``published`` waits until the name servers know of a change. ``has_journal``: changes of topics and groups
        are written to the log. ``ip`` goes into unique keys."""
        self._store = store
        self._tables = tables
        self._schedule = schedule
        self._alarm = alarm
        self._clock = env.clock
        stack.callback(polls.close)
        self.access = Access(config, topics=tables.topics, groups=tables.groups)
        quotas = self.quotas = Quotas(config, env.clock)
        quotas.topics_changed(tables.topics.all)
        quotas.groups_changed(tables.groups.all)
        self.delivered = DelayProgress(table_file("delayOffset.json"), store, env.clock)
        self.delivered.load()
        stack.callback(self.delivered.save)
        self.delaying = Delaying(store, self.delivered, clock=env.clock, stats=tables.stats)
        timer = Timer(
            clock=env.clock,
            broker_name=config.broker_name,
            is_enabled=store.config.timer_wheel_enable,
            max_delay_sec=store.config.timer_max_delay_sec,
            announce=schedule.announce,
        )
        self.transactions = TransactionService(
            config,
            store=store,
            take_in=lambda draft: self.intake.store(draft),
            offsets=tables.offsets,
            topics=tables.topics,
            clients=tables.clients,
            clock=env.clock,
            host=store_host,
        )
        # In this order: delays leave halves alone, and see a message when it is committed.
        self.intake = Intake(
            store,
            waiting_max=config.send_thread_pool_queue_capacity,
            redirects={
                TRANSACTION_MARK: self.transactions.redirect,
                **dict.fromkeys(TIMER_MARKS, timer.redirect),
                DELAY_MARK: self.delaying.redirect,
            },
        )
        stack.callback(self.intake.close)
        retries = Retries(
            intake=self.intake,
            topics=tables.topics,
            groups=tables.groups,
            record_at=store.record_at,
            cold_record=store.cold.record,
            choice=env.random,
            stats=tables.stats,
        )
        self.sending = Sending(
            config,
            intake=self.intake,
            topics=tables.topics,
            retries=retries,
            transactions=self.transactions,
            stats=tables.stats,
            quotas=quotas,
            timer=timer,
            new_unique_key=UniqueIds(ip, os.getpid(), salt=env.random.getrandbits(32), clock=env.clock).next,
            choice=env.random,
        )
        drift = ReadDrift(config, role=roles, copies=copies, memory_bytes=store.memory_bytes)
        self.reading = Reading(
            config,
            drift=drift,
            role=roles,
            copies=copies,
            access=self.access,
            store=store,
            groups=tables.groups,
            clients=tables.clients,
            offsets=tables.offsets,
            stats=tables.stats,
            quotas=quotas,
            events=OffsetEvents(self.intake, broker_name=config.broker_name, clock=env.clock, host=store_host),
            filters=tables.filters,
        )
        self.inspection = Inspection(
            access=self.access, topics=tables.topics, store=store, clients=tables.clients, filters=tables.filters
        )
        popping = self.popping = Popping(
            config,
            access=self.access,
            polls=polls,
            table_file=table_file,
            store=store,
            store_host=store_host,
            topics=tables.topics,
            groups=tables.groups,
            offsets=tables.offsets,
            stats=tables.stats,
            quotas=quotas,
            filters=tables.filters,
            clock=env.clock,
            choice=env.random,
        )
        stack.callback(popping.close)
        sharing = self.sharing = Sharing(
            config,
            access=self.access,
            polls=polls,
            store=store,
            store_host=store_host,
            groups=tables.groups,
            offsets=tables.offsets,
            stats=tables.stats,
            quotas=quotas,
            filters=tables.filters,
            resend=retries.resend,
            clock=env.clock,
            choice=env.random,
        )

        def moved(group: str, topic: str, queue_id: int) -> None:
            popping.moved(group, topic, queue_id)
            sharing.moved(group, topic, queue_id)
            polls.moved(group, topic, queue_id)

        def topic_deleted(topic: str) -> None:
            popping.forget(topic=topic)
            sharing.forget(topic=topic)
            polls.topic_deleted(topic)

        def group_deleted(group: str) -> None:
            popping.forget(group=group)
            sharing.forget(group=group)

        #: Which changes of the log each table has.
        self.numbers = TableNumbers(
            tables.topics.included, tables.groups.included, popping.modes_included, tables.offsets.included
        )
        self.journal = TableJournal(
            is_on=has_journal,
            store=store,
            intake=self.intake,
            numbers=self.numbers,
            clock=env.clock,
            host=store_host,
        )
        if has_journal:
            for table in (tables.topics, tables.groups, popping.modes, tables.offsets):
                table.save_again()
        tables.topics.on_create = lambda config: self.journal.note(TableChange(topic=config))
        tables.topics.on_needed = lambda config: self.journal.require(TableChange(topic=config))
        tables.groups.on_create = lambda config: self.journal.note(TableChange(group=config))
        tables.groups.on_change = self._group_changed
        self.positions = Positions(
            config,
            journal=self.journal,
            store=store,
            offsets=tables.offsets,
            topics=tables.topics,
            groups=tables.groups,
            clients=tables.clients,
            moved=moved,
        )
        self.catalog = Catalog(
            journal=self.journal,
            topics=tables.topics,
            groups=tables.groups,
            store=store,
            offsets=tables.offsets,
            stats=tables.stats,
            modes=popping.modes,
            published=published,
            on_delete_topic=topic_deleted,
            on_delete_group=group_deleted,
        )
        #: Those that keep values of the settings.
        self.parts = (
            self.access,
            polls,
            self.intake,
            quotas,
            self.sending,
            self.transactions,
            self.reading,
            popping,
            sharing,
            self.positions,
        )

    def topic_changed(self, topic: TopicConfig | None) -> None:
        """A topic was created or changed; None: look at all."""
        if topic is None:
            self.quotas.topics_changed(self._tables.topics.all)
        else:
            self.quotas.topic_changed(topic.topic_name, topic)
        self.sending.topic_changed(topic)

    def _group_changed(self, group: SubscriptionGroupConfig | None) -> None:
        if group is None:
            self.quotas.groups_changed(self._tables.groups.all)
        else:
            self.quotas.group_changed(group.group_name, group)

    def add_permissions(self, roles: Roles) -> None:
        """Have a master write, and grant locks, in each term. Add them first: what is added first stops first."""
        store, locks = self._store, self._tables.locks
        store.refuse_writes(NotMaster("this broker is not the master yet"))
        locks.shut(NotMaster("this broker is not the master: ask the master for locks"))
        roles.add(Switch.factory(on=lambda: store.refuse_writes(None), off=store.refuse_writes))
        roles.add(Switch.factory(on=self.sending.open, off=self.sending.shut))
        roles.add(Switch.factory(on=locks.open, off=locks.shut))

    def add_runners(self, roles: Roles) -> None:
        """Have what a master does by itself run in each term. The tables must be a master's by then."""
        store, count = self._store, self._tables.stats.put
        roles.add(self.delaying.begin)
        roles.add(self.transactions.begin)
        roles.add(lambda _term: Delivery(store, self._schedule, self._alarm, clock=self._clock, count=count))
        roles.add(self.popping.begin)
        roles.add(self.sharing.begin)
