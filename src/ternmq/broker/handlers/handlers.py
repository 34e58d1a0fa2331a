"""All handlers of one broker, put together: from requests to services, and from results to replies (D, E, F)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ternmq.auth.access import AccessControl
from ternmq.auth.handlers import AclHandlers
from ternmq.auth.user_handlers import UserHandlers
from ternmq.broker import flow
from ternmq.broker.changes import LiveSettings
from ternmq.broker.config import BrokerConfig
from ternmq.broker.handlers import not_offered
from ternmq.broker.handlers.ack import AckHandlers
from ternmq.broker.handlers.admin_broker import BrokerHandlers
from ternmq.broker.handlers.admin_clients import ConnectionHandlers
from ternmq.broker.handlers.admin_groups import GroupHandlers
from ternmq.broker.handlers.admin_offsets import GroupOffsetHandlers
from ternmq.broker.handlers.admin_queues import QueueHandlers
from ternmq.broker.handlers.admin_stats import StatsHandlers
from ternmq.broker.handlers.admin_topics import TopicHandlers
from ternmq.broker.handlers.assignment import AssignmentHandlers
from ternmq.broker.handlers.client import ClientHandlers
from ternmq.broker.handlers.delays import DelayHandlers
from ternmq.broker.handlers.offset import OffsetHandlers
from ternmq.broker.handlers.pop import PopHandlers
from ternmq.broker.handlers.pull import PullHandlers
from ternmq.broker.handlers.query import QueryHandlers
from ternmq.broker.handlers.relay import RelayHandlers
from ternmq.broker.handlers.reply import ReplyHandlers
from ternmq.broker.handlers.send import SendHandlers, SendReplies
from ternmq.broker.handlers.share import ShareHandlers
from ternmq.broker.handlers.slaves import SlaveHandlers
from ternmq.broker.handlers.transaction import TransactionHandlers
from ternmq.broker.registration import Registration
from ternmq.broker.roles import Roles
from ternmq.broker.services.polls import Polls
from ternmq.broker.services.services import Services
from ternmq.broker.tables.tables import Tables
from ternmq.delay.overview import Overview
from ternmq.delay.recalls import Recalls
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.env import Clock
from ternmq.names import WHEEL_TOPIC
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Route
from ternmq.net.server import Server
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.stats import HaStatus


class Handlers:
    """``routes`` is the table of a broker, but for what depends on how it is replicated."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        services: Services,
        tables: Tables,
        store: MessageStore,
        schedule: ScheduleLog,
        polls: Polls,
        lanes: Lanes,
        roles: Roles,
        registration: Registration,
        control: AccessControl,
        clock: Clock,
        address: str,
        store_host: bytes,
        ha_status: Callable[[], HaStatus],
        runtime: Callable[[], dict[str, str]],
        settings: LiveSettings,
        server: Callable[[], Server],
    ) -> None:
        """``ha_status`` tells how far the copies of the log are, ``runtime`` has more lines of the broker's state,
        ``settings`` is what tools may see and change."""
        name, store_path = config.broker_name, store.config.store_path_root_dir
        replies = SendReplies(config, store_host=store_host)
        sends = SendHandlers(sending=services.sending, replies=replies)
        pulls = PullHandlers(reading=services.reading, quotas=services.quotas, polls=polls, lanes=lanes)
        pops = PopHandlers(popping=services.popping, quotas=services.quotas, polls=polls, lanes=lanes)
        shares = ShareHandlers(
            sharing=services.sharing,
            quotas=services.quotas,
            polls=polls,
            lanes=lanes,
            when_safe=services.intake.when_safe,
        )
        self.members = ClientHandlers(
            clients=tables.clients,
            groups=tables.groups,
            topics=tables.topics,
            locks=tables.locks,
            filters=tables.filters,
            config=config,
        )
        assignments = AssignmentHandlers(
            modes=services.popping.modes,
            catalog=services.catalog,
            clients=tables.clients,
            topics=tables.topics,
            broker_name=name,
            find_route=registration.find_route,
            tell_members=self.members.tell_members,
        )
        answers = ReplyHandlers(
            config,
            sending=services.sending,
            replies=replies,
            clients=tables.clients,
            clock=clock,
            address=address,
        )
        relay = RelayHandlers(clients=tables.clients, find_record=services.reading.record, broker_name=name)
        delays = DelayHandlers(
            recalls=Recalls(schedule, clock=clock, broker_name=name),
            overview=Overview(schedule),
            intake=services.intake,
            config=config,
            clock=clock,
            timer_end=partial(store.max_offset, WHEEL_TOPIC, 0),
        )
        slaves = SlaveHandlers(
            offsets=tables.offsets,
            positions=services.positions,
            roles=roles,
            filters=tables.filters,
            delays=services.delivered.body,
            ha_status=ha_status,
            clock=clock,
        )
        self.routes: dict[int, Route] = {
            **sends.routes(),
            **pulls.routes(),
            **self.members.routes(),
            **QueryHandlers(services.reading).routes(),
            **QueueHandlers(services.inspection).routes(),
            **StatsHandlers(tables.stats, cluster_name=config.broker_cluster_name).routes(),
            **pops.routes(),
            **AckHandlers(services.popping).routes(),
            **shares.routes(),
            **answers.routes(),
            **relay.routes(),
            **assignments.routes(),
            **_for_tools(services, tables, store, store_path, name, clock, runtime, settings, server),
            **delays.routes(),
            **TransactionHandlers(transactions=services.transactions, intake=services.intake, runs=sends).routes(),
            **slaves.routes(),
            **not_offered.routes(),
        }
        if control.users is not None:
            self.routes |= UserHandlers(*control.users, lane=flow.ADMIN).routes()
        if control.plain is not None:
            self.routes |= AclHandlers(
                control.plain,
                lane=flow.ADMIN,
                broker_name=name,
                address=address,
                cluster_name=config.broker_cluster_name,
            ).routes()
        #: Those that keep values of the settings.
        self.parts = (replies, answers, self.members, delays)


def _for_tools(
    services: Services,
    tables: Tables,
    store: MessageStore,
    store_path: Path,
    name: str,
    clock: Clock,
    runtime: Callable[[], dict[str, str]],
    settings: LiveSettings,
    server: Callable[[], Server],
) -> dict[int, Route]:
    """What consumers ask now and then, and ``mqadmin`` and ``tern`` all the time."""
    catalog, positions = services.catalog, services.positions
    topics, groups, offsets = tables.topics, tables.groups, tables.offsets
    clients, stats = tables.clients, tables.stats
    return {
        **OffsetHandlers(positions=positions, store=store).routes(),
        **TopicHandlers(
            catalog=catalog,
            topics=topics,
            store=store,
            offsets=offsets,
            clients=clients,
            stats=stats,
            broker_name=name,
        ).routes(),
        **GroupHandlers(
            catalog=catalog,
            groups=groups,
            topics=topics,
            store=store,
            offsets=offsets,
            clients=clients,
            stats=stats,
            broker_name=name,
        ).routes(),
        **GroupOffsetHandlers(
            positions=positions,
            offsets=offsets,
            store=store,
            topics=topics,
            clients=clients,
            broker_name=name,
            clock=clock,
        ).routes(),
        **ConnectionHandlers(clients=clients, clock=clock).routes(),
        **BrokerHandlers(
            stats=stats,
            store=store,
            topics=topics,
            server=server,
            settings=settings,
            store_path=store_path,
            delays=services.delaying.state,
            measures=services.sharing.measures,
            runtime=runtime,
            clock=clock,
        ).routes(),
    }
