"""Who may fetch the log: the port for slaves is guarded like the one for clients (N1, N2, O1).

Without access control any address may, or those in ``haAllowedAddresses``. A broker that checks its callers gives its
log to

- addresses in ``haAllowedAddresses``: RocketMQ's slaves can prove nothing else;
- if that is not set, slaves with a client certificate that the broker trusts, and TernMQ slaves that sign.

A slave that has to sign gets a *challenge* before the master says anything about itself::

    slave                                        master
      | ── probe ─────────────────────────────────▶ |
      | ◀─────────────── Challenge ──────────────── |   a number that was never used before
      | ── Proof ─────────────────────────────────▶ |   signed like a request: HMAC of the number, and who the slave is
      | ◀─────────────── MasterHello, or why not ── |   from here on as without (``replication.handshake``)

The proof is that of ``net.proof``: it goes through the broker's gate as an admin request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

import msgspec

from ternmq.errors import UNREADABLE, NoPermission, RemoteProtocolError
from ternmq.net import proof as proofs
from ternmq.net.gate import CallingPeer, Gate
from ternmq.replication.config import IpNetwork
from ternmq.replication.handshake import BrokerNode
from ternmq.wire.auth import Credentials

_PURPOSE: Final = b"follow the log: "


class Challenge(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a master wants to have signed, or why it says no more; neither is set in any other text."""

    nonce: str = ""
    denied: str = ""


class Proof(msgspec.Struct, frozen=True, rename="camel"):
    """The ext fields of a signed request, and what they cover."""

    fields: dict[str, str]
    place: BrokerNode


_encode: Final = msgspec.json.Encoder().encode


def encode(text: Challenge | Proof) -> bytes:
    return _encode(text)


def read_challenge(data: bytes) -> Challenge:
    """Raises ``RemoteProtocolError``."""
    try:
        return msgspec.json.decode(data, type=Challenge)
    except UNREADABLE as error:
        raise RemoteProtocolError(f"the handshake of replication is not valid: {error}") from None


def prove(challenge: Challenge, credentials: Credentials, place: BrokerNode) -> bytes:
    """The answer of a slave. Raises ``RemoteProtocolError`` for a challenge that no master makes."""
    return encode(Proof(proofs.prove(challenge.nonce, credentials, _signed(place)), place))


@dataclass(slots=True, frozen=True)
class Admission:
    """What a master asks of those that want its log.

    ``gate`` is that of the broker; None: none is asked for a proof. ``is_guarded``: the broker checks its callers,
    by a gate or by certificates.
    """

    networks: Sequence[IpNetwork] = ()
    gate: Gate | None = None
    is_guarded: bool = False

    def refusal(self, ip: str) -> str:
        """Why a connection is closed at once; empty if it may say what it wants."""
        return "not in haAllowedAddresses" if self.networks and not self._is_named(ip) else ""

    def is_trusted(self, ip: str, *, has_certificate: bool) -> bool:
        """Whether no proof is needed."""
        return not self.is_guarded or has_certificate or bool(self.networks and self._is_named(ip))

    def challenge(self) -> Challenge | None:
        """Something to sign; None if this master cannot check a signature."""
        return Challenge(nonce=proofs.new_nonce()) if self.gate is not None else None

    def check(self, caller: CallingPeer, challenge: Challenge, data: bytes) -> None:
        """Raise ``NoPermission`` or ``RemoteProtocolError`` if this does not prove what was asked for."""
        try:
            proof = msgspec.json.decode(data, type=Proof)
        except UNREADABLE as error:
            raise RemoteProtocolError(f"the proof of a slave is not valid: {error}") from None
        if self.gate is None:
            raise NoPermission("this master cannot check proofs; let the slave connect again")
        proofs.check(self.gate, caller, challenge.nonce, proof.fields, _signed(proof.place))

    def note_refusal(self, caller: CallingPeer, reason: str) -> None:
        """A connection is closed that had to prove something, and did not (``net.proof``)."""
        proofs.note_refusal(self.gate, caller, reason)

    def _is_named(self, ip: str) -> bool:
        try:
            address = ip_address(ip.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


def _signed(place: BrokerNode) -> bytes:
    return _PURPOSE + _encode(place)
