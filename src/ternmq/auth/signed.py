"""Who calls: the signature of a request, with guesses slowed down, and the audit log (N1).

Both kinds of accounts use it: those of RocketMQ's plain ACL (``auth.plain``) and users with policies (``auth.users``).
An unknown key and a wrong signature get the same answer, and take the same time.
"""

from __future__ import annotations

from typing import Any, Final

from ternmq.auth.audit import Audit, shown
from ternmq.auth.guesses import Guesses
from ternmq.env import Clock
from ternmq.errors import NoPermission
from ternmq.net.gate import Action, CallingPeer, Rule
from ternmq.wire.auth import SIGNATURE, Secret
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Fields, Request

#: Admin requests by which brokers stay registered. They change nothing that an administrator decided, and are many.
_REGISTRATIONS: Final = frozenset(
    {Code.REGISTER_BROKER, Code.UNREGISTER_BROKER, Code.QUERY_DATA_VERSION, Code.BROKER_HEARTBEAT}
)
#: Where requests name the user that they change.
_USER_FIELDS: Final[dict[int, str]] = {
    **dict.fromkeys((Code.AUTH_CREATE_USER, Code.AUTH_UPDATE_USER, Code.AUTH_DELETE_USER), "username"),
    **dict.fromkeys((Code.AUTH_CREATE_ACL, Code.AUTH_UPDATE_ACL, Code.AUTH_DELETE_ACL), "subject"),
}
#: Resources that a line names; one request may change thousands.
_RESOURCES_MAX: Final = 20
#: An account that no key leads to, so that an unknown key takes as long as a known one.
_NO_SECRET: Final = Secret("no account has this secret")


class SignedCallers:
    """Checks signatures, and tells of changes and denials. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._audit = Audit(clock)
        self._guesses = Guesses(clock)

    def check(
        self, caller: CallingPeer, request: Request[Any], fields: Fields, secret: Secret | None, *, key: str
    ) -> None:
        """Return if a request is signed with ``secret``, which belongs to ``key``; None: the key is unknown."""
        if not key or SIGNATURE not in fields:
            raise self.denied(
                caller,
                request,
                "unsigned",
                key,
                "the request is not signed; give the client an access key and a secret key",
                is_known=secret is not None,
            )
        if caller.proved != key and not self._guesses.may_try(caller.remote_ip, key):
            raise self.denied(
                caller,
                request,
                "guessing",
                key,
                "too many wrong signatures came from this address; check the secret key, and try again in a minute",
                is_known=secret is not None,
            )
        if not (secret or _NO_SECRET).has_signed(fields, request.body) or secret is None:
            self._guesses.failed(caller.remote_ip, key)
            if caller.proved == key:
                # The secret was changed. Who had the old one may not guess the new one any faster.
                caller.proved = ""
            raise self.denied(
                caller,
                request,
                "signature" if secret is not None else "unknown key",
                key,
                "the access key or the signature is not valid; check the access key and the secret key of the client",
                is_known=secret is not None,
            )

    def note_change(self, caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule, *, key: str) -> None:
        """An administrator's request was admitted."""
        if rule.action is Action.ADMIN and request.code not in _REGISTRATIONS:
            needs = rule.needs(fields, request.body)
            resources = ", ".join(f"{kind.value}:{shown(name)}" for _, (kind, name) in needs[:_RESOURCES_MAX])
            if len(needs) > _RESOURCES_MAX:
                resources += f" and {len(needs) - _RESOURCES_MAX} more"
            user = fields.get(_USER_FIELDS.get(request.code, ""))
            if user:
                resources = f"user {shown(user)}"
            self._audit.changed(key=key, address=caller.address, code=request.code, resources=resources)

    def denied(
        self, caller: CallingPeer, request: Request[Any], kind: str, key: str, reason: str, *, is_known: bool
    ) -> NoPermission:
        """The error for a request that is refused; ``is_known``: the key is one of an account."""
        self._audit.denied(
            kind=kind,
            key=key,
            is_known=is_known,
            ip=caller.remote_ip,
            address=caller.address,
            code=request.code,
            reason=reason,
        )
        return NoPermission(reason)
