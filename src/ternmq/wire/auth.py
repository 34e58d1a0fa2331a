"""Signatures of requests, as RocketMQ's access control has them (N1).

A signed request has two more ext fields, or three::

    AccessKey       which account
    SecurityToken   of temporary credentials; signed like any other field, and not looked at by RocketMQ's own ACL
    Signature       Base64(HMAC-SHA1(secret key, values of all other fields by the order of their names + body))

What it covers are the *values* and the body. The code of the request, the names of the fields and where one value ends
and the next begins are not covered, and nothing makes a request valid only once: a recorded request can be sent again,
and parts of it can be moved. Only TLS prevents that.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha1
from hmac import compare_digest
from operator import itemgetter
from typing import Final

from ternmq.errors import ConfigError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.types import Buffer
from ternmq.wire.header import Fields

ACCESS_KEY: Final = "AccessKey"
SIGNATURE: Final = "Signature"
SECURITY_TOKEN: Final = "SecurityToken"  # noqa: S105 - the name of a field
#: Java clients up to 4.9.3 add this field to QUERY_MESSAGE behind the signature; later ones sign it.
LATE_FIELD: Final = "_UNIQUE_KEY_QUERY"

#: RocketMQ takes no shorter keys and secrets.
KEY_LENGTH_MIN: Final = 7
#: RFC 2104: what the two rounds of an HMAC begin with, for a block of SHA-1.
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))
_BLOCK_BYTES: Final = 64
#: Compiled code takes half of the time for a short body, and as long as OpenSSL for a long one, which it may copy.
_NATIVE_BYTES_MAX: Final = 64 * 1024
#: Orders of fields that are remembered: each code of each kind of client has one.
_ORDERS_MAX: Final = 1000
_ORDER_FIELDS_MAX: Final = 32
_ORDER_CHARS_MAX: Final = 1024

#: The names of a request's fields, as they stand there → gives their values in the order of the signature.
_orders: dict[tuple[str, ...], Callable[[Mapping[str, str]], tuple[str, ...]]] = {}


class Secret:
    """A secret key, ready to sign. Its state after the first blocks is kept: that saves half of the time."""

    __slots__ = ("_inner", "_outer", "native")

    def __init__(self, secret_key: str) -> None:
        key = secret_key.encode(errors="replace")
        #: The same, for compiled code.
        self.native = native.SigningKey(key) if HAS_NATIVE else None
        if len(key) > _BLOCK_BYTES:
            key = sha1(key).digest()  # noqa: S324 - the protocol's hash; an HMAC of it is not broken
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = sha1(key.translate(_INNER))  # noqa: S324
        self._outer = sha1(key.translate(_OUTER))  # noqa: S324

    def signature(self, fields: Mapping[str, str], body: Buffer = b"", *, without: str | None = None) -> bytes:
        """The signature of a request, as ASCII. A field ``Signature``, and that named ``without``, are left out."""
        return self._sign(_sorted_values(fields, without), body)

    def signed(self, fields: Mapping[str, str], body: Buffer) -> bytes:
        """The same for requests of this process, which are of few kinds."""
        order = _orders.get(tuple(fields))
        if order is None:
            _remember(fields)
            return self.signature(fields, body)
        return self._sign(order(fields), body)

    def has_signed(self, fields: Mapping[str, str], body: Buffer = b"") -> bool:
        """Whether a request has the signature of this secret. Where a wrong one differs does not change the time."""
        given = fields.get(SIGNATURE, "").encode(errors="replace")
        order = _orders.get(tuple(fields))
        if order is not None:
            if compare_digest(self._sign(order(fields), body), given):
                return True
        elif compare_digest(self.signature(fields, body), given):
            _remember(fields)
            return True
        return LATE_FIELD in fields and compare_digest(self.signature(fields, body, without=LATE_FIELD), given)

    def has_signed_values(self, values: tuple[str, ...], body: Buffer) -> bool:
        """The same for values in the order of their names, and the signature behind them (``wire.shapes``)."""
        inner = self._inner.copy()
        try:
            inner.update("".join(values[:-1]).encode())
            given = values[-1].encode()
        except UnicodeEncodeError:
            return False  # ``has_signed`` decides.
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return compare_digest(b2a_base64(outer.digest(), newline=False), given)

    def _sign(self, values: Iterable[str], body: Buffer) -> bytes:
        text = "".join(values)
        try:
            data = text.encode()
        except UnicodeEncodeError:
            # Half a surrogate pair goes out as «?» (``wire.header``).
            data = text.encode(errors="replace")
        if self.native is not None and len(body) <= _NATIVE_BYTES_MAX:
            return self.native.sign(data, body)
        inner = self._inner.copy()
        inner.update(data)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


def _sorted_values(fields: Mapping[str, str], without: str | None = None) -> list[str]:
    # Java sorts by UTF-16 units and this by code points: the same for all names that a client has reason to send.
    return [fields[name] for name in sorted(fields) if name not in (SIGNATURE, without)]


def _remember(fields: Mapping[str, str]) -> None:
    """Keep the order of a request that was signed well: others must not fill the table."""
    names = sorted(fields.keys() - {SIGNATURE})
    if len(_orders) < _ORDERS_MAX and 1 < len(names) <= _ORDER_FIELDS_MAX and sum(map(len, names)) <= _ORDER_CHARS_MAX:
        _orders[tuple(fields)] = itemgetter(*names)


@dataclass(slots=True, frozen=True)
class Credentials:
    """What a client signs with. Raises ``ConfigError`` if half of it is missing. ``repr`` does not show the secrets."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str = field(default="", repr=False)
    _secret: Secret = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            missing = "secret_key" if self.access_key else "access_key"
            raise ConfigError(f"{missing} is missing: give both access_key and secret_key, or neither")
        object.__setattr__(self, "_secret", Secret(self.secret_key))

    def sign(self, fields: Fields, body: Buffer) -> None:
        """Add the fields of a signature to those of a request. Call it last: it covers all of them."""
        fields[ACCESS_KEY] = self.access_key
        if self.security_token:
            fields[SECURITY_TOKEN] = self.security_token
        fields[SIGNATURE] = self._secret.signed(fields, body).decode()


def credentials(access_key: str, secret_key: str, security_token: str = "") -> Credentials | None:
    """Credentials, or None where none are given. Raises as ``Credentials``."""
    if not access_key and not secret_key:
        return None
    return Credentials(access_key, secret_key, security_token)
