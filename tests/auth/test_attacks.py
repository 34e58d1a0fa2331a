"""Every request code of a broker and of a name server, attacked (N1, issue 18).

The ports of slaves and of Raft members have no codes; see ``tests/replication/test_admission.py`` and
``tests/raft/test_admission.py``.

Each code is asked for in both header forms, with resources that one account may use and another may not, and then with
everything wrong that the protocol leaves room for. Behind the ACL stands ``tests.auth.last``: what reaches it was
admitted, and nothing is carried out.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ternmq.auth import acl_file, guesses
from ternmq.auth.accounts import AccessRules
from ternmq.auth.plain import LISTS, PlainAcl
from ternmq.broker.broker import Broker
from ternmq.broker.ports import VIP_PORT_STEP
from ternmq.errors import TernError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.gate import Action, Gate, Rule
from ternmq.net.peer import Peer
from ternmq.wire.auth import Credentials
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import BINARY, JSON, ResponseCode
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Fields, Response
from tests.auth.accounts import acl_in, dialled, users_in
from tests.auth.last import ADMITTED, LAST, Last
from tests.auth.test_plain import Connection
from tests.broker import calls
from tests.broker.test_rules import BODIES
from tests.interop.rocketmq import free_port
from tests.manual_clock import ManualClock

#: May use orders and billing, and nothing else.
USER: Final = Credentials("user-key", "secret-of-the-user")
#: The same, and is an admin: as it lists topics and groups, its permissions apply.
ADMIN: Final = Credentials("admin-key", "secret-of-the-admin")
NOTHING: Final = Credentials("nothing-key", "secret-of-nothing")
ACCOUNTS: Final = """\
accounts:
- accessKey: user-key
  secretKey: secret-of-the-user
  topicPerms: [orders=PUB|SUB]
  groupPerms: [billing=PUB|SUB]
- accessKey: admin-key
  secretKey: secret-of-the-admin
  admin: true
  topicPerms: [orders=PUB|SUB]
  groupPerms: [billing=PUB|SUB]
- accessKey: nothing-key
  secretKey: secret-of-nothing
"""
UNSIGNED: Final = "the request is not signed; give the client an access key and a secret key"
WRONG: Final = "the access key or the signature is not valid; check the access key and the secret key of the client"
#: Codes that name topics and groups in their bodies.
IN_BODY: Final = {code: encode(body) for code, body, _ in BODIES}


@dataclass(slots=True, frozen=True)
class Case:
    """A request of one code, about orders and billing."""

    code: Code
    rule: Rule
    form: int

    @property
    def fields(self) -> Fields:
        rule = self.rule
        named = {rule.topic: "orders", rule.group: "billing", rule.cluster: "DefaultCluster", "extra": "1"}
        return {name: value for name, value in named.items() if name}

    @property
    def body(self) -> bytes:
        return IN_BODY.get(self.code, b"some body")

    @property
    def has_resources(self) -> bool:
        return bool(self.rule.topic or self.rule.group or self.rule.in_body)

    @property
    def needs_admin(self) -> bool:
        return self.rule.action is Action.ADMIN or self.code in LISTS

    def signed(self, credentials: Credentials, **changes: str) -> Fields:
        fields = self.fields | changes
        credentials.sign(fields, self.body)
        return fields

    def elsewhere(self) -> tuple[Fields, bytes]:
        """The same about topics and groups of others."""
        named = self.fields.items()
        fields = {name: value.replace("orders", "payments").replace("billing", "others") for name, value in named}
        return fields, self.body.replace(b"orders", b"payments").replace(b"billing", b"others")


class Attacker:
    """Asks on one connection."""

    def __init__(self, peer: Peer, case: Case) -> None:
        self._peer = peer
        self._case = case

    async def ask(self, fields: Fields, body: bytes | None = None) -> str:
        case = self._case
        code = case.code if case.form == JSON else case.code & 0xFFFF
        answer = await self._peer.call(
            code,
            None,
            case.body if body is None else body,
            form=case.form,
            more_fields=fields,
            timeout_ms=60_000,
        )
        assert ResponseCode.NO_PERMISSION == answer.code
        assert len(answer.remark or "") < 500
        return answer.remark or ""


@asynccontextmanager
async def a_broker(tmp_path: Path) -> AsyncIterator[str]:
    config = calls.settings(acl_enable=True, acl_path=tmp_path, auth_validators="tests.auth.last:make")
    async with Broker(config, calls.small_store(tmp_path / "store")) as broker:
        yield broker.address


@asynccontextmanager
async def a_name_server(tmp_path: Path) -> AsyncIterator[str]:
    config = NamesrvConfig(
        listen_port=0,
        bind_address="127.0.0.1",
        acl_enable=True,
        acl_path=tmp_path,
        auth_validators="tests.auth.last:make",
    )
    async with NameServer(config) as server:
        yield f"127.0.0.1:{server.port}"


@asynccontextmanager
async def a_broker_with_users(tmp_path: Path) -> AsyncIterator[str]:
    """The same accounts as users of RocketMQ 5.3's access control."""
    users_in(tmp_path / "users", ACCOUNTS)
    config = calls.settings(
        authentication_enabled=True,
        authorization_enabled=True,
        auth_config_path=tmp_path / "users",
        auth_validators="tests.auth.last:make",
    )
    async with Broker(config, calls.small_store(tmp_path / "store")) as broker:
        yield broker.address


@asynccontextmanager
async def a_vip_port(tmp_path: Path) -> AsyncIterator[str]:
    """The second port of a broker."""
    port = free_port(neighbours=(-VIP_PORT_STEP, 1))
    config = calls.settings(
        acl_enable=True, acl_path=tmp_path, auth_validators="tests.auth.last:make", listen_port=port
    )
    async with Broker(config, calls.small_store(tmp_path / "store")):
        yield f"127.0.0.1:{port - VIP_PORT_STEP}"


@pytest.fixture(
    params=[a_broker, a_vip_port, a_name_server, a_broker_with_users], ids=["broker", "VIP", "name server", "users"]
)
async def address(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    # All attackers have one address here, and each attempt must get the answer to itself.
    monkeypatch.setattr(guesses, "ATTEMPTS", 1_000_000)
    acl_in(tmp_path, ACCOUNTS)
    async with request.param(tmp_path) as address:
        yield address


async def rules_of(address: str) -> dict[Code, Rule]:
    """The rule of each code that the server has, as an admin who names nothing finds out."""
    LAST.rules = {}
    async with dialled(address, ADMIN) as caller:
        for code in Code:
            answer = await caller.call(code, timeout_ms=60_000)
            expected = {ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
            assert answer.code in expected, f"{code.name} was carried out: {answer.remark}"
    rules = dict(LAST.rules)
    # Those that cannot be read without a body.
    async with dialled(address, ADMIN) as caller:
        for code, body in IN_BODY.items():
            if (await caller.call(code, None, body)).code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                rules[code] = LAST.rules[code]
    return rules


async def cases_of(address: str) -> list[Case]:
    cases = [Case(code, rule, form) for code, rule in (await rules_of(address)).items() for form in (JSON, BINARY)]
    assert len(cases) >= 40
    return cases


async def test_no_code_is_admitted_without_its_key_its_secret_and_its_permission(address: str) -> None:
    for case in await cases_of(address):
        assert case.rule.in_body is None or case.code in IN_BODY, f"{case.code.name}: give it a body in BODIES"
        async with dialled(address) as caller:
            attacker = Attacker(caller.peer, case)
            good = case.signed(ADMIN)
            name = min(case.fields)

            assert ADMITTED == await attacker.ask(good), case
            assert UNSIGNED == await attacker.ask(case.fields), case
            assert UNSIGNED == await attacker.ask(case.fields | {"AccessKey": "admin-key"}), case
            assert WRONG == await attacker.ask(case.signed(Credentials("unknown-key", "secret-of-the-admin"))), case
            assert WRONG == await attacker.ask(case.signed(Credentials("admin-key", "secret-of-the-admim"))), case
            assert WRONG == await attacker.ask(good | {"AccessKey": "user-key"}), case
            assert WRONG == await attacker.ask(good | {name: good[name] + "x"}), case
            assert WRONG == await attacker.ask(good | {"more": "x"}), case
            assert WRONG == await attacker.ask(good | {"Signature": good["Signature"].lower()}), case
            assert WRONG == await attacker.ask(good, case.body + b" "), case
            assert WRONG == await attacker.ask(good, b""), case
            # Not prevented: the same request once more. Only TLS keeps others from recording it.
            assert ADMITTED == await attacker.ask(good), case


async def test_a_right_key_without_the_permission_or_with_another_resource_is_refused(
    address: str, request: pytest.FixtureRequest
) -> None:
    # An admin of the plain ACL that lists topics is limited to them; a super user is limited to nothing.
    has_users = "users" in request.node.name
    for case in await cases_of(address):
        async with dialled(address) as caller:
            attacker = Attacker(caller.peer, case)
            is_free = not case.has_resources and not case.needs_admin

            nothing = await attacker.ask(case.signed(NOTHING))
            assert (nothing == ADMITTED) == is_free, (case, nothing)
            user = await attacker.ask(case.signed(USER))
            assert (user == ADMITTED) == (not case.needs_admin), (case, user)

            fields, body = case.elsewhere()
            for credentials in (USER, ADMIN):
                there = dict(fields)
                credentials.sign(there, body)
                answer = await attacker.ask(there, body)
                # An admin may change what it cannot read.
                is_admin_call = credentials is ADMIN and (has_users or case.rule.action is Action.ADMIN)
                assert (answer == ADMITTED) == (is_free or is_admin_call or not _asks(case, credentials)), (
                    case,
                    answer,
                )
                if answer != ADMITTED:
                    assert "orders" not in answer
                    assert "billing" not in answer


def _asks(case: Case, credentials: Credentials) -> bool:
    """Whether a request about others' topics is refused to an account."""
    return case.has_resources or (case.needs_admin and credentials is USER)


async def test_oversized_values_are_refused_and_not_repeated(address: str) -> None:
    huge = "x" * 300_000
    for case in await cases_of(address):
        async with dialled(address) as caller:
            attacker = Attacker(caller.peer, case)
            good = case.signed(ADMIN)
            for field in ("AccessKey", "Signature"):
                assert WRONG == await attacker.ask(good | {field: huge}), case
            for field in filter(None, (case.rule.topic, case.rule.group)):
                answer = await attacker.ask(case.signed(USER, **{field: huge}))
                assert answer != ADMITTED, case
            assert ADMITTED == await attacker.ask(good), "and the connection still works"


def doubled(case: Case, first: Fields, second: Fields, body: bytes) -> bytes:
    """A frame that has its ext fields twice: each member, and within the second object each name."""
    members = [f"{json.dumps(name)}:{json.dumps(value)}" for each in (first, second) for name, value in each.items()]
    ext = "{" + ",".join(members) + "}"
    head = f'{{"code":{int(case.code)},"extFields":{json.dumps(first)},"extFields":{ext},"opaque":1}}'.encode()
    return (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + body


async def exchanged(address: str, frame: bytes) -> Response:
    """The answer to raw bytes."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(frame)
        async with asyncio.timeout(60):
            size = await reader.readexactly(4)
            answer = size + await reader.readexactly(int.from_bytes(size, "big"))
    finally:
        writer.close()
        await writer.wait_closed()
    [response] = FrameDecoder().feed(answer)
    assert isinstance(response, Response)
    return response


async def test_of_fields_that_come_twice_the_same_ones_are_checked_and_handled(address: str) -> None:
    for case in await cases_of(address):
        if case.form == BINARY or not (case.rule.topic or case.rule.group):
            continue
        good, bad = case.signed(USER if not case.needs_admin else ADMIN), case.elsewhere()[0]
        for first, second in ((good, bad), (bad, good)):
            LAST.fields = {}
            answer = await exchanged(address, doubled(case, first, second, case.body))
            assert ResponseCode.NO_PERMISSION == answer.code
            # The last of a name counts.
            assert (ADMITTED if second is good else WRONG) == answer.remark, case
            assert LAST.fields == (good if second is good else {}), case


async def test_fields_that_come_twice_in_the_binary_form_are_checked_as_one(address: str) -> None:
    for case in await cases_of(address):
        if case.form == JSON or not case.rule.topic:
            continue
        good = case.signed(USER if not case.needs_admin else ADMIN)
        name = case.rule.topic
        # The same name with two spellings of one length, made equal in the bytes.
        twin = name[:-1] + ("!" if name[-1] != "!" else "?")
        code = case.code & 0xFFFF
        for fields in ({twin: "payments"} | good, good | {twin: "payments"}):
            [head, body] = encode_request(code, None, case.body, opaque=1, form=BINARY, more_fields=fields)
            frame = bytes(head).replace(twin.encode(), name.encode()) + bytes(body)
            LAST.fields = {}
            answer = await exchanged(address, frame)
            is_last = next(iter(fields)) == twin
            assert (ADMITTED if is_last else WRONG) == answer.remark, case
            assert LAST.fields == (good if is_last else {}), case


async def test_the_second_port_of_a_broker_is_guarded_as_well(tmp_path: Path) -> None:
    acl_in(tmp_path, ACCOUNTS)
    port = free_port(neighbours=(-VIP_PORT_STEP, 1))
    config = calls.settings(acl_enable=True, acl_path=tmp_path, listen_port=port)
    async with Broker(config, calls.small_store(tmp_path / "store")):
        for number in (port, port - VIP_PORT_STEP):
            async with dialled(f"127.0.0.1:{number}") as stranger, dialled(f"127.0.0.1:{number}", USER) as user:
                assert UNSIGNED == (await stranger.send("orders", b"1")).remark
                assert ResponseCode.SUCCESS == (await user.send("orders", b"1")).code


# --- Fuzz ---------------------------------------------------------------------------------------------------------

TEXTS: Final = st.text(max_size=30)
NAMES: Final = st.sampled_from(["AccessKey", "Signature", "SecurityToken", "topic", "_UNIQUE_KEY_QUERY", ""]) | TEXTS
VALUES: Final = st.sampled_from(["user-key", "admin-key", "orders", "dJue2dJSl/TBygHPbqrM4/as1Mk="]) | TEXTS


@given(st.dictionaries(NAMES, VALUES, max_size=8), st.binary(max_size=40), st.sampled_from([JSON, BINARY]))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_no_made_up_request_is_admitted(fields: Fields, body: bytes, form: int) -> None:
    """From the bytes of a frame to the answer of the gate: refused, and with no other error than ours."""
    acl = PlainAcl(AccessRules(acl_file.read(ACCOUNTS.encode()).accounts), ManualClock())
    frame = b"".join(encode_request(10, None, body, opaque=1, form=form, more_fields=fields))
    [request] = FrameDecoder(typed=False).feed(frame)

    with pytest.raises(TernError, match=r"not signed|is not valid"):
        Gate([acl, Last()]).admit(Connection(), request, Rule(Action.ANY))  # type: ignore[arg-type]  # no response
