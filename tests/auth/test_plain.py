"""The validator of plain ACL: who is let in, what the others are told, and what is noted of it (N1)."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

import pytest

from ternmq.auth import audit, guesses
from ternmq.auth.accounts import AccessRules, Account, Permission
from ternmq.auth.addresses import AddressPattern
from ternmq.auth.plain import LISTS, PlainAcl
from ternmq.errors import NoPermission
from ternmq.net.gate import ANY_CALLER, Action, Need, Resource, ResourceKind, Rights, Rule, check_record
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Request
from tests.manual_clock import ManualClock

SEND: Final = Rule(Action.PUB, topic="topic")
PULL: Final = Rule(Action.SUB, topic="topic", group="group")
ADMIN: Final = Rule(Action.ADMIN, topic="topic")
SHOP: Final = Credentials("shop-key", "shop-secret")
BOSS: Final = Credentials("boss-key", "boss-secret")
UNKNOWN: Final = Credentials("unknown-key", "shop-secret")
WRONG: Final = Credentials("shop-key", "wrong-secret")


class Connection:
    """A caller."""

    def __init__(self, ip: str = "10.1.1.1") -> None:
        self.remote_ip = ip
        self.address = f"{ip}:5555"
        self.access: Rights | None = None
        self.proved = ""
        self.certificate: dict[str, object] = {}


class Door:
    """A validator with some accounts, and what it says."""

    def __init__(self, clock: ManualClock, *white: str) -> None:
        self.clock = clock
        self.shop = Account(
            "shop-key",
            "shop-secret",
            AddressPattern.parse("10.9.9.*"),
            topics={"orders": Permission.PUB},
            groups={"billing": Permission.SUB},
        )
        boss = Account("boss-key", "boss-secret", is_admin=True)
        self.acl = PlainAcl(AccessRules([self.shop, boss], [AddressPattern.parse(one) for one in white]), clock)

    def answer(
        self,
        credentials: Credentials | None,
        rule: Rule = SEND,
        fields: Fields | None = None,
        *,
        caller: Connection | None = None,
        code: int = Code.SEND_MESSAGE,
        tamper: Fields | None = None,
    ) -> str:
        """What a request is told; empty if it is admitted."""
        given = dict(fields if fields is not None else {"topic": "orders"})
        if credentials is not None:
            credentials.sign(given, b"body")
        given |= tamper or {}
        request: Request[Any] = Request(code=code, header=given, body=memoryview(b"body"))
        try:
            self.acl(caller or Connection(), request, given, rule)
        except NoPermission as error:
            return str(error)
        return ""


@pytest.fixture
def door() -> Door:
    return Door(ManualClock())


def test_a_signed_request_with_a_permission_is_admitted(door: Door) -> None:
    assert ["", "", ""] == [door.answer(SHOP), door.answer(SHOP), door.answer(BOSS, fields={"topic": "any"})]


def test_requests_without_a_key_or_a_signature_are_refused(door: Door) -> None:
    answers = {
        door.answer(None),
        door.answer(None, tamper={"AccessKey": "shop-key"}),
        door.answer(None, tamper={"Signature": "x"}),
        door.answer(None, ANY_CALLER),
    }

    assert {"the request is not signed; give the client an access key and a secret key"} == answers


def test_an_unknown_key_and_a_wrong_secret_are_told_the_same(door: Door) -> None:
    """Which keys exist is a secret, too."""
    assert door.answer(UNKNOWN) == door.answer(WRONG)
    assert door.answer(Credentials("unknown-key", "no account has this secret")) == door.answer(WRONG)
    assert "is not valid" in door.answer(WRONG)


def test_a_changed_field_is_refused(door: Door) -> None:
    assert "is not valid" in door.answer(SHOP, tamper={"topic": "order"})
    assert "is not valid" in door.answer(SHOP, tamper={"more": "x"})


def test_a_denial_names_what_the_request_named_and_not_more(door: Door) -> None:
    assert "no permission for topic:'payments'; ask the administrator for PUB on it" == door.answer(
        SHOP, fields={"topic": "payments"}
    )
    assert "no permission for group:'x'; ask the administrator for SUB on it" == door.answer(
        SHOP, PULL, {"topic": "orders", "group": "x"}
    )
    assert "no permission for topic:'orders'; ask the administrator for SUB on it" == door.answer(
        SHOP, PULL, {"topic": "orders", "group": "billing"}
    )


def test_what_passed_once_does_not_let_others_pass(door: Door) -> None:
    """The memory of what was allowed: by code, topic and group."""
    assert "" == door.answer(SHOP)

    assert "no permission" in door.answer(SHOP, fields={"topic": "payments"})
    assert "no permission" in door.answer(SHOP, PULL, code=Code.PULL_MESSAGE)
    assert "" == door.answer(SHOP)


def test_only_an_admin_may_change_or_list_what_others_use(door: Door) -> None:
    for code, rule in [(Code.UPDATE_AND_CREATE_TOPIC, ADMIN), *((code, ANY_CALLER) for code in LISTS)]:
        assert "this request needs an account with admin: true" == door.answer(SHOP, rule, code=code)
        assert "" == door.answer(BOSS, rule, code=code)


def test_white_addresses_need_no_signature() -> None:
    door = Door(ManualClock(), "10.7.*.*")

    assert "" == door.answer(None, ADMIN, caller=Connection("10.7.1.1"))
    assert "not signed" in door.answer(None, caller=Connection("10.8.1.1"))


def test_from_the_white_address_of_an_account_its_key_will_do(door: Door) -> None:
    key = {"AccessKey": "shop-key"}

    assert "" == door.answer(None, tamper=key, caller=Connection("10.9.9.1"))
    assert "not signed" in door.answer(None, tamper=key, caller=Connection("10.9.8.1"))
    assert "not signed" in door.answer(None, tamper={"AccessKey": "boss-key"}, caller=Connection("10.9.9.1"))


def test_a_white_address_is_not_trusted_as_its_account(door: Door) -> None:
    """It may do more. Other addresses keep their short way."""
    caller, shop = Connection(), door.shop
    assert "" == door.answer(SHOP, caller=caller)
    own = replace(shop, white=AddressPattern.parse("10.1.1.1"))
    own.passed.add("orders")
    cases = [
        (AccessRules([shop]), shop, True),
        (AccessRules([shop], [AddressPattern.parse("10.2.*.*")]), shop, True),
        (AccessRules([shop], [AddressPattern.parse("10.1.*.*")]), shop, False),
        (AccessRules([own]), own, False),
    ]
    for rules, account, is_trusted in cases:
        door.acl.rules = rules
        assert is_trusted is door.acl.trusts(caller, account.secret, "orders")


def test_new_rules_hold_from_the_next_request_on(door: Door) -> None:
    assert "" == door.answer(SHOP)
    door.acl.rules = AccessRules([Account("shop-key", "shop-secret")])

    assert "no permission" in door.answer(SHOP)


def test_a_record_is_given_out_only_with_the_permission_for_its_topic(door: Door) -> None:
    """Requests by log offset: which topic it is, only the record tells."""
    caller, boss, white = Connection(), Connection(), Connection("10.9.9.1")
    door.answer(SHOP, caller=caller)
    door.answer(BOSS, caller=boss)
    door.answer(None, tamper={"AccessKey": "shop-key"}, caller=white)

    check_record(boss.access, "payments")
    check_record(white.access, "payments")
    check_record(caller.access, "%RETRY%billing")
    for topic in ("payments", "orders", "%RETRY%others"):
        with pytest.raises(NoPermission) as refused:
            check_record(caller.access, topic)
        assert topic not in str(refused.value)


def test_a_trace_may_be_sent_by_every_account(door: Door) -> None:
    assert "" == door.answer(SHOP, fields={"topic": "RMQ_SYS_TRACE_TOPIC"})


# --- Guessing -----------------------------------------------------------------------------------------------------


def test_guessing_is_slowed_down(door: Door) -> None:
    answers = [door.answer(WRONG, caller=Connection()) for _ in range(guesses.ATTEMPTS + 5)]

    assert ["is not valid" in answer for answer in answers] == [True] * guesses.ATTEMPTS + [False] * 5
    assert "too many wrong signatures" in door.answer(SHOP), "the right guess is not found out"
    door.clock.advance(guesses.RETURN_S)
    assert "is not valid" in door.answer(WRONG)
    assert "too many" in door.answer(WRONG)
    door.clock.advance(guesses.RETURN_S)
    assert "" == door.answer(SHOP)


def test_guessing_does_not_keep_others_out(door: Door) -> None:
    connected = Connection()
    assert "" == door.answer(SHOP, caller=connected)
    for _ in range(guesses.ATTEMPTS + 1):
        door.answer(WRONG)
        door.answer(UNKNOWN)

    assert "too many" in door.answer(SHOP)
    assert "" == door.answer(SHOP, caller=connected), "it has proved its key before"
    assert "" == door.answer(SHOP, caller=Connection("10.1.1.2"))
    assert "" == door.answer(BOSS)


def test_guessing_does_not_tell_which_keys_exist(door: Door) -> None:
    """An attacker uses up the attempts of invented keys: known and unknown ones must not differ after that either."""
    for number in range(50):
        door.answer(Credentials(f"invented-{number}", "some-secret"))
    invented = [door.answer(Credentials("unknown-key", "some-secret")) for _ in range(guesses.ATTEMPTS + 3)]
    known = [door.answer(Credentials("shop-key", "some-secret")) for _ in range(guesses.ATTEMPTS + 3)]

    assert known == invented
    assert "too many" in known[-1]


def test_the_attempts_of_invented_keys_take_a_bounded_place_for_each_address(door: Door) -> None:
    for number in range(5000):
        door.answer(Credentials(f"invented-{number}", "some-secret"))

    assert guesses.GROUPS >= len(door.acl._callers._guesses._left)


def test_addresses_of_one_network_of_ipv6_share_their_attempts(door: Door) -> None:
    """N1: a client with one of them has 2**64."""
    for number in range(guesses.ATTEMPTS):
        door.answer(WRONG, caller=Connection(f"2001:db8:0:1::{number:x}"))

    assert "too many" in door.answer(WRONG, caller=Connection("2001:db8:0:1:ffff::1"))
    assert "is not valid" in door.answer(WRONG, caller=Connection("2001:db8:0:2::1"))
    for number in range(guesses.ATTEMPTS):
        door.answer(WRONG, caller=Connection(f"::ffff:10.3.3.{number}"))
    assert "is not valid" in door.answer(WRONG, caller=Connection("::ffff:10.3.3.99")), "these are of IPv4"


def test_the_table_of_guesses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guesses, "ENTRIES_MAX", 3)
    table = guesses.Guesses(ManualClock())
    for number in range(10):
        table.failed(f"10.1.1.{number}", "key")

    assert 3 == len(table._left)


# --- Audit --------------------------------------------------------------------------------------------------------


def audited(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "ternmq.audit"]


def test_each_admin_change_is_a_line_with_who_from_where_and_what(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for _ in range(2):
        door.answer(BOSS, ADMIN, code=Code.UPDATE_AND_CREATE_TOPIC)
    door.answer(BOSS, ADMIN, code=Code.QUERY_DATA_VERSION)

    line = "'boss-key' from 10.1.1.1:5555: UPDATE_AND_CREATE_TOPIC on topic:'orders'"
    assert [line, line] == audited(caplog)


def test_a_change_of_thousands_of_topics_is_a_short_line(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    named = [Resource(ResourceKind.TOPIC, f"orders-{number}\n" + "x" * 200) for number in range(5000)]
    rule = Rule(Action.ADMIN, in_body=lambda _body: named)

    assert "" == door.answer(BOSS, rule, code=Code.UPDATE_AND_CREATE_TOPIC_LIST)
    [line] = audited(caplog)
    assert line.endswith(" and 4980 more")
    assert len(line) < 3000
    assert line.isprintable()


def test_denials_are_a_line_each_ten_seconds_with_how_many_there_were(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        door.answer(SHOP, fields={"topic": "payments"})
    door.clock.advance(audit.PAUSE_S)
    door.answer(SHOP, fields={"topic": "payments"})

    first, second = audited(caplog)
    assert (
        "denied SEND_MESSAGE of 'shop-key' from 10.1.1.1:5555: no permission for topic:'payments'; ask the "
        "administrator for PUB on it" == first
    )
    assert second.endswith("(999 similar denials since the last line)")


def test_a_client_that_invents_a_key_for_each_request_does_not_fill_the_log(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 18: with a signature, and without one."""
    for number in range(1000):
        door.answer(Credentials(f"invented-{number}", "some-secret"))
        door.answer(None, tamper={"AccessKey": f"invented-{number}"})

    assert 3 >= len(audited(caplog))


def test_clients_of_many_addresses_do_not_fill_the_log(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(1000):
        door.answer(None, caller=Connection(f"10.1.{number // 200}.{number % 200}"))
    assert audit.LINES_MAX == len(audited(caplog))

    door.clock.advance(audit.PAUSE_S)
    door.answer(None, caller=Connection("10.1.4.199"))
    assert audited(caplog)[-1].endswith("(1 similar denials since the last line)")


def test_long_names_are_not_remembered(door: Door) -> None:
    """An account that may send to all topics must not fill the memory with names of megabytes."""
    account = Account("shop-key", "shop-secret", default_topic=Permission.PUB)
    door.acl.rules = AccessRules([account])
    assert "" == door.answer(SHOP, fields={"topic": "x" * 10_000})
    assert not account.passed
    assert "" == door.answer(SHOP, fields={"topic": "orders"})
    assert 2 == len(account.passed), "the request, and its topic for those that are checked while decoded"


def test_texts_of_clients_cannot_break_lines_or_fill_the_log(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    evil = "x\nroot logged in\x1b[2J"
    door.answer(None, tamper={"AccessKey": evil + "y" * 100_000})
    door.answer(SHOP, fields={"topic": evil})

    for line in audited(caplog):
        assert line.isprintable()
        assert len(line) < 500


def test_secrets_are_never_noted(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for credentials in (SHOP, BOSS, WRONG, UNKNOWN):
        for rule in (SEND, PULL, ADMIN):
            assert "-secret" not in door.answer(credentials, rule)

    assert audited(caplog)
    assert "-secret" not in caplog.text


def test_the_memory_of_denials_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "KINDS_MAX", 3)
    notes = audit.Audit(ManualClock())
    for number in range(10):
        notes.denied(kind="permission", key="k", is_known=True, ip=f"10.1.1.{number}", address="a", code=10, reason="r")

    assert 3 == len(notes._denials)


def test_a_need_of_a_cluster_is_told(door: Door) -> None:
    need = Need(Action.SUB, Resource(ResourceKind.CLUSTER, "west"))

    assert not door.shop.allows(need)
