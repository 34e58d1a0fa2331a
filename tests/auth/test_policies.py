"""Policies of users (N1): which entry decides."""

from __future__ import annotations

import pytest

from ternmq.auth import user_acl
from ternmq.auth.policies import NO_POLICIES, Policies, PolicyEntry, PolicyType, ResourcePattern, Verb
from ternmq.errors import ConfigError
from ternmq.net.gate import Resource, ResourceKind
from ternmq.wire.codes import RequestCode

ORDERS, PAYMENTS = Resource(ResourceKind.TOPIC, "orders"), Resource(ResourceKind.TOPIC, "payments")
BILLING = Resource(ResourceKind.GROUP, "billing")
PUB, SUB = frozenset({Verb.PUB}), frozenset({Verb.SUB})


def entry(resource: str, *verbs: str, decision: str = "Allow", sources: tuple[str, ...] = ()) -> PolicyEntry:
    return PolicyEntry.parse(resource, verbs or ("All",), sources, decision)


def custom(*entries: PolicyEntry) -> Policies:
    return NO_POLICIES.with_entries(PolicyType.CUSTOM, entries)


def test_without_a_matching_entry_all_is_denied() -> None:
    assert not NO_POLICIES.allow(ORDERS, PUB, "10.0.0.1")
    assert not custom(entry("Topic:payments", "Pub")).allow(ORDERS, PUB, "10.0.0.1")
    assert not custom(entry("Topic:orders", "Sub")).allow(ORDERS, PUB, "10.0.0.1")
    assert not custom(entry("Group:orders", "Pub")).allow(ORDERS, PUB, "10.0.0.1")


@pytest.mark.parametrize("resource", ["Topic:orders", "Topic:ord*", "topic:*", "*"])
def test_names_prefixes_and_stars_match(resource: str) -> None:
    assert custom(entry(resource, "Pub")).allow(ORDERS, PUB, "10.0.0.1")


def test_the_closest_entry_decides() -> None:
    policies = custom(
        entry("*", decision="Deny"),
        entry("Topic:*", "Pub"),
        entry("Topic:ord*", decision="Deny"),
        entry("Topic:orders", "Pub"),
    )

    assert policies.allow(ORDERS, PUB, "10.0.0.1")
    assert not policies.allow(Resource(ResourceKind.TOPIC, "ordinary"), PUB, "10.0.0.1")
    assert policies.allow(PAYMENTS, PUB, "10.0.0.1")
    assert not policies.allow(BILLING, SUB, "10.0.0.1")


def test_of_two_equally_close_entries_a_denial_wins() -> None:
    """RocketMQ's comment says so, its comparison does not."""
    allowed, denied = entry("Topic:orders", "Pub"), entry("Topic:orders", "Pub", decision="Deny", sources=("10.0.0.1",))
    for several in ((allowed, denied), (denied, allowed)):
        policies = Policies({PolicyType.CUSTOM: several})
        assert not policies.allow(ORDERS, PUB, "10.0.0.1")
        assert policies.allow(ORDERS, PUB, "10.0.0.2")


def test_default_entries_count_only_where_no_custom_one_matches() -> None:
    policies = custom(entry("Topic:orders", "Pub", decision="Deny")).with_entries(
        PolicyType.DEFAULT, [entry("Topic:*", "Pub")]
    )

    assert not policies.allow(ORDERS, PUB, "10.0.0.1")
    assert policies.allow(PAYMENTS, PUB, "10.0.0.1")


def test_entries_apply_from_their_addresses_only() -> None:
    policies = custom(entry("Topic:orders", "Pub", sources=("10.0.0.0/24", "fe80::1")))

    # The port may listen on IPv6, too.
    assert policies.allow(ORDERS, PUB, "::ffff:10.0.0.9")
    for ip, allowed in (("10.0.0.9", True), ("10.0.1.9", False), ("fe80::1", True), ("fe80::2", False), ("?", False)):
        assert allowed == policies.allow(ORDERS, PUB, ip), ip


def test_a_denial_for_an_address_is_not_evaded_by_another_way_to_write_it() -> None:
    denies = custom(entry("Topic:orders", "Pub", decision="Deny", sources=("10.0.0.0/24",)), entry("Topic:*", "Pub"))

    for ip in ("10.0.0.9", "::ffff:10.0.0.9", "::ffff:a00:9"):
        assert not denies.allow(ORDERS, PUB, ip), ip


def test_an_entry_for_the_same_resource_replaces_the_old_one() -> None:
    policies = custom(entry("Topic:orders", "Pub")).with_entries(PolicyType.CUSTOM, [entry("Topic:orders", "Sub")])

    assert not policies.allow(ORDERS, PUB, "10.0.0.1")
    assert policies.allow(ORDERS, SUB, "10.0.0.1")
    assert not policies.without(PolicyType.CUSTOM, ResourcePattern.parse("Topic:orders"))


@pytest.mark.parametrize(
    ("resource", "verbs", "sources", "decision", "sentence"),
    [
        ("orders", ["Pub"], [], "Allow", "invalid resource 'orders': expected Topic:NAME"),
        ("Topic:", ["Pub"], [], "Allow", "invalid resource"),
        ("Topic:a*b", ["Pub"], [], "Allow", "invalid resource"),
        ("Namespace:a", ["Pub"], [], "Allow", "invalid resource"),
        ("Topic:" + "x" * 300, ["Pub"], [], "Allow", "invalid resource"),
        ("Topic:a", ["Write"], [], "Allow", "invalid action 'Write': expected All, Pub"),
        ("Topic:a", ["Any"], [], "Allow", "invalid action 'Any'"),
        ("Topic:a", [], [], "Allow", "has no actions"),
        ("Topic:a", ["Pub"], ["10.0.0.300"], "Allow", "invalid source address '10.0.0.300'"),
        ("Topic:a", ["Pub"], ["10.0.0.1"] * 101, "Allow", "101 source addresses"),
        ("Topic:a", ["Pub"], [], "Maybe", "invalid decision 'Maybe': expected Allow or Deny"),
    ],
)
def test_invalid_entries_are_refused_with_the_reason(
    resource: str, verbs: list[str], sources: list[str], decision: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("*", r"\*")):
        PolicyEntry.parse(resource, verbs, sources, decision)


def test_a_user_has_a_bounded_number_of_entries() -> None:
    with pytest.raises(ConfigError, match="1001 policy entries for one user"):
        custom(*(entry(f"Topic:t{number}", "Pub") for number in range(1001)))


@pytest.mark.parametrize("text", ["*", "Topic:orders", "Topic:ord*", "Group:*", "Cluster:a"])
def test_patterns_are_written_as_they_are_read(text: str) -> None:
    assert text == str(ResourcePattern.parse(text))


def test_each_verb_is_decided_by_itself() -> None:
    """A producer that may not read a topic still finds its route: «any action» is Pub then."""
    some = frozenset({Verb.PUB, Verb.SUB, Verb.GET})
    policies = custom(entry("Topic:ord*", "Pub"), entry("Topic:orders", "Sub", decision="Deny"))

    assert policies.allow(ORDERS, PUB, "10.0.0.1")
    assert policies.allow(ORDERS, some, "10.0.0.1")
    assert not policies.allow(ORDERS, SUB, "10.0.0.1")
    with_default = custom(entry("Topic:orders", "Sub", decision="Deny")).with_entries(
        PolicyType.DEFAULT, [entry("Topic:*", "Pub")]
    )
    assert with_default.allow(ORDERS, some, "10.0.0.1")
    assert not with_default.allow(ORDERS, SUB, "10.0.0.1")


def test_a_denial_by_a_prefix_reaches_what_needs_an_entry_by_name() -> None:
    policies = custom(entry("Topic:*", decision="Deny")).with_entries(PolicyType.DEFAULT, [entry("Topic:orders")])

    assert not policies.allow(ORDERS, PUB, "10.0.0.1", by_name=True)
    assert custom(entry("Topic:*", decision="Deny"), entry("Topic:orders")).allow(ORDERS, PUB, "10.0.0.1", by_name=True)
    assert not custom(entry("Topic:*")).allow(ORDERS, PUB, "10.0.0.1", by_name=True)


def test_a_denial_holds_for_an_address_that_cannot_be_read() -> None:
    policies = custom(entry("Topic:*", "Pub"), entry("Topic:orders", decision="Deny", sources=("10.0.0.0/8",)))

    assert not policies.allow(ORDERS, PUB, "?")
    assert policies.allow(ORDERS, PUB, "11.0.0.1")


def test_every_code_that_deletes_a_topic_or_group_asks_for_delete() -> None:
    """N1: also the one by which a follower of a Raft group passes a deletion on."""
    deleting = {code for code in RequestCode if code.name.startswith(("DELETE_TOPIC_IN_", "DELETE_SUBSCRIPTION"))}
    # Those of name servers are for admins.
    deleting -= {RequestCode.DELETE_TOPIC_IN_NAMESRV}
    assert {RequestCode.DELETE_TOPIC_IN_GROUP, RequestCode.DELETE_TOPIC_IN_BROKER} < deleting
    assert {code: {Verb.DELETE} for code in deleting} == {
        code: set(user_acl._VERBS_OF_CODES[code]) for code in deleting
    }
