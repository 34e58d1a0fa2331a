"""ACL files and accounts for tests, and calls that are signed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from ternmq.auth import acl_file
from ternmq.auth.user_file import UserFile
from ternmq.auth.users import UserRules, from_account
from ternmq.net.dial import connect
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.tasks import Tasks
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from tests.broker.calls import Caller

BOSS: Final = Credentials("boss-key", "secret-of-the-boss")
#: Sends to orders.
SHOP: Final = Credentials("shop-key", "secret-of-the-shop")
#: Reads orders for the group billing.
BILLING: Final = Credentials("billing-key", "secret-of-billing")
#: May do nothing.
GUEST: Final = Credentials("guest-key", "secret-of-the-guest")

ACCOUNTS: Final = """\
accounts:
- accessKey: boss-key
  secretKey: secret-of-the-boss
  admin: true
- accessKey: shop-key
  secretKey: secret-of-the-shop
  topicPerms: [orders=PUB]
- accessKey: billing-key
  secretKey: secret-of-billing
  topicPerms: [orders=SUB]
  groupPerms: [billing=SUB]
- accessKey: guest-key
  secretKey: secret-of-the-guest
"""


def acl_in(directory: Path, text: str = ACCOUNTS) -> Path:
    """A directory with an ACL file, for ``aclPath``."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "plain_acl.yml"
    file.write_text(text)
    file.chmod(0o600)
    return directory


def users_in(directory: Path, text: str = ACCOUNTS) -> Path:
    """A directory with these accounts as users, for ``authConfigPath``."""
    directory.mkdir(parents=True, exist_ok=True)
    rules = UserRules()
    for account in acl_file.read(text.encode()).accounts:
        rules = rules.created(from_account(account))
    UserFile(directory).save(rules)
    return directory


@asynccontextmanager
async def dialled(address: str, credentials: Credentials | None = None) -> AsyncIterator[Caller]:
    """A connection whose calls are signed."""
    lanes = [LaneConfig("client")]

    def ignore(_peer: Peer, _request: Request[Any]) -> Reply:
        return Reply()

    async with Tasks() as tasks:
        peer = await connect(
            address,
            routes={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Route(ignore, "client", ANY_CALLER)},
            lanes=Lanes(lanes),
            tasks=tasks,
            credentials=credentials,
        )
        yield Caller(peer)
        peer.close()
        await peer.closed.wait()
