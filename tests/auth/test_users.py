"""Users of a broker (N1): their file, the calls that change them, and what they may do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq.admin import Admin
from ternmq.auth.accounts import Account, Permission
from ternmq.auth.policies import NO_POLICIES, PolicyEntry, PolicyType
from ternmq.auth.user_acl import UserAccess, UserAcl
from ternmq.auth.user_file import FILE, KEY_FILE, UserFile
from ternmq.auth.users import User, UserRules, UserStatus, UserType, from_account
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.config import ClientConfig
from ternmq.embedded import EmbeddedCluster
from ternmq.env import SystemClock
from ternmq.errors import BrokerRefused, ConfigError, InvalidParameter, NoPermission
from ternmq.net.gate import Action, Gate, Need, Resource, ResourceKind, Rights
from ternmq.replication.admission import Admission, prove
from ternmq.replication.handshake import BrokerNode
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.users import AclBody, UserBody
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.codes import ResponseCode
from ternmq.wire.requests import ConsumeDirectly
from ternmq.wire.requests_admin import AclSubject, DelayedStats, ResumeCheck, UserName
from tests.auth.accounts import BILLING, BOSS, GUEST, SHOP, acl_in, dialled, users_in
from tests.broker.calls import settings, small_store
from tests.cli.conftest import tern

OK, DENIED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
ROOT: Final = Credentials("root", "password-of-root")
FIRST: Final = '{"username": "root", "password": "password-of-root"}'


def rules_of(*users: User) -> UserRules:
    rules = UserRules()
    for user in users:
        rules = rules.created(user)
    return rules


@asynccontextmanager
async def broker_with_users(tmp_path: Path, *, authorizes: bool = True) -> AsyncIterator[Broker]:
    """A broker whose users are the accounts of ``tests.auth.accounts``."""
    config = settings(
        authentication_enabled=True,
        authorization_enabled=authorizes,
        auth_config_path=users_in(tmp_path / "users"),
    )
    async with Broker(config, small_store(tmp_path / "store")) as broker:
        yield broker


# --- The file -------------------------------------------------------------------------------------------------------


def test_users_are_found_again_and_their_passwords_are_not_in_the_file(tmp_path: Path) -> None:
    file = UserFile(tmp_path)
    file.save(rules_of(User("root", "password-of-root", UserType.SUPER), User("a", "päss\nword")))

    found = UserFile(tmp_path).load().users

    assert {"root": "password-of-root", "a": "päss\nword"} == {name: user.password for name, user in found.items()}
    assert found["root"].is_super
    data = (tmp_path / FILE).read_bytes()
    assert b"password-of-root" not in data
    assert b"root" in data
    assert [0o600, 0o600] == [(tmp_path / name).stat().st_mode & 0o777 for name in (FILE, KEY_FILE)]
    assert "password-of-root" not in repr(found)


def test_the_key_can_be_kept_elsewhere(tmp_path: Path) -> None:
    key = tmp_path / "keys" / "of-users"
    UserFile(tmp_path / "a", key)._open_cipher()
    (tmp_path / "a").mkdir(exist_ok=True)
    UserFile(tmp_path / "a", key).save(rules_of(User("root", "password-of-root", UserType.SUPER)))

    assert ["root"] == list(UserFile(tmp_path / "a", key).load().users)
    with pytest.raises(ConfigError, match="does not exist; restore it, or set authKeyPath"):
        UserFile(tmp_path / "a").load()


@pytest.mark.parametrize("name", [FILE, KEY_FILE])
def test_a_file_that_others_can_read_is_not_used(tmp_path: Path, name: str) -> None:
    UserFile(tmp_path).save(rules_of(User("root", "password-of-root", UserType.SUPER)))
    (tmp_path / name).chmod(0o640)

    with pytest.raises(ConfigError, match="run `chmod 600` on it"):
        UserFile(tmp_path).load()


@pytest.mark.parametrize(
    ("name", "data", "sentence"),
    [
        (FILE, b"{", "cannot use .*users.json"),
        (FILE, b'{"users": [{"username": 1}]}', "cannot use .*users.json"),
        (FILE, b'{"users": [{"username": "\xe7"}]}', "cannot use .*users.json"),
        (FILE, b'{"more": ' + b"[" * 100_000, "cannot use .*users.json"),
        (KEY_FILE, b"abc", "is not a key of TernMQ"),
        (KEY_FILE, b"A" * 43 + b"=", "was encrypted with another key"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, data: bytes, sentence: str) -> None:
    UserFile(tmp_path).save(rules_of(User("root", "password-of-root", UserType.SUPER)))
    (tmp_path / name).write_bytes(data)

    with pytest.raises(ConfigError, match=sentence):
        UserFile(tmp_path).load()


def test_the_last_super_user_stays() -> None:
    rules = rules_of(User("root", "password-of-root", UserType.SUPER), User("a", "password-of-a"))

    with pytest.raises(ConfigError, match="no enabled super user"):
        rules.deleted("root")
    with pytest.raises(ConfigError, match="no enabled super user"):
        rules.updated("root", kind=UserType.NORMAL)
    with pytest.raises(ConfigError, match="no enabled super user"):
        rules.updated("root", status=UserStatus.DISABLE)
    assert ["root"] == list(rules.deleted("a").users)


@pytest.mark.parametrize("name", ["", " a", "a\n", "x" * 65])
def test_names_that_cannot_be_used_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="invalid user name"):
        User(name, "password")


# --- Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"authorization_enabled": True}, "authorizationEnabled=true needs authenticationEnabled=true"),
        ({"authentication_enabled": True, "acl_enable": True}, "exclude each other"),
        ({"migrate_auth_from_v1_enabled": True}, "migrateAuthFromV1Enabled=true needs"),
        ({"init_authentication_user": "root:secret"}, 'invalid initAuthenticationUser: expected {"username"'),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        BrokerConfig(**changes)
    assert "root:secret" not in str(raised.value)


async def test_a_broker_without_a_super_user_does_not_start(tmp_path: Path) -> None:
    config = settings(authentication_enabled=True)

    with pytest.raises(ConfigError, match="needs an enabled super user: set initAuthenticationUser"):
        async with Broker(config, small_store(tmp_path / "store")):
            pass


async def test_the_first_user_is_created_once(tmp_path: Path) -> None:
    """A password that was changed since stays."""
    config = settings(authentication_enabled=True, init_authentication_user=FIRST)
    store = small_store(tmp_path / "store")
    async with Broker(config, store) as broker, dialled(broker.address, ROOT) as root:
        body = encode(UserBody(username="root", password="another-password"))
        changed = (await root.call(Code.AUTH_UPDATE_USER, UserName(username="root"), body)).code
    async with Broker(config, store) as broker:
        codes = []
        for password in ("password-of-root", "another-password"):
            async with dialled(broker.address, Credentials("root", password)) as root:
                codes.append((await root.send("orders", b"1")).code)

    assert (OK, [DENIED, OK]) == (changed, codes)


async def test_accounts_of_the_plain_acl_become_users(tmp_path: Path) -> None:
    config = settings(
        authentication_enabled=True,
        authorization_enabled=True,
        migrate_auth_from_v1_enabled=True,
        acl_path=acl_in(tmp_path / "conf"),
    )
    async with Broker(config, small_store(tmp_path / "store")) as broker:
        codes = []
        for credentials in (BOSS, SHOP, BILLING, GUEST):
            async with dialled(broker.address, credentials) as caller:
                codes.append((await caller.send("orders", b"1")).code)

    assert [OK, OK, DENIED, DENIED] == codes
    assert {"boss-key", "shop-key", "billing-key", "guest-key"} == set(
        UserFile(tmp_path / "store" / "config").load().users
    )


# --- What users may do ------------------------------------------------------------------------------------------------


async def test_each_user_may_do_what_its_policies_allow(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path) as broker:
        async with dialled(broker.address, SHOP) as shop:
            sent = [(await shop.send(topic, b"1")).code for topic in ("orders", "payments")]
            pulled_by_shop = (await shop.pull("orders", consumer_group="billing")).code
        async with dialled(broker.address, BILLING) as billing:
            found = await billing.bodies("orders", consumer_group="billing")
            dead = (await billing.pull("%DLQ%billing", consumer_group="billing")).code
        async with dialled(broker.address) as stranger:
            unsigned = (await stranger.send("orders", b"1")).code

    assert ([OK, DENIED], [b"1"]) == (sent, found)
    assert [DENIED, DENIED] == [pulled_by_shop, unsigned]
    assert dead != DENIED


async def test_without_authorization_users_need_no_policies_and_cannot_administer(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path, authorizes=False) as broker:
        async with dialled(broker.address, GUEST) as guest:
            sent = (await guest.send("orders", b"1")).code
            listed = (await guest.call(Code.AUTH_LIST_USER)).code
        async with dialled(broker.address, BOSS) as boss:
            listed_by_boss = (await boss.call(Code.AUTH_LIST_USER)).code

    assert (OK, DENIED, OK) == (sent, listed, listed_by_boss)


async def test_wide_policies_do_not_reach_topics_where_messages_of_all_topics_wait(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            for resource in ("Topic:*", "Group:*"):
                await change_policies(boss, "guest-key", resource, ["All"])
        async with dialled(broker.address, GUEST) as guest:
            sent = (await guest.send("payments", b"1")).code
            codes = [
                (await guest.pull(topic, consumer_group="billing")).code
                for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
            ]

    assert (OK, [DENIED, DENIED]) == (sent, codes)


async def change_policies(
    caller: Any, user: str, resource: str, actions: list[str], *, decision: str = "Allow"
) -> None:
    body = {
        "subject": f"User:{user}",
        "policies": [{"entries": [{"resource": resource, "actions": actions, "decision": decision}]}],
    }
    header = AclSubject(subject=f"User:{user}")
    answer = await caller.call(Code.AUTH_CREATE_ACL, header, json.dumps(body).encode())
    assert OK == answer.code, answer.remark


async def test_changes_are_in_force_at_once_and_after_a_restart(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, SHOP) as shop:
        before = (await shop.send("payments", b"1")).code
        async with dialled(broker.address, BOSS) as boss:
            await change_policies(boss, "shop-key", "Topic:pay*", ["Pub"])
        allowed = (await shop.send("payments", b"1")).code
    async with (
        Broker(
            settings(authentication_enabled=True, authorization_enabled=True, auth_config_path=tmp_path / "users"),
            small_store(tmp_path / "store"),
        ) as broker,
        dialled(broker.address, SHOP) as shop,
    ):
        after = (await shop.send("payments", b"1")).code
        async with dialled(broker.address, BOSS) as boss:
            body = encode(UserBody(user_status="disable"))
            await boss.call(Code.AUTH_UPDATE_USER, UserName(username="shop-key"), body)
        disabled = await shop.send("payments", b"1")

    assert (DENIED, OK, OK, DENIED) == (before, allowed, after, disabled.code)
    # As for an unknown key.
    assert "the access key or the signature is not valid" in (disabled.remark or "")


async def test_users_with_all_policies_cannot_change_users(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            await change_policies(boss, "guest-key", "*", ["All"])
        async with dialled(broker.address, GUEST) as guest:
            body = encode(UserBody(username="new", password="password", user_type="Super"))
            codes = [
                (await guest.call(Code.AUTH_CREATE_USER, UserName(username="new"), body)).code,
                (await guest.call(Code.AUTH_LIST_ACL)).code,
            ]

    assert [DENIED, DENIED] == codes


@pytest.mark.parametrize(
    ("code", "header", "body", "sentence"),
    [
        (Code.AUTH_CREATE_USER, UserName(username="shop-key"), UserBody(password="p"), "exists; update it"),
        (Code.AUTH_CREATE_USER, UserName(username="new"), UserBody(), "invalid password of user 'new'"),
        (Code.AUTH_CREATE_USER, UserName(username="new"), UserBody(password="p", user_type="Root"), "invalid UserType"),
        (Code.AUTH_UPDATE_USER, UserName(username="none"), UserBody(password="p"), "there is no user 'none'"),
        (Code.AUTH_DELETE_USER, UserName(username="boss-key"), None, "no enabled super user"),
        (Code.AUTH_UPDATE_ACL, AclSubject(subject="shop-key"), AclBody(), "invalid subject 'shop-key': expected User:"),
        (Code.AUTH_UPDATE_ACL, AclSubject(subject="User:shop-key"), AclBody(), "has no policy entries"),
        (Code.AUTH_GET_ACL, AclSubject(subject="User:none"), None, "there is no user 'none'"),
    ],
)
async def test_bad_changes_are_refused_with_a_sentence(
    tmp_path: Path, code: Code, header: Any, body: Any, sentence: str
) -> None:
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, BOSS) as boss:
        answer = await boss.call(code, header, encode(body) if body is not None else b"")

    assert ResponseCode.INVALID_PARAMETER == answer.code
    assert sentence in (answer.remark or "")


async def test_what_names_all_topics_needs_a_permission_for_the_cluster(tmp_path: Path) -> None:
    """The topics of all delayed messages are listed by 15001 without a topic."""
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, GUEST) as guest:
        of_all = (await guest.call(Code.GET_DELAYED_STATS, DelayedStats())).code
        async with dialled(broker.address, BOSS) as boss:
            await change_policies(boss, "guest-key", "Cluster:*", ["Get"])
        allowed = (await guest.call(Code.GET_DELAYED_STATS, DelayedStats())).code

    assert (DENIED, OK) == (of_all, allowed)


async def test_lists_of_topics_and_groups_need_create_as_single_ones_do(tmp_path: Path) -> None:
    body = b'{"topicConfigList": [{"topicName": "orders"}]}'
    async with (
        broker_with_users(tmp_path) as broker,
        dialled(broker.address, SHOP) as shop,
        dialled(broker.address, BOSS) as boss,
    ):
        await change_policies(boss, "shop-key", "Topic:orders", ["Update"])
        with_update = await shop.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, body)
        await change_policies(boss, "shop-key", "Topic:orders", ["Create"])
        with_create = await shop.call(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, body)

    assert DENIED == with_update.code
    assert OK == with_create.code, with_create.remark


async def test_a_message_of_another_topic_is_not_consumed_directly(tmp_path: Path) -> None:
    """309 finds the message by its id, and its body goes to a client of the caller's choice."""
    async with (
        broker_with_users(tmp_path) as broker,
        dialled(broker.address, GUEST) as guest,
        dialled(broker.address, BOSS) as boss,
    ):
        secret = await boss.sent("payments", b"of others")
        for resource in ("Topic:mine", "Group:mine"):
            await change_policies(boss, "guest-key", resource, ["All"])

        def directly() -> ConsumeDirectly:
            return ConsumeDirectly(consumer_group="mine", client_id="guest", message_id=secret.message_id, topic="mine")

        denied = await guest.call(Code.CONSUME_MESSAGE_DIRECTLY, directly())
        await change_policies(boss, "guest-key", "Topic:payments", ["Sub"])
        allowed = await guest.call(Code.CONSUME_MESSAGE_DIRECTLY, directly())

    assert DENIED == denied.code, denied.remark
    assert "payments" not in (denied.remark or "")
    assert "not online" in (allowed.remark or "")


async def test_a_discarded_half_is_resumed_only_by_who_may_change_the_cluster(tmp_path: Path) -> None:
    """323 finds it by its id: the topic that it names proves nothing."""
    async with (
        broker_with_users(tmp_path) as broker,
        dialled(broker.address, GUEST) as guest,
        dialled(broker.address, BOSS) as boss,
    ):
        sent = await boss.sent("payments", b"1")
        await change_policies(boss, "guest-key", "Topic:mine", ["All"])
        header = ResumeCheck(message_id=sent.message_id, topic="mine")
        denied = (await guest.call(Code.RESUME_CHECK_HALF_MESSAGE, header)).code
        await change_policies(boss, "guest-key", "Cluster:*", ["Update"])
        header = ResumeCheck(message_id=sent.message_id, topic="mine")
        allowed = (await guest.call(Code.RESUME_CHECK_HALF_MESSAGE, header)).code

    assert DENIED == denied
    assert DENIED != allowed


async def test_only_super_users_follow_the_log(tmp_path: Path) -> None:
    """It has the messages of all topics."""
    acl = UserAcl(UserFile(users_in(tmp_path)).load(), SystemClock(), authorizes=True, cluster="c")
    acl.rules = acl.rules.with_policies(
        "guest-key", NO_POLICIES.with_entries(PolicyType.CUSTOM, [PolicyEntry.parse("*", ["All"], (), "Allow")])
    )
    admission = Admission(gate=Gate([acl]), is_guarded=True)
    place = BrokerNode("c", "broker-a", 1, "127.0.0.1:10911")
    for credentials, is_admitted in ((BOSS, True), (GUEST, False)):
        challenge = admission.challenge()
        assert challenge is not None
        proof = prove(challenge, credentials, place)
        with nullcontext() if is_admitted else pytest.raises(NoPermission, match="needs a super user"):
            admission.check(Calling(), challenge, proof)


async def test_a_connection_that_proved_an_old_password_guesses_no_faster(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, SHOP) as shop:
        before = (await shop.send("orders", b"1")).code
        async with dialled(broker.address, BOSS) as boss:
            body = encode(UserBody(password="another-secret"))
            assert OK == (await boss.call(Code.AUTH_UPDATE_USER, UserName(username="shop-key"), body)).code
        remarks = [(await shop.send("orders", b"1")).remark or "" for _ in range(60)]

    assert OK == before
    assert "the access key or the signature is not valid" in remarks[0]
    assert any("too many wrong signatures" in remark for remark in remarks)


def test_what_a_connection_may_do_follows_the_rules(tmp_path: Path) -> None:
    """It is asked long after a request, too: whether a producer may get a check of a transaction."""
    acl = UserAcl(UserFile(users_in(tmp_path)).load(), SystemClock(), authorizes=True, cluster="c")
    access = UserAccess(acl, "shop-key", "127.0.0.1")
    need = Need(Action.PUB, Resource(ResourceKind.TOPIC, "orders"))
    rules, found = acl.rules, []
    for changed in (
        rules,
        rules.updated("shop-key", status=UserStatus.DISABLE),
        rules.deleted("shop-key"),
        rules.with_policies("shop-key", NO_POLICIES),
        rules.updated("shop-key", kind=UserType.SUPER),
    ):
        acl.rules = changed
        found.append(access.allows(need))

    assert [True, False, False, False, True] == found


class Calling:
    """A connection, as validators see it."""

    address, remote_ip = "127.0.0.1:1", "127.0.0.1"

    def __init__(self) -> None:
        self.access: Rights | None = None
        self.proved = ""
        self.certificate: dict[str, object] = {}


async def test_an_entry_for_dead_letters_is_stronger_than_that_for_the_group(tmp_path: Path) -> None:
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, BILLING) as billing:
        before = (await billing.pull("%DLQ%billing", consumer_group="billing")).code
        async with dialled(broker.address, BOSS) as boss:
            await change_policies(boss, "billing-key", "Topic:%DLQ%*", ["All"], decision="Deny")
        after = (await billing.pull("%DLQ%billing", consumer_group="billing")).code

    assert DENIED != before
    assert DENIED == after


async def test_too_many_entries_are_refused_before_they_are_read(tmp_path: Path) -> None:
    entries = [{"resource": "?"}] * 100_000
    body = {"subject": "User:guest-key", "policies": [{"entries": entries}]}
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, BOSS) as boss:
        answer = await boss.call(Code.AUTH_CREATE_ACL, AclSubject(subject="User:guest-key"), json.dumps(body).encode())

    assert "100000 policy entries in one request: expected at most 1000" in (answer.remark or "")


async def test_the_audit_log_names_the_user_that_was_changed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "ternmq.audit")
    async with broker_with_users(tmp_path) as broker, dialled(broker.address, BOSS) as boss:
        await boss.call(Code.AUTH_UPDATE_USER, UserName(username="shop-key"), encode(UserBody(password="other-secret")))
        await change_policies(boss, "guest-key", "Topic:orders", ["Pub"])

    assert "AUTH_UPDATE_USER on user 'shop-key'" in caplog.text
    assert "AUTH_CREATE_ACL on user 'User:guest-key'" in caplog.text
    assert "other-secret" not in caplog.text


async def test_a_broker_whose_super_users_are_disabled_does_not_start(tmp_path: Path) -> None:
    """No user could change that."""
    root = User("root", "password-of-root", UserType.SUPER, UserStatus.DISABLE)
    UserFile(tmp_path / "users").save(rules_of(root))
    broker = Broker(
        settings(authentication_enabled=True, auth_config_path=tmp_path / "users"), small_store(tmp_path / "store")
    )
    with pytest.raises(ConfigError, match="needs an enabled super user"):
        async with broker:
            pass


def test_what_was_no_pattern_for_an_account_becomes_none_for_a_user() -> None:
    """In an ACL file, ``*`` is a name that no topic has."""
    account = Account("shop-key", "secret-of-the-shop", topics={"*": Permission.PUB, "a": Permission.SUB})

    assert ["Topic:a"] == [str(one.resource) for one in from_account(account).policies.entries[PolicyType.CUSTOM]]


# --- Tools ------------------------------------------------------------------------------------------------------------


async def test_the_admin_changes_all_brokers(tmp_path: Path) -> None:
    inner = '{"accessKey": "root", "secretKey": "password-of-root"}'
    user_settings = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "innerClientAuthenticationCredentials": inner,
    }
    async with EmbeddedCluster(brokers=2, settings=user_settings) as cluster:
        config = ClientConfig(cluster.name_servers, access_key="root", secret_key="password-of-root")
        async with Admin(config=config) as admin:
            await admin.users.create("shop", "password-of-shop")
            await admin.users.decide("shop", "Topic:orders", ["Pub"], sources=["127.0.0.1"])
            users = [(user.broker, user.name, user.is_super, user.is_enabled) for user in await admin.users.all("shop")]
            policies = [(one.broker, one.resource, one.actions, one.sources) for one in await admin.users.policies()]
            await admin.users.update("shop", is_enabled=False)
            disabled = [user.is_enabled for user in await admin.users.all("shop")]
            await admin.users.revoke("shop")
            left = await admin.users.policies()
            await admin.users.delete("shop")
            with pytest.raises(InvalidParameter, match="there is no user 'shop'"):
                await admin.users.delete("shop")
        shop = ClientConfig(cluster.name_servers, access_key="shop", secret_key="password-of-shop")
        async with Admin(config=shop) as admin:
            with pytest.raises(BrokerRefused, match="is not valid"):
                await admin.users.all()

    assert [("broker-a", "shop", False, True), ("broker-b", "shop", False, True)] == users
    assert [(name, "Topic:orders", ("Pub",), ("127.0.0.1/32",)) for name in ("broker-a", "broker-b")] == policies
    assert ([False, False], []) == (disabled, left)


async def test_a_change_that_one_broker_refuses_reaches_the_others() -> None:
    """A broker that was away when a user was created gets it when the command is repeated."""
    inner = '{"accessKey": "root", "secretKey": "password-of-root"}'
    user_settings = {"authenticationEnabled": True, "innerClientAuthenticationCredentials": inner}
    async with EmbeddedCluster(brokers=2, settings=user_settings) as cluster:
        config = ClientConfig(cluster.name_servers, access_key="root", secret_key="password-of-root")
        async with Admin(config=config) as admin:
            first, _ = sorted(await admin.brokers.all(), key=lambda broker: broker.name)
            async with dialled(first.address, ROOT) as root:
                body = encode(UserBody(password="password-of-shop"))
                assert OK == (await root.call(Code.AUTH_CREATE_USER, UserName(username="shop"), body)).code
            with pytest.raises(InvalidParameter, match="the user 'shop' exists"):
                await admin.users.create("shop", "password-of-shop")
            found = [user.broker for user in await admin.users.all("shop")]

    assert ["broker-a", "broker-b"] == sorted(found)


def test_the_command_line_never_takes_a_password_as_an_option(tmp_path: Path) -> None:
    inner = '{"accessKey": "root", "secretKey": "password-of-root"}'
    user_settings = {"authenticationEnabled": True, "innerClientAuthenticationCredentials": inner}
    with EmbeddedCluster(settings=user_settings) as cluster:
        environment = {
            "NAMESRV_ADDR": cluster.name_servers,
            "TERNMQ_ACCESS_KEY": "root",
            "TERNMQ_SECRET_KEY": "password-of-root",
        }
        secret = tmp_path / "secret"
        secret.write_text("password-of-shop\n")
        created = tern("user", "create", "shop", "--password-file", str(secret), stdin=b"", **environment)
        by_pipe = tern("user", "update", "shop", "--password-file", "-", stdin=b"another-one\n", **environment)
        allowed = tern("user", "allow", "shop", "Topic:orders", "Pub", "Get", stdin=b"", **environment)
        shown = tern("user", "policies", "--json", stdin=b"", **environment)
        listed = tern("user", "list", stdin=b"", **environment)
        nothing = tern("user", "update", "shop", stdin=b"", **environment)
        asked = [
            tern(*command, stdin=b"", **environment)
            for command in (("user", "revoke", "shop", "Topic:orders"), ("user", "delete", "shop"))
        ]
        deleted = tern("user", "delete", "shop", "--yes", stdin=b"", **environment)

    assert [2, 2, 0] == [one.returncode for one in (*asked, deleted)]
    for one in asked:
        assert "Allow Get, Pub on Topic:orders\n" in one.stderr
    assert [0, 0, 0, 0, 0, 2] == [one.returncode for one in (created, by_pipe, allowed, shown, listed, nothing)], (
        created.stderr + by_pipe.stderr + allowed.stderr
    )
    assert "shop may Pub, Get on Topic:orders\n" == allowed.stdout
    assert ["Get", "Pub"] == json.loads(shown.stdout)[0]["actions"]
    assert "shop\tnormal\tenabled\tbroker-a" in listed.stdout
    assert "nothing to change; use --new-password" in nothing.stderr
    for one in (created, by_pipe, allowed, shown, listed):
        assert "password-of" not in one.stdout + one.stderr
