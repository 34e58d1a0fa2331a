"""Handlers of a name server (A2–A5), one for each request code, on top of the registry and the settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from ternmq import config
from ternmq.env import Clock
from ternmq.errors import NotFound, SystemFailure, TopicMissing
from ternmq.namesrv.config import CHANGEABLE, NamesrvConfig
from ternmq.namesrv.kv import KvConfig
from ternmq.namesrv.registry import READ_BY_UNIT, UNIT, Registrant, Registry
from ternmq.net.gate import ANY_CALLER, Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.net.settings_text import Changes, refusals, requested, settings_text
from ternmq.net.unsupported import CONTROLLER, refusing
from ternmq.rare_log import RareLog
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import (
    ORDER_TOPICS,
    KvTable,
    MemberGroupAnswer,
    TopicRouteBody,
    crc_of,
    decode_registration,
)
from ternmq.wire.bodies.topics import DataVersion, TopicList
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Reply, Request
from ternmq.wire.requests_admin import (
    AddedReply,
    BrokerHeartbeat,
    BrokerIdentity,
    BrokerNamed,
    DataVersionReply,
    DeleteTopic,
    KvKey,
    KvNamespace,
    KvReply,
    MemberGroupQuery,
    PutKv,
    RegisterBroker,
    RegisterBrokerReply,
    RegisterTopic,
    RouteQuery,
    TopicsOfCluster,
    WipedReply,
)

log = logging.getLogger(__name__)

#: Queries of clients and registrations of brokers must not wait for each other.
CLIENT_LANE: Final = "client"
BROKER_LANE: Final = "broker"


class NameServerHandlers:
    """Functions on the loop; ``routes`` is the table for the server."""

    def __init__(
        self,
        registry: Registry,
        kv: KvConfig,
        settings: NamesrvConfig,
        changes: Changes,
        clock: Clock,
        *,
        origins: Mapping[str, str],
    ) -> None:
        self._origins = origins
        self._registry = registry
        self._kv = kv
        self._settings = settings
        self._changes = changes
        self._clock = clock
        #: Any program that reaches the port can register brokers and drop them again.
        self._logs = RareLog(log, clock.monotonic, lines_max=50)

    def routes(self) -> dict[int, Route]:
        return {
            Code.GET_ROUTEINFO_BY_TOPIC: Route(self.route, CLIENT_LANE, Rule(Action.ANY, topic="topic")),
            Code.REGISTER_BROKER: Route(
                self.register_broker, BROKER_LANE, Rule(Action.ADMIN, cluster="clusterName"), needs_connection=True
            ),
            Code.UNREGISTER_BROKER: Route(
                self.unregister_broker, BROKER_LANE, Rule(Action.ADMIN, cluster="clusterName")
            ),
            Code.QUERY_DATA_VERSION: Route(
                self.query_data_version, BROKER_LANE, Rule(Action.ADMIN, cluster="clusterName")
            ),
            Code.BROKER_HEARTBEAT: Route(self.broker_heartbeat, BROKER_LANE, Rule(Action.ADMIN, cluster="clusterName")),
            Code.GET_BROKER_MEMBER_GROUP: Route(
                self.member_group, BROKER_LANE, Rule(Action.ANY, cluster="clusterName")
            ),
            Code.REGISTER_TOPIC_IN_NAMESRV: Route(self.register_topic, BROKER_LANE, Rule(Action.ADMIN, topic="topic")),
            Code.GET_BROKER_CLUSTER_INFO: Route(self.cluster_info, BROKER_LANE, ANY_CALLER),
            Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Route(self.all_topics, BROKER_LANE, ANY_CALLER),
            Code.GET_TOPICS_BY_CLUSTER: Route(self.topics_of_cluster, BROKER_LANE, Rule(Action.ANY, cluster="cluster")),
            Code.GET_UNIT_TOPIC_LIST: Route(self.unit_topics, BROKER_LANE, ANY_CALLER),
            Code.GET_HAS_UNIT_SUB_TOPIC_LIST: Route(self.unit_read_topics, BROKER_LANE, ANY_CALLER),
            Code.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: Route(self.unit_read_only_topics, BROKER_LANE, ANY_CALLER),
            Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: Route(self.system_topics, BROKER_LANE, ANY_CALLER),
            Code.DELETE_TOPIC_IN_NAMESRV: Route(
                self.delete_topic, BROKER_LANE, Rule(Action.ADMIN, topic="topic", cluster="clusterName")
            ),
            Code.WIPE_WRITE_PERM_OF_BROKER: Route(self.wipe_write, BROKER_LANE, Rule(Action.ADMIN)),
            Code.ADD_WRITE_PERM_OF_BROKER: Route(self.add_write, BROKER_LANE, Rule(Action.ADMIN)),
            Code.PUT_KV_CONFIG: Route(self.put_kv, BROKER_LANE, Rule(Action.ADMIN)),
            Code.GET_KV_CONFIG: Route(self.get_kv, BROKER_LANE, Rule(Action.ANY, in_fields=_ordered_topic)),
            Code.DELETE_KV_CONFIG: Route(self.delete_kv, BROKER_LANE, Rule(Action.ADMIN)),
            Code.GET_KVLIST_BY_NAMESPACE: Route(self.kv_of_namespace, BROKER_LANE, ANY_CALLER),
            Code.GET_NAMESRV_CONFIG: Route(self.get_config, BROKER_LANE, ANY_CALLER),
            Code.UPDATE_NAMESRV_CONFIG: Route(self.update_config, BROKER_LANE, Rule(Action.ADMIN)),
            **refusing(CONTROLLER, BROKER_LANE),
        }

    # --- Routes (A4) -------------------------------------------------------------------------------------------

    def route(self, _peer: Peer, request: Request[RouteQuery]) -> Reply:
        """Always standard JSON: Java reads it as well as its own dialect."""
        topic = request.fields.topic
        route = self._registry.route(topic)
        if route is None:
            raise TopicMissing(
                f"No topic route info in name server for the topic: {topic}; create it with `tern topic create "
                f"{topic}`, or send to it if brokers create topics automatically"
            )
        if self._settings.order_message_enable:
            route = msgspec.structs.replace(route, order_topic_conf=self._kv.get(ORDER_TOPICS, topic))
        return Reply(body=encode(route))

    def cluster_info(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._registry.cluster_info()))

    def all_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(TopicList(topic_list=self._registry.topics())))

    def topics_of_cluster(self, _peer: Peer, request: Request[TopicsOfCluster]) -> Reply:
        return Reply(body=encode(TopicList(topic_list=self._registry.topics(request.fields.cluster))))

    def unit_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Topics of a unit, RocketMQ's word for one of several sites."""
        return self._with_flags(lambda flags: bool(flags & UNIT))

    def unit_read_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Topics that groups of a unit read."""
        return self._with_flags(lambda flags: bool(flags & READ_BY_UNIT))

    def unit_read_only_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Topics that groups of a unit read, and that belong to none."""
        return self._with_flags(lambda flags: flags & (UNIT | READ_BY_UNIT) == READ_BY_UNIT)

    def _with_flags(self, are_wanted: Callable[[int], bool]) -> Reply:
        return Reply(body=encode(TopicList(topic_list=self._registry.topics_with(are_wanted))))

    def system_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        topics, address = self._registry.system_topics()
        return Reply(body=encode(TopicList(topic_list=topics, broker_addr=address)))

    # --- Brokers (A2, A3) --------------------------------------------------------------------------------------

    def register_broker(self, peer: Peer, request: Request[RegisterBroker]) -> Reply:
        header = request.fields
        if header.body_crc32 and header.body_crc32 != crc_of(request.body):
            raise SystemFailure("crc32 not match: the body of the registration was damaged in transit; send it again")
        # Old brokers register without a body, as a heartbeat.
        registration = decode_registration(request.body, version=request.version) if request.body else None
        timeout_ms = header.heartbeat_timeout_ms
        who = Registrant(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_id=header.broker_id,
            address=header.broker_address,
            ha_address=header.ha_address,
            silence_max_s=timeout_ms / 1000 if timeout_ms else None,
            enable_acting_master=header.enable_acting_master,
        )
        is_new = self._registry.version_of(who.address) is None
        master = self._registry.register(
            who,
            registration.topic_config_serialize_wrapper if registration is not None else None,
            registration.filter_server_list if registration is not None else None,
            peer,
            self._clock.monotonic(),
            takes_back=self._settings.delete_topic_with_broker_registration and not header.only_changes,
        )
        if is_new:
            self._logs.info("registered", f"broker registered: {_named(who)}")
        return Reply(
            header=RegisterBrokerReply(
                ha_address=master.ha_address if master else None, master_address=master.address if master else None
            ),
            body=encode(KvTable(table=self._kv.of_namespace(ORDER_TOPICS) or {})),
        )

    def unregister_broker(self, _peer: Peer, request: Request[BrokerIdentity]) -> Reply:
        header = request.fields
        self._registry.unregister(header.broker_name, header.broker_id, header.broker_address)
        self._logs.info("unregistered", f"broker unregistered: {header.broker_name} at {header.broker_address}")
        return Reply()

    def query_data_version(self, _peer: Peer, request: Request[BrokerIdentity]) -> Reply:
        address = request.fields.broker_address
        theirs = decode(request.body, DataVersion)
        changed = self._registry.is_outdated(address, theirs, self._clock.monotonic())
        ours = self._registry.version_of(address)
        return Reply(header=DataVersionReply(changed=changed), body=encode(ours) if ours is not None else b"")

    def broker_heartbeat(self, _peer: Peer, request: Request[BrokerHeartbeat]) -> Reply:
        self._registry.heard_of(request.fields.broker_address, self._clock.monotonic())
        return Reply()

    def member_group(self, _peer: Peer, request: Request[MemberGroupQuery]) -> Reply:
        header = request.fields
        group = self._registry.member_group(header.cluster_name, header.broker_name)
        return Reply(body=encode(MemberGroupAnswer(broker_member_group=group)))

    def closed(self, peer: Peer) -> None:
        """A connection was closed: remove the brokers that registered over it (A3)."""
        for who in self._registry.connection_closed(peer):
            self._logs.warning("closed", f"broker removed because its connection was closed: {_named(who)}")

    def tend(self) -> None:
        """Remove silent brokers and close their connections (A3); retry writing settings after a disk error."""
        self._kv.retry()
        self._changes.retry()
        for who, connection in self._registry.expire(self._clock.monotonic()):
            self._logs.warning("silent", f"broker removed because it sent no heartbeat in time: {_named(who)}")
            assert isinstance(connection, Peer)
            connection.close()

    # --- Topics and permissions (A5) ---------------------------------------------------------------------------

    def register_topic(self, _peer: Peer, request: Request[RegisterTopic]) -> Reply:
        """RocketMQ 5 gives a topic queues; the Node client queries a setting with the same code (remoting.md)."""
        topic = request.fields.topic
        if not topic:
            raise NotFound("no such setting")
        self._registry.put_queues(topic, decode(request.body, TopicRouteBody).queue_datas if request.body else [])
        return Reply()

    def delete_topic(self, _peer: Peer, request: Request[DeleteTopic]) -> Reply:
        header = request.fields
        self._registry.delete_topic(header.topic, header.cluster_name or None)
        return Reply()

    def wipe_write(self, _peer: Peer, request: Request[BrokerNamed]) -> Reply:
        return Reply(header=WipedReply(topic_count=self._registry.wipe_write(request.fields.broker_name)))

    def add_write(self, _peer: Peer, request: Request[BrokerNamed]) -> Reply:
        return Reply(header=AddedReply(topic_count=self._registry.add_write(request.fields.broker_name)))

    # --- Settings (A5) -----------------------------------------------------------------------------------------

    async def put_kv(self, _peer: Peer, request: Request[PutKv]) -> Reply:
        """Store a setting; the reply is sent when it is on disk, if this name server has a file."""
        header = request.fields
        self._kv.put(header.namespace, header.key, header.value)
        await self._kv.saved()
        return Reply()

    def get_kv(self, _peer: Peer, request: Request[KvKey]) -> Reply:
        header = request.fields
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise NotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return Reply(header=KvReply(value=value))

    async def delete_kv(self, _peer: Peer, request: Request[KvKey]) -> Reply:
        header = request.fields
        self._kv.delete(header.namespace, header.key)
        await self._kv.saved()
        return Reply()

    def kv_of_namespace(self, _peer: Peer, request: Request[KvNamespace]) -> Reply:
        namespace = request.fields.namespace
        table = self._kv.of_namespace(namespace)
        if table is None:
            raise NotFound(f"No config item, Namespace: {namespace}")
        return Reply(body=encode(KvTable(table=table)))

    def get_config(self, _peer: Peer, _request: Request[object]) -> Reply:
        origins = {**self._origins, **dict.fromkeys(self._changes.names, config.RUN_TIME)}
        return Reply(body=(config.to_properties(self._settings) + config.origin_lines(origins)).encode())

    async def update_config(self, peer: Peer, request: Request[object]) -> Reply:
        """Change settings at run time: all of the request, or none; answered when they are on disk."""
        with refusals():
            given = requested(settings_text(request.body), "name server", NamesrvConfig)
            before = config.texts(self._settings)
            self._settings = given.change(self._settings, CHANGEABLE.__contains__)
        changed = {name: now for name, now in config.texts(self._settings).items() if now != before[name]}
        await self._changes.keep(changed)
        for name, now in changed.items():
            log.info("%s changed %s from %r to %r", peer.address, name, before[name], now)
        return Reply()


def _named(who: Registrant) -> str:
    return f"{who.broker_name} (id {who.broker_id}) of cluster {who.cluster} at {who.address}"


def _ordered_topic(fields: Fields) -> list[Resource]:
    """The topic that a key is of: whether there is one tells that the topic exists."""
    if fields.get("namespace") != ORDER_TOPICS:
        return []
    return [Resource(ResourceKind.TOPIC, fields.get("key", ""))]
