"""Which messages a group wants: from its subscription to the tests that a pull or a pop runs (K1–K4).

One door for all who read on behalf of a group::

    wanted = filters.of_heartbeat(group, topic, version)           what its heartbeats said
    wanted = filters.of_request(group, topic, kind, expression)    what the request itself says
    store.get(…, matches=wanted.matches, may_pass=wanted.may_pass, accepts=wanted.accepts)

Tags need no more than their hashes. An SQL filter is *registered* by a heartbeat: compiled, kept by topic and group
with the time of its birth, and known by its positions in Bloom maps. When its last member leaves it dies, and is kept
for ``filterDataCleanTimeSpan`` (24 h): a group that comes back finds the bits of what was stored meanwhile. The rules
are RocketMQ's:

- a ``subVersion`` that is not newer changes nothing, but an equal one brings a dead filter back;
- a changed expression is a new filter, born now: maps from before say nothing about it;
- a newer expression that cannot be read removes the old one, and pulls are told FILTER_DATA_NOT_EXIST;
- at a start all filters count as dead since 30 s, and a changed size of the maps throws all of them away.

With ``enableCalcFilterBitMap`` each message stored is tried on all filters of its topic, dead ones included, and the
answers go to the unit beside its queue entry (``store.queue_ext``); a pull then skips most messages that its group does
not want without reading them.

``filterSupportRetry`` (K4) applies the filter of the original topic to what comes from a group's retry topic. RocketMQ
has the switch, too, but asks the retry topic's own subscription first, which is by tag with every client, and so never
filters.

On disk: ``config/consumerFilter.json`` (``wire.bodies.filters``), saved every 10 s if anything changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias

from ternmq import names
from ternmq.broker.clients import Clients
from ternmq.broker.config import BrokerConfig
from ternmq.env import Clock
from ternmq.errors import (
    ConfigError,
    EvaluationFailed,
    FilterMissing,
    FilterOutdated,
    InvalidExpression,
    SubscriptionInvalid,
    SubscriptionMissing,
    SubscriptionOutdated,
    SystemFailure,
)
from ternmq.files import TableFile
from ternmq.filter.bloom import BloomFilter, filter_name
from ternmq.filter.evaluate import SqlFilter
from ternmq.filter.tags import TagFilter
from ternmq.message import Property
from ternmq.store.dispatch import Fact
from ternmq.store.queue_ext import Unit
from ternmq.wire.bodies.clients import SubscriptionData
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.filters import BloomPositions, FilterTable, GroupFilter, TopicFilters
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import find, getter

log = logging.getLogger(__name__)

TAG: Final = "TAG"
SQL92: Final = "SQL92"

#: RocketMQ saves the table this often.
SAVE_S: Final = 10.0
#: At a start, filters count as dead for this long already.
DEAD_AT_LOAD_MS: Final = 30_000
#: Wanted that are kept, by expression. Groups are few, and their pulls many.
_KEPT_MAX: Final = 4096

Matches: TypeAlias = Callable[[int], bool]
Accepts: TypeAlias = Callable[[str], bool]


class Wanted(NamedTuple):
    """What a message must pass, in the order of what it costs; None lets all pass. The fields are those of
    ``MessageStore.get``."""

    #: The tags code of the queue entry.
    matches: Matches | None = None
    #: The unit beside the entry.
    may_pass: Callable[[Unit], bool] | None = None
    #: The text of the record's properties.
    accepts: Accepts | None = None

    def lets_pass(self, tags_code: int, properties: str | None) -> bool:
        """Whether a record that has just arrived may be wanted. Without ``properties``, which are not known for several
        at once, only its tags are asked."""
        matches, accepts = self.matches, self.accepts
        return (matches is None or matches(tags_code)) and (
            accepts is None or properties is None or accepts(properties)
        )


ALL: Final = Wanted()


@dataclass(slots=True)
class _Registered:
    """An SQL filter of one group on one topic; ``dead_ms`` is 0 while the group has members."""

    group: str
    topic: str
    expression: str
    version: int
    born_ms: int
    dead_ms: int
    positions: tuple[int, ...]
    accepts: Accepts
    wanted: Wanted


class Filters:
    """All methods belong to the broker's loop. Call ``load`` once before anything else."""

    def __init__(self, file: TableFile, clock: Clock, clients: Clients, config: BrokerConfig) -> None:
        self._file = file
        self._clock = clock
        self._clients = clients
        self._broker_name = config.broker_name
        self._enabled = config.enable_property_filter
        self._filters_retries = config.filter_support_retry
        self._kept_ms = config.filter_data_clean_time_span
        self._bloom = BloomFilter.sized(
            error_percent=config.max_error_rate_of_bloom_filter, names=config.expect_consumer_num_use_filter
        )
        # By topic, then group: dispatch asks for all filters of a topic.
        self._table: dict[str, dict[str, _Registered]] = {}
        self._dirty = False

    # --- The door ---------------------------------------------------------------------------------------------

    def of_heartbeat(self, group: str, topic: str, version: int) -> Wanted:
        """The tests of a group by its heartbeats, which must be as new as ``version``.

        Raises ``SubscriptionMissing``, ``SubscriptionOutdated``, ``SubscriptionInvalid``, ``FilterMissing``,
        ``FilterOutdated`` or, for SQL on a broker that does not filter by it, ``SystemFailure``.
        """
        subscription = self._clients.subscription(group, topic)
        if subscription is None:
            raise SubscriptionMissing(f"the consumer's subscription not exist: {group} does not subscribe {topic}")
        if subscription.sub_version < version:
            raise SubscriptionOutdated(
                f"the consumer's subscription not latest: the last heartbeat for {topic} is older"
            )
        if _is_tag(subscription.expression_type):
            return self._by_tags(group, topic, subscription.sub_string)
        registered = self._table.get(topic, {}).get(group)
        if registered is None:
            raise FilterMissing(
                f"The broker's consumer filter data is not exist: {_why_missing(subscription)}; subscribe {topic} again"
            )
        if registered.version < version:
            raise FilterOutdated(f"the consumer's consumer filter data not latest: that of {group} on {topic} is older")
        self._check_enabled(subscription.expression_type)
        return registered.wanted

    def of_request(self, group: str, topic: str, kind: str | None, expression: str | None) -> Wanted:
        """The tests that a request brings along. Raises ``SubscriptionInvalid`` or ``SystemFailure``."""
        if _is_tag(kind):
            said = self._clients.subscription(group, topic)
            # The Go client says TAG for whatever it sends along; its heartbeat has the truth.
            if said is None or _is_tag(said.expression_type) or said.sub_string != expression:
                return self._by_tags(group, topic, expression or "")
            kind = said.expression_type
        self.check(kind, expression)
        return Wanted(accepts=_sql_test(expression or ""))

    def check(self, kind: str | None, expression: str | None) -> None:
        """Whether this broker filters by such an expression: CHECK_CLIENT_CONFIG.

        Raises ``SystemFailure`` if it does not, and ``SubscriptionInvalid`` with the place of what it cannot read.
        """
        if _is_tag(kind):
            _tag_test(expression or "")
            return
        self._check_enabled(kind)
        if kind != SQL92:
            raise SubscriptionInvalid(f"parse the consumer's subscription failed: no filter {kind!r}; use TAG or SQL92")
        _sql_test(expression or "")

    def _by_tags(self, group: str, topic: str, expression: str) -> Wanted:
        matches = _tag_test(expression)
        if self._filters_retries and topic.startswith(names.RETRY_PREFIX):
            return Wanted(matches=matches, accepts=lambda properties: self._accepts_retried(group, properties))
        return Wanted(matches=matches) if matches is not None else ALL

    def _accepts_retried(self, group: str, properties: str) -> bool:
        registered = self._table.get(find(properties, Property.RETRY_TOPIC) or "", {}).get(group)
        return registered is None or registered.accepts(properties)

    def _check_enabled(self, kind: str | None) -> None:
        if not self._enabled:
            raise SystemFailure(
                f"The broker does not support consumer to filter message by {kind}: set enablePropertyFilter=true on "
                f"{self._broker_name}, or subscribe by tags"
            )

    # --- Registration -----------------------------------------------------------------------------------------

    def register(self, group: str, subscriptions: Iterable[SubscriptionData]) -> None:
        """Take in a heartbeat."""
        wanted = {said.topic: said for said in subscriptions if said.expression_type == SQL92}
        for said in wanted.values():
            self._register(group, said)
        for topic, groups in self._table.items():
            if topic not in wanted and group in groups:
                self._bury(groups[group])

    def unregister(self, group: str) -> None:
        """The last member of a group has left."""
        for groups in self._table.values():
            if group in groups:
                self._bury(groups[group])

    def _register(self, group: str, said: SubscriptionData) -> None:
        groups = self._table.get(said.topic, {})
        old = groups.get(group)
        if old is not None and (said.sub_version <= old.version or said.sub_string == old.expression):
            if said.sub_version >= old.version and (said.sub_version > old.version or old.dead_ms):
                old.version = said.sub_version
                old.dead_ms = 0
                self._dirty = True
            return
        try:
            new = self._new(group, said.topic, said.sub_string, said.sub_version, born_ms=self._clock.now_ms())
        except SubscriptionInvalid as error:
            log.warning("a filter cannot be read", extra={"group": group, "topic": said.topic, "why": str(error)})
            if old is not None:
                del groups[group]
                self._dirty = True
            return
        self._table.setdefault(said.topic, groups)[group] = new
        self._dirty = True

    def _new(
        self, group: str, topic: str, expression: str, version: int, *, born_ms: int, dead_ms: int = 0
    ) -> _Registered:
        accepts = _sql_test(expression)
        positions = self._bloom.positions(filter_name(group, topic))
        may_hold = self._bloom.tester(positions)

        def may_pass(unit: Unit) -> bool:
            return unit.store_time_ms <= born_ms or may_hold(unit.bits)

        wanted = Wanted(may_pass=may_pass, accepts=accepts)
        return _Registered(group, topic, expression, version, born_ms, dead_ms, positions, accepts, wanted)

    def _bury(self, registered: _Registered) -> None:
        if not registered.dead_ms:
            # RocketMQ takes one that died before its birth for alive.
            registered.dead_ms = max(self._clock.now_ms(), registered.born_ms)
            self._dirty = True

    # --- Dispatch ---------------------------------------------------------------------------------------------

    def bits(self, fact: Fact) -> bytes:
        """The map of the groups whose filter a record passes (``MessageStore.bits``); empty if nobody filters."""
        groups = self._table.get(fact.topic)
        if not groups:
            return b""
        properties = fact.properties
        return self._bloom.bits([filter_.positions for filter_ in groups.values() if filter_.accepts(properties)])

    # --- The file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, FilterTable))
        if saved is None:
            return
        dead_ms = self._clock.now_ms() - DEAD_AT_LOAD_MS
        for topic, filters in saved.filter_data_by_topic.items():
            for group, data in filters.group_filter_data.items():
                dead_since_ms = data.dead_time or max(dead_ms, data.born_time)
                try:
                    loaded = self._new(
                        group,
                        topic,
                        data.expression,
                        data.client_version,
                        born_ms=data.born_time,
                        dead_ms=dead_since_ms,
                    )
                except SubscriptionInvalid as error:
                    log.warning("a saved filter cannot be read", extra={"group": group, "why": str(error)})
                    continue
                if data.bloom_filter_data != self._positions_body(loaded.positions):
                    log.warning("the size of Bloom maps has changed; all saved filters are dropped")
                    self._table.clear()
                    return
                self._table.setdefault(topic, {})[group] = loaded

    def save(self) -> None:
        """Forget filters that are dead for long, and hand the table to the file's thread if anything changed."""
        late = self._clock.now_ms() - self._kept_ms
        for topic, groups in list(self._table.items()):
            for group, registered in list(groups.items()):
                if 0 < registered.dead_ms <= late:
                    log.info("a filter is dead for long, and forgotten", extra={"group": group, "topic": topic})
                    del groups[group]
                    self._dirty = True
            if not groups:
                del self._table[topic]
        if self._dirty:
            self._dirty = False
            self._file.save_soon(encode(self.body()))

    def body(self) -> FilterTable:
        """The whole table in its wire form."""
        return FilterTable(
            filter_data_by_topic={
                topic: TopicFilters(
                    topic=topic, group_filter_data={group: self._body(data) for group, data in groups.items()}
                )
                for topic, groups in self._table.items()
            }
        )

    def _body(self, registered: _Registered) -> GroupFilter:
        return GroupFilter(
            consumer_group=registered.group,
            topic=registered.topic,
            expression=registered.expression,
            born_time=registered.born_ms,
            dead_time=registered.dead_ms,
            dead=bool(registered.dead_ms),
            bloom_filter_data=self._positions_body(registered.positions),
            client_version=registered.version,
        )

    def _positions_body(self, positions: tuple[int, ...]) -> BloomPositions:
        return BloomPositions(bit_pos=list(positions), bit_num=self._bloom.bit_count)


def _why_missing(subscription: SubscriptionData) -> str:
    try:
        _sql_test(subscription.sub_string)
    except SubscriptionInvalid as error:
        return str(error)
    return "no heartbeat has brought it since this broker started"


def _is_tag(kind: str | None) -> bool:
    return not kind or kind == TAG


@lru_cache(maxsize=_KEPT_MAX)
def _tag_test(expression: str) -> Matches | None:
    """The test for a tag expression; None lets all pass."""
    try:
        codes = TagFilter.parse(expression).codes(java_hash)
    except ConfigError as error:
        raise SubscriptionInvalid(f"parse the consumer's subscription failed: {error}") from None
    if not codes:
        return None

    def matches(tags_code: int) -> bool:
        # Only the low 32 bits are the hash, as Java's ``intValue`` takes them.
        return ((tags_code + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000 in codes

    return matches


@lru_cache(maxsize=_KEPT_MAX)
def _sql_test(expression: str) -> Accepts:
    """The test for an SQL expression, on the text of a message's properties. Hot, like the filter itself."""
    try:
        evaluate = SqlFilter.compile(expression, getter).evaluate
    except InvalidExpression as error:
        raise SubscriptionInvalid(f"parse the consumer's subscription failed: {error}") from None
    has_complained = False

    def accepts(properties: str) -> bool:
        nonlocal has_complained
        try:
            return evaluate(properties) is True
        except EvaluationFailed as error:
            # Once for each expression: one such message seldom comes alone.
            if not has_complained:
                has_complained = True
                log.warning("a filter failed on a message", extra={"expression": expression, "why": str(error)})
            return False

    return accepts
