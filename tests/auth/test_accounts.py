"""What accounts may do (N1; protocol/features.md, section 1.1)."""

from __future__ import annotations

from typing import Any

import pytest

from ternmq.auth.accounts import AccessRules, Account, Permission
from ternmq.auth.addresses import AddressPattern
from ternmq.errors import ConfigError
from ternmq.net.gate import Action, Need, Resource, ResourceKind

PUB, SUB, BOTH, DENY = Permission.PUB, Permission.SUB, Permission.PUB | Permission.SUB, Permission.DENY


def account(**settings: Any) -> Account:
    return Account("shop-key", "shop-secret", **settings)


def topic(action: Action, name: str) -> Need:
    return Need(action, Resource(ResourceKind.TOPIC, name))


def group(action: Action, name: str) -> Need:
    return Need(action, Resource(ResourceKind.GROUP, name))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PUB", PUB),
        ("SUB", SUB),
        ("PUB|SUB", BOTH),
        ("SUB|PUB", BOTH),
        (" sub | pub ", BOTH),
        ("DENY", DENY),
        ("", DENY),
        (None, DENY),
        ("ANY", DENY),
        ("PUB,SUB", DENY),
    ],
)
def test_a_permission_is_read_as_in_rocketmq(text: str | None, expected: Permission) -> None:
    assert expected is Permission.parse(text)


def test_an_own_entry_counts_before_the_default() -> None:
    shop = account(default_topic=BOTH, topics={"orders": PUB, "secret": DENY})

    assert shop.allows(topic(Action.PUB, "orders"))
    assert not shop.allows(topic(Action.SUB, "orders"))
    assert not shop.allows(topic(Action.PUB, "secret"))
    assert shop.allows(topic(Action.SUB, "anything"))


def test_the_default_does_not_reach_topics_where_messages_of_all_topics_wait() -> None:
    """Or a message to a topic that is denied could be read while it is delayed, or half of a transaction."""
    shop = account(default_topic=BOTH, topics={"secret": DENY})
    names = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")

    assert not any(shop.allows(topic(Action.SUB, name)) for name in names)
    tool = account(topics=dict.fromkeys(names, SUB))
    assert all(tool.allows(topic(Action.SUB, name)) for name in names)
    assert account(is_admin=True).allows(topic(Action.SUB, names[0]))


def test_topics_and_groups_have_defaults_of_their_own() -> None:
    shop = account(default_topic=PUB, default_group=SUB)

    assert not shop.allows(topic(Action.SUB, "x"))
    assert shop.allows(group(Action.SUB, "x"))


def test_nothing_is_allowed_by_default() -> None:
    needs = [make(action, "x") for make in (topic, group) for action in Action]

    assert [] == [need for need in needs if account().allows(need)]


def test_an_admin_may_do_all_unless_its_account_names_topics_or_groups() -> None:
    """As in RocketMQ: its permissions apply then, except to what needs an admin."""
    free, named = account(is_admin=True), account(is_admin=True, topics={"orders": PUB})

    assert free.allows(topic(Action.SUB, "x"))
    assert not named.allows(topic(Action.SUB, "x"))
    assert named.allows(topic(Action.ADMIN, "x"))
    assert not account(default_topic=BOTH).allows(topic(Action.ADMIN, "x"))


def test_a_question_about_a_topic_or_group_needs_any_permission_on_it() -> None:
    shop = account(topics={"orders": PUB, "closed": DENY}, groups={"billing": SUB})

    assert shop.allows(topic(Action.ANY, "orders"))
    assert shop.allows(group(Action.ANY, "billing"))
    assert not shop.allows(topic(Action.ANY, "closed"))
    assert not shop.allows(topic(Action.ANY, "others"))
    assert shop.allows(Need(Action.ANY, Resource(ResourceKind.CLUSTER, "west")))


@pytest.mark.parametrize("name", ["TBW102", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster_REPLY_TOPIC"])
def test_clients_may_ask_for_topics_that_they_use_by_themselves(name: str) -> None:
    assert account().allows(topic(Action.ANY, name))
    assert not account().allows(topic(Action.SUB, name))


def test_every_account_may_send_traces() -> None:
    assert account().allows(topic(Action.PUB, "RMQ_SYS_TRACE_TOPIC"))


def test_dead_letters_belong_to_their_group_unless_an_entry_says_otherwise() -> None:
    billing = account(groups={"billing": SUB})

    assert billing.allows(topic(Action.SUB, "%DLQ%billing"))
    assert not billing.allows(topic(Action.PUB, "%DLQ%billing"))
    assert not billing.allows(topic(Action.SUB, "%DLQ%others"))
    closed = account(groups={"billing": SUB}, topics={"%DLQ%billing": DENY})
    assert not closed.allows(topic(Action.SUB, "%DLQ%billing"))


@pytest.mark.parametrize(("key", "secret"), [("short1", "long enough"), ("long enough", "short1"), ("", "long enough")])
def test_keys_and_secrets_are_longer_than_six_characters(key: str, secret: str) -> None:
    with pytest.raises(ConfigError, match="7 to 1024 characters") as refused:
        Account(key, secret)
    assert secret == "long enough" or secret not in str(refused.value)


def test_an_account_does_not_show_its_secret() -> None:
    assert "shop-secret" not in repr(account())


def test_of_two_accounts_with_one_key_the_first_counts() -> None:
    first, second = account(), Account("shop-key", "another-secret")

    assert {"shop-key": first} == AccessRules([first, second]).accounts


def test_addresses_are_white_by_any_pattern() -> None:
    rules = AccessRules(white=[AddressPattern.parse("10.1.2.*"), AddressPattern.parse("::1")])

    assert [True, True, False, True] == [rules.is_white(ip) for ip in ("10.1.2.3", "::1", "10.1.3.3", "10.1.2.3")]
