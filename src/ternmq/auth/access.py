"""Access control of one server, put together: files, validators, and the watch for changes (N1).

``async with AccessControl.running(config, clock) as access``: ``access.gate`` is None when nothing is to be checked,
``access.tls`` when ports are plain.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, cast

from ternmq.auth import yaml_text
from ternmq.auth.accounts import AccessRules
from ternmq.auth.acl_files import AclFiles, check_mode, open_regular
from ternmq.auth.audit import Audit
from ternmq.auth.config import AccessConfig, UserAccessConfig
from ternmq.auth.plain import PlainAcl
from ternmq.auth.user_acl import UserAcl
from ternmq.auth.user_file import UserFile
from ternmq.auth.users import User, UserRules, UserType, from_account
from ternmq.config import made_by
from ternmq.env import Clock
from ternmq.errors import ConfigError
from ternmq.net.gate import Gate, Validator
from ternmq.net.tls import LiveTls
from ternmq.tasks import Tasks
from ternmq.wire.auth import Credentials, credentials

log = logging.getLogger(__name__)

ENV_HOME: Final = "ROCKETMQ_HOME"
ENV_ACCESS_KEY: Final = "TERNMQ_ACCESS_KEY"
ENV_SECRET_KEY: Final = "TERNMQ_SECRET_KEY"  # noqa: S105 - the name of a variable
ENV_SECURITY_TOKEN: Final = "TERNMQ_SECURITY_TOKEN"  # noqa: S105
#: RocketMQ's file with the identity of its tools; here also of servers that call others.
TOOLS_FILE: Final = "tools.yml"


class PlainAccess:
    """The rules of a server that runs: reloaded when files change, and changed by administrators.

    Methods belong to the loop's thread; files are read and written on another, one after the other.
    """

    def __init__(self, files: AclFiles, validator: PlainAcl, clock: Clock) -> None:
        self.files = files
        self._validator = validator
        self._clock = clock
        self._turn = asyncio.Lock()

    async def reload(self) -> None:
        """Take over changed files."""
        async with self._turn:
            rules = await asyncio.to_thread(self.files.reload)
            if rules is not None:
                self._use(rules)

    async def change(self, work: Callable[[AclFiles, int], AccessRules]) -> None:
        """Change a file, and go by it. ``work`` gets the files and the time; raises what it raises."""
        async with self._turn:
            self._use(await asyncio.to_thread(work, self.files, self._clock.now_ms()))

    def _use(self, rules: AccessRules) -> None:
        self._validator.rules = rules
        log.info("access control has %d accounts now", len(rules.accounts))


class UserAccounts(NamedTuple):
    """The users of a broker that runs, and where they are kept."""

    acl: UserAcl
    file: UserFile


class AccessControl:
    """What a server needs of it. ``plain`` is None when ``aclEnable`` is off, ``users`` without
    ``authenticationEnabled``."""

    def __init__(
        self, gate: Gate | None, plain: PlainAccess | None, users: UserAccounts | None, tls: LiveTls | None
    ) -> None:
        self.gate = gate
        self.plain = plain
        self.users = users
        self.tls = tls

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        config: AccessConfig,
        clock: Clock,
        *,
        gate: Gate | None = None,
        directory: Path = Path(),
        cluster: str = "",
    ) -> AsyncIterator[AccessControl]:
        """Access control as configured; with a ``gate`` that is given, that one instead.

        ``directory`` is where a broker's users are, unless a setting says otherwise, ``cluster`` the resource of
        requests that concern no topic and no group. Raises ``ConfigError`` for files or validators that cannot be used.
        """
        validators: list[Validator] = []
        plain: PlainAccess | None = None
        users: UserAccounts | None = None
        tls = config.server_tls()
        if config.acl_enable and gate is None:
            files = AclFiles(acl_directory(config, os.environ))
            validator = PlainAcl(await asyncio.to_thread(files.load), clock)
            validators.append(validator)
            plain = PlainAccess(files, validator, clock)
        if isinstance(config, UserAccessConfig) and config.authentication_enabled and gate is None:
            file = UserFile(config.auth_config_path or directory, config.auth_key_path)
            rules = await asyncio.to_thread(_load_users, config, file)
            users = UserAccounts(UserAcl(rules, clock, authorizes=config.authorization_enabled, cluster=cluster), file)
            validators.append(users.acl)
        if gate is None:
            validators += map(_made, config.validator_names)
            gate = Gate(validators, audit=Audit(clock)) if validators else None
        async with Tasks() as tasks:
            if plain is not None or tls is not None:
                tasks.create_task(_watch(plain, tls, config.acl_reload_interval / 1000), name="watch files of security")
            yield cls(gate, plain, users, tls)


def _load_users(config: UserAccessConfig, file: UserFile) -> UserRules:
    """The users of the file, and those that settings ask for. Raises ``ConfigError``."""
    before = rules = file.load()
    if config.migrate_auth_from_v1_enabled:
        for account in AclFiles(acl_directory(config, os.environ)).load().accounts.values():
            if account.access_key not in rules.users:
                rules = rules.created(from_account(account))
                log.info("the account %r of the ACL file is a user now", account.access_key)
                if account.is_admin and not account.may_do_all:
                    log.warning(
                        "the account %r had admin: true and permissions of its own; as a super user it may do "
                        "everything. Make it a normal user with `tern user update --normal` if it should not",
                        account.access_key,
                    )
    for pair in (config.first_user(), config.inner_user()):
        if pair is not None and pair[0] not in rules.users:
            rules = rules.created(User(*pair, UserType.SUPER))
            log.info("created the super user %r", pair[0])
    if not any(user.is_super and user.is_enabled for user in rules.users.values()):
        raise ConfigError(
            "authenticationEnabled=true needs an enabled super user: set initAuthenticationUser to "
            '{"username": "…", "password": "…"} for the first start'
        )
    if rules is not before:
        file.save(rules)
    return rules


async def _watch(plain: PlainAccess | None, tls: LiveTls | None, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            if plain is not None:
                await plain.reload()
            if tls is not None:
                await asyncio.to_thread(tls.reload)
        except Exception:
            log.exception("cannot look at the files of accounts and certificates; all stays as it is")


def _made(name: str) -> Validator:
    validator = made_by("authValidators", name)
    if not callable(validator):
        raise ConfigError(f"the validator that {name} of authValidators returned cannot be called")
    return cast("Validator", validator)  # as just tested; the rest shows when it is called


def acl_directory(config: AccessConfig, environ: Mapping[str, str]) -> Path:
    """The directory of ACL files; raises ``ConfigError`` if none is set."""
    if config.acl_path is not None:
        return config.acl_path
    if environ.get(ENV_HOME):
        return Path(environ[ENV_HOME]) / "conf"
    raise ConfigError(f"aclEnable=true needs aclPath, the directory with plain_acl.yml, or the variable {ENV_HOME}")


def own_credentials(config: AccessConfig, environ: Mapping[str, str]) -> Credentials | None:
    """What this server signs its own calls with, to name servers and other brokers; None: they are not signed.

    From the environment, else from ``innerClientAuthenticationCredentials``, or ``tools.yml`` beside the ACL files.
    Raises ``ConfigError`` for a file that cannot be used.
    """
    found = credentials(
        environ.get(ENV_ACCESS_KEY, ""), environ.get(ENV_SECRET_KEY, ""), environ.get(ENV_SECURITY_TOKEN, "")
    )
    if found is None and isinstance(config, UserAccessConfig) and (inner := config.inner_user()) is not None:
        return Credentials(*inner)
    if found is not None or (config.acl_path is None and not environ.get(ENV_HOME)):
        return found
    path = acl_directory(config, environ) / TOOLS_FILE
    try:
        with open_regular(path) as file:
            document = yaml_text.parse(file.read(yaml_text.FILE_BYTES_MAX + 1))
        check_mode(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path}: expected accessKey and secretKey")
    key, secret, token = (document.get(name) for name in ("accessKey", "secretKey", "securityToken"))
    return credentials(str(key or ""), str(secret or ""), str(token or ""))
