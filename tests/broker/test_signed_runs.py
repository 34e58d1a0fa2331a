"""Runs of signed sends (issue 18): with access control, a broker that stores the sends of a read with one call of a
kernel answers, stores and audits the same as one that admits them one by one (N1, E1, C1).

Two brokers get the same reads (``test_runs``), signed by an account; some are tampered with, or signed by another one.
Between reads, and between decoding and admission, permissions and secrets change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest import mock

import pytest

from ternmq.auth import acl_file
from ternmq.auth.accounts import AccessRules
from ternmq.auth.signed import SignedCallers
from ternmq.auth.users import UserRules, from_account
from ternmq.broker.broker import Broker
from ternmq.broker.handlers.send import SendHandlers
from ternmq.errors import NoPermission, RemoteProtocolError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.net.gate import CallingPeer, Gate, Rule
from ternmq.net.peer import Peer
from ternmq.store.derived import index
from ternmq.store.log import batch
from ternmq.wire import frame
from ternmq.wire.auth import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, Credentials, Secret
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Fields, Request, Response, decode_untyped, encode_binary
from ternmq.wire.requests import SendMessage, SendMessageV2
from ternmq.wire.shapes import Admitted
from tests.auth.accounts import acl_in, users_in
from tests.auth.certificates import Certificates
from tests.broker import test_runs
from tests.broker.calls import settings, small_store
from tests.broker.test_runs import COUNTERS, KEY, Fed, Reads, Wire, fed, frame_of
from tests.manual_clock import ManualClock
from tests.store.small import log_queues_index

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

SHOP: Final = Credentials("shop-key", "secret-of-the-shop")
BOSS: Final = Credentials("boss-key", "secret-of-the-boss")
OTHERS: Final = (
    BOSS,
    Credentials("shop-key", "secret-of-the-shop", "a token"),
    Credentials("shop-key", "not the secret of the shop"),
    Credentials("nobody-key", "secret-of-nobody"),
)
ACCOUNTS: Final = """\
accounts:
- {accessKey: boss-key, secretKey: secret-of-the-boss, admin: true}
- {accessKey: shop-key, secretKey: secret-of-the-shop, topicPerms: [orders=PUB, made-now=PUB, no/such=PUB, more=SUB]}
"""
#: What an administrator changes, in the file of accounts.
CHANGES: Final = (
    ("orders=PUB", "orders=SUB"),
    ("secret-of-the-shop", "a-new-secret-of-the-shop"),
    ("shop-key", "another-key"),
    ("accounts:", "globalWhiteRemoteAddresses: [10.0.0.*]\naccounts:"),
    ("accounts:", "globalWhiteRemoteAddresses: [10.9.9.*]\naccounts:"),
    ("secret-of-the-shop,", "secret-of-the-shop, whiteRemoteAddress: 10.0.0.7,"),
    ("orders=PUB, made-now=PUB", "made-now=PUB"),
)


def signed_frame(data: bytes, credentials: Credentials) -> bytes:
    """A frame with the fields of a signature, in front of the others; all else is as it was."""
    head_end = 8 + int.from_bytes(data[5:8], "big")
    head, body, form = data[8:head_end], data[head_end:], data[4]
    try:
        request = decode_untyped(head, form)
    except RemoteProtocolError:
        return data
    fields: Fields = request.fields
    credentials.sign(fields, body)
    if form == BINARY:
        return frame_of(
            encode_binary(request.code, fields, opaque=request.opaque, flag=request.flag), body, form=BINARY
        )
    added = {name: fields[name] for name in (SECURITY_TOKEN, ACCESS_KEY, SIGNATURE) if name in fields}
    text = json.dumps(added, separators=(",", ":"))[:-1].encode() + b","
    return frame_of(head.replace(b'"extFields":{', b'"extFields":' + text, 1), body)


class SignedReads(Reads):
    """The same, signed; some by another account, or changed behind their signature."""

    def _send(self, oddity: float) -> bytes:
        return self._signed(super()._send(oddity))

    def _json(self) -> bytes:
        return self._signed(super()._json())

    def _other(self) -> bytes:
        return self._signed(super()._other())

    def _request(self, code: int) -> bytes:
        return self._signed(super()._request(code))

    def _signed(self, data: bytes) -> bytes:
        choose = self._random
        if SIGNATURE.encode() in data or choose.random() < 0.005:
            return data
        made = signed_frame(data, choose.choice(OTHERS) if choose.random() < 0.02 else SHOP)
        return choose.choice(TRICKS)(made) if choose.random() < 0.03 else made


def edited(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    """A trick: one text of a header is another one, and the lengths fit."""

    def edit(data: bytes) -> bytes:
        head_end = 8 + int.from_bytes(data[5:8], "big")
        return frame_of(data[8:head_end].replace(old, new, 1), data[head_end:], form=data[4])

    return edit


TRICKS: Final = (
    lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    edited(b'"orders"', b'"payments"'),
    edited(b'"orders"', b'"made-now"'),
    edited(b'"extFields":{', b'"extFields":{"b":"payments",'),
    edited(b'"extFields":{', b'"extFields":{"AccessKey":"boss-key",'),
    edited(b'"extFields":{', b'"extFields":{"Signature":"",'),
    edited(b'"flag":', b'"extFields":{},"flag":'),
    edited(b'"Signature"', b'"signature"'),
    edited(b"shop-key", b"boss-key"),
    edited(b'="', b'\\u003d"'),
    edited(b'="', b'"'),
    edited(b'{"code":310', b'{"code":10'),
)


class Change(NamedTuple):
    """Rules for one read."""

    rules: Any
    #: Not before the read, but when its frames are decoded.
    is_late: bool


class Outcome(NamedTuple):
    replies: list[bytes]
    counters: dict[str, str]
    audit: list[str]
    #: Sends that were stored in runs.
    taken: int


def rules_of(kind: str, text: str) -> Any:
    parsed = acl_file.read(text.encode())
    if kind == "accounts":
        return AccessRules(parsed.accounts, parsed.white)
    users = UserRules()
    for account in parsed.accounts:
        users = users.created(from_account(account))
    return users


def secured(kind: str, directory: Path) -> dict[str, Any]:
    """Settings of a broker with these accounts, or with them as users."""
    if kind == "accounts":
        return {"acl_enable": True, "acl_path": acl_in(directory, ACCOUNTS)}
    path = users_in(directory, ACCOUNTS)
    return {"authentication_enabled": True, "authorization_enabled": True, "auth_config_path": path}


def validator_of(one: Fed) -> Any:
    gate = one._server._gate
    assert gate is not None
    [validator] = gate._validators
    return validator


async def counters(one: Fed) -> dict[str, str]:
    one.close()
    request = encode_request(RequestCode.GET_BROKER_RUNTIME_INFO, opaque=1, credentials=BOSS)
    [response] = FrameDecoder().feed(await one.feed(b"".join(request)))
    assert isinstance(response, Response)
    table: dict[str, str] = json.loads(bytes(response.body))["table"]
    return {name: table[name] for name in COUNTERS}


async def fed_with(
    kind: str, path: Path, reads: list[bytes], changes: dict[int, Change], caplog: pytest.LogCaptureFixture
) -> Outcome:
    taken = 0
    run, feed, clock = SendHandlers.run, FrameDecoder.feed, ManualClock()
    late: list[Any] = []

    def counted(self: SendHandlers, peer: Peer, sends: Any, first: int, *, arrived: float) -> tuple[int, bytes, int]:
        nonlocal taken
        number, replies, ends = run(self, peer, sends, first, arrived=arrived)
        taken += number - first
        return number, replies, ends

    def decoded(self: FrameDecoder, *args: Any) -> Any:
        commands = feed(self, *args)
        if late:
            validator.rules = late.pop()
        return commands

    caplog.clear()
    with caplog.at_level(logging.INFO, "ternmq.audit"):
        async with fed(path, **secured(kind, path.with_name(f"{path.name}-acl"))) as one:
            validator = validator_of(one)
            # A clock of its own: that of the broker must stand still, or delayed messages come between the sends.
            validator._callers = SignedCallers(clock)
            usual = validator.rules
            replies = []
            with mock.patch.object(SendHandlers, "run", counted), mock.patch.object(FrameDecoder, "feed", decoded):
                for number, data in enumerate(reads):
                    change = changes.get(number)
                    if change is not None and change.is_late:
                        late.append(change.rules)
                    elif change is not None:
                        validator.rules = change.rules
                    replies.append(await one.feed(data))
                    late.clear()
                    validator.rules = usual
                    # Attempts to guess a secret come back.
                    clock.advance(60.0)
            found = await counters(one)
    audit = [record.getMessage() for record in caplog.records if record.name == "ternmq.audit"]
    return Outcome(replies, found, audit, taken)


@pytest.mark.parametrize("kind", ["accounts", "users"])
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 12))])
async def test_signed_sends_in_runs_are_answered_stored_and_audited_as_single_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, seed: int
) -> None:
    """N1, E1, C1, C2, C4, B5."""
    source = SignedReads(seed)
    first = [
        signed_frame(test_runs.plain(number, topic=topic), SHOP)
        for number in range(4)
        for topic in ("orders", "made-now")
    ]
    # A topic that exists, and that the account may not send to.
    first += [signed_frame(test_runs.plain(number, topic="payments"), BOSS) for number in range(4)]
    reads = [*first, *(data for _ in range(120) for data in source.next())]
    texts = [ACCOUNTS.replace(old, new) for old, new in CHANGES]
    assert ACCOUNTS not in texts
    wanted = range(len(first), len(reads), 6)
    changes = {
        number: Change(rules_of(kind, texts[turn // 2 % len(texts)]), is_late=turn % 2 == 1)
        for turn, number in enumerate(wanted)
    }
    made = await fed_with(kind, tmp_path / "kernel", reads, changes, caplog)
    with (
        mock.patch.object(frame, "HAS_NATIVE", False),
        mock.patch.object(batch, "HAS_NATIVE", False),
        mock.patch.object(index, "HAS_NATIVE", False),
    ):
        expected = await fed_with(kind, tmp_path / "python", reads, changes, caplog)
    assert (0, True) == (expected.taken, made.taken > 300)
    for one, other in zip(expected.replies, made.replies, strict=True):
        assert FrameDecoder().feed(one) == FrameDecoder().feed(other)
        assert one == other
    assert expected.counters == made.counters
    assert expected.audit == made.audit
    kinds = ("not signed", "is not valid", "no permission for topic:'payments'", "no permission for topic:'orders'")
    assert all(any(part in line for line in made.audit) for part in kinds), made.audit
    assert log_queues_index(tmp_path / "python") == log_queues_index(tmp_path / "kernel")


def sends_of(count: int, topics: tuple[str, ...] = ("orders",), *, credentials: Credentials = SHOP) -> bytes:
    """Signed sends, of both codes in turn, to topics in turn."""
    made = b""
    for number in range(count):
        kind, code = ((SendMessageV2, RequestCode.SEND_MESSAGE_V2), (SendMessage, RequestCode.SEND_MESSAGE))[number % 2]
        header = kind(topic=topics[number % len(topics)], queue_id=0, producer_group="g", properties=KEY)
        made += b"".join(encode_request(code, header, b"body", opaque=number, credentials=credentials))
    return made


def codes_in(answer: bytes) -> list[int]:
    return [response.code for response in FrameDecoder().feed(answer) if isinstance(response, Response)]


def watched() -> Any:
    """Counts what is handled in runs."""
    return mock.patch.object(SendHandlers, "run", autospec=True, side_effect=SendHandlers.run)


async def test_the_gate_is_asked_once_for_each_topic_of_a_run(tmp_path: Path) -> None:
    """N1: not for each message."""
    topics = ("orders", "made-now")
    async with fed(tmp_path / "store", **secured("accounts", tmp_path / "acl")) as one:
        gate: Any = one._server._gate
        await one.feed(sends_of(4, topics))
        with watched() as run, mock.patch.object(gate, "_trusts", wraps=gate._trusts) as asked:
            assert [0] * 40 == codes_in(await one.feed(sends_of(40, topics)))
        assert 1 == run.call_count
        assert sorted(topics) == sorted(call.args[-1] for call in asked.call_args_list)


@pytest.mark.parametrize("kind", ["accounts", "users"])
async def test_a_topic_of_others_is_refused_also_among_sends_of_a_run(tmp_path: Path, kind: str) -> None:
    """N1: it exists, and sends of its owner would be stored in runs."""
    async with fed(tmp_path / "store", **secured(kind, tmp_path / "acl")) as one:
        await one.feed(sends_of(4, ("payments",), credentials=BOSS))
        for _ in range(3):
            one.close()
            await one.feed(sends_of(4))
            codes = codes_in(await one.feed(sends_of(8, ("orders", "payments"))))
            assert [0, NoPermission.code] * 4 == codes
            assert [NoPermission.code] * 8 == codes_in(await one.feed(sends_of(8, ("payments",))))


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("kind", ["accounts", "users"])
async def test_what_an_account_lost_is_not_stored_in_runs(tmp_path: Path, kind: str, is_late: bool) -> None:
    """N1: a permission, the secret, the account; before the read, or while it waits for its turn."""
    async with fed(tmp_path / "store", **secured(kind, tmp_path / "acl")) as one:
        validator = validator_of(one)
        usual = validator.rules
        feed = FrameDecoder.feed
        for old, new in CHANGES[:3]:
            validator.rules = usual
            for _ in range(2):
                assert [0] * 10 == codes_in(await one.feed(sends_of(10)))
            changed = rules_of(kind, ACCOUNTS.replace(old, new))

            def decoded(self: FrameDecoder, *args: Any, rules: Any = changed) -> Any:
                commands = feed(self, *args)
                validator.rules = rules
                return commands

            validator.rules = usual if is_late else changed
            with watched() as run, mock.patch.object(FrameDecoder, "feed", decoded):
                answer = await one.feed(sends_of(10))
            assert {NoPermission.code} == set(codes_in(answer))
            run.assert_not_called()


class Lone:
    """A validator of one's own without a short way."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, /) -> None:
        self.asked += request.code in frame.SEND_CODES
        caller.proved = fields.get(ACCESS_KEY, "")


class Quick(Lone):
    """One that has it."""

    def __init__(self) -> None:
        super().__init__()
        self.secret = Secret("secret-of-the-shop")
        self.topics = ["orders"]

    def secret_of(self, key: str, /) -> Secret | None:
        return self.secret if key == "shop-key" else None

    def trusts(self, caller: CallingPeer, secret: Secret, topic: str, /) -> bool:
        return secret is self.secret and topic in self.topics


async def test_own_validators_are_asked_for_each_send_unless_they_can_be_asked_for_topics(tmp_path: Path) -> None:
    """N1: also where one that can is not alone."""
    cases: list[tuple[list[Lone], int]] = [([Lone()], 0), ([Quick()], 1), ([Quick(), Lone()], 0)]
    for number, (validators, in_runs) in enumerate(cases):
        own = Gate(validators)
        async with fed(tmp_path / f"{number}") as one:
            one._server._gate = own
            for _ in range(3):
                with watched() as run:
                    assert [0] * 10 == codes_in(await one.feed(sends_of(10)))
            assert in_runs == run.call_count
            assert [10 if in_runs else 30] * len(validators) == [each.asked for each in validators]


async def test_a_topic_that_is_not_trusted_is_asked_for_send_by_send(tmp_path: Path) -> None:
    """N1: and those in front of it and behind it are in their place."""
    quick = Quick()
    async with fed(tmp_path) as one:
        one._server._gate = Gate([quick])
        topics = ("orders", "orders", "made-now", "orders")
        for _ in range(2):
            await one.feed(sends_of(8, topics))
        quick.asked = 0
        answer = FrameDecoder().feed(await one.feed(sends_of(8, topics)))
        assert [(number, 0) for number in range(8)] == [(each.opaque, each.code) for each in answer]
        assert 2 == quick.asked


async def test_nothing_is_in_a_run_before_somebody_has_proved_who_calls(tmp_path: Path) -> None:
    """N1: where signatures are checked, sends that nobody has checked stay alone."""
    decoder = FrameDecoder(typed=False)
    unsigned = test_runs.plain(1) * 4
    with mock.patch.object(native, "parse_sends", wraps=native.parse_sends) as parse:
        assert [Request] * 4 == [type(each) for each in decoder.feed(unsigned, lambda: True)]
        assert [Request] * 4 == [type(each) for each in decoder.feed(sends_of(4), lambda: True)]
    parse.assert_not_called()
    # And if there were such a run, it would not be stored as one.
    sends = native.parse_sends(unsigned, 0, 1 << 20)
    assert sends is not None
    async with fed(tmp_path / "store", **secured("accounts", tmp_path / "acl")) as one:
        await one.feed(sends_of(4))
        assert one._peer is not None
        assert one._peer._runs is not None
        with watched() as run:
            one._peer._runs.run(sends, 0.0)
    run.assert_not_called()


async def test_a_connection_that_is_given_up_has_no_runs_any_more(tmp_path: Path) -> None:
    """N1: also not in the read in which that happens."""
    header = SendMessageV2(topic="orders", queue_id=0, producer_group="g", properties=KEY)
    unusual = header.to_fields() | {"e": "+0"}
    SHOP.sign(unusual, b"hi")
    odd = b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, None, b"hi", opaque=1, more_fields=unusual))
    async with fed(tmp_path / "store", **secured("accounts", tmp_path / "acl")) as one:
        await one.feed(sends_of(4))
        with watched() as run:
            codes = codes_in(await one.feed(odd * frame.MISSES_MAX + test_runs.plain(1) * 4 + sends_of(4)))
        assert [ResponseCode.SYSTEM_ERROR] * frame.MISSES_MAX + [NoPermission.code] * 4 + [0] * 4 == codes
        run.assert_not_called()


async def test_a_send_of_a_run_is_what_it_would_be_alone() -> None:
    """N1: with the signature checked, and as a map where its header is not complete."""
    decoder = FrameDecoder(typed=False)
    fields: Fields = {"b": "orders", "e": "0", "i": KEY}
    SHOP.sign(fields, b"hi")
    short = b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, None, b"hi", opaque=7, more_fields=fields))
    secret = Secret("secret-of-the-shop")
    for code in frame.SEND_CODES:
        decoder.learn(code, Admitted({ACCESS_KEY: "shop-key"}, secret))
    data = sends_of(3) + short
    alone = decoder.feed(data)
    [sends] = decoder.feed(data, lambda: True)
    assert alone == [frame.request_in(sends, number) for number in range(4)]  # type: ignore[arg-type]  # a run
    assert ["SignedSend"] * 3 + ["dict"] == [type(each.header).__name__ for each in alone if isinstance(each, Request)]


@pytest.mark.parametrize("white", ["globalWhiteRemoteAddresses: [10.9.9.*]", "globalWhiteRemoteAddresses: [10.0.0.7]"])
async def test_white_lists_cost_only_those_on_them_their_runs(tmp_path: Path, white: str) -> None:
    """N1: who is let in by its address may do more than its account."""
    acl = acl_in(tmp_path / "acl", f"{white}\n{ACCOUNTS}")
    async with fed(tmp_path / "store", acl_enable=True, acl_path=acl) as one:
        for _ in range(2):
            with watched() as run:
                assert [0] * 10 == codes_in(await one.feed(sends_of(10)))
    assert (Wire.host not in white) == run.called


async def test_runs_are_made_of_what_came_through_tls(tmp_path: Path) -> None:
    """N2, N1: over sockets, signed."""
    made = Certificates(tmp_path / "certs")
    context = ssl.create_default_context(cafile=str(made / "ca.pem"))
    context.check_hostname = False
    config = settings(**secured("accounts", tmp_path / "acl"), **made.server())
    stored = 0
    run = SendHandlers.run

    def counted(self: SendHandlers, peer: Peer, sends: Any, first: int, *, arrived: float) -> tuple[int, bytes, int]:
        nonlocal stored
        number, replies, ends = run(self, peer, sends, first, arrived=arrived)
        stored += number - first
        return number, replies, ends

    async with Broker(config, small_store(tmp_path / "store")) as broker, asyncio.timeout(60):
        host, _, port = broker.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
        with mock.patch.object(SendHandlers, "run", counted):
            for _ in range(2):
                writer.write(sends_of(64))
                for _ in range(64):
                    reply = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                    assert b'"code":0,' in reply
        writer.close()
        await writer.wait_closed()
    # The first read shows who calls.
    assert stored >= 60
