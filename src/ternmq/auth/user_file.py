"""Where users are kept (N1): ``users.json``, for its owner only, with encrypted passwords.

A signature is an HMAC, so a server needs the password itself; a hash of it would not do. The file therefore has each
password encrypted (Fernet: AES-128-CBC with an HMAC-SHA256), with a key in a file of its own (``authKeyPath``). A copy
of ``users.json`` alone, in a backup for example, gives no password away. A reader of both files can sign as every
user, so both must be readable by their owner only: a server does not start with a file that others can read.

A change is on the disk before it is answered: a new file is written, synced, and renamed over the old one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ternmq.auth.acl_files import open_regular, replace_file
from ternmq.auth.policies import Policies, PolicyEntry, PolicyType
from ternmq.auth.users import User, UserRules, UserStatus, UserType
from ternmq.errors import UNREADABLE, ConfigError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

FILE: Final = "users.json"
KEY_FILE: Final = "users.key"
_FILE_BYTES_MAX: Final = 64 * 1024 * 1024


class StoredEntry(msgspec.Struct, rename="camel"):
    policy_type: str
    resource: str
    actions: list[str]
    decision: str
    source_ips: list[str] = []


class StoredUser(msgspec.Struct, rename="camel"):
    username: str
    encrypted_password: str
    user_type: str
    user_status: str
    entries: list[StoredEntry] = []


class StoredUsers(msgspec.Struct):
    users: list[StoredUser]


class UserFile:
    """The file below one directory. All methods may wait for the disk, and belong to one thread at a time."""

    def __init__(self, directory: Path, key_path: Path | None = None) -> None:
        self._path = directory / FILE
        self._key_path = key_path or directory / KEY_FILE
        self._cipher: Fernet | None = None

    def load(self) -> UserRules:
        """All users; none without a file. Raises ``ConfigError``."""
        cipher = self._open_cipher()
        data = _read_private(self._path)
        if data is None:
            return UserRules()
        try:
            stored = msgspec.json.decode(data, type=StoredUsers)
            return UserRules({user.username: _user(user, cipher) for user in stored.users})
        except (*UNREADABLE, ConfigError) as error:
            raise ConfigError(f"cannot use {self._path}: {error}; restore it from a backup") from None

    def save(self, rules: UserRules) -> None:
        """Raises ``ConfigError``."""
        cipher = self._open_cipher()
        users = [
            StoredUser(
                user.name,
                cipher.encrypt(user.password.encode(errors="surrogatepass")).decode(),
                user.kind.value,
                user.status.value,
                [
                    StoredEntry(
                        kind.value,
                        str(entry.resource),
                        sorted(verb.value for verb in entry.verbs),
                        entry.decision.value,
                        list(map(str, entry.sources)),
                    )
                    for kind, entries in user.policies.entries.items()
                    for entry in entries
                ],
            )
            for user in rules.users.values()
        ]
        data = msgspec.json.format(msgspec.json.encode(StoredUsers(users)))
        if len(data) > _FILE_BYTES_MAX:
            raise ConfigError(f"the users take {len(data)} bytes: expected at most {_FILE_BYTES_MAX}; delete some")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, data, mode=0o600)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from None

    def _open_cipher(self) -> Fernet:
        if self._cipher is None:
            try:
                from cryptography.fernet import Fernet
            except ImportError:
                raise ConfigError(
                    "authenticationEnabled=true needs the package cryptography: pip install ternmq[security]"
                ) from None
            key = _read_private(self._key_path)
            if key is None:
                if self._path.exists():
                    raise ConfigError(
                        f"the key {self._key_path} of {self._path} does not exist; restore it, or set authKeyPath to it"
                    )
                key = Fernet.generate_key()
                try:
                    self._key_path.parent.mkdir(parents=True, exist_ok=True)
                    replace_file(self._key_path, key, mode=0o600)
                except OSError as error:
                    raise ConfigError(f"cannot write {self._key_path}: {error.strerror}") from None
            try:
                self._cipher = Fernet(key)
            except ValueError:
                raise ConfigError(f"{self._key_path} is not a key of TernMQ; restore it from a backup") from None
        return self._cipher


def _user(stored: StoredUser, cipher: Fernet) -> User:
    from cryptography.fernet import InvalidToken

    try:
        password = cipher.decrypt(stored.encrypted_password.encode()).decode(errors="surrogatepass")
        kind, status = UserType(stored.user_type), UserStatus(stored.user_status)
        entries: dict[PolicyType, list[PolicyEntry]] = {}
        for entry in stored.entries:
            parsed = PolicyEntry.parse(entry.resource, entry.actions, entry.source_ips, entry.decision)
            entries.setdefault(PolicyType(entry.policy_type), []).append(parsed)
    except InvalidToken:
        raise ConfigError(f"the password of {stored.username!r} was encrypted with another key") from None
    except ValueError as error:
        raise ConfigError(f"the user {stored.username!r} is invalid: {error}") from None
    policies = Policies({kind: tuple(several) for kind, several in entries.items()})
    return User(stored.username, password, kind, status, policies)


def _read_private(path: Path) -> bytes | None:
    """A file of secrets; None if there is none. Raises ``ConfigError`` if other users can read it."""
    try:
        with open_regular(path) as file:
            mode = os.fstat(file.fileno()).st_mode
            if os.name == "posix" and mode & 0o077:
                raise ConfigError(f"other users of this machine can read the secrets in {path}; run `chmod 600` on it")
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path} is larger than {_FILE_BYTES_MAX} bytes; restore it from a backup")
    return data
