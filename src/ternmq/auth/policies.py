"""Policies of users, as RocketMQ 5.3 has them (N1): which verbs on which resources are allowed or denied.

An entry has a resource, verbs, source addresses and a decision. A resource is ``Topic:orders``, ``Topic:pay*`` (all
names that begin so), ``Topic:*``, the same for ``Group`` and ``Cluster``, or ``*``. For a request, the entries that
match resource, verb and address are found, first among the *custom* ones; the *default* ones count only if none of
these matches. Of several, the closest decides: a name before a prefix, a long prefix before a short one, both before
``*``. Of two that are equally close, a denial wins. (RocketMQ says so, too, but sorts them the other way round.)
Without a match the request is denied.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ternmq.errors import ConfigError
from ternmq.net.gate import Resource, ResourceKind

#: What one user may have, against tools that would fill memory. Names are not longer than topics' and groups' are.
ENTRIES_MAX: Final = 1_000
ADDRESSES_MAX: Final = 100
_NAME_LENGTH_MAX: Final = 255


class Verb(Enum):
    """What a request does to a resource."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class PolicyType(Enum):
    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(Enum):
    ALLOW = "Allow"
    DENY = "Deny"


_KINDS: Final = {"topic": ResourceKind.TOPIC, "group": ResourceKind.GROUP, "cluster": ResourceKind.CLUSTER}
_VERBS: Final = {verb.value.lower(): verb for verb in Verb}


@dataclass(slots=True, frozen=True)
class ResourcePattern:
    """Which resources are meant. ``kind`` None: all. ``name`` is a prefix if ``is_prefix``; all names have the empty
    one."""

    kind: ResourceKind | None
    name: str = ""
    is_prefix: bool = True

    @classmethod
    def parse(cls, text: str) -> ResourcePattern:
        """Raises ``ConfigError``."""
        if text == "*":
            return cls(None)
        kind_text, colon, name = text.partition(":")
        kind = _KINDS.get(kind_text.strip().lower())
        name = name.strip()
        is_prefix = name.endswith("*")
        name = name.removesuffix("*")
        if kind is None or not colon or "*" in name or not (name or is_prefix) or len(name) > _NAME_LENGTH_MAX:
            raise ConfigError(
                f"invalid resource {text[:64]!r}: expected Topic:NAME, Group:NAME or Cluster:NAME, with * at the end "
                "of NAME for a prefix, or * for everything"
            )
        return cls(kind, name, is_prefix)

    def __str__(self) -> str:
        if self.kind is None:
            return "*"
        return f"{self.kind.value.capitalize()}:{self.name}{'*' if self.is_prefix else ''}"

    def matches(self, resource: Resource) -> bool:
        if self.kind is None:
            return True
        if self.kind is not resource.kind:
            return False
        return resource.name.startswith(self.name) if self.is_prefix else resource.name == self.name

    @property
    def closeness(self) -> tuple[int, int]:
        """Larger: closer."""
        if self.kind is None:
            return 0, 0
        return (1, len(self.name)) if self.is_prefix else (2, 0)


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(slots=True, frozen=True)
class PolicyEntry:
    resource: ResourcePattern
    verbs: frozenset[Verb]
    decision: Decision
    #: None: from everywhere.
    sources: tuple[_Network, ...] = ()

    @classmethod
    def parse(cls, resource: str, verbs: Iterable[str], sources: Sequence[str], decision: str) -> PolicyEntry:
        """Raises ``ConfigError`` that names what is invalid."""
        parsed: set[Verb] = set()
        for text in verbs:
            verb = _VERBS.get(text.strip().lower())
            if verb is None:
                raise ConfigError(f"invalid action {text[:32]!r}: expected {', '.join(verb.value for verb in Verb)}")
            parsed.add(verb)
        if not parsed:
            raise ConfigError(f"the entry for {resource[:64]!r} has no actions: give at least one")
        if len(sources) > ADDRESSES_MAX:
            raise ConfigError(f"{len(sources)} source addresses in one entry: expected at most {ADDRESSES_MAX}")
        networks: list[_Network] = []
        for text in sources:
            try:
                networks.append(ipaddress.ip_network(text.strip(), strict=False))
            except ValueError:
                raise ConfigError(
                    f"invalid source address {text[:64]!r}: expected an IP address or a network such as 10.0.0.0/24"
                ) from None
        try:
            decided = Decision(decision.strip().capitalize())
        except ValueError:
            raise ConfigError(f"invalid decision {decision[:32]!r}: expected Allow or Deny") from None
        return cls(ResourcePattern.parse(resource), frozenset(parsed), decided, tuple(networks))

    def matches(self, resource: Resource, ip: str) -> bool:
        """Whether it speaks about a resource, for a caller at an address."""
        if not self.resource.matches(resource):
            return False
        if not self.sources:
            return True
        try:
            address = ipaddress.ip_address(ip)
        except ValueError:
            # Of an unknown place, the worst is assumed.
            return self.decision is Decision.DENY
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.sources)

    def names(self, verb: Verb) -> bool:
        return verb in self.verbs or Verb.ALL in self.verbs


@dataclass(slots=True, frozen=True)
class Policies:
    """The entries of one user."""

    entries: Mapping[PolicyType, tuple[PolicyEntry, ...]]

    def allow(self, resource: Resource, verbs: frozenset[Verb], ip: str, *, by_name: bool = False) -> bool:
        """Whether a request that needs one of ``verbs`` on a resource is allowed; ``by_name``: what prefixes allow does
        not reach it.

        Each verb is decided by itself: where Sub is denied, a caller that has Pub still has «Pub or Sub».
        """
        matching = [
            [
                entry
                for entry in self.entries.get(kind, ())
                if entry.matches(resource, ip)
                and not (by_name and entry.resource.is_prefix and entry.decision is Decision.ALLOW)
            ]
            for kind in PolicyType
        ]
        return any(_decide(matching, verb) for verb in verbs)

    def name(self, prefix: str, resource: Resource, verb: Verb, ip: str) -> bool:
        """Whether an entry for names with a prefix is about a verb on a resource, whatever it decides."""
        return any(
            entry.resource.name.startswith(prefix) and entry.names(verb) and entry.matches(resource, ip)
            for entries in self.entries.values()
            for entry in entries
        )

    def with_entries(self, kind: PolicyType, entries: Sequence[PolicyEntry]) -> Policies:
        """With these entries; one for the same resource replaces the one that is there. Raises ``ConfigError``."""
        by_resource = {entry.resource: entry for entry in (*self.entries.get(kind, ()), *entries)}
        changed = replace(self, entries={**self.entries, kind: tuple(by_resource.values())})
        count = sum(map(len, changed.entries.values()))
        if count > ENTRIES_MAX:
            raise ConfigError(f"{count} policy entries for one user: expected at most {ENTRIES_MAX}; use prefixes")
        return changed

    def without(self, kind: PolicyType, resource: ResourcePattern) -> Policies:
        kept = tuple(entry for entry in self.entries.get(kind, ()) if entry.resource != resource)
        return replace(self, entries={**self.entries, kind: kept})

    def __bool__(self) -> bool:
        return any(self.entries.values())


def _decide(kinds: Iterable[Sequence[PolicyEntry]], verb: Verb) -> bool:
    """Whether entries that are about a resource allow a verb on it; the first kind that has some about it counts."""
    for entries in kinds:
        about = [entry for entry in entries if entry.names(verb)]
        if about:
            closest = max(entry.resource.closeness for entry in about)
            return all(entry.decision is Decision.ALLOW for entry in about if entry.resource.closeness == closest)
    return False


NO_POLICIES: Final = Policies({})
