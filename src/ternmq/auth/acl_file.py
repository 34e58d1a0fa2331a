"""An ACL file of RocketMQ: its text as accounts and white lists, and changes of it (N1).

::

    globalWhiteRemoteAddresses:         # need no account
      - 10.10.103.*
    accounts:
      - accessKey: shop-key             # longer than 6 characters, as the secret
        secretKey: 12345678
        whiteRemoteAddress: 192.168.0.* # from there, the key alone will do
        admin: false
        defaultTopicPerm: DENY          # DENY, PUB, SUB, PUB|SUB
        defaultGroupPerm: SUB
        topicPerms: [orders=PUB|SUB]
        groupPerms: [billing=DENY]
    dataVersion:                        # kept by the broker
      - counter: 1
        timestamp: 1700000000000

``read`` is strict: what is not understood is an error with the account that it is in, never a guess. An unknown key is
an error, too, as a misspelt ``whiteRemoteAdress`` or ``amin`` would otherwise do nothing. ``update``, ``remove`` and
``set_white`` make the document of a changed file; comments are lost, as they are with RocketMQ.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ternmq.auth import yaml_text
from ternmq.auth.accounts import Account, Permission
from ternmq.auth.addresses import AddressPattern
from ternmq.auth.yaml_text import Value
from ternmq.errors import ConfigError
from ternmq.wire.bodies.topics import DataVersion

ACCOUNTS_MAX: Final = 10_000
ENTRIES_MAX: Final = 10_000
_NAME_LENGTH_MAX: Final = 255

WHITE: Final = "globalWhiteRemoteAddresses"
ACCOUNTS: Final = "accounts"
VERSION: Final = "dataVersion"
_KEYS: Final = frozenset({WHITE, ACCOUNTS, VERSION})
#: In the order in which they are written.
ACCOUNT_KEYS: Final = (
    "accessKey",
    "secretKey",
    "whiteRemoteAddress",
    "admin",
    "defaultTopicPerm",
    "defaultGroupPerm",
    "topicPerms",
    "groupPerms",
)
_YES_NO: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_LISTS: Final = frozenset({"topicPerms", "groupPerms"})


@dataclass(slots=True, frozen=True)
class AclFile:
    """What one file says."""

    accounts: tuple[Account, ...] = ()
    white: tuple[AddressPattern, ...] = ()
    version: DataVersion = DataVersion()  # noqa: RUF009 - frozen
    #: As it stands there, for changes; with the secrets.
    document: Mapping[str, Value] | None = field(default=None, repr=False)


def read(data: bytes) -> AclFile:
    """Raises ``ConfigError`` that says what is wrong and where."""
    document = yaml_text.parse(data)
    if document is None:
        return AclFile()
    if not isinstance(document, dict):
        raise ConfigError(f"expected a map with {', '.join(sorted(_KEYS))}")
    _check_keys(document, _KEYS, "the file")
    accounts = tuple(_account(item, number) for number, item in enumerate(_list(document.get(ACCOUNTS), ACCOUNTS), 1))
    if len(accounts) > ACCOUNTS_MAX:
        raise ConfigError(f"the file has {len(accounts)} accounts: expected at most {ACCOUNTS_MAX}")
    for key, count in Counter(account.access_key for account in accounts).items():
        if count > 1:
            raise ConfigError(f"the accessKey {key!r} occurs twice")
    white = tuple(AddressPattern.parse(_text(one, WHITE)) for one in _list(document.get(WHITE), WHITE))
    addresses = sum(pattern.count for pattern in white)
    if addresses > ENTRIES_MAX:
        # Each client that connects is compared with all of them, on the loop.
        raise ConfigError(f"invalid {WHITE}: it has {addresses} addresses, expected at most {ENTRIES_MAX}; use ranges")
    return AclFile(accounts, white, _version(document.get(VERSION)), document)


def updated(file: AclFile, changes: Mapping[str, object], *, now_ms: int) -> AclFile:
    """The file with one account made or changed; keys that ``changes`` does not have stay as they are."""
    document, accounts = _copied(file)
    key = changes["accessKey"]
    for account in accounts:
        if account.get("accessKey") == key:
            account.update(changes)
            break
    else:
        accounts.append(dict(changes))
    return _changed(document, accounts, file.version, now_ms)


def removed(file: AclFile, access_key: str, *, now_ms: int) -> AclFile:
    """The file without an account."""
    document, accounts = _copied(file)
    accounts = [account for account in accounts if account.get("accessKey") != access_key]
    return _changed(document, accounts, file.version, now_ms)


def with_white(file: AclFile, patterns: Sequence[str], *, now_ms: int) -> AclFile:
    """The file with other addresses that need no account."""
    document, accounts = _copied(file)
    document[WHITE] = list(patterns)
    return _changed(document, accounts, file.version, now_ms)


def written(file: AclFile) -> bytes:
    """The text of a file."""
    return yaml_text.dump(file.document if file.document is not None else {})


# --- Changing -------------------------------------------------------------------------------------------------


def _copied(file: AclFile) -> tuple[dict[str, object], list[dict[str, object]]]:
    document: dict[str, object] = dict(file.document or {})
    items = document.get(ACCOUNTS) or []
    assert isinstance(items, list)
    return document, [_with_types(item) for item in items]


def _with_types(item: Mapping[str, Value]) -> dict[str, object]:
    """An account as it is written: ``admin`` is no text."""
    account: dict[str, object] = dict(item)
    if "admin" in account:
        account["admin"] = _flag(item["admin"])
    return account


def _changed(
    document: dict[str, object], accounts: list[dict[str, object]], version: DataVersion, now_ms: int
) -> AclFile:
    new: dict[str, object] = {WHITE: document.get(WHITE) or []}
    new[ACCOUNTS] = [
        {key: account[key] for key in ACCOUNT_KEYS if account.get(key) is not None} for account in accounts
    ]
    new[VERSION] = [{"counter": version.counter + 1, "timestamp": now_ms}]
    # What is written must be what a start would read.
    data = yaml_text.dump(new)
    file = read(data)
    return AclFile(file.accounts, file.white, file.version, new)  # type: ignore[arg-type]  # flags and numbers as such


# --- Reading --------------------------------------------------------------------------------------------------


def _account(item: Value, number: int) -> Account:
    where = f"account {number}"
    if not isinstance(item, dict):
        raise ConfigError(f"{where}: expected a map with accessKey and secretKey")
    _check_keys(item, frozenset(ACCOUNT_KEYS), where)
    try:
        return Account(
            _text(item.get("accessKey"), "accessKey"),
            _text(item.get("secretKey"), "secretKey"),
            AddressPattern.parse(_text(item.get("whiteRemoteAddress"), "whiteRemoteAddress")),
            is_admin=_flag(item.get("admin")),
            default_topic=Permission.parse(_text(item.get("defaultTopicPerm"), "defaultTopicPerm")),
            default_group=Permission.parse(_text(item.get("defaultGroupPerm"), "defaultGroupPerm")),
            topics=_permissions(item.get("topicPerms"), "topicPerms"),
            groups=_permissions(item.get("groupPerms"), "groupPerms"),
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _permissions(value: Value, key: str) -> dict[str, Permission]:
    """``name=PERM`` entries. As in RocketMQ, an unknown permission denies; an entry without one is an error."""
    table: dict[str, Permission] = {}
    for item in _list(value, key):
        name, equals, permission = _text(item, key).partition("=")
        name = name.strip()
        if not equals or not 0 < len(name) <= _NAME_LENGTH_MAX:
            raise ConfigError(
                f"invalid entry of {key} {_text(item, key)[:80]!r}: expected name=PUB, SUB, PUB|SUB or DENY"
            )
        table[name] = Permission.parse(permission)
    return table


def _flag(value: Value) -> bool:
    if value is None:
        return False
    flag = _YES_NO.get(value.lower()) if isinstance(value, str) else value if isinstance(value, bool) else None
    if flag is None:
        raise ConfigError("invalid admin: expected true or false")
    return flag


def _version(value: Value) -> DataVersion:
    items = _list(value, VERSION)
    if not items:
        return DataVersion()
    item = items[0]
    if not isinstance(item, dict):
        raise ConfigError(f"invalid {VERSION}: expected a list with one map")
    try:
        return DataVersion(counter=_number(item.get("counter")), timestamp=_number(item.get("timestamp")))
    except ValueError:
        raise ConfigError(f"invalid {VERSION}: expected whole numbers as counter and timestamp") from None


def _number(value: Value) -> int:
    text = _text(value, VERSION) or "0"
    if len(text) > 19 or not text.isdecimal() or not text.isascii():
        raise ValueError
    return int(text)


def _check_keys(table: Mapping[str, Value], known: frozenset[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise ConfigError(f"unknown key {key[:40]!r} in {where}: expected {', '.join(sorted(known))}")


def _list(value: Value, key: str) -> list[Value]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"invalid {key}: expected a list")
    if len(value) > ENTRIES_MAX:
        raise ConfigError(f"invalid {key}: it has {len(value)} entries, expected at most {ENTRIES_MAX}")
    return value


def _text(value: Value, key: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"invalid {key}: expected a text")
    return value.strip()
