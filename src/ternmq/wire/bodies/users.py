"""Users and their policies, as RocketMQ 5.3's tools send and show them (N1)."""

from __future__ import annotations

from ternmq.wire.bodies.codec import Body


class UserBody(Body, frozen=True, kw_only=True):
    """A user. Servers leave the password out."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        # Without the password.
        return f"UserBody(username={self.username!r})"


class PolicyEntryBody(Body, frozen=True, kw_only=True):
    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class PolicyBody(Body, frozen=True, kw_only=True):
    policy_type: str | None = None
    entries: list[PolicyEntryBody] | None = None


class AclBody(Body, frozen=True, kw_only=True):
    """The policies of one subject, ``User:name``."""

    subject: str | None = None
    policies: list[PolicyBody] | None = None
