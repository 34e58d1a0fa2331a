"""Signed sends with a shape that is known are what they would be without one (N1)."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ternmq.auth import acl_file
from ternmq.auth.accounts import AccessRules
from ternmq.auth.plain import PlainAcl
from ternmq.auth.user_acl import UserAcl
from ternmq.auth.users import UserRules, from_account
from ternmq.errors import NoPermission, RemoteProtocolError
from ternmq.net.gate import Action, Gate, QuickValidator, Rights, Rule, Validator
from ternmq.wire import shapes
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import FrameDecoder
from ternmq.wire.header import Fields, Request
from ternmq.wire.shapes import Texts
from tests.manual_clock import ManualClock

SHOP: Final = Credentials("shop-key", "secret-of-the-shop")
BOSS: Final = Credentials("boss-key", "secret-of-the-boss")
ACCOUNTS: Final = (
    b"accounts:\n"
    b"- {accessKey: shop-key, secretKey: secret-of-the-shop, topicPerms: [orders=PUB, more=SUB]}\n"
    b"- {accessKey: boss-key, secretKey: secret-of-the-boss, admin: true}\n"
)
RULE: Final = Rule(Action.PUB, topic="b")
SEND: Final[Fields] = {
    "a": "shop",
    "b": "orders",
    "c": "TBW102",
    "d": "8",
    "e": "3",
    "f": "0",
    "g": "1731860000123",
    "h": "0",
    "i": 'KEYS\x01a "quoted" ü €\x02WAIT\x01true',
    "j": "0",
    "k": "false",
    "m": "false",
}


class Connection:
    """One side of a connection with a gate: decodes, and asks for admission."""

    def __init__(self, validator: Validator, *, learns: bool) -> None:
        self.remote_ip = "10.1.1.1"
        self.address = "10.1.1.1:5555"
        self.access: Rights | None = None
        self.proved = ""
        self.certificate: dict[str, object] = {}
        self._learns = learns
        self._decoder = FrameDecoder(typed=False)
        self._gate = Gate([validator])
        #: How many requests were decoded by a shape.
        self.shaped = 0

    def take(self, frame: bytes) -> object:
        """What the handler of a request would see, or why it is refused."""
        try:
            [request] = self._decoder.feed(frame)
            assert isinstance(request, Request)
            self.shaped += isinstance(request.header, Texts)
            shape = self._gate.admit(self, request, RULE)
            if shape is not None and self._learns:
                self._decoder.learn(request.code, shape)
        except (NoPermission, RemoteProtocolError) as error:
            return type(error), str(error)
        return (
            msgspec.structs.asdict(request.fields) if request.fault is None else "a fault",  # of two, either
            request.code,
            request.opaque,
            request.flag,
            request.version,
            request.serial,
            bytes(request.body),
            self.proved,
        )


def validators() -> list[tuple[Validator, Validator]]:
    """Pairs of equal ones, so that what one remembers does not help the other."""
    users = UserRules()
    for account in acl_file.read(ACCOUNTS).accounts:
        users = users.created(from_account(account))

    def plain() -> PlainAcl:
        return PlainAcl(AccessRules(acl_file.read(ACCOUNTS).accounts), ManualClock())

    def by_users() -> UserAcl:
        return UserAcl(users, ManualClock(), authorizes=True, cluster="DefaultCluster")

    return [(plain(), plain()), (by_users(), by_users())]


def framed(ext: str, body: bytes = b"hello", *, code: int = Code.SEND_MESSAGE_V2, tail: str = "") -> bytes:
    head = f'{{"code":{code},"extFields":{ext},"flag":0,"language":"JAVA","opaque":7,"version":401{tail}}}'.encode()
    return (4 + len(head) + len(body)).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + body


def signed(credentials: Credentials = SHOP, /, body: bytes = b"hello", **changes: str) -> Fields:
    return signed_with(credentials, changes, body)


def signed_with(credentials: Credentials, changes: Fields, body: bytes = b"hello") -> Fields:
    fields = SEND | changes
    credentials.sign(fields, body)
    return fields


def text(fields: dict[str, Any], *, ascii_only: bool = True) -> str:
    return json.dumps(fields, ensure_ascii=ascii_only, separators=(",", ":"))


def members(*pairs: tuple[str, object]) -> str:
    """An object that may have a name twice."""
    return "{" + ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in pairs) + "}"


GOOD: Final = signed()
OTHER_ORDER: Final = dict(reversed(GOOD.items()))
FRAMES: Final = {
    "the same": framed(text(GOOD)),
    "not escaped": framed(text(GOOD, ascii_only=False)),
    "another order of names": framed(text(OTHER_ORDER)),
    "another message": framed(text(signed(body=b"bye", i="KEYS\x01b", e="4")), b"bye"),
    "an admin": framed(text(signed(BOSS))),
    "another topic": framed(text(signed(b="payments"))),
    "a topic that it may only read": framed(text(signed(b="more"))),
    "a tampered field": framed(text(GOOD | {"b": "payments"})),
    "a tampered number": framed(text(GOOD | {"e": "03"})),
    "values moved from field to field": framed(text(GOOD | {"d": "83", "e": ""})),
    "a tampered body": framed(text(GOOD), b"hellp"),
    "no body": framed(text(GOOD), b""),
    "no signature": framed(text({name: value for name, value in GOOD.items() if name != "Signature"})),
    "an empty signature": framed(text(GOOD | {"Signature": ""})),
    "a signature that is no ASCII": framed(text(GOOD | {"Signature": "ü" * 28})),
    "half a surrogate pair": framed(text(GOOD).replace("orders", "\\ud800")),
    "no key": framed(text({name: value for name, value in GOOD.items() if name != "AccessKey"})),
    "an unknown key": framed(text(GOOD | {"AccessKey": "nobody-key"})),
    "one more field": framed(text(GOOD | {"more": "x"})),
    "one more field, signed": framed(text(signed(more="x"))),
    "with the name of the broker": framed(text(signed(n="broker-a"))),
    "a missing field": framed(text({name: value for name, value in GOOD.items() if name != "e"})),
    "not a number": framed(text(signed(e="three"))),
    "a number too large": framed(text(signed(e="99999999999"))),
    "not a bool": framed(text(signed(k="perhaps"))),
    "JSON numbers": framed(text(GOOD | {"e": 3, "k": False})),
    "null": framed(text(GOOD | {"l": None})),
    "a name twice, the last one good": framed(members(("b", "payments"), *GOOD.items())),
    "a name twice, the last one bad": framed(members(*GOOD.items(), ("b", "payments"))),
    "fields twice, the last ones good": framed(text(GOOD | {"b": "payments"}) + ',"extFields":' + text(GOOD)),
    "fields twice, the last ones bad": framed(text(GOOD) + ',"extFields":' + text(GOOD | {"b": "payments"})),
    "fields, then none": framed(text(GOOD) + ',"extFields":null'),
    "another code behind the first": framed(text(GOOD), tail=',"code":11'),
    "a response": framed(text(GOOD), tail=',"flag":1'),
    "one-way": framed(text(GOOD), tail=',"flag":2'),
    "no JSON": framed(text(GOOD)[:-1]),
    "deep": framed("[" * 3000),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_request_means_the_same_with_and_without_a_shape(name: str) -> None:
    """N1: each of them after a good request, which teaches the shape."""
    if name == "a response":
        [answer] = FrameDecoder(typed=False).feed(FRAMES[name])
        assert not isinstance(answer, Request)
        return
    for quick, slow in validators():
        assert isinstance(quick, QuickValidator)
        knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
        for connection in (knowing, unknowing):
            first = connection.take(FRAMES["the same"])
            assert isinstance(first, tuple)
            assert "shop-key" == first[-1]

        assert unknowing.take(FRAMES[name]) == knowing.take(FRAMES[name])
        assert (0, unknowing.access is None) == (unknowing.shaped, knowing.access is None)
        # And nothing of it stays.
        assert unknowing.take(FRAMES["another message"]) == knowing.take(FRAMES["another message"])


def test_a_shape_is_used_after_the_first_request() -> None:
    for quick, _ in validators():
        connection = Connection(quick, learns=True)
        for _ in range(3):
            assert isinstance(connection.take(FRAMES["the same"]), tuple)

        assert 2 == connection.shaped


def test_a_client_that_changes_its_shape_all_the_time_is_served_without() -> None:
    [(quick, _), _] = validators()
    connection = Connection(quick, learns=True)
    for _ in range(120):
        for name in ("the same", "with the name of the broker"):
            answer = connection.take(FRAMES[name])
            assert isinstance(answer, tuple)
            assert isinstance(answer[0], dict)
    before = connection.shaped
    connection.take(FRAMES["the same"])
    connection.take(FRAMES["the same"])

    assert before == connection.shaped


def test_rules_that_change_count_at_once_also_for_known_shapes() -> None:
    """N1: permission taken away, a new secret, a white list: the next request goes by it."""
    acl = PlainAcl(AccessRules(acl_file.read(ACCOUNTS).accounts), ManualClock())
    connection = Connection(acl, learns=True)
    for _ in range(2):
        connection.take(FRAMES["the same"])
    assert 1 == connection.shaped

    acl.rules = AccessRules(acl_file.read(ACCOUNTS.replace(b"orders=PUB", b"orders=SUB")).accounts)
    refused = connection.take(FRAMES["the same"])
    acl.rules = AccessRules(acl_file.read(ACCOUNTS.replace(b"of-the-shop", b"of-a-new-shop")).accounts)
    wrong = connection.take(FRAMES["the same"])

    assert isinstance(refused, tuple)
    assert "no permission for topic:'orders'" in str(refused[1])
    assert isinstance(wrong, tuple)
    assert "is not valid" in str(wrong[1])


def test_shapes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: an account can send any names and any combination of them."""
    monkeypatch.setattr(shapes, "_shapes", {})
    monkeypatch.setattr(shapes, "SHAPES_MAX", 5)

    assert None is shapes.shape_of(Code.SEND_MESSAGE_V2, GOOD | {"more": ""})
    assert None is shapes.shape_of(Code.PULL_MESSAGE, GOOD)
    assert None is shapes.shape_of(Code.SEND_MESSAGE_V2, SEND)
    assert shapes.shape_of(Code.SEND_MESSAGE_V2, GOOD) is shapes.shape_of(Code.SEND_MESSAGE_V2, OTHER_ORDER)
    for name in ("l", "n", "ns", "nsd", "lo", "oway", "bname"):
        shapes.shape_of(Code.SEND_MESSAGE_V2, GOOD | {name: "x"})
    assert 5 == len(shapes._shapes)


def test_a_connection_knows_few_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """N1: a client can begin its headers in any number of ways."""
    monkeypatch.setattr(shapes, "_shapes", {})
    [(quick, _), _] = validators()
    connection = Connection(quick, learns=True)
    for number in range(100):
        head = f'{{"code":310,"{number:04}":1,"extFields":{text(GOOD)},"opaque":1}}'.encode()
        frame = (4 + len(head) + 5).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + b"hello"
        answer = connection.take(frame)
        assert isinstance(answer, tuple)
        assert isinstance(answer[0], dict)

    assert 8 >= len(connection._decoder._shapes) > 0
    assert 1 == len(shapes._shapes)


VALUES: Final = st.sampled_from(["shop-key", "boss-key", "orders", "0", "1", "true", ""]) | st.text(max_size=10)


@given(
    st.dictionaries(st.sampled_from([*SEND, "l", "n"]), VALUES, max_size=5),
    st.lists(st.tuples(st.sampled_from([*SEND, "AccessKey", "Signature", "x"]), VALUES), max_size=2),
    st.lists(st.tuples(st.sampled_from([*SEND, "AccessKey", "Signature", "x"]), VALUES), max_size=2),
    st.sampled_from([SHOP, BOSS]),
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_any_fields_mean_the_same_with_and_without_a_shape(
    changes: dict[str, str],
    before: list[tuple[str, str]],
    behind: list[tuple[str, str]],
    credentials: Credentials,
) -> None:
    frame = framed(members(*before, *signed_with(credentials, changes).items(), *behind))
    for quick, slow in validators():
        knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
        for connection in (knowing, unknowing):
            connection.take(FRAMES["the same"])
        for _ in range(2):
            assert unknowing.take(frame) == knowing.take(frame)
