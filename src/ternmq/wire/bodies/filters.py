"""The file of a broker's SQL filters, ``config/consumerFilter.json`` (K4), as RocketMQ's ``ConsumerFilterManager`` has
it."""

from __future__ import annotations

from ternmq.wire.bodies.codec import Body, always


class BloomPositions(Body, frozen=True, kw_only=True):
    """The bits of a group and a topic in a map of ``bit_num`` bits (``filter.bloom``)."""

    bit_pos: list[int] = always(list)
    bit_num: int = always(int)


class GroupFilter(Body, frozen=True, kw_only=True):
    """The filter of a group for a topic, and since when, in ms. ``dead_time``: when its last member left; 0: active."""

    consumer_group: str
    topic: str
    expression: str
    expression_type: str = always(lambda: "SQL92")
    born_time: int = always(int)
    dead_time: int = always(int)
    #: RocketMQ writes it beside ``dead_time``, but reads only ``dead_time``.
    dead: bool = always(bool)
    bloom_filter_data: BloomPositions | None = None
    client_version: int = always(int)


class TopicFilters(Body, frozen=True, kw_only=True):
    topic: str = always(str)
    group_filter_data: dict[str, GroupFilter] = always(dict)


class FilterTable(Body, frozen=True, kw_only=True):
    filter_data_by_topic: dict[str, TopicFilters] = always(dict)
