"""Proof of an account on ports that know no requests: those of slaves and of Raft members (N1, O1, P3).

The side that was called sends a *nonce*, a number that it never used before. The caller signs it like a request,
together with what it says of itself. The proof goes through the gate of the server as an admin request: accounts, white
addresses, limits for guesses, audit and validators of your own are the same as for tools. It proves who has opened the
connection. Only TLS protects what flows on it from others.
"""

from __future__ import annotations

import re
from typing import Final

from ternmq.env import unpredictable
from ternmq.errors import NoPermission, RemoteProtocolError, TernError
from ternmq.net.gate import Action, CallingPeer, Gate, Rule
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Fields, Request

_RULE: Final = Rule(Action.ADMIN)
#: A caller signs nothing else: a text of the other side's choice could be part of some request.
_NONCE: Final = re.compile(r"[0-9a-f]{32}")


def new_nonce() -> str:
    return unpredictable(16)


def prove(nonce: str, credentials: Credentials, statement: bytes) -> Fields:
    """The proof of a caller, which has ``statement`` to say. It begins with what it is for, so that no proof serves for
    anything else. Raises ``RemoteProtocolError`` for a nonce that no server makes."""
    if not _NONCE.fullmatch(nonce):
        raise RemoteProtocolError("the other side sent a challenge that is not valid")
    fields: Fields = {"nonce": nonce}
    credentials.sign(fields, statement)
    return fields


def note_refusal(gate: Gate | None, caller: CallingPeer, reason: str) -> None:
    """A caller is refused that has proved nothing: for the audit log, if callers are checked by a gate."""
    if gate is not None:
        gate.note_denial(caller, RequestCode.FOLLOW_LOG, reason)


def check(gate: Gate, caller: CallingPeer, nonce: str, fields: Fields, statement: bytes) -> None:
    """Raise ``NoPermission`` if this does not prove what was asked for."""
    if fields.get("nonce") != nonce:
        reason = "the caller has signed something else than it was asked to; let it connect again"
        note_refusal(gate, caller, reason)
        raise NoPermission(reason)
    request: Request[Fields] = Request(RequestCode.FOLLOW_LOG, header=dict(fields), body=memoryview(statement))
    try:
        gate.admit(caller, request, _RULE)
    except TernError:
        raise
    except Exception as error:
        # A validator that fails admits no request, and no other caller.
        raise NoPermission(f"the proof could not be checked: {error}") from error
