"""How brokers of one name stand to each other, as tools and other brokers see it (O1): bodies of TernMQ's own, and the
epochs of a log as RocketMQ's ``mqadmin getBrokerEpoch`` shows them."""

from __future__ import annotations

from ternmq.wire.bodies.codec import Body, always

#: What RocketMQ has as the end of an epoch that goes on.
NO_END = (1 << 63) - 1


class EpochEntry(Body, frozen=True, kw_only=True):
    """From a log offset on, records were written in this epoch."""

    epoch: int = always(int)
    start_offset: int = always(int)
    end_offset: int = always(lambda: NO_END)


class EpochCache(Body, frozen=True, kw_only=True):
    """GET_BROKER_EPOCH_CACHE 1007."""

    cluster_name: str = always(str)
    broker_name: str = always(str)
    broker_id: int = always(int)
    epoch_list: list[EpochEntry] = always(list)
    max_offset: int = always(int)


class SlaveLine(Body, frozen=True, kw_only=True):
    """One slave, as its master sees it."""

    address: str = always(str)
    #: -1: a slave of RocketMQ does not tell.
    broker_id: int = always(lambda: -1)
    state: str = always(str)
    acked: int = always(int)
    lag_bytes: int = always(int)
    #: Between the last record of the log and the last one that the slave has.
    lag_ms: int = always(int)
    in_sync: bool = always(bool)
    bytes_per_second: int = always(int)


class FollowedMaster(Body, frozen=True, kw_only=True):
    """The master, as its slave sees it."""

    #: ``host:port`` of its log; empty while it is not known.
    address: str = always(str)
    state: str = always(str)
    #: Why the slave does not follow.
    trouble: str = always(str)
    #: Where the master's log ended when the slave last asked, and how long ago that was; -1: it never did.
    known_end: int = always(lambda: -1)
    known_ms_ago: int = always(lambda: -1)


class BrokerStatus(Body, frozen=True, kw_only=True):
    """GET_BROKER_STATUS 15010."""

    cluster: str = always(str)
    broker: str = always(str)
    broker_id: int = always(int)
    address: str = always(str)
    #: Where slaves fetch its log; 0: nowhere.
    log_port: int = always(int)
    #: SYNC_MASTER, ASYNC_MASTER or SLAVE; NONE while that is being decided.
    role: str = always(str)
    #: The largest epoch that it has heard of, and the one in which its last record was written.
    epoch: int = always(int)
    log_epoch: int = always(int)
    log_begin: int = always(int)
    log_end: int = always(int)
    #: Messages in all queues, also those that were deleted since.
    messages: int = always(int)
    #: When the last record was stored.
    stored_ms: int = always(int)
    #: The id that it had before it was promoted; 0: it was not.
    former_id: int = always(int)
    #: A promotion decided the role, and not the settings.
    is_by_promotion: bool = always(bool)
    #: It is being promoted, or hands over.
    is_changing: bool = always(bool)
    slaves: list[SlaveLine] = always(list)
    master: FollowedMaster | None = None
