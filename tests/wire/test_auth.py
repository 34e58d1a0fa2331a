"""Signatures of requests (N1; protocol/features.md, section 1.1)."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import ConfigError
from ternmq.wire import auth
from ternmq.wire.auth import LATE_FIELD, SIGNATURE, Credentials, Secret, credentials
from ternmq.wire.codes import BINARY, JSON
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Fields, Request
from ternmq.wire.requests import QueryOffset

FIELDS: Fields = {"topic": "T", "queueId": "0", "AccessKey": "RocketMQ"}
SECRET = Secret("12345678")
NAMES = st.text(st.characters(codec="ascii"), max_size=8)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


def test_the_signature_is_that_of_rocketmq() -> None:
    """N1, with the vector of protocol/features.md."""
    assert b"dJue2dJSl/TBygHPbqrM4/as1Mk=" == SECRET.signature(FIELDS, b"hi")


@given(st.text(max_size=100), st.dictionaries(NAMES, TEXTS, max_size=8), st.binary(max_size=300))
def test_a_signature_is_the_hmac_of_all_values_by_name_and_the_body(key: str, fields: Fields, body: bytes) -> None:
    """N1: our HMAC, which keeps its state, against Python's own."""
    values = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE).encode()
    expected = hmac.digest(key.encode(errors="replace"), values + body, hashlib.sha1)

    assert base64.b64encode(expected) == Secret(key).signature(fields, memoryview(body))


@given(st.dictionaries(NAMES, TEXTS, max_size=8), st.binary(max_size=50), st.data())
def test_what_was_changed_is_not_signed_any_more(fields: Fields, body: bytes, data: st.DataObject) -> None:
    signed = dict(fields)
    Credentials("RocketMQ", "12345678").sign(signed, body)
    name = data.draw(st.sampled_from(sorted(signed)))
    changed = signed | {name: signed[name] + "x"}

    assert SECRET.has_signed(signed, body)
    assert SECRET.has_signed(signed, body), "also by the remembered order of fields"
    assert not SECRET.has_signed(changed, body)
    assert not SECRET.has_signed(signed, body + b"x")
    assert not Secret("12345679").has_signed(signed, body)


@pytest.mark.parametrize("given", ["", "é", "=" * 100, "dJue2dJSl/TBygHPbqrM4/as1Mk"])
def test_a_text_that_is_no_signature_is_wrong(given: str) -> None:
    assert not SECRET.has_signed(FIELDS | {SIGNATURE: given}, b"hi")


def test_a_field_that_old_java_clients_add_behind_the_signature_may_be_signed_or_not() -> None:
    """N1: up to 4.9.3 not, from 4.9.4 on it is."""
    late = FIELDS | {LATE_FIELD: "true"}
    old, new = SECRET.signature(FIELDS).decode(), SECRET.signature(late).decode()

    assert SECRET.has_signed(late | {SIGNATURE: old})
    assert SECRET.has_signed(late | {SIGNATURE: new})
    assert not SECRET.has_signed(late | {SIGNATURE: old, "topic": "U"})


@pytest.mark.parametrize("form", [JSON, BINARY])
@pytest.mark.parametrize("token", ["", "temporary"])
def test_an_encoded_request_is_signed_over_what_arrives(form: int, token: str) -> None:
    signing = Credentials("RocketMQ", "12345678", token)
    header = QueryOffset(consumer_group="größe", topic="t\ud800", queue_id=3)

    frame = encode_request(14, header, b"hi", opaque=1, form=form, more_fields={"x": ""}, credentials=signing)
    [request] = FrameDecoder(typed=False).feed(b"".join(frame))

    assert isinstance(request, Request)
    fields: Fields = request.fields
    assert "RocketMQ" == fields["AccessKey"]
    assert token == fields.get("SecurityToken", "")
    assert SECRET.has_signed(fields, request.body)


def test_half_of_the_credentials_is_an_error() -> None:
    with pytest.raises(ConfigError, match="secret_key is missing"):
        credentials("key", "")
    with pytest.raises(ConfigError, match="access_key is missing"):
        credentials("", "secret")
    assert credentials("", "") is None


def test_credentials_do_not_show_their_secrets() -> None:
    shown = repr(Credentials("RocketMQ", "hidden-secret", "hidden-token"))

    assert "RocketMQ" in shown
    assert "hidden" not in shown


def test_the_order_of_fields_with_long_names_is_not_kept() -> None:
    """An account must not fill the memory of a server with names of megabytes."""
    fields = {"x" * 10_000: "1", **FIELDS}
    fields[SIGNATURE] = SECRET.signature(fields).decode()

    assert SECRET.has_signed(fields)
    assert not any("x" * 10_000 in names for names in auth._orders)
