"""The kernel of sends takes a frame as Python reads it, or leaves it (E1, C1, C2, C4, B1, B5)."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.derived.key_hash import MADE_ENTRY, KeyHashes
from ternmq.wire.auth import ACCESS_KEY, SECURITY_TOKEN, Credentials, Secret
from ternmq.wire.codes import JSON, RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request, request_in
from ternmq.wire.header import NO_BODY, Fields, Request, decode_untyped
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.properties import closed, find
from ternmq.wire.record import Sysflag, pack_record, record_bytes
from ternmq.wire.requests import SendMessage, SendMessageV2, SendReply
from ternmq.wire.shapes import BODY_BYTES_MAX, SignedSend
from ternmq.wire.tags import tags_code
from ternmq.wire.template import ReplyTemplate
from tests.store.small import BORN, HOST

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

MORE: Final = "CLUSTER\x01c\x02"
MASK: Final = ~(Sysflag.TRANSACTION_MASK | Sysflag.BORN_V6 | Sysflag.STORE_V6)
MARK: Final = "DELAY\x01"
HOLES: Final = {"msgId": "ID%016X", "queueId": "%d", "queueOffset": "%d", "transactionId": "%b"}
REPLY: Final = ReplyTemplate({"MSG_REGION": '100 %d "quoted"', "TRACE_ON": "true"}, HOLES)
FORM: Any = native.ReplyForm(REPLY.parts()) if HAS_NATIVE else None
#: Behind all sends of a run.
END: Final = 1000
LOG_OFFSET, QUEUE_OFFSET, TIME_MS = 1_000_000, 77, 1_700_000_000_123


def terms(**changes: Any) -> Any:
    given: dict[str, Any] = {"body_bytes_max": 1 << 20, "record_bytes_max": 1 << 20} | changes
    return native.SendTerms(
        store_host=HOST, more_properties=MORE.encode(), marks=[MARK.encode()], sysflag_mask=MASK, **given
    )


def stored(sends: Any, page: bytearray, first: int = 0, *, with_: Any = None) -> Any:
    """What the kernel makes of a run, if all its queues are plain."""
    targets: list[Any] = [
        (place, QUEUE_OFFSET, bytes((len(topic.encode()),)) + topic.encode())
        for place, (topic, _) in enumerate(sends.places)
    ]
    given = with_ or terms()
    return native.store_sends(sends, given, FORM, first, END, page, 0, len(page), 0, LOG_OFFSET, TIME_MS, BORN, targets)


def check(data: bytes) -> bool:
    """If the kernel takes the first frame, it makes of it what Python would; whether it does."""
    sends = native.parse_sends(data, 0, 1 << 24)
    if sends is None:
        return False
    commands: list[Any] = [*FrameDecoder(bytes_max=1 << 24).feed(data)]
    request = commands[0]
    assert request == request_in(sends, 0)
    assert request.fault is None
    header = request.header
    assert not header.batch
    page = bytearray(1 << 17)
    made = stored(sends, page)
    if made is None:
        assert not any(page)
        return False
    end, [(_, entries, log_end, body_bytes, tags), *_], keys, replies = made[1], made[3], made[5], made[6]
    properties = closed(header.properties)
    size = record_bytes(
        body=len(request.body),
        topic=len(header.topic.encode()),
        properties=len((properties + MORE).encode()),
        born_host=len(BORN),
        store_host=len(HOST),
    )
    expected = bytearray(size)
    pack_record(
        expected,
        0,
        size=size,
        queue_id=header.queue_id,
        flag=header.flag,
        queue_offset=QUEUE_OFFSET,
        log_offset=LOG_OFFSET,
        sysflag=header.sysflag & MASK,
        born_time_ms=header.born_time_ms,
        born_host=BORN,
        store_time_ms=TIME_MS,
        store_host=HOST,
        reconsume_times=header.reconsume_times or 0,
        prepared_transaction_offset=0,
        body=request.body,
        topic=header.topic.encode(),
        properties=(properties + MORE).encode(),
    )
    assert expected == page[:size]
    assert (LOG_OFFSET, size, tags_code(properties + MORE)) == ENTRY.unpack_from(entries)
    keyed = [(header.topic, properties + MORE, LOG_OFFSET, TIME_MS)]
    count = len(KeyHashes().entries(keyed))
    assert KeyHashes().entries(keyed) == [*MADE_ENTRY.iter_unpack(keys)][:count]
    assert MARK not in properties
    unique_key = find(properties, "UNIQ_KEY")
    assert unique_key
    assert unique_key.isalnum()
    reply = REPLY.fill((LOG_OFFSET, header.queue_id, QUEUE_OFFSET, unique_key.encode(), request.opaque))
    assert request.oneway or replies.startswith(reply)
    if sends.count == 1:
        assert LOG_OFFSET + size == end == log_end
        assert len(request.body) == body_bytes
        assert [(tags_code(properties), QUEUE_OFFSET + 1)] == tags
        assert replies == (b"" if request.oneway else reply)
        assert not any(page[size:])
    return True


def framed(header: bytes, body: bytes = b"body") -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header + body


FIELDS: Final = {"a": "g", "b": "orders", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "5", "h": "0"} | {
    "i": "KEYS\x01a é\x02UNIQ_KEY\x01A1\x02TAGS\x01paid\x02",
    "j": "0",
    "k": "false",
    "m": "false",
}


def header_text(**changes: str) -> str:
    whole = {"code": 310, "extFields": FIELDS | changes, "flag": 0, "language": "JAVA", "opaque": 12}
    return json.dumps(whole | {"serializeTypeCurrentRPC": "JSON", "version": 401}, separators=(",", ":"))


def test_sends_of_both_codes_are_taken() -> None:
    """E1: as Java 4.9.4 and Go write them."""
    assert check(framed(header_text().encode()))
    for code, kind in ((RequestCode.SEND_MESSAGE_V2, SendMessageV2), (RequestCode.SEND_MESSAGE, SendMessage)):
        header = kind(
            topic="orders",
            queue_id=3,
            producer_group="g",
            sysflag=1,
            born_time_ms=5,
            flag=-7,
            properties=FIELDS["i"],
            reconsume_times=2,
            max_reconsume_times=16,
            broker_name="broker-a",
        )
        for oneway in (False, True):
            assert check(b"".join(encode_request(code, header, b"body", opaque=1, oneway=oneway)))


PIECES: Final = (
    '"',
    "\\",
    "\\u0001",
    "\\u0002",
    "\\ud800",
    "0",
    "-",
    "1",
    ",",
    "}",
    "{",
    " ",
    "é",
    "\x01",
    "\x00",
    "e",
    ":",
)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 3), st.sampled_from(PIECES)), max_size=3),
    st.binary(max_size=2),
)
@example([], b"")
def test_any_change_of_a_header_is_read_as_python_reads_it_or_left(
    edits: list[tuple[int, int, str]], end: bytes
) -> None:
    """B1, B5: pieces of JSON put in, and characters left out, anywhere."""
    text = header_text()
    for at, dropped, piece in edits:
        text = text[:at] + piece + text[at + dropped :]
    check(framed(text.encode() + end))


VALUES: Final = ("", "a", "é", "𝄞", "0A" * 16, "x y", '"', "\\", "\n", "\0", "3", "\ud800")
NAMES: Final = ("UNIQ_KEY", "TAGS", "KEYS", "DELAY", "XUNIQ_KEY", "K", "", "UNIQ_KEY\x01a\x02TAGS")


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5),
    st.booleans(),
    st.sampled_from(("-1", "0", "3", "2147483647", "2147483648", "-2147483648", "01")),
    st.binary(max_size=20),
)
def test_properties_and_numbers_are_those_of_python(
    pairs: list[tuple[str, str]], is_open: bool, number: str, body: bytes
) -> None:
    """C1, C2, C4."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)[: -1 if is_open else None]
    check(framed(header_text(i=text, e=number, f=number, g=number, h=number, j=number).encode(), body))


@given(st.binary(max_size=60), st.integers(0, 700), st.integers(0, 300))
def test_any_bytes_are_left_or_read_as_python_reads_them(garbage: bytes, at: int, dropped: int) -> None:
    """B5: nothing is read beyond the frame."""
    good = framed(header_text().encode()) * 2
    assert native.parse_sends(garbage, 0, 1 << 24) is None
    data = good[:at] + garbage + good[at + dropped :]
    sends = native.parse_sends(data, 0, 1 << 24)
    if sends is not None:
        assert sends.end <= len(data)
        assert check(data[: sends.frame(0)[1]])
    assert native.parse_sends(data, len(data) + 1, 1 << 24) is None


def test_a_run_is_bounded() -> None:
    """R4: by count and by bytes."""
    small, large = framed(header_text().encode()), framed(header_text().encode(), bytes(100_000))
    for each, count, taken in ((small, 200, 64), (large, 10, 3)):
        data = each * count
        sends = native.parse_sends(data, len(each), 1 << 24)
        assert sends is not None
        assert taken == sends.count
        assert sends.is_full
        assert (taken + 1) * len(each) == sends.end
        assert taken * len(each) == sends.frame_bytes
    assert native.parse_sends(small, 0, len(small)) is not None
    assert native.parse_sends(small, 0, len(small) - 1) is None


def test_limits_are_hit_exactly() -> None:
    """C1: window, record, body, and the two signed bytes for the length of the properties."""
    sends = native.parse_sends(framed(header_text().encode()), 0, 1 << 24)
    made = stored(sends, bytearray(1 << 16))
    size = made[1] - LOG_OFFSET
    assert stored(sends, bytearray(size), with_=terms(body_bytes_max=4, record_bytes_max=size)) is not None
    for room_bytes, changes in (
        (size - 1, {}),
        (size, {"record_bytes_max": size - 1}),
        (size, {"body_bytes_max": 3}),
    ):
        room = bytearray(room_bytes)
        assert stored(sends, room, with_=terms(**changes)) is None
        assert not any(room)
    for more, is_taken in ((0, True), (1, False)):
        text = f"UNIQ_KEY\x01k\x02X\x01{'x' * (32_767 - len(MORE) - 14 + more)}"
        assert is_taken is check(framed(header_text(i=text).encode()))
    # A reply has the key.
    for letters, is_taken in ((255, True), (256, False)):
        assert is_taken is check(framed(header_text(i=f"UNIQ_KEY\x01{'k' * letters}").encode()))


def test_a_place_that_is_not_plain_ends_a_run() -> None:
    """E1: what was before it is stored, what is behind it is not."""
    data = b"".join(framed(header_text(b=topic, e="1").encode()) for topic in ("a", "b", "a", "c", "a"))
    sends: Any = native.parse_sends(data, 0, 1 << 24)
    assert [("a", 1), ("b", 1), ("c", 1)] == sends.places
    page = bytearray(1 << 16)
    made: Any = native.store_sends(
        sends, terms(), FORM, 0, END, page, 0, len(page), 0, 0, 1, BORN, [("A", 5, b"\x01a"), ("B", 9, b"\x01b"), None]
    )
    assert 3 == made[0]
    assert [("A", 40), ("B", 20)] == [(queue, len(entries)) for queue, entries, *_ in made[3]]
    assert [("A", 2, 8), ("B", 1, 4)] == made[4]
    responses: list[Any] = [*FrameDecoder().feed(made[6])]
    assert [5, 9, 6] == [response.read(SendReply).queue_offset for response in responses]

    def is_left(first: int, at: int, end: int, host: bytes, targets: list[tuple[str, int, bytes] | None]) -> bool:
        made = native.store_sends(sends, terms(), FORM, first, END, page, at, end, 0, 0, 1, host, targets)
        return made is None

    # From there on, and with a list that is too short.
    room_bytes, to_a = len(page), ("A", 5, b"\x01a")
    assert is_left(3, 0, room_bytes, BORN, [to_a, None, None])
    assert is_left(3, 0, room_bytes, BORN, [])
    assert is_left(9, 0, room_bytes, BORN, [])
    # A host of IPv6, and a window that is none.
    assert stored(sends, page, 0) is not None
    assert is_left(0, 0, room_bytes, bytes(20), [to_a] * 3)
    assert is_left(0, 10, 5, BORN, [to_a] * 3)
    assert is_left(0, 0, room_bytes + 1, BORN, [to_a] * 3)
    # None may be stored.
    assert native.store_sends(sends, terms(), FORM, 2, 2, page, 0, room_bytes, 0, 0, 1, BORN, [to_a] * 3) is None
    with pytest.raises(IndexError):
        sends.frame(5)


# --- Signed sends --------------------------------------------------------------------------------------------------

SHOP: Final = Credentials("shop-key", "secret-of-the-shop")
SECRET: Final = Secret("secret-of-the-shop")


def account(secret: Secret = SECRET, codes: tuple[int, ...] = (10, 310)) -> Any:
    return native.SignedSends(
        "shop-key",
        secret.native,  # type: ignore[arg-type]  # compiled
        secret,
        codes=codes,
        body_bytes_max=BODY_BYTES_MAX,
        request_type=Request,
        header_type=SignedSend,
        no_body=NO_BODY,
    )


def signed_text(body: bytes = b"body", **changes: str) -> str:
    fields: Fields = FIELDS | changes
    SHOP.sign(fields, body)
    return header_text(**fields)


def check_signed(data: bytes) -> bool:
    """If the kernel takes the first frame as signed, the account has signed what Python reads; whether it does."""
    sends = native.parse_sends(data, 0, 1 << 24, account())
    if sends is None:
        return False
    begin, end = sends.frame(0)
    body_at = 8 + int.from_bytes(data[4:8], "big")
    fields: Fields = decode_untyped(data[8:body_at], JSON).fields
    assert "shop-key" == fields[ACCESS_KEY]
    assert SECRET.has_signed(fields, data[body_at:end])
    # And it means the same as one that is not checked.
    plain = native.parse_sends(data[begin:end], 0, 1 << 24)
    assert plain is not None
    assert plain.places == sends.places[:1]
    header: Any = request_in(plain, 0).header
    assert fields.get("b", fields.get("topic")) == header.topic
    assert sends.account is not None
    assert sends.account.secret is SECRET
    return check(data[begin:end])


def test_sends_of_an_account_are_taken() -> None:
    """N1: of both codes, whatever else is signed with them, in any order."""
    assert check_signed(framed(signed_text().encode()))
    assert check_signed(framed(signed_text(ns="true", lo="", z="é", Z="\\").encode()))
    token = Credentials("shop-key", "secret-of-the-shop", "a token")
    for code, kind in ((RequestCode.SEND_MESSAGE_V2, SendMessageV2), (RequestCode.SEND_MESSAGE, SendMessage)):
        header = kind(topic="orders", queue_id=3, producer_group="g", properties=FIELDS["i"], broker_name="broker-a")
        for credentials in (SHOP, token):
            frame = b"".join(encode_request(code, header, b"body", opaque=1, credentials=credentials))
            assert check_signed(frame)
            assert (SECURITY_TOKEN.encode() in frame) == (credentials is token)
            for other in (account(Secret("another secret")), account(codes=(320,))):
                assert native.parse_sends(frame, 0, 1 << 24, other) is None


def test_the_body_of_a_signed_send_is_bounded() -> None:
    """N1: the signature of a longer one is checked in its turn."""
    for size, is_taken in ((BODY_BYTES_MAX, True), (BODY_BYTES_MAX + 1, False)):
        body = bytes(size)
        sends = native.parse_sends(framed(signed_text(body).encode(), body), 0, 1 << 24, account())
        assert is_taken is (sends is not None)


@settings(max_examples=600, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 500),
            st.integers(0, 3),
            st.sampled_from((*PIECES, '"b":"payments",', '"AccessKey":"shop-key",', '"Signature":"",', '"ns":"",')),
        ),
        max_size=3,
    ),
    st.binary(max_size=2),
)
@example([], b"")
def test_any_change_of_a_signed_header_is_signed_as_python_reads_it_or_left(
    edits: list[tuple[int, int, str]], end: bytes
) -> None:
    """N1: pieces of JSON put in, and characters left out, anywhere."""
    text = signed_text()
    for at, dropped, piece in edits:
        text = text[:at] + piece + text[at + dropped :]
    is_same = not edits and not end
    assert check_signed(framed(text.encode() + end)) or not is_same


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 7))
def test_any_bit_of_a_signed_frame_that_is_turned_around_is_noticed(at: int, bit: int) -> None:
    """N1: a tampered field, body or signature; or one that says the same."""
    data = bytearray(framed(signed_text().encode()))
    data[8 + at % (len(data) - 8)] ^= 1 << bit
    check_signed(bytes(data))


@given(st.lists(st.sampled_from(("good", "body", "key", "secret", "unsigned", "twice")), min_size=1, max_size=12))
def test_a_run_ends_before_the_first_send_that_the_account_has_not_signed(kinds: list[str]) -> None:
    """N1."""
    good = signed_text()
    frames = {
        "good": framed(good.encode()),
        "body": framed(good.encode(), b"bodz"),
        "key": framed(good.replace("shop-key", "boss-key").encode()),
        "secret": b"".join(
            encode_request(
                310, None, b"body", opaque=1, more_fields=dict(FIELDS), credentials=Credentials("shop-key", "wrong one")
            )
        ),
        "unsigned": framed(header_text().encode()),
        "twice": framed(good.replace('"a":', '"z":"","z":"","a":', 1).encode()),
    }
    data = b"".join(frames[kind] for kind in kinds)
    sends = native.parse_sends(data, 0, 1 << 24, account())
    count = next((number for number, kind in enumerate(kinds) if kind != "good"), len(kinds))
    assert count == (sends.count if sends is not None else 0)
    assert sends is None or not sends.is_full
