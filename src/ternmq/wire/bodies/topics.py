"""Topics in the tables and replies of a broker: their settings and the version of the whole table (A2, D1, D6)."""

from __future__ import annotations

from typing import ClassVar

from ternmq.wire.bodies.codec import Body, always


class DataVersion(Body, frozen=True, kw_only=True):
    """How new a table is: each change increases the counter and sets the time. 4.9 has no ``state_version``."""

    bytes_max: ClassVar[int] = 1 << 20

    counter: int = always(int)
    timestamp: int = always(int)
    state_version: int | None = None


class TopicConfig(Body, frozen=True, kw_only=True):
    """One topic. ``perm`` is the sum of 4 (read), 2 (write), 1 (inherit)."""

    topic_name: str
    read_queue_nums: int = always(lambda: 16)
    write_queue_nums: int = always(lambda: 16)
    perm: int = always(lambda: 6)
    topic_filter_type: str = always(lambda: "SINGLE_TAG")
    topic_sys_flag: int = always(int)
    order: bool = always(bool)
    attributes: dict[str, str] | None = None


class QueueMapping(Body, frozen=True, kw_only=True):
    """Part of a static topic of RocketMQ 5; a name server only forwards it."""

    topic: str
    scope: str | None = None
    total_queues: int = always(int)
    bname: str = always(str)
    epoch: int = always(int)
    dirty: bool = always(bool)
    curr_id_map: dict[int, int] | None = None


class TopicTable(Body, frozen=True, kw_only=True):
    """GET_ALL_TOPIC_CONFIG 21, and part of a broker's registration. The mapping members are RocketMQ 5's."""

    data_version: DataVersion = always(DataVersion)
    topic_config_table: dict[str, TopicConfig] = always(dict)
    mapping_data_version: DataVersion | None = None
    topic_queue_mapping_info_map: dict[str, QueueMapping] | None = None
    #: Of TernMQ, in a Raft group: the changes before this queue offset of TERNMQ_SYS_TABLES are in the table.
    changes_included: int | None = None


class TopicConfigs(Body, frozen=True, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC_LIST 18."""

    topic_config_list: list[TopicConfig] = always(list)


class TopicList(Body, frozen=True, kw_only=True):
    """Names of topics: 206, 224, 304, 305, 311–313, 343."""

    topic_list: list[str] = always(list)
    broker_addr: str | None = None
