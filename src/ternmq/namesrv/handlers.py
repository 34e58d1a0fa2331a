"""What a name server answers (A2–A5): a handler for each request code, over the registry and the settings."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

import msgspec

from ternmq import config
from ternmq.env import Clock
from ternmq.errors import (
    ConfigError,
    InvalidParameter,
    NoPermission,
    NotFound,
    SystemFailure,
    TopicMissing,
)
from ternmq.namesrv.config import CHANGEABLE, NamesrvConfig
from ternmq.namesrv.kv import ORDER_TOPICS, KvConfig
from ternmq.namesrv.registry import Registrant, Registry
from ternmq.net.peer import Handler, Peer, Route
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import (
    KvTable,
    MemberGroupAnswer,
    TopicRoute,
    crc_of,
    decode_registration,
)
from ternmq.wire.bodies.topics import DataVersion, TopicList
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Reply, Request
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

#: Clients' questions and brokers' registrations must not wait for each other.
CLIENT_LANE: Final = "client"
BROKER_LANE: Final = "broker"


class Handlers:
    """Plain functions on the loop; ``routes`` is the table to serve."""

    def __init__(self, registry: Registry, kv: KvConfig, settings: NamesrvConfig, clock: Clock) -> None:
        self._registry = registry
        self._kv = kv
        self._settings = settings
        self._clock = clock

    def routes(self) -> dict[int, Route]:
        by_lane: dict[str, dict[int, Handler]] = {
            CLIENT_LANE: {
                Code.GET_ROUTEINFO_BY_TOPIC: self.route,
            },
            BROKER_LANE: {
                Code.REGISTER_BROKER: self.register_broker,
                Code.UNREGISTER_BROKER: self.unregister_broker,
                Code.QUERY_DATA_VERSION: self.query_data_version,
                Code.BROKER_HEARTBEAT: self.broker_heartbeat,
                Code.GET_BROKER_MEMBER_GROUP: self.member_group,
                Code.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
                Code.GET_BROKER_CLUSTER_INFO: self.cluster_info,
                Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
                Code.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
                Code.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
                Code.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
                Code.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write,
                Code.ADD_WRITE_PERM_OF_BROKER: self.add_write,
                Code.PUT_KV_CONFIG: self.put_kv,
                Code.GET_KV_CONFIG: self.get_kv,
                Code.DELETE_KV_CONFIG: self.delete_kv,
                Code.GET_KVLIST_BY_NAMESPACE: self.kv_of_namespace,
                Code.GET_NAMESRV_CONFIG: self.get_config,
                Code.UPDATE_NAMESRV_CONFIG: self.update_config,
            },
        }
        return {code: Route(handler, lane) for lane, handlers in by_lane.items() for code, handler in handlers.items()}

    # --- Routes (A4) -------------------------------------------------------------------------------------------

    def route(self, _peer: Peer, request: Request[RouteQuery]) -> Reply:
        """Always standard JSON: Java reads it as well as its own dialect."""
        topic = request.fields.topic
        route = self._registry.route(topic)
        if route is None:
            raise TopicMissing(
                f"No topic route info in name server for the topic: {topic}; create it with "
                f"`tern topic create {topic}`, or send to it where brokers create topics by themselves"
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

    def system_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        topics, address = self._registry.system_topics()
        return Reply(body=encode(TopicList(topic_list=topics, broker_addr=address)))

    # --- Brokers (A2, A3) --------------------------------------------------------------------------------------

    def register_broker(self, peer: Peer, request: Request[RegisterBroker]) -> Reply:
        header = request.fields
        if header.body_crc32 and header.body_crc32 != crc_of(request.body):
            raise SystemFailure("crc32 not match: the body of the registration was damaged on its way; send it again")
        # Brokers of old register without a body, to say that they live.
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
        )
        if is_new:
            log.info("broker registered", extra=_fields(who))
        return Reply(
            header=RegisterBrokerReply(
                ha_address=master.ha_address if master else None, master_address=master.address if master else None
            ),
            body=encode(KvTable(table=self._kv.of_namespace(ORDER_TOPICS) or {})),
        )

    def unregister_broker(self, _peer: Peer, request: Request[BrokerIdentity]) -> Reply:
        header = request.fields
        self._registry.unregister(header.broker_name, header.broker_id, header.broker_address)
        log.info("broker unregistered", extra={"broker": header.broker_name, "address": header.broker_address})
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
        """A connection closed: brokers that came over it are gone (A3)."""
        for who in self._registry.connection_closed(peer):
            log.warning("broker dropped, its connection closed", extra=_fields(who))

    def scan(self) -> None:
        """Drop silent brokers and close their connections (A3)."""
        for who, connection in self._registry.expire(self._clock.monotonic()):
            log.warning("broker dropped, it was silent too long", extra=_fields(who))
            assert isinstance(connection, Peer)
            connection.close()

    # --- Topics and permissions (A5) ---------------------------------------------------------------------------

    def register_topic(self, _peer: Peer, request: Request[RegisterTopic]) -> Reply:
        """RocketMQ 5 gives a topic queues; the Node client asks for a setting with the same code (remoting.md)."""
        topic = request.fields.topic
        if not topic:
            raise NotFound("no such setting")
        self._registry.put_queues(topic, decode(request.body, TopicRoute).queue_datas if request.body else [])
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

    def put_kv(self, _peer: Peer, request: Request[PutKv]) -> Reply:
        header = request.fields
        self._kv.put(header.namespace, header.key, header.value)
        return Reply()

    def get_kv(self, _peer: Peer, request: Request[KvKey]) -> Reply:
        header = request.fields
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise NotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return Reply(header=KvReply(value=value))

    def delete_kv(self, _peer: Peer, request: Request[KvKey]) -> Reply:
        header = request.fields
        self._kv.delete(header.namespace, header.key)
        return Reply()

    def kv_of_namespace(self, _peer: Peer, request: Request[KvNamespace]) -> Reply:
        namespace = request.fields.namespace
        table = self._kv.of_namespace(namespace)
        if table is None:
            raise NotFound(f"No config item, Namespace: {namespace}")
        return Reply(body=encode(KvTable(table=table)))

    def get_config(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=config.to_properties(self._settings).encode())

    def update_config(self, _peer: Peer, request: Request[object]) -> Reply:
        """Change what may change in a server that runs; all of the request or nothing of it."""
        try:
            lines = str(request.body, "utf-8").splitlines()
            changes = config.Settings.gather(flags=[line for line in lines if line.strip()])
            strangers = changes.strangers(NamesrvConfig)
            if strangers:
                raise InvalidParameter(f"this name server has no setting {strangers[0].key}")
            unchanged = config.to_properties(self._settings).splitlines()
            changed = config.Settings.gather(flags=[*unchanged, *lines]).build(NamesrvConfig)
        except UnicodeDecodeError:
            raise InvalidParameter("the settings are not UTF-8 text") from None
        except ConfigError as error:
            raise InvalidParameter(str(error)) from None
        for field in dataclasses.fields(NamesrvConfig):
            is_new = getattr(changed, field.name) != getattr(self._settings, field.name)
            if is_new and field.name not in CHANGEABLE:
                raise NoPermission(
                    f"{config.rocketmq_name(field.name)} cannot change while the name server runs; set it in its "
                    "configuration file and start it again"
                )
        self._settings = changed
        log.info("settings changed", extra={"settings": lines})
        return Reply()


def _fields(who: Registrant) -> dict[str, object]:
    return {"broker": who.broker_name, "id": who.broker_id, "address": who.address, "cluster": who.cluster}
