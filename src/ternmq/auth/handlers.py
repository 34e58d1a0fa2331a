"""What administrators ask of a broker with access control: accounts and white lists (N1, codes 50–54).

Changes are in force, and on the disk, when they are answered. Secrets go in and never come out: 54 shows accounts
without them (RocketMQ 4.9.4 shows them, and later versions do not answer it at all).
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ternmq.auth.access import PlainAccess
from ternmq.errors import BrokerRefused, ConfigError
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import Body, always, encode
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import AclVersionReply, DeleteAcl, UpdateAcl, UpdateWhiteAddresses

#: RocketMQ 4.9's answers to a change that failed; 5 gave the numbers other meanings as well.
UPDATE_FAILED, DELETE_FAILED, WHITE_FAILED = 209, 210, 211


class ShownAccount(Body, frozen=True, kw_only=True):
    """An account as tools see it."""

    access_key: str
    white_remote_address: str = always(str)
    admin: bool = always(bool)
    default_topic_perm: str = always(str)
    default_group_perm: str = always(str)
    topic_perms: list[str] = always(list)
    group_perms: list[str] = always(list)


class ShownAcl(Body, frozen=True, kw_only=True):
    global_white_addrs: list[str] = always(list)
    plain_access_configs: list[ShownAccount] = always(list)


class AclHandlers:
    """``routes`` is the table to serve, on ``lane``."""

    def __init__(self, plain: PlainAccess, *, lane: str, broker_name: str, address: str, cluster_name: str) -> None:
        self._plain = plain
        self._lane = lane
        self._broker_name = broker_name
        self._address = address
        self._cluster_name = cluster_name

    def routes(self) -> dict[int, Route]:
        admin, lane = Rule(Action.ADMIN), self._lane
        return {
            Code.UPDATE_AND_CREATE_ACL_CONFIG: Route(self.update, lane, admin, takes_body=False),
            Code.DELETE_ACL_CONFIG: Route(self.delete, lane, admin, takes_body=False),
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: Route(self.set_white, lane, admin, takes_body=False),
            Code.GET_BROKER_CLUSTER_ACL_INFO: Route(self.versions, lane, admin, takes_body=False),
            Code.GET_BROKER_CLUSTER_ACL_CONFIG: Route(self.show, lane, admin, takes_body=False),
        }

    async def update(self, _peer: Peer, request: Request[UpdateAcl]) -> Reply:
        """Make or change an account; an empty field leaves what is there."""
        header = request.fields
        given: dict[str, object] = {
            "accessKey": header.access_key.strip(),
            "secretKey": (header.secret_key or "").strip(),
            "whiteRemoteAddress": (header.white_remote_address or "").strip(),
            "defaultTopicPerm": (header.default_topic_perm or "").strip(),
            "defaultGroupPerm": (header.default_group_perm or "").strip(),
            "topicPerms": _entries(header.topic_perms),
            "groupPerms": _entries(header.group_perms),
        }
        changes = {key: value for key, value in given.items() if value} | {
            "accessKey": given["accessKey"],
            "admin": header.admin,
        }
        try:
            await self._plain.change(lambda files, now_ms: files.update(changes, now_ms=now_ms))
        except (ConfigError, BrokerRefused) as error:
            return Reply(UPDATE_FAILED, remark=str(error))
        return Reply()

    async def delete(self, _peer: Peer, request: Request[DeleteAcl]) -> Reply:
        key = request.fields.access_key.strip()
        try:
            await self._plain.change(lambda files, now_ms: files.remove(key, now_ms=now_ms))
        except (ConfigError, BrokerRefused) as error:
            return Reply(DELETE_FAILED, remark=str(error))
        return Reply()

    async def set_white(self, _peer: Peer, request: Request[UpdateWhiteAddresses]) -> Reply:
        header = request.fields
        path = Path(header.file_path) if header.file_path else None
        patterns = _entries(header.addresses)
        try:
            await self._plain.change(lambda files, now_ms: files.set_white(patterns, path, now_ms=now_ms))
        except (ConfigError, BrokerRefused) as error:
            return Reply(WHITE_FAILED, remark=str(error))
        return Reply()

    def versions(self, _peer: Peer, _request: Request[object]) -> Reply:
        files = self._plain.files
        return Reply(
            header=AclVersionReply(
                version=encode(files.version).decode(),
                all_acl_file_version=msgspec.json.encode(files.versions()).decode(),
                broker_name=self._broker_name,
                broker_address=self._address,
                cluster_name=self._cluster_name,
            )
        )

    def show(self, _peer: Peer, _request: Request[object]) -> Reply:
        files = self._plain.files.files
        shown = ShownAcl(
            global_white_addrs=[pattern.text for file in files for pattern in file.white],
            plain_access_configs=[
                ShownAccount(
                    access_key=account.access_key,
                    white_remote_address=account.white.text,
                    admin=account.is_admin,
                    default_topic_perm=str(account.default_topic),
                    default_group_perm=str(account.default_group),
                    topic_perms=[f"{name}={permission}" for name, permission in account.topics.items()],
                    group_perms=[f"{name}={permission}" for name, permission in account.groups.items()],
                )
                for file in files
                for account in file.accounts
            ],
        )
        return Reply(body=encode(shown))


def _entries(text: str | None) -> list[str]:
    """The entries of a comma list; commas between braces belong to an entry."""
    entries: list[str] = [""]
    depth = 0
    for char in text or "":
        depth += (char == "{") - (char == "}")
        if char == "," and depth <= 0:
            entries.append("")
        else:
            entries[-1] += char
    return [entry.strip() for entry in entries if entry.strip()]
