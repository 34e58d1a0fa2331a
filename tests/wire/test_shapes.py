"""Signed sends that are checked while they are decoded are what they would be otherwise (N1).

Each comparison is made with compiled code, where there is any, and with shapes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ternmq.auth import acl_file
from ternmq.auth.accounts import AccessRules, Account
from ternmq.auth.plain import PlainAcl
from ternmq.auth.user_acl import UserAcl
from ternmq.auth.users import UserRules, from_account
from ternmq.errors import NoPermission, RemoteProtocolError
from ternmq.kernels import HAS_NATIVE
from ternmq.net.gate import Action, Gate, QuickValidator, Resource, ResourceKind, Rights, Rule, Validator
from ternmq.wire import frame as frame_module
from ternmq.wire import shapes
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import MISSES_MAX, FrameDecoder
from ternmq.wire.header import Fields, Request
from ternmq.wire.requests import SendMessage, SendMessageV2
from ternmq.wire.shapes import BODY_BYTES_MAX, SignedSend
from tests.manual_clock import ManualClock

SHOP: Final = Credentials("shop-key", "secret-of-the-shop")
BOSS: Final = Credentials("boss-key", "secret-of-the-boss")
ACCOUNTS: Final = (
    b"accounts:\n"
    b"- {accessKey: shop-key, secretKey: secret-of-the-shop, topicPerms: [orders=PUB, more=SUB]}\n"
    b"- {accessKey: boss-key, secretKey: secret-of-the-boss, admin: true}\n"
)
PARSED: Final = tuple(acl_file.read(ACCOUNTS).accounts)
RULES: Final[dict[int, Rule]] = {
    Code.SEND_MESSAGE: Rule(Action.PUB, topic="topic"),
    Code.SEND_MESSAGE_V2: Rule(Action.PUB, topic="b"),
    Code.SEND_BATCH_MESSAGE: Rule(Action.PUB, topic="b"),
}
#: Whether compiled code is used.
VERSIONS: Final = (False, True) if HAS_NATIVE else (False,)
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


@contextmanager
def version(is_native: bool) -> Iterator[None]:
    with mock.patch.object(frame_module, "HAS_NATIVE", is_native):
        yield


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
        #: How many requests were checked while they were decoded.
        self.checked = 0
        #: How many of them were admitted without a question.
        self.trusted = 0

    def take(self, frame: bytes) -> object:
        """What the handler of a request would see, or why it is refused."""
        [seen] = self.take_all(frame)
        return seen

    def take_all(self, data: bytes) -> list[object]:
        try:
            requests = self._decoder.feed(data)
        except RemoteProtocolError as error:
            return [(type(error), str(error))]
        return [self._admitted(request) if isinstance(request, Request) else "a response" for request in requests]

    def _admitted(self, request: Request[Any]) -> object:
        self.checked += isinstance(request.header, SignedSend)
        try:
            admitted = self._gate.admit(self, request, RULES.get(request.code, RULES[Code.SEND_MESSAGE_V2]))
        except NoPermission as error:
            return type(error), str(error)
        self.trusted += isinstance(request.header, SignedSend)
        if admitted is not None and self._learns:
            self._decoder.learn(request.code, admitted)
        return (
            as_sent(request.fields) if request.fault is None else "a fault",  # of two, either
            request.code,
            request.opaque,
            request.flag,
            request.version,
            request.language,
            request.remark,
            request.serial,
            request.frame_bytes,
            bytes(request.body),
            self.proved,
        )


def as_sent(header: Any) -> dict[str, Any]:
    """The fields of a send, with their types: 1 and True are equal."""
    if not isinstance(header, SignedSend | SendMessage | SendMessageV2):
        return dict(header)
    return {name: (type(value), value) for name in SEND_FIELDS if (value := getattr(header, name)) is not None}


SEND_FIELDS: Final = SendMessageV2.__struct_fields__


def validators() -> list[tuple[Validator, Validator]]:
    """Pairs of equal ones, so that what one remembers does not help the other."""

    def plain() -> PlainAcl:
        return PlainAcl(AccessRules(map(replace, PARSED)), ManualClock())

    def by_users() -> UserAcl:
        users = UserRules()
        for account in PARSED:
            users = users.created(from_account(account))
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


@pytest.mark.parametrize("is_native", VERSIONS)
@pytest.mark.parametrize("name", FRAMES)
def test_a_request_means_the_same_on_the_short_way(name: str, is_native: bool) -> None:
    """N1: each of them after a good request, which opens the short way."""
    for quick, slow in validators():
        assert isinstance(quick, QuickValidator)
        with version(is_native):
            knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
            for connection in (knowing, unknowing):
                first = connection.take(FRAMES["the same"])
                assert isinstance(first, tuple)
                assert "shop-key" == first[-1]

            assert unknowing.take(FRAMES[name]) == knowing.take(FRAMES[name])
            assert (0, unknowing.access is None) == (unknowing.checked, knowing.access is None)
            # And nothing of it stays, unless the frame was no frame.
            assert unknowing.take(FRAMES["another message"]) == knowing.take(FRAMES["another message"])


@pytest.mark.parametrize("is_native", VERSIONS)
@pytest.mark.parametrize("name", ["the same", "another order of names", "not escaped", "another message"])
def test_the_short_way_is_taken_after_the_first_request(name: str, is_native: bool) -> None:
    for quick, _ in validators():
        with version(is_native):
            connection = Connection(quick, learns=True)
            connection.take(FRAMES["the same"])
            for _ in range(2):
                assert isinstance(connection.take(FRAMES[name]), tuple)

        assert (2, 2) == (connection.checked, connection.trusted)


@pytest.mark.parametrize("is_native", VERSIONS)
def test_the_long_names_of_a_send_have_a_short_way_too(is_native: bool) -> None:
    """N1: SEND_MESSAGE 10, as the Go client sends it; and batches."""
    header = SendMessage(topic="orders", queue_id=2, producer_group="g", properties="KEYS\x01ü", unit_mode=True)
    long = header.to_fields() | {"maxReconsumeTimes": "3", "bname": "broker-a"}
    SHOP.sign(long, b"hello")
    named = framed(text(long), code=Code.SEND_MESSAGE)
    batch = framed(text(signed(m="true")), code=Code.SEND_BATCH_MESSAGE)
    for quick, slow in validators():
        with version(is_native):
            knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
            for _ in range(3):
                for frame in (named, batch, FRAMES["the same"]):
                    assert unknowing.take(frame) == knowing.take(frame)

        assert (6, 6) == (knowing.checked, knowing.trusted)


@pytest.mark.parametrize("is_native", VERSIONS)
def test_the_signature_of_a_long_body_is_checked_in_its_turn(is_native: bool) -> None:
    for quick, _ in validators():
        with version(is_native):
            connection = Connection(quick, learns=True)
            for body in (b"", bytes(BODY_BYTES_MAX), bytes(BODY_BYTES_MAX + 1)):
                answer = connection.take(framed(text(signed(body=body)), body))
                assert isinstance(answer, tuple)
                assert body in answer

        assert 1 == connection.checked


@pytest.mark.parametrize("is_native", VERSIONS)
def test_requests_of_one_read_keep_their_order(is_native: bool) -> None:
    """Also where what is not plain stands between others, and the last one is cut."""
    names = ["the same", "JSON numbers", "another message", "an admin", "the same", "a tampered body", "no body"]
    data = b"".join(FRAMES[name] for name in names)
    for quick, slow in validators():
        with version(is_native):
            knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
            for connection in (knowing, unknowing):
                connection.take(FRAMES["the same"])
            for cut in (0, 3, 8, 100, len(data) - 200, len(data) - 1, len(data)):
                expected = unknowing.take_all(data[:cut]) + unknowing.take_all(data[cut:])
                assert expected == knowing.take_all(data[:cut]) + knowing.take_all(data[cut:])
                assert len(names) == len(expected)


def test_a_client_that_changes_its_shape_all_the_time_is_served_without() -> None:
    [(quick, _), _] = validators()
    with version(False):
        connection = Connection(quick, learns=True)
        for _ in range(120):
            for name in ("the same", "with the name of the broker"):
                answer = connection.take(FRAMES[name])
                assert isinstance(answer, tuple)
                assert isinstance(answer[0], dict)
        before = connection.checked
        connection.take(FRAMES["the same"])
        connection.take(FRAMES["the same"])

    assert before == connection.checked


#: Sends that are read twice: the short way gives them up after their signature was checked, or the header was read.
MISSES: Final = {
    "not as all clients write it": [framed(text(signed(e="+3")))],
    "two accounts in turn": [FRAMES["an admin"], FRAMES["the same"]],
    "a wrong signature": [FRAMES["a tampered body"]],
}


@pytest.mark.parametrize("is_native", VERSIONS)
@pytest.mark.parametrize("name", MISSES)
def test_the_short_way_is_given_up_for_a_client_that_makes_it_the_longer_one(name: str, is_native: bool) -> None:
    """N1: else a hostile client doubles what its sends cost, for as long as it likes."""
    [(quick, _), _] = validators()
    with version(is_native):
        connection = Connection(quick, learns=True)
        connection.take(FRAMES["the same"])
        for _ in range(MISSES_MAX + 1):
            for frame in MISSES[name]:
                connection.take(frame)
        assert (None, {}) == (connection._decoder._sends, connection._decoder._shapes)
        for _ in range(3):
            answer = connection.take(FRAMES["the same"])
            assert isinstance(answer, tuple)

    assert 0 == connection.checked


@pytest.mark.parametrize("is_native", VERSIONS)
def test_a_miss_now_and_then_costs_no_client_the_short_way(is_native: bool) -> None:
    """N1: connections live for weeks. Large bodies, which are not tried, and requests of other codes do not count."""
    [(quick, _), _] = validators()
    large = bytes(BODY_BYTES_MAX + 1)
    others = [framed(text(signed(body=large)), large), framed(text({"topic": "orders"}), code=Code.GET_MAX_OFFSET)]
    with version(is_native):
        connection = Connection(quick, learns=True)
        connection.take(FRAMES["the same"])
        for _ in range(MISSES_MAX + 1):
            for frame in (FRAMES["the same"], FRAMES["one more field, signed"], FRAMES["the same"]):
                assert isinstance(connection.take(frame), tuple)
        decoder = connection._decoder
        for frame in others:
            decoder.feed(frame * (MISSES_MAX + 1))
        before = connection.checked
        connection.take(FRAMES["the same"])

    assert before + 1 == connection.checked


@pytest.mark.parametrize("is_native", VERSIONS)
def test_rules_that_change_count_at_once_also_on_the_short_way(is_native: bool) -> None:
    """N1: permission taken away, a new secret, a white list: the next request goes by it."""
    acl = PlainAcl(AccessRules(acl_file.read(ACCOUNTS).accounts), ManualClock())
    with version(is_native):
        connection = Connection(acl, learns=True)
        for _ in range(2):
            connection.take(FRAMES["the same"])
        assert 1 == connection.checked

        acl.rules = AccessRules(acl_file.read(ACCOUNTS.replace(b"orders=PUB", b"orders=SUB")).accounts)
        refused = connection.take(FRAMES["the same"])
        acl.rules = AccessRules(acl_file.read(ACCOUNTS.replace(b"of-the-shop", b"of-a-new-shop")).accounts)
        wrong = connection.take(FRAMES["the same"])
        new = Credentials("shop-key", "secret-of-a-new-shop")
        frame = framed(text(signed(new)))
        answers = [connection.take(frame) for _ in range(3)]

    assert isinstance(refused, tuple)
    assert "no permission for topic:'orders'" in str(refused[1])
    assert isinstance(wrong, tuple)
    assert "is not valid" in str(wrong[1])
    assert answers == [answers[0]] * 3
    assert "shop-key" in str(answers[0])
    # The two that were refused were signed by the secret that the decoder knew.
    assert (5, 3) == (connection.checked, connection.trusted)


@pytest.mark.parametrize("is_native", VERSIONS)
@pytest.mark.parametrize("key", ["shop-key-2", "schlüssel"])
def test_any_text_can_be_an_access_key(key: str, is_native: bool) -> None:
    """N1: compiled code reads ASCII, shapes read the others."""
    acl = PlainAcl(AccessRules([Account(key, "secret-of-the-shop", is_admin=True)]), ManualClock())
    frame = framed(text(signed(Credentials(key, "secret-of-the-shop"))))
    with version(is_native):
        connection = Connection(acl, learns=True)
        answers = [connection.take(frame) for _ in range(3)]

    assert answers == [answers[0]] * 3
    assert key == answers[0][-1]  # type: ignore[index]  # a tuple


@pytest.mark.parametrize("is_native", VERSIONS)
def test_a_send_without_a_topic_opens_nothing(is_native: bool) -> None:
    """N1: it needs no permission, and has no place to go to."""
    without = {name: value for name, value in SEND.items() if name != "b"}
    SHOP.sign(without, b"hello")
    heartbeat = Rule(Action.SUB, in_body=lambda _: [Resource(ResourceKind.GROUP, "billing")])
    for quick, _ in validators():
        with version(is_native):
            connection = Connection(quick, learns=True)
            for frame in (framed(text(without)), framed(text(signed(b="")))):
                assert isinstance(connection.take(frame), tuple)
            asked: Request[Any] = Request(code=Code.HEART_BEAT, body=memoryview(b"hello"))
            with pytest.raises(NoPermission, match="group:'billing'"):
                quick(connection, asked, signed(), heartbeat)
            assert "no permission" in str(connection.take(FRAMES["another topic"]))


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
    with version(False):
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
def test_any_fields_mean_the_same_on_the_short_way(
    changes: dict[str, str],
    before: list[tuple[str, str]],
    behind: list[tuple[str, str]],
    credentials: Credentials,
) -> None:
    frame = framed(members(*before, *signed_with(credentials, changes).items(), *behind))
    check_all(frame, times=2)


def check_all(frame: bytes, *, times: int = 1) -> None:
    """A frame means the same on the short way in all versions, for both kinds of accounts."""
    for is_native in VERSIONS:
        for quick, slow in validators():
            with version(is_native):
                knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
                for connection in (knowing, unknowing):
                    connection.take(FRAMES["the same"])
                for _ in range(times):
                    assert unknowing.take_all(frame) == knowing.take_all(frame)


#: What stands in headers, and what is near to it.
PIECES: Final = tuple(
    b'"|\\|{|}|[|]|,|:| |\n|\x00|\x1f|\x7f|\xff|\xc3|\xc3\xbc|0|-|-0|00|1|1.0|1e3|99999999999|9223372036854775808|'
    b'true|false|null|"null"|\\u0041|\\ud834\\udd1e|\\ud800|\\udc00|\\/|\\n|\\x|"a":"",|"b":"orders",|"code":310,|"code":11,|'
    b'"flag":1,|"remark":"x",|"extFields":{},|"extFields":null,|"AccessKey":"boss-key",|"Signature":"",|310|10|320'.split(
        b"|"
    )
)
PLACES: Final = st.integers(0, len(FRAMES["the same"]))


@given(st.lists(st.tuples(PLACES, st.integers(0, 4), st.sampled_from(PIECES)), min_size=1, max_size=3), st.booleans())
@example([(8, 0, b" ")], True)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_damaged_headers_mean_the_same_on_the_short_way(damages: list[tuple[int, int, bytes]], is_ascii: bool) -> None:
    """N1: bytes of a good header are replaced, left out or added; lengths are made to fit."""
    head = FRAMES["the same" if is_ascii else "not escaped"][8:-5]
    for place, removed, added in damages:
        at = place % (len(head) + 1)
        head = head[:at] + added + head[at + removed :]
    check_all((4 + len(head) + 5).to_bytes(4, "big") + len(head).to_bytes(4, "big") + head + b"hello")


def numbers_like(text: str) -> st.SearchStrategy[str]:
    return st.sampled_from(
        [text, "", "0", "-1", "007", "+1", "-0", " 1", "1 ", "1.0", "1e2", "0x1", "٣", "null", "None"]
    )


@given(
    st.fixed_dictionaries(
        {},
        optional={name: numbers_like(SEND[name]) for name in "defghj"}
        | {name: numbers_like("2147483647") for name in "del"}
        | {name: numbers_like("2147483648") for name in "fh"}
        | {"g": numbers_like("9223372036854775808")}
        | {name: st.sampled_from(["true", "false", "True", "TRUE", "1", "0", "", "yes", "null"]) for name in "km"}
        | {name: st.sampled_from(["null", "Null", "", "x", "ü", "\x00", "𝄞"]) for name in "abcin"},
    ),
    st.sets(st.sampled_from(sorted(SEND)), max_size=2),
)
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_values_at_the_borders_of_their_types_mean_the_same_on_the_short_way(
    changes: dict[str, str], absent: set[str]
) -> None:
    """N1: all of them are signed well."""
    fields = {name: value for name, value in (SEND | changes).items() if name not in absent}
    BOSS.sign(fields, b"hello")
    frame = framed(text(fields))
    for is_native in VERSIONS:
        for quick, slow in validators():
            with version(is_native):
                knowing, unknowing = Connection(quick, learns=True), Connection(slow, learns=False)
                for connection in (knowing, unknowing):
                    connection.take(FRAMES["an admin"])
                assert unknowing.take(frame) == knowing.take(frame)
