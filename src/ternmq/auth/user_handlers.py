"""What administrators ask about users and their policies (N1, codes 3001–3010 of RocketMQ 5.3).

Changes are in force, and on the disk, when they are answered. Passwords go in and never come out. (RocketMQ answers
``getUser`` and ``listUser`` with the password.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from ternmq.auth.policies import ENTRIES_MAX, NO_POLICIES, Policies, PolicyEntry, PolicyType, ResourcePattern
from ternmq.auth.user_acl import UserAcl
from ternmq.auth.user_file import UserFile
from ternmq.auth.users import User, UserRules, UserStatus, UserType
from ternmq.errors import ConfigError, InvalidParameter
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.users import AclBody, PolicyBody, PolicyEntryBody, UserBody
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import AclSubject, DeletePolicy, ListPolicies, ListUsers, UserName

_SUBJECT: Final = "User:"

EnumT = TypeVar("EnumT", UserType, UserStatus, PolicyType)


class UserHandlers:
    """``routes`` is the table to serve, on ``lane``."""

    def __init__(self, acl: UserAcl, file: UserFile, *, lane: str) -> None:
        self._acl = acl
        self._file = file
        self._lane = lane
        self._turn = asyncio.Lock()

    def routes(self) -> dict[int, Route]:
        admin, lane = Rule(Action.ADMIN), self._lane
        return {
            Code.AUTH_CREATE_USER: Route(self.create_user, lane, admin),
            Code.AUTH_UPDATE_USER: Route(self.update_user, lane, admin),
            Code.AUTH_DELETE_USER: Route(self.delete_user, lane, admin, takes_body=False),
            Code.AUTH_GET_USER: Route(self.get_user, lane, admin, takes_body=False),
            Code.AUTH_LIST_USER: Route(self.list_users, lane, admin, takes_body=False),
            Code.AUTH_CREATE_ACL: Route(self.set_policies, lane, admin),
            Code.AUTH_UPDATE_ACL: Route(self.set_policies, lane, admin),
            Code.AUTH_DELETE_ACL: Route(self.delete_policies, lane, admin, takes_body=False),
            Code.AUTH_GET_ACL: Route(self.get_policies, lane, admin, takes_body=False),
            Code.AUTH_LIST_ACL: Route(self.list_policies, lane, admin, takes_body=False),
        }

    # --- Users -------------------------------------------------------------------------------------------------

    async def create_user(self, _peer: Peer, request: Request[UserName]) -> Reply:
        name, body = request.fields.username, decode(request.body, UserBody)
        kind = _one_of(UserType, body.user_type) or UserType.NORMAL
        status = _one_of(UserStatus, body.user_status) or UserStatus.ENABLE

        def create(rules: UserRules) -> UserRules:
            return rules.created(User(name, body.password or "", kind, status))

        return await self._change(create)

    async def update_user(self, _peer: Peer, request: Request[UserName]) -> Reply:
        """Change what the body has; the rest stays."""
        name, body = request.fields.username, decode(request.body, UserBody)
        kind, status = _one_of(UserType, body.user_type), _one_of(UserStatus, body.user_status)
        return await self._change(
            lambda rules: rules.updated(name, password=body.password or "", kind=kind, status=status)
        )

    async def delete_user(self, _peer: Peer, request: Request[UserName]) -> Reply:
        name = request.fields.username
        return await self._change(lambda rules: rules.deleted(name))

    def get_user(self, _peer: Peer, request: Request[UserName]) -> Reply:
        """No body if there is no such user, as in RocketMQ."""
        user = self._acl.rules.users.get(request.fields.username)
        return Reply(body=encode(_shown(user)) if user is not None else b"")

    def list_users(self, _peer: Peer, request: Request[ListUsers]) -> Reply:
        wanted = request.fields.filter or ""
        users = [_shown(user) for user in self._acl.rules.users.values() if wanted in user.name]
        return Reply(body=msgspec.json.encode(users) if users else b"")

    # --- Policies ----------------------------------------------------------------------------------------------

    async def set_policies(self, _peer: Peer, request: Request[AclSubject]) -> Reply:
        """Add entries; those for the same resource are replaced."""
        name, body = _user_of(request.fields.subject), decode(request.body, AclBody)
        count = sum(len(policy.entries or ()) for policy in body.policies or ())
        if count > ENTRIES_MAX:
            # Before they are read, which takes some time for each.
            raise InvalidParameter(f"{count} policy entries in one request: expected at most {ENTRIES_MAX}")
        parsed = [_entries(policy) for policy in body.policies or ()]
        if not any(entries for _, entries in parsed):
            raise InvalidParameter("the request has no policy entries; give a resource, actions and a decision")

        def add(rules: UserRules) -> UserRules:
            policies = rules.get(name).policies
            for kind, entries in parsed:
                policies = policies.with_entries(kind, entries)
            return rules.with_policies(name, policies)

        return await self._change(add)

    async def delete_policies(self, _peer: Peer, request: Request[DeletePolicy]) -> Reply:
        header = request.fields
        name = _user_of(header.subject)
        kind = _one_of(PolicyType, header.policy_type) or PolicyType.CUSTOM

        def remove(rules: UserRules) -> UserRules:
            left = NO_POLICIES
            if header.resource:
                left = rules.get(name).policies.without(kind, ResourcePattern.parse(header.resource))
            return rules.with_policies(name, left)

        return await self._change(remove)

    def get_policies(self, _peer: Peer, request: Request[AclSubject]) -> Reply:
        """No body without policies, as in RocketMQ."""
        name = _user_of(request.fields.subject)
        try:
            user = self._acl.rules.get(name)
        except ConfigError as error:
            raise InvalidParameter(str(error)) from None
        return Reply(body=encode(_acl_of(user, user.policies)) if user.policies else b"")

    def list_policies(self, _peer: Peer, request: Request[ListPolicies]) -> Reply:
        header = request.fields
        subject, resource = header.subject_filter or "", header.resource_filter or ""
        found = []
        for user in self._acl.rules.users.values():
            if subject in f"{_SUBJECT}{user.name}":
                policies = Policies(
                    {
                        kind: tuple(entry for entry in entries if resource in str(entry.resource))
                        for kind, entries in user.policies.entries.items()
                    }
                )
                if policies:
                    found.append(_acl_of(user, policies))
        return Reply(body=msgspec.json.encode(found) if found else b"")

    async def _change(self, work: Callable[[UserRules], UserRules]) -> Reply:
        """Save the changed rules, then go by them. Raises ``InvalidParameter``."""
        async with self._turn:
            try:
                rules = work(self._acl.rules)
                await asyncio.to_thread(self._file.save, rules)
            except ConfigError as error:
                raise InvalidParameter(str(error)) from None
            self._acl.rules = rules
        return Reply()


def _one_of(kind: type[EnumT], text: str | None) -> EnumT | None:
    if not text:
        return None
    for member in kind:
        if member.value.lower() == text.strip().lower():
            return member
    expected = " or ".join(member.value for member in kind)
    raise InvalidParameter(f"invalid {kind.__name__} {text[:32]!r}: expected {expected}")


def _user_of(subject: str) -> str:
    kind, colon, name = subject.partition(":")
    if kind.strip().lower() != "user" or not colon or not name:
        raise InvalidParameter(f"invalid subject {subject[:64]!r}: expected {_SUBJECT}NAME")
    return name


def _entries(policy: PolicyBody) -> tuple[PolicyType, list[PolicyEntry]]:
    try:
        return _one_of(PolicyType, policy.policy_type) or PolicyType.CUSTOM, [
            PolicyEntry.parse(entry.resource or "", entry.actions or (), entry.source_ips or (), entry.decision or "")
            for entry in policy.entries or ()
        ]
    except ConfigError as error:
        raise InvalidParameter(str(error)) from None


def _shown(user: User) -> UserBody:
    return UserBody(username=user.name, user_type=user.kind.value, user_status=user.status.value)


def _acl_of(user: User, policies: Policies) -> AclBody:
    return AclBody(
        subject=f"{_SUBJECT}{user.name}",
        policies=[
            PolicyBody(
                policy_type=kind.value,
                entries=[
                    PolicyEntryBody(
                        resource=str(entry.resource),
                        actions=sorted(verb.value for verb in entry.verbs),
                        source_ips=list(map(str, entry.sources)) or None,
                        decision=entry.decision.value,
                    )
                    for entry in entries
                ],
            )
            for kind, entries in policies.entries.items()
            if entries
        ],
    )
