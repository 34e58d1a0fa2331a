"""Which messages a group wants: from its subscription to the tests that a pull or a pop runs (K1–K4).

One entrance for all requests that read for a group::

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

Ours are the bounds, since expressions come from any client:

- an expression has so many characters, terms and levels (``filter.sql.ExpressionLimits``);
- all filters together have so many bytes (``maxFilterBytes``, estimated by their length). One more drops dead ones,
  longest dead first, and is refused if that does not make room;
- a heartbeat compiles so much at most (``HEARTBEAT_LENGTH_MAX``); the rest comes with the next heartbeat, which its
  client sends when it is told FILTER_DATA_NOT_EXIST;
- a pull or pop that filters by SQL has a time (``timer``), an arrival so many terms that it is tried on, and there are
  no maps for topics whose filters have more terms than ``maxFilterTermsPerBitMap``;
- without ``enablePropertyFilter`` nothing is compiled, kept or loaded.

With ``enableCalcFilterBitMap`` each message stored is tried on all filters of its topic, dead ones included, and the
answers go to the unit beside its queue entry (``store.derived.queue_ext``); a pull then skips most messages that its
group does not want without reading them.

``filterSupportRetry`` (K4) applies the filter of the original topic to what comes from a group's retry topic. RocketMQ
has the switch, too, but asks the retry topic's own subscription first, which is by tag with every client, and so never
filters.

On disk: ``config/consumerFilter.json`` (``wire.bodies.filters``), saved every 10 s if anything changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.kept import Kept, sql_bytes, tags_bytes
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
from ternmq.filter.sql import ExpressionLimits
from ternmq.filter.tags import TagFilter
from ternmq.message import Property
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.queue_ext import Unit
from ternmq.types import Accepts, IsOver, Matches
from ternmq.wire.bodies.clients import SubscriptionData
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.filters import BloomPositions, FilterTable, GroupFilter, TopicFilters
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import find, getter, parse

log = logging.getLogger(__name__)

TAG: Final = "TAG"
SQL92: Final = "SQL92"

#: RocketMQ saves the table this often.
SAVE_S: Final = 10.0
#: At a start, filters count as dead for this long already.
DEAD_AT_LOAD_MS: Final = 30_000
#: Terms of SQL filters that a record which has just arrived is tried on; the pulls beyond look for themselves.
ARRIVAL_TERMS_MAX: Final = 256
#: Longer properties are not tried on several filters at once, when a message is stored.
PROPERTIES_LENGTH_MAX: Final = 4_096
#: Characters of new SQL expressions that are taken from one heartbeat, at least ``_LENGTH_MIN`` each; one expression is
#: taken in any case. About 0.1 s of reading.
HEARTBEAT_LENGTH_MAX: Final = 32_768
_LENGTH_MIN: Final = 256

#: Characters of an expression that an error shows.
_SHOWN_MAX: Final = 64


class Wanted(NamedTuple):
    """What a message must pass, in the order of what it costs; None lets all pass. The fields are those of
    ``MessageStore.get``."""

    #: The tags code of the queue entry.
    matches: Matches | None = None
    #: The unit beside the entry.
    may_pass: Callable[[Unit], bool] | None = None
    #: The text of the record's properties.
    accepts: Accepts | None = None
    #: How much ``accepts`` looks at.
    terms: int = 0

    def lets_pass(self, tags_code: int, properties: str | None) -> bool:
        """Whether a record that has just arrived may be wanted. Without ``properties``, which are not known for several
        at once, only its tags are asked."""
        matches, accepts = self.matches, self.accepts
        return (matches is None or matches(tags_code)) and (
            accepts is None or properties is None or len(properties) > PROPERTIES_LENGTH_MAX or accepts(properties)
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

    @property
    def terms(self) -> int:
        return self.wanted.terms


class Filters:
    """All methods belong to the broker's loop. Call ``load`` once before anything else."""

    def __init__(self, file: TableFile, clock: Clock, clients: Clients, config: BrokerConfig) -> None:
        self._file = file
        self._clock = clock
        self._clients = clients
        self._broker_name = config.broker_name
        self._bloom = BloomFilter.sized(
            error_percent=config.max_error_rate_of_bloom_filter, names=config.expect_consumer_num_use_filter
        )
        self._enabled = config.enable_property_filter
        self._bytes_max = config.max_filter_bytes
        self.apply(config)
        self._sqls = Kept(self._sql, sql_bytes, self._bytes_max)
        self._tags = Kept(self._tagged, tags_bytes, self._bytes_max)
        # By topic, then group: dispatch asks for all filters of a topic.
        self._table: dict[str, dict[str, _Registered]] = {}
        # The same by group, the dead ones of it in the order of their death, and what all of it adds up to.
        self._by_group: dict[str, dict[str, _Registered]] = {}
        self._dead: dict[tuple[str, str], _Registered] = {}
        self._terms: dict[str, int] = {}
        self._bytes = 0
        self._dirty = False
        #: The latest store time of a record that a map was made for.
        self._newest_ms = 0

    def apply(self, config: BrokerConfig) -> None:
        """Set what can change while a broker runs. Whether there are SQL filters, the size of Bloom maps and of the
        memory for filters are those of the start."""
        self._filters_retries = config.filter_support_retry
        self._kept_ms = config.filter_data_clean_time_span
        self._limits = ExpressionLimits(
            length=config.max_filter_expression_length,
            terms=config.max_filter_expression_terms,
            depth=config.max_filter_expression_depth,
        )
        self._time_s = config.max_filter_time_per_pull / 1000
        self._map_terms_max = config.max_filter_terms_per_bit_map

    # --- The door ---------------------------------------------------------------------------------------------

    def of_heartbeat(self, group: str, topic: str, version: int) -> Wanted:
        """The tests of a group by its heartbeats, which must be as new as ``version``.

        Raises ``SubscriptionMissing``, ``SubscriptionOutdated``, ``SubscriptionInvalid``, ``FilterMissing``,
        ``FilterOutdated`` or, for SQL on a broker that does not filter by it, ``SystemFailure``.
        """
        subscription = self._clients.subscription(group, topic)
        if subscription is None:
            raise SubscriptionMissing(
                f"the consumer's subscription not exist: group {group} does not subscribe to {topic}"
            )
        if subscription.sub_version < version:
            raise SubscriptionOutdated(
                f"the consumer's subscription not latest: the last heartbeat for {topic} is older"
            )
        if _is_tag(subscription.expression_type):
            return self._by_tags(group, topic, subscription.sub_string)
        self._check_enabled(subscription.expression_type)
        registered = self._table.get(topic, {}).get(group)
        if registered is None:
            why = self._why_missing(subscription)
            raise FilterMissing(f"The broker's consumer filter data is not exist: {why}; subscribe to {topic} again")
        if registered.version < version:
            raise FilterOutdated(f"the consumer's consumer filter data not latest: that of {group} on {topic} is older")
        return registered.wanted

    def of_request(self, group: str, topic: str, kind: str | None, expression: str | None) -> Wanted:
        """The tests that a request brings along. Raises ``SubscriptionInvalid`` or ``SystemFailure``."""
        if _is_tag(kind):
            said = self._clients.subscription(group, topic)
            # The Go client says TAG for whatever it sends along; its heartbeat has the truth.
            if said is None or _is_tag(said.expression_type) or said.sub_string != expression:
                return self._by_tags(group, topic, expression or "")
            kind = said.expression_type
        self._check_enabled(kind)
        return self._of_sql(kind, expression or "")

    def check(self, kind: str | None, expression: str | None) -> None:
        """Whether this broker filters by such an expression: CHECK_CLIENT_CONFIG.

        Raises ``SystemFailure`` if it does not, and ``SubscriptionInvalid`` with the place of what it cannot read.
        """
        if _is_tag(kind):
            self._tags.get(expression or "")
            return
        self._check_enabled(kind)
        self._of_sql(kind, expression or "")

    def timer(self) -> IsOver:
        """Says whether a filter that begins now has taken enough time (``maxFilterTimePerPull``)."""
        monotonic = self._clock.monotonic
        end = monotonic() + self._time_s
        return lambda: monotonic() > end

    def _by_tags(self, group: str, topic: str, expression: str) -> Wanted:
        wanted = self._tags.get(expression)
        if self._filters_retries and topic.startswith(names.RETRY_PREFIX):
            return Wanted(
                matches=wanted.matches,
                accepts=lambda properties: self._accepts_retried(group, properties),
                terms=self._limits.terms,
            )
        return wanted

    def _of_sql(self, kind: str | None, expression: str) -> Wanted:
        if kind != SQL92:
            raise SubscriptionInvalid(f"parse the consumer's subscription failed: no filter {kind!r}; use TAG or SQL92")
        # Not even a refusal of such a text is kept.
        made = self._sql(expression) if self._limits.too_long(expression) else self._sqls.get(expression)
        if isinstance(made, str):
            raise SubscriptionInvalid(made)
        return made

    def _accepts_retried(self, group: str, properties: str) -> bool:
        registered = self._table.get(find(properties, Property.RETRY_TOPIC) or "", {}).get(group)
        return registered is None or registered.accepts(properties)

    def _check_enabled(self, kind: str | None) -> None:
        if not self._enabled:
            raise SystemFailure(
                f"The broker does not support consumer to filter message by {kind}: set enablePropertyFilter=true on "
                f"{self._broker_name}, or subscribe by tags"
            )

    def _why_missing(self, subscription: SubscriptionData) -> str:
        try:
            self._of_sql(subscription.expression_type, subscription.sub_string)
        except SubscriptionInvalid as error:
            return str(error)
        needed = self._bytes + sql_bytes(subscription.sub_string)
        if needed > self._bytes_max:
            return (
                f"the SQL filters of all groups would need {needed} bytes with it, more than maxFilterBytes "
                f"({self._bytes_max}) of {self._broker_name} allows; raise the limit, or use shorter filters"
            )
        return "no heartbeat with it was received since this broker started"

    # --- What is made of expressions --------------------------------------------------------------------------

    def _tagged(self, expression: str) -> Wanted:
        too_long = self._limits.too_long(expression)
        if too_long:
            shown = expression[:_SHOWN_MAX]
            raise SubscriptionInvalid(f"parse the consumer's subscription failed: the tags {shown!r}…: {too_long}")
        try:
            codes = TagFilter.parse(expression).codes(java_hash)
        except ConfigError as error:
            raise SubscriptionInvalid(f"parse the consumer's subscription failed: {error}") from None
        if not codes:
            return ALL

        def matches(tags_code: int) -> bool:
            # Only the low 32 bits are the hash, as Java's ``intValue`` takes them.
            return ((tags_code + 0x8000_0000) & 0xFFFF_FFFF) - 0x8000_0000 in codes

        return Wanted(matches=matches)

    def _sql(self, expression: str) -> Wanted | str:
        """The test for an SQL expression, on the text of a message's properties; or why there is none. Hot, like the
        filter itself."""
        try:
            filter_ = SqlFilter.compile(expression, getter, read_all=parse, limits=self._limits)
        except InvalidExpression as error:
            return f"parse the consumer's subscription failed: {error}"
        evaluate = filter_.evaluate
        has_complained = False

        def accepts(properties: str) -> bool:
            nonlocal has_complained
            try:
                return evaluate(properties) is True
            except EvaluationFailed as error:
                # Once for each expression: one such message seldom comes alone.
                if not has_complained:
                    has_complained = True
                    log.warning("the SQL filter %r failed on a message: %s", expression, error)
                return False

        return Wanted(accepts=accepts, terms=filter_.terms)

    # --- Registration -----------------------------------------------------------------------------------------

    def register(self, groups: Mapping[str, Iterable[SubscriptionData]]) -> None:
        """Take in a heartbeat: the groups that it names, each with what all its members say together."""
        if not self._enabled:
            return
        length_left = HEARTBEAT_LENGTH_MAX
        for group, subscriptions in groups.items():
            wanted = {said.topic: said for said in subscriptions if said.expression_type == SQL92}
            for said in wanted.values():
                if self._is_known(group, said):
                    continue
                # Those that were refused come with each heartbeat, and must not leave the others without a turn.
                is_new = said.sub_string not in self._sqls
                if not is_new or length_left > 0:
                    self._register(group, said, tells=is_new)
                if is_new:
                    length_left -= max(len(said.sub_string), _LENGTH_MIN)
            for topic, registered in self._by_group.get(group, {}).items():
                if topic not in wanted:
                    self._bury(registered)
        if length_left < 0:
            log.warning(
                f"the new SQL filters in a heartbeat have more than {HEARTBEAT_LENGTH_MAX} characters; the rest is "
                "compiled with the next heartbeat"
            )

    def copy(self, table: FilterTable) -> None:
        """Have the filters of a master, too (O4). Those that live here by heartbeats stay; others are the master's."""
        if not self._enabled:
            return
        now_ms = self._clock.now_ms()
        theirs = {
            (group, topic): data
            for topic, filters in table.filter_data_by_topic.items()
            for group, data in filters.group_filter_data.items()
        }
        for registered in list(self._dead.values()):
            if (registered.group, registered.topic) not in theirs:
                self._forget(registered)
        for (group, topic), data in theirs.items():
            # One that lives there counts as dead here, from now on: its members may never come.
            dead_ms = data.dead_time or now_ms
            old = self._table.get(topic, {}).get(group)
            if old is not None and (not old.dead_ms or old.expression == data.expression):
                old.dead_ms = max(old.dead_ms, dead_ms) if old.dead_ms else 0
                continue
            if old is not None:
                self._forget(old)
            try:
                self._add(group, topic, data.expression, data.client_version, born_ms=self._birth_ms(), dead_ms=dead_ms)
            except SubscriptionInvalid as error:
                log.warning(f"the SQL filter of group {group} on topic {topic} is not copied: {error}")

    def _birth_ms(self) -> int:
        """A filter that is born now says nothing about records that were stored before, by whatever clock: those of a
        slave have the times of its master."""
        return max(self._clock.now_ms(), self._newest_ms)

    def unregister(self, group: str) -> None:
        """The last member of a group has left."""
        for registered in self._by_group.get(group, {}).values():
            self._bury(registered)

    def _is_known(self, group: str, said: SubscriptionData) -> bool:
        """Whether nothing must be compiled for a subscription; a filter that it names lives again."""
        old = self._table.get(said.topic, {}).get(group)
        if old is None or (said.sub_version > old.version and said.sub_string != old.expression):
            return False
        if said.sub_version >= old.version and (said.sub_version > old.version or old.dead_ms):
            old.version = said.sub_version
            old.dead_ms = 0
            self._dead.pop((group, said.topic), None)
            self._dirty = True
        return True

    def _register(self, group: str, said: SubscriptionData, *, tells: bool) -> None:
        """Put a filter in place of what the group has; without ``tells``, a refusal is not logged once more."""
        old = self._table.get(said.topic, {}).get(group)
        if old is not None:
            self._forget(old)
        try:
            self._add(group, said.topic, said.sub_string, said.sub_version, born_ms=self._birth_ms())
        except SubscriptionInvalid as error:
            if tells:
                log.warning(f"the SQL filter of group {group} on topic {said.topic} is refused: {error}")

    def _add(
        self, group: str, topic: str, expression: str, version: int, *, born_ms: int, dead_ms: int = 0
    ) -> _Registered:
        """Raises ``SubscriptionInvalid``."""
        made = self._of_sql(SQL92, expression)
        assert made.accepts is not None
        size = sql_bytes(expression)
        while self._bytes + size > self._bytes_max and self._dead:
            self._forget(next(iter(self._dead.values())))
        if self._bytes + size > self._bytes_max:
            raise SubscriptionInvalid(
                f"the SQL filters of all groups need {self._bytes} bytes, more than maxFilterBytes "
                f"({self._bytes_max}) allows; raise the limit, or use shorter filters"
            )
        positions = self._bloom.positions(filter_name(group, topic))
        may_hold = self._bloom.tester(positions)

        def may_pass(unit: Unit) -> bool:
            return unit.store_time_ms <= born_ms or may_hold(unit.bits)

        wanted = made._replace(may_pass=may_pass)
        new = _Registered(group, topic, expression, version, born_ms, dead_ms, positions, made.accepts, wanted)
        self._table.setdefault(topic, {})[group] = new
        self._by_group.setdefault(group, {})[topic] = new
        if dead_ms:
            self._dead[group, topic] = new
        self._bytes += size
        before = self._terms.get(topic, 0)
        self._terms[topic] = before + new.terms
        if before <= self._map_terms_max < self._terms[topic]:
            log.warning(
                f"the SQL filters on topic {topic} have {self._terms[topic]} terms, more than maxFilterTermsPerBitMap "
                f"({self._map_terms_max}); its messages are stored without a Bloom map, and pulls check each message"
            )
        self._dirty = True
        return new

    def _forget(self, registered: _Registered) -> None:
        group, topic = registered.group, registered.topic
        for table, key, name in ((self._table, topic, group), (self._by_group, group, topic)):
            del table[key][name]
            if not table[key]:
                del table[key]
        self._dead.pop((group, topic), None)
        self._bytes -= sql_bytes(registered.expression)
        self._terms[topic] -= registered.terms
        if topic not in self._table:
            del self._terms[topic]
        self._dirty = True

    def _bury(self, registered: _Registered) -> None:
        if not registered.dead_ms:
            # RocketMQ takes one that died before its birth for alive.
            registered.dead_ms = max(self._clock.now_ms(), registered.born_ms)
            self._dead[registered.group, registered.topic] = registered
            self._dirty = True

    # --- Dispatch ---------------------------------------------------------------------------------------------

    def bits(self, fact: Fact) -> bytes:
        """The map of the groups whose filter a record passes (``MessageStore.bits``).

        Empty, which tells a pull nothing, if no group filters, or if trying all filters would take too long.
        """
        if fact.store_time_ms > self._newest_ms:
            self._newest_ms = fact.store_time_ms
        groups = self._table.get(fact.topic)
        properties = fact.properties
        if not groups or self._terms[fact.topic] > self._map_terms_max or len(properties) > PROPERTIES_LENGTH_MAX:
            return b""
        return self._bloom.bits([filter_.positions for filter_ in groups.values() if filter_.accepts(properties)])

    # --- The file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable. Filters that are refused
        are left out."""
        saved = self._file.load(lambda data: decode(data, FilterTable)) if self._enabled else None
        if saved is None:
            return
        dead_ms = self._clock.now_ms() - DEAD_AT_LOAD_MS
        found = [
            (data.dead_time or max(dead_ms, data.born_time), topic, group, data)
            for topic, filters in saved.filter_data_by_topic.items()
            for group, data in filters.group_filter_data.items()
        ]
        # Longest dead first: those are dropped if there is no room for all.
        for dead_since_ms, topic, group, data in sorted(found, key=lambda one: one[0]):
            try:
                loaded = self._add(
                    group, topic, data.expression, data.client_version, born_ms=data.born_time, dead_ms=dead_since_ms
                )
            except SubscriptionInvalid as error:
                log.warning(f"the saved SQL filter of group {group} on topic {topic} is not loaded: {error}")
                continue
            if data.bloom_filter_data != self._positions_body(loaded.positions):
                log.warning("the size of Bloom maps has changed; all saved SQL filters are deleted")
                for kept in list(self._registered()):
                    self._forget(kept)
                break
        self._dirty = False

    def save(self) -> None:
        """Forget filters that are dead for long, and hand the table to the file's thread if anything changed."""
        late = self._clock.now_ms() - self._kept_ms
        for registered in list(self._dead.values()):
            if registered.dead_ms <= late:
                group, topic = registered.group, registered.topic
                log.info(
                    "deleted the SQL filter of group %s on topic %s: it was not used for a long time", group, topic
                )
                self._forget(registered)
        if self._dirty:
            self._dirty = False
            self._file.save(lambda: partial(encode, self.body()))

    def _registered(self) -> Iterator[_Registered]:
        return (registered for groups in self._table.values() for registered in groups.values())

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

    def of_group(self, group: str, topic: str) -> GroupFilter | None:
        """The SQL filter of a group on a topic in its wire form; None if it has none."""
        registered = self._table.get(topic, {}).get(group)
        return self._body(registered) if registered is not None else None

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


def _is_tag(kind: str | None) -> bool:
    return not kind or kind == TAG
