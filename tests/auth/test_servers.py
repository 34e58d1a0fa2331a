"""Brokers and name servers with access control (N1)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from ternmq.auth.access import own_credentials
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.errors import ConfigError, NoPermission
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.gate import CallingPeer, Rule
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Fields, Request, Response
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import ViewMessage
from ternmq.wire.requests_admin import DeleteAcl, RouteQuery, UpdateAcl, UpdateWhiteAddresses
from tests.auth.accounts import BILLING, BOSS, GUEST, SHOP, acl_in, dialled
from tests.broker.calls import settings, small_store

OK, DENIED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION


def guarded(tmp_path: Path, **changes: Any) -> Broker:
    """A broker with the accounts of ``tests.auth.accounts``."""
    config = settings(acl_enable=True, acl_path=acl_in(tmp_path / "conf"), acl_reload_interval=100, **changes)
    return Broker(config, small_store(tmp_path / "store"))


def test_a_file_with_the_account_of_a_server_that_others_can_read_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The account in ``tools.yml`` is an admin's, mostly."""
    tools = tmp_path / "tools.yml"
    tools.write_text("accessKey: boss-key\nsecretKey: secret-of-the-boss\n")
    for mode, warnings in ((0o600, 0), (0o644, 1)):
        tools.chmod(mode)
        assert BOSS == own_credentials(BrokerConfig(acl_path=tmp_path), {})
        assert warnings == len([record for record in caplog.records if str(tools) in record.getMessage()])
    assert "secret-of" not in caplog.text


async def test_each_account_may_do_what_its_file_says(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        async with dialled(broker.address, SHOP) as shop:
            sent = [(await shop.send(topic, b"1")).code for topic in ("orders", "payments")]
            pulled_by_shop = (await shop.pull("orders", consumer_group="billing")).code
        async with dialled(broker.address, BILLING) as billing:
            found = await billing.bodies("orders", consumer_group="billing")
            pulled = [(await billing.pull("orders", consumer_group=group)).code for group in ("billing", "others")]
        async with dialled(broker.address) as stranger:
            unsigned = (await stranger.send("orders", b"1")).code

    assert [OK, DENIED] == sent
    assert [b"1"] == found
    assert [OK, DENIED] == pulled
    assert [DENIED, DENIED] == [pulled_by_shop, unsigned]


async def test_records_are_found_by_place_only_by_those_that_may_read_their_topic(tmp_path: Path) -> None:
    """By id; and by sending them back, which would copy any message of the broker into a topic of one's own."""
    async with guarded(tmp_path) as broker:
        async with dialled(broker.address, BOSS) as boss:
            places = [parse_offset_id((await boss.sent(topic, b"1")).message_id)[2] for topic in ("orders", "payments")]
            by_boss = [
                (await boss.call(Code.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=place))).code for place in places
            ]
        async with dialled(broker.address, BILLING) as billing:
            await billing.heartbeat("billing", {"orders": "*"})
            viewed = [await billing.call(Code.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=place)) for place in places]
            sent_back = [await billing.send_back("billing", place, delay_level=-1) for place in places]
            dead = await billing.bodies("%DLQ%billing", consumer_group="billing")
            place = (await billing.records("%DLQ%billing", consumer_group="billing"))[0].log_offset
            own_again = (await billing.call(Code.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=place))).code

    assert [OK, OK] == by_boss
    for answers in (viewed, sent_back):
        assert [OK, DENIED] == [answer.code for answer in answers]
        assert "payments" not in (answers[1].remark or "")
    assert [b"1"] == dead
    assert OK == own_again


async def test_changed_files_count_without_a_restart(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, dialled(broker.address, GUEST) as guest:
        assert DENIED == (await guest.send("orders", b"1")).code
        acl_in(
            tmp_path / "conf",
            "accounts:\n- accessKey: guest-key\n  secretKey: secret-of-the-guest\n  topicPerms: [orders=PUB]\n",
        )
        async with asyncio.timeout(60):
            while OK != (await guest.send("orders", b"1")).code:
                await asyncio.sleep(0.01)


async def test_a_broker_does_not_start_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)
    for path, sentence in ((None, "needs aclPath"), (tmp_path / "nowhere", "does not exist")):
        broker = Broker(settings(acl_enable=True, acl_path=path), small_store(tmp_path / "store"))
        with pytest.raises(ConfigError, match=sentence):
            await broker.__aenter__()


async def test_the_files_are_found_where_rocketmq_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    acl_in(tmp_path / "conf")
    monkeypatch.setenv("ROCKETMQ_HOME", str(tmp_path))
    broker = Broker(settings(acl_enable=True), small_store(tmp_path / "store"))

    async with broker, dialled(broker.address, SHOP) as shop:
        assert OK == (await shop.send("orders", b"1")).code


# --- Name servers -------------------------------------------------------------------------------------------------


async def test_brokers_sign_their_registrations(tmp_path: Path) -> None:
    conf = acl_in(tmp_path / "conf")
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", acl_enable=True, acl_path=conf)
    async with NameServer(config) as name_server:
        address = f"127.0.0.1:{name_server.port}"
        for number, (credentials, known) in enumerate([(BOSS, True), (SHOP, False), (None, False)]):
            broker = Broker(
                settings(namesrv_addr=address, broker_name=f"broker-{number}"),
                small_store(tmp_path / str(number)),
                credentials=credentials,
            )
            async with broker:
                assert known == (f"broker-{number}" in name_server.registry.cluster_info().broker_addr_table)


async def test_a_route_is_told_to_those_that_may_use_the_topic(tmp_path: Path) -> None:
    """A denied client does not learn whether the topic exists."""
    conf = acl_in(tmp_path / "conf")
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", acl_enable=True, acl_path=conf)
    async with NameServer(config) as name_server:
        address = f"127.0.0.1:{name_server.port}"
        broker_config = settings(namesrv_addr=address)
        async with Broker(broker_config, small_store(tmp_path / "store"), credentials=BOSS) as broker:
            async with dialled(broker.address) as caller:
                for topic in ("orders", "payments"):
                    await caller.sent(topic, b"1")

            async def ask(topic: str, credentials: Credentials | None) -> Response:
                async with dialled(address, credentials) as caller:
                    return await caller.call(Code.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))

            assert OK == (await ask("orders", SHOP)).code
            exists, missing = await ask("payments", SHOP), await ask("missings", SHOP)
            assert DENIED == exists.code == missing.code
            assert exists.remark is not None
            assert exists.remark.replace("payments", "missings") == missing.remark
            assert OK == (await ask("TBW102", SHOP)).code
            assert ResponseCode.TOPIC_NOT_EXIST == (await ask("missings", BOSS)).code
            assert DENIED == (await ask("orders", None)).code


def test_servers_sign_with_the_environment_or_the_file_of_tools(tmp_path: Path) -> None:
    config = BrokerConfig(acl_path=tmp_path)

    assert own_credentials(BrokerConfig(), {}) is None
    assert own_credentials(config, {}) is None
    (tmp_path / "tools.yml").write_text("accessKey: boss-key\nsecretKey: 12345678\n")
    assert Credentials("boss-key", "12345678") == own_credentials(config, {})
    environment = {"TERNMQ_ACCESS_KEY": "env-key", "TERNMQ_SECRET_KEY": "env-secret"}
    assert Credentials("env-key", "env-secret") == own_credentials(config, environment)
    (tmp_path / "tools.yml").write_text("- 3")
    with pytest.raises(ConfigError, match=r"tools\.yml: expected accessKey and secretKey"):
        own_credentials(config, {})


# --- Administrators (50–54) ---------------------------------------------------------------------------------------


async def test_an_administrator_makes_and_deletes_accounts(tmp_path: Path) -> None:
    new = Credentials("fresh-key", "secret-of-fresh")
    async with (
        guarded(tmp_path) as broker,
        dialled(broker.address, BOSS) as boss,
        dialled(broker.address, new) as fresh,
    ):
        assert DENIED == (await fresh.send("orders", b"1")).code
        account = UpdateAcl(
            access_key="fresh-key", secret_key="secret-of-fresh", topic_perms="orders=PUB, payments=PUB|SUB"
        )
        assert OK == (await boss.call(Code.UPDATE_AND_CREATE_ACL_CONFIG, account)).code
        assert OK == (await fresh.send("orders", b"1")).code == (await fresh.send("payments", b"1")).code
        changed = UpdateAcl(access_key="fresh-key", topic_perms="orders=SUB")
        assert OK == (await boss.call(Code.UPDATE_AND_CREATE_ACL_CONFIG, changed)).code
        assert DENIED == (await fresh.send("orders", b"1")).code == (await fresh.send("payments", b"1")).code
        assert "secret-of-fresh" in (tmp_path / "conf" / "plain_acl.yml").read_text()
        assert OK == (await boss.call(Code.DELETE_ACL_CONFIG, DeleteAcl(access_key="fresh-key"))).code
        assert "is not valid" in ((await fresh.send("orders", b"1")).remark or "")
        assert 210 == (await boss.call(Code.DELETE_ACL_CONFIG, DeleteAcl(access_key="fresh-key"))).code
        bad = UpdateAcl(access_key="bad", secret_key="secret-of-bad")
        refused = await boss.call(Code.UPDATE_AND_CREATE_ACL_CONFIG, bad)
        assert 209 == refused.code
        assert "secret-of-bad" not in (refused.remark or "")


async def test_an_administrator_sets_white_addresses(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path) as broker,
        dialled(broker.address, BOSS) as boss,
        dialled(broker.address) as stranger,
    ):
        for addresses, code, then in (
            ("10.1.2.{3,4}, 127.0.0.*", OK, OK),
            ("nowhere", 211, OK),
            ("10.1.2.3", OK, DENIED),
        ):
            header = UpdateWhiteAddresses(addresses=addresses)
            assert code == (await boss.call(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)).code
            assert then == (await stranger.send("orders", b"1")).code
        path = UpdateWhiteAddresses(addresses="*", file_path=str(tmp_path / "conf" / "other.yml"))
        assert 211 == (await boss.call(Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, path)).code
        assert not (tmp_path / "conf" / "other.yml").exists()


async def test_tools_see_versions_and_accounts_but_no_secret(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker, dialled(broker.address, BOSS) as boss:
        await boss.call(Code.UPDATE_AND_CREATE_ACL_CONFIG, UpdateAcl(access_key="guest-key", group_perms="a=SUB"))
        versions = await boss.call(Code.GET_BROKER_CLUSTER_ACL_INFO)
        shown = await boss.call(Code.GET_BROKER_CLUSTER_ACL_CONFIG)
        config = await boss.call(Code.GET_BROKER_CONFIG)

    assert 1 == json.loads(versions.fields["version"])["counter"]
    assert [str(tmp_path / "conf" / "plain_acl.yml")] == list(json.loads(versions.fields["allAclFileVersion"]))
    assert ("broker-a", broker.address) == (versions.fields["brokerName"], versions.fields["brokerAddr"])
    accounts = {account["accessKey"]: account for account in json.loads(bytes(shown.body))["plainAccessConfigs"]}
    assert ["a=SUB"] == accounts["guest-key"]["groupPerms"]
    assert ["orders=PUB"] == accounts["shop-key"]["topicPerms"]
    for answer in (versions, shown, config):
        assert b"secret-of" not in bytes(answer.body)
        assert "secret-of" not in str(answer.fields)


@pytest.mark.parametrize("code", [50, 51, 52, 53, 54])
async def test_accounts_are_for_administrators_only(tmp_path: Path, code: int) -> None:
    """RocketMQ lets every account change accounts."""
    async with guarded(tmp_path) as broker:
        for credentials in (SHOP, GUEST, None):
            async with dialled(broker.address, credentials) as caller:
                answer = await caller.call(code, UpdateAcl(access_key="guest-key", admin=True))
                assert DENIED == answer.code
    assert "admin: true\n- accessKey: shop-key" in (tmp_path / "conf" / "plain_acl.yml").read_text()


async def test_secrets_are_in_no_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarded(tmp_path) as broker:
        for credentials in (BOSS, SHOP, GUEST, Credentials("boss-key", "secret-of-nobody")):
            async with dialled(broker.address, credentials) as caller:
                await caller.send("orders", b"1")
                account = UpdateAcl(access_key="fresh-key", secret_key="secret-of-fresh")
                await caller.call(Code.UPDATE_AND_CREATE_ACL_CONFIG, account)
                await caller.call(Code.UPDATE_AND_CREATE_ACL_CONFIG, UpdateAcl(access_key="x", secret_key="secret-of"))

    assert "'boss-key' from" in caplog.text
    assert "secret-of" not in caplog.text


# --- Own validators -----------------------------------------------------------------------------------------------


def only_odd_queues() -> Any:
    """A factory, as a company would write one."""

    def check(_caller: CallingPeer, _request: Request[Any], fields: Fields, _rule: Rule) -> None:
        if int(fields.get("e", "1")) % 2 == 0:
            raise NoPermission("odd queues only")

    return check


def fails() -> Any:
    raise RuntimeError("no directory service")


async def test_validators_of_ones_own_are_asked_after_the_acl(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, auth_validators=f"{__name__}:only_odd_queues") as broker,
        dialled(broker.address, SHOP) as shop,
    ):
        answers = [await shop.send("orders", b"1", queue_id=number) for number in (0, 1)]
        denied = await shop.send("payments", b"1", queue_id=0)

    assert [(DENIED, "odd queues only"), (OK, None)] == [(answer.code, answer.remark) for answer in answers]
    assert "topic:'payments'" in (denied.remark or "")


async def test_validators_of_ones_own_work_without_the_acl(tmp_path: Path) -> None:
    config = settings(auth_validators=f"{__name__}:only_odd_queues, {__name__}:only_odd_queues")
    async with Broker(config, small_store(tmp_path)) as broker, dialled(broker.address) as caller:
        assert DENIED == (await caller.send("orders", b"1", queue_id=2)).code


async def test_denials_of_validators_of_ones_own_are_in_the_audit_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N1: one line for several, with the account if there is one; a line of the ACL is not written twice."""
    for credentials, who in ((None, "a client without a key"), (BOSS, "'boss-key'")):
        caplog.clear()
        own = f"{__name__}:only_odd_queues"
        acl = {"acl_enable": True, "acl_path": acl_in(tmp_path / "conf")} if credentials is not None else {}
        config = settings(auth_validators=own, **acl)
        store = small_store(tmp_path / ("plain" if credentials is None else "signed"))
        async with Broker(config, store) as broker, dialled(broker.address, credentials) as caller:
            for _ in range(5):
                assert DENIED == (await caller.send("orders", b"1", queue_id=2)).code
        lines = [each.getMessage() for each in caplog.records if each.name == "ternmq.audit"]
        assert 1 == len(lines)
        assert lines[0].startswith(f"denied SEND_MESSAGE_V2 of {who} from 127.0.0.1:")


async def test_a_body_whose_topics_cannot_be_read_is_denied_and_audited(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(tmp_path) as broker, dialled(broker.address, BILLING) as caller:
        assert DENIED == (await caller.call(Code.HEART_BEAT, None, b"[[[")).code
    assert "denied HEART_BEAT of 'billing-key' from 127.0.0.1:" in caplog.text


@pytest.mark.parametrize("name", [f"{__name__}:fails", f"{__name__}:missing", "no.module:x"])
async def test_a_validator_that_cannot_be_made_stops_the_start(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot make .* of authValidators"):
        await Broker(settings(auth_validators=name), small_store(tmp_path)).__aenter__()


def test_validators_are_named_by_module_and_factory() -> None:
    with pytest.raises(ConfigError, match="expected module:factory"):
        BrokerConfig(auth_validators="os.system('x')")


async def test_security_is_not_changed_while_a_broker_runs(tmp_path: Path) -> None:
    async with guarded(tmp_path) as broker:
        for change in ({"acl_enable": False}, {"acl_path": tmp_path}, {"auth_validators": "a:b"}, {"tls_enable": True}):
            with pytest.raises(ConfigError, match="restart it"):
                broker.apply(dataclasses.replace(broker.config, **change))


@pytest.mark.parametrize(
    "line", ["tls.config.file=/etc/passwd", "tls.server.keyPassword=secret-of-a-key", "aclEnable=false", "aclPath=/tmp"]
)
async def test_settings_of_security_cannot_be_changed_by_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str
) -> None:
    """Not even by an admin, whose request must not make the server read files, or log a password."""
    conf = acl_in(tmp_path / "conf")
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", acl_enable=True, acl_path=conf)
    caplog.set_level(logging.DEBUG)
    async with NameServer(config) as name_server, dialled(f"127.0.0.1:{name_server.port}", BOSS) as boss:
        refused = await boss.call(Code.UPDATE_NAMESRV_CONFIG, None, line.encode())
        changed = await boss.call(Code.UPDATE_NAMESRV_CONFIG, None, b"orderMessageEnable=true")

    assert (DENIED, OK) == (refused.code, changed.code)
    assert "cannot be changed at run time" in (refused.remark or "")
    assert "secret-of" not in caplog.text
