"""Typed headers of the calls that tools and servers make: topics, groups, statistics, settings, the name server,
slaves, access control (A1–A5, D1, D2, D5, D6, N1, O4). Same rules as in ``wire.requests``, which has clients' calls.

Codes with neither fields nor class: 18, 25, 26, 28, 43, 45, 60, 61, 106, 200, 206, 225, 304–306, 311–313, 316, 318,
319, 328, 329, 401, 402, 907; their parameters and answers, if any, are bodies (``wire.bodies``).
"""

from __future__ import annotations

from msgspec import field

from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.requests import Call, Int32, Int64, carried_by

# --- Delayed messages (TernMQ only) ---------------------------------------------------------------------------


@carried_by(Code.GET_DELAYED_STATS)
class DelayedStats(Call, kw_only=True):
    """How many messages wait for their delivery time, by topic and by hour; the hours of one ``topic`` if it is
    given."""

    topic: str | None = None


@carried_by(Code.PEEK_DELAYED_MESSAGES)
class PeekDelayed(Call, kw_only=True):
    """The records of a ``topic`` that wait, those due from ``begin_ms`` on, in the order of hours."""

    topic: str
    begin_ms: Int64 = 0
    count_max: Int32 = 32


# --- Topics and groups, asked of a broker ---------------------------------------------------------------------


@carried_by(Code.UPDATE_AND_CREATE_TOPIC)
class UpdateTopic(Call, kw_only=True):
    """Create or change a topic. ``attributes`` has the form ``+key=value,-key``."""

    topic: str
    default_topic: str = "TBW102"
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str = "SINGLE_TAG"
    topic_sysflag: Int32 | None = None
    order: bool = False
    attributes: str | None = None
    force: bool | None = None


@carried_by(
    Code.GET_TOPIC_STATS_INFO,
    Code.DELETE_TOPIC_IN_BROKER,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.GET_TOPIC_CONFIG,
)
class Topic(Call, kw_only=True):
    """Only the name of a topic."""

    topic: str


@carried_by(Code.GET_ALL_TOPIC_CONFIG)
class AllTopics(Call, kw_only=True):
    """Releases after RocketMQ 5.3.3 request pages; a reply without ``totalTopicNum`` means a single page."""

    topic_seq: Int32 | None = None
    count_max: Int32 | None = field(default=None, name="maxTopicNum")
    data_version: str | None = None


class AllTopicsReply(Call, kw_only=True):
    total_count: Int32 | None = field(default=None, name="totalTopicNum")


@carried_by(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
class AllGroups(Call, kw_only=True):
    """As ``AllTopics``."""

    group_seq: Int32 | None = None
    count_max: Int32 | None = field(default=None, name="maxGroupNum")
    data_version: str | None = None


class AllGroupsReply(Call, kw_only=True):
    total_count: Int32 | None = field(default=None, name="totalGroupNum")


@carried_by(Code.DELETE_SUBSCRIPTIONGROUP)
class DeleteGroup(Call, kw_only=True):
    """Tools of 4.9 and of 5.x name the flag differently."""

    group_name: str
    remove_offset: bool | None = None
    clean_offset: bool | None = None

    @property
    def offsets_too(self) -> bool:
        return bool(self.remove_offset or self.clean_offset)


@carried_by(Code.GET_SUBSCRIPTIONGROUP_CONFIG, Code.QUERY_TOPICS_BY_CONSUMER)
class Group(Call, kw_only=True):
    group: str


@carried_by(Code.UPDATE_AND_GET_GROUP_FORBIDDEN)
class GroupForbidden(Call, kw_only=True):
    """Allow or forbid a group to read a topic, or query the state (``readable`` None)."""

    group: str
    topic: str
    readable: bool | None = None


# --- Offsets and statistics -----------------------------------------------------------------------------------


@carried_by(Code.GET_CONSUME_STATS)
class ConsumeStatsQuery(Call, kw_only=True):
    """The offsets of a group; without a topic, for all topics with offsets. ``topic_list`` has the form ``a;b;``."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None


@carried_by(Code.GET_BROKER_CONSUME_STATS)
class BrokerConsumeStatsQuery(Call, kw_only=True):
    is_order: bool = False


@carried_by(Code.CLONE_GROUP_OFFSET)
class CloneGroupOffset(Call, kw_only=True):
    source_group: str = field(name="srcGroup")
    target_group: str = field(name="destGroup")
    topic: str | None = None
    offline: bool = False


@carried_by(Code.QUERY_CORRECTION_OFFSET)
class CorrectionOffset(Call, kw_only=True):
    """``filter_groups`` is a comma list."""

    topic: str
    compare_group: str
    filter_groups: str | None = None


@carried_by(Code.QUERY_CONSUME_TIME_SPAN, Code.QUERY_SUBSCRIPTION_BY_CONSUMER)
class TopicOfGroup(Call, kw_only=True):
    group: str
    topic: str


@carried_by(Code.QUERY_CONSUME_QUEUE)
class ConsumeQueueQuery(Call, kw_only=True):
    """Entries of a ConsumeQueue from ``index`` (a queue offset) on."""

    topic: str
    queue_id: Int32
    index: Int64
    count: Int32
    consumer_group: str | None = None


@carried_by(Code.VIEW_BROKER_STATS_DATA)
class BrokerStatsQuery(Call, kw_only=True):
    """One series, such as TOPIC_PUT_NUMS of a topic."""

    stats_name: str
    stats_key: str


@carried_by(Code.RESUME_CHECK_HALF_MESSAGE)
class ResumeCheck(Call, kw_only=True):
    """Check a half message again after its checks were given up; ``message_id`` is its offset id."""

    message_id: str
    topic: str | None = None


class ConfigReply(Call, kw_only=True):
    """Reply to GET_BROKER_CONFIG 26; the settings are the body, this is their DataVersion as JSON."""

    version: str


# --- Name server ----------------------------------------------------------------------------------------------


@carried_by(Code.GET_ROUTEINFO_BY_TOPIC)
class RouteQuery(Call, kw_only=True):
    topic: str
    accept_standard_json_only: bool | None = None


@carried_by(Code.GET_TOPICS_BY_CLUSTER)
class TopicsOfCluster(Call, kw_only=True):
    cluster: str


@carried_by(Code.PUT_KV_CONFIG)
class PutKv(Call, kw_only=True):
    namespace: str
    key: str
    value: str


@carried_by(Code.GET_KV_CONFIG, Code.DELETE_KV_CONFIG)
class KvKey(Call, kw_only=True):
    namespace: str
    key: str


class KvReply(Call, kw_only=True):
    """To GET_KV_CONFIG."""

    value: str | None = None


@carried_by(Code.GET_KVLIST_BY_NAMESPACE)
class KvNamespace(Call, kw_only=True):
    namespace: str


@carried_by(Code.DELETE_TOPIC_IN_NAMESRV)
class DeleteTopic(Call, kw_only=True):
    topic: str
    cluster_name: str | None = None


@carried_by(Code.REGISTER_TOPIC_IN_NAMESRV)
class RegisterTopic(Call, kw_only=True):
    """The Node client uses this code to query a setting by namespace and key; there is none."""

    topic: str | None = None
    namespace: str | None = None
    key: str | None = None


@carried_by(Code.WIPE_WRITE_PERM_OF_BROKER, Code.ADD_WRITE_PERM_OF_BROKER)
class BrokerNamed(Call, kw_only=True):
    broker_name: str


class WipedReply(Call, kw_only=True):
    """To WIPE_WRITE_PERM_OF_BROKER."""

    topic_count: Int32 = field(name="wipeTopicCount")


class AddedReply(Call, kw_only=True):
    """To ADD_WRITE_PERM_OF_BROKER."""

    topic_count: Int32 = field(name="addTopicCount")


@carried_by(Code.REGISTER_BROKER)
class RegisterBroker(Call, kw_only=True):
    """``body_crc32`` has 31 bits, of the body as sent; 0 is not checked. ``only_changes`` is TernMQ's own: the body
    does not have all topics of the broker."""

    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster_name: str
    ha_address: str = field(default="", name="haServerAddr")
    broker_id: Int64
    compressed: bool = False
    body_crc32: Int32 = 0
    heartbeat_timeout_ms: Int64 | None = field(default=None, name="heartbeatTimeoutMillis")
    enable_acting_master: bool | None = None
    only_changes: bool | None = None


class RegisterBrokerReply(Call, kw_only=True):
    """For a slave: the address of its master's log stream, and that of the master itself."""

    ha_address: str | None = field(default=None, name="haServerAddr")
    master_address: str | None = field(default=None, name="masterAddr")


@carried_by(Code.UNREGISTER_BROKER, Code.QUERY_DATA_VERSION)
class BrokerIdentity(Call, kw_only=True):
    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster_name: str
    broker_id: Int64


class DataVersionReply(Call, kw_only=True):
    """Reply to QUERY_DATA_VERSION; the stored version, if there is one, is the body."""

    changed: bool


@carried_by(Code.BROKER_HEARTBEAT)
class BrokerHeartbeat(Call, kw_only=True):
    """A heartbeat, every second if an acting master is used. The time-out's wire name is RocketMQ's."""

    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster_name: str
    broker_id: Int64 | None = None
    epoch: Int32 | None = None
    max_offset: Int64 | None = None
    confirm_offset: Int64 | None = None
    heartbeat_timeout_ms: Int64 | None = field(default=None, name="heartbeatTimeoutMills")
    election_priority: Int32 | None = None


@carried_by(Code.GET_BROKER_MEMBER_GROUP)
class MemberGroupQuery(Call, kw_only=True):
    cluster_name: str
    broker_name: str


@carried_by(Code.NOTIFY_MIN_BROKER_ID_CHANGE)
class MinBrokerIdChanged(Call, kw_only=True):
    """From the name server to the brokers of a group: which broker is the acting master now."""

    min_broker_id: Int64 | None = None
    broker_name: str | None = None
    min_broker_address: str | None = field(default=None, name="minBrokerAddr")
    offline_broker_address: str | None = field(default=None, name="offlineBrokerAddr")
    ha_broker_address: str | None = field(default=None, name="haBrokerAddr")


@carried_by(Code.EXCHANGE_BROKER_HA_INFO)
class ExchangeHaInfo(Call, kw_only=True):
    """Request and reply. With an empty HA address it asks for the master's; otherwise it sets it."""

    master_ha_address: str | None = None
    master_flush_offset: Int64 | None = None
    master_address: str | None = None


@carried_by(Code.RESET_MASTER_FLUSH_OFFSET)
class ResetFlushOffset(Call, kw_only=True):
    master_flush_offset: Int64


# --- Access control of 4.9 (N1) -------------------------------------------------------------------------------


@carried_by(Code.UPDATE_AND_CREATE_ACL_CONFIG)
class UpdateAcl(Call, kw_only=True):
    """One account. Permissions per topic and group have the form ``a=PUB,b=SUB``."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        # Without the secret.
        return f"UpdateAcl(access_key={self.access_key!r})"


@carried_by(Code.DELETE_ACL_CONFIG)
class DeleteAcl(Call, kw_only=True):
    access_key: str


class AclVersionReply(Call, kw_only=True):
    """Reply to GET_BROKER_CLUSTER_ACL_INFO 52. Versions are DataVersions as JSON; the second maps files to them."""

    version: str
    all_acl_file_version: str | None = None
    broker_name: str
    broker_address: str = field(name="brokerAddr")
    cluster_name: str


@carried_by(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
class UpdateWhiteAddresses(Call, kw_only=True):
    """Addresses that need no account, as a comma list."""

    addresses: str = field(name="globalWhiteAddrs")
    file_path: str | None = field(default=None, name="aclFileFullPath")


# --- Transactions (J2) ----------------------------------------------------------------------------------------


@carried_by(Code.LIST_TRANSACTIONS)
class ListTransactions(Call, kw_only=True):
    """LIST_TRANSACTIONS 15003, of TernMQ: open transactions whose halves lie at or behind a queue offset."""

    queue_offset: Int64 = 0
    count_max: Int32 = 100


# --- Master and slaves (O1) -----------------------------------------------------------------------------------


@carried_by(Code.PROMOTE_BROKER)
class PromoteBroker(Call, kw_only=True):
    """PROMOTE_BROKER 15011, of TernMQ: the slave that gets it becomes the master of its name."""

    #: Although the old master may still be alive, or another slave has more messages.
    force: bool = False
    #: ``SYNC_MASTER`` or ``ASYNC_MASTER``; empty: as the old master was.
    role: str = ""


@carried_by(Code.HAND_OVER)
class HandOver(Call, kw_only=True):
    """HAND_OVER 15012, of TernMQ: from a slave to its master, which is to become a slave with the other's id."""

    broker_id: Int64
    #: Where the new master will be: its remoting port, and that of its log.
    broker_address: str = field(name="brokerAddr")
    ha_address: str = field(name="haServerAddr")
    #: It is the master already, by force: the other one is to look, and to step down.
    is_done: bool = False


# --- Raft groups (P4) -----------------------------------------------------------------------------------------


@carried_by(Code.TRANSFER_LEADERSHIP)
class TransferLeadership(Call, kw_only=True):
    """TRANSFER_LEADERSHIP 15041, of TernMQ: let the member ``to`` lead; empty: the one that has most of the log."""

    to: str = ""


class TransferReply(Call, kw_only=True):
    """To TRANSFER_LEADERSHIP: the member that leads now."""

    leader: str


@carried_by(Code.CHANGE_MEMBERS)
class ChangeMembers(Call, kw_only=True):
    """CHANGE_MEMBERS 15044, of TernMQ: let ``n3-host:port`` join the group, or a member leave it; one of both."""

    add: str = ""
    remove: str = ""


class MembersReply(Call, kw_only=True):
    """To CHANGE_MEMBERS: all members now."""

    members: str


@carried_by(Code.DELETE_TOPIC_IN_GROUP)
class DeleteTopicInGroup(Call, kw_only=True):
    """DELETE_TOPIC_IN_GROUP 15045, of TernMQ: from a member that was asked to delete a topic, to its leader."""

    topic: str
    #: The id of the member.
    member: str


# --- Users and policies of 5.3 (N1); the objects are bodies ----------------------------------------------------


@carried_by(Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER, Code.AUTH_GET_USER)
class UserName(Call, kw_only=True):
    username: str


@carried_by(Code.AUTH_LIST_USER)
class ListUsers(Call, kw_only=True):
    """All users whose name contains ``filter``."""

    filter: str | None = None


@carried_by(Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_GET_ACL)
class AclSubject(Call, kw_only=True):
    """A subject is ``User:name``."""

    subject: str


@carried_by(Code.AUTH_DELETE_ACL)
class DeletePolicy(Call, kw_only=True):
    """Without a ``resource``, all policies of the subject."""

    subject: str
    policy_type: str | None = None
    resource: str | None = None


@carried_by(Code.AUTH_LIST_ACL)
class ListPolicies(Call, kw_only=True):
    subject_filter: str | None = None
    resource_filter: str | None = None
