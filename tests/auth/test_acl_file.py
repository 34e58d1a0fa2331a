"""ACL files: read as RocketMQ reads them, refused when they are not clear, changed without loss (N1)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ternmq.auth import acl_file, yaml_text
from ternmq.auth.accounts import Permission
from ternmq.auth.acl_file import AclFile
from ternmq.errors import ConfigError
from ternmq.wire.bodies.topics import DataVersion

PUB, SUB, DENY = Permission.PUB, Permission.SUB, Permission.DENY

SAMPLE = b"""\
# Addresses that need no account.
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*

accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  groupPerms:
  - groupA=DENY

- accessKey: rocketmq2
  secretKey: "00012345678"
  whiteRemoteAddress: 192.168.1.*
  admin: true

dataVersion:
- counter: 3
  timestamp: 1700000000000
"""


def test_a_file_of_rocketmq_is_read() -> None:
    file = acl_file.read(SAMPLE)
    first, second = file.accounts

    assert ["10.10.103.*", "192.168.0.*"] == [pattern.text for pattern in file.white]
    assert ("RocketMQ", "12345678", "", False) == (
        first.access_key,
        first.secret_key,
        first.white.text,
        first.is_admin,
    )
    assert (DENY, SUB) == (first.default_topic, first.default_group)
    assert ({"topicA": DENY, "topicB": PUB | SUB}, {"groupA": DENY}) == (first.topics, first.groups)
    assert ("rocketmq2", "00012345678", "192.168.1.*", True) == (
        second.access_key,
        second.secret_key,
        second.white.text,
        second.is_admin,
    )
    assert DataVersion(counter=3, timestamp=1_700_000_000_000) == file.version


@pytest.mark.parametrize(
    "data", [b"", b"# nothing\n", b"---\n", b"accounts:\n", b"accounts: []\n", b"{}", b"\xef\xbb\xbf"]
)
def test_a_file_without_accounts_admits_no_client(data: bytes) -> None:
    file = acl_file.read(data)

    assert ((), ()) == (file.accounts, file.white)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"accounts: [", "line 2: not valid YAML"),
        (b"accounts: 3", "invalid accounts: expected a list"),
        (b"- accessKey: x", "expected a map"),
        (b"a\n---\nb", "line 2: a second document begins"),
        (b"\xff", "not UTF-8"),
        (b"acounts: []", "unknown key 'acounts'"),
        (
            b"accounts:\n- accessKey: shop-key\n  secretKey: shop-secret\n  amin: true",
            "unknown key 'amin' in account 1",
        ),
        (b"accounts:\n- accessKey: shop-key", "account 1: invalid secretKey of 'shop-key'"),
        (b"accounts:\n- secretKey: shop-secret", "account 1: invalid accessKey"),
        (b"accounts:\n- accessKey: shop-key\n  secretKey: shop-secret\n  admin: maybe", "expected true or false"),
        (
            b"accounts:\n- accessKey: shop-key\n  secretKey: shop-secret\n  topicPerms: [orders]",
            "invalid entry of topicPer",
        ),
        (b"accounts:\n- accessKey: shop-key\n  secretKey: shop-secret\n  topicPerms: orders=PUB", "expected a list"),
        (b"accounts:\n- accessKey: [shop-key]\n  secretKey: shop-secret", "expected a text"),
        (b"accounts:\n- accessKey: shop-key\n  secretKey: shop-secret\n  whiteRemoteAddress: 10.1", "invalid address"),
        (b"globalWhiteRemoteAddresses: [nowhere]", "invalid address pattern"),
        (b"accounts: &all []", "anchors"),
        (b"accounts: *all", "aliases"),
        (b"accounts: !!python/object/apply:os.system [ls]", "tags"),
        (b"accounts: []\naccounts: []", "the key 'accounts' occurs twice"),
        (b"? [a]\n: b", "a key is not a text"),
        (b"a: " + b"[" * 20 + b"]" * 20, "nested more than"),
        (b"[" * 100_000, "nested more than"),
        (b"#" * (yaml_text.FILE_BYTES_MAX + 1), "expected at most"),
        (
            b"globalWhiteRemoteAddresses:" + 30 * (b"\n- " + b",".join([b"10.1.2.3"] * 400)),
            "it has 12000 addresses, expected at most 10000",
        ),
        (b"dataVersion: [{counter: x}]", "invalid dataVersion"),
        (b"dataVersion: [{counter: " + b"9" * 5000 + b"}]", "invalid dataVersion"),
        (
            b"accounts:" + 2 * b"\n- {accessKey: shop-key, secretKey: shop-secret}",
            "the accessKey 'shop-key' occurs twice",
        ),
    ],
)
def test_a_file_that_is_not_clear_is_refused_with_the_reason(data: bytes, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence.replace("[", r"\[")) as refused:
        acl_file.read(data)
    assert "shop-secret" not in str(refused.value)


@given(st.binary(max_size=200) | st.text("accountsKey:-[]{}&*!|>'\"#,= \n\t0123", max_size=80).map(str.encode))
@example(b"accounts: !")
@example(b"- \t")
@example(b"%YAML 9.9\n---\n")
@example(b"%TAG ! x\n--- !y")
@example(b"\x00")
@example(b"accounts:\n- accessKey: \xed\xa0\x80")
def test_any_bytes_are_a_file_or_refused(data: bytes) -> None:
    """Fuzz: no other error, nothing that takes long."""
    try:
        file = acl_file.read(data)
    except ConfigError:
        return
    assert isinstance(file, AclFile)


# --- Changes ----------------------------------------------------------------------------------------------------


def again(file: AclFile) -> AclFile:
    """The file as a start would read it."""
    return acl_file.read(acl_file.written(file))


def test_a_new_account_is_added_and_the_rest_stays() -> None:
    before = acl_file.read(SAMPLE)

    after = again(acl_file.updated(before, {"accessKey": "shop-key", "secretKey": "012345678"}, now_ms=7))

    assert ["RocketMQ", "rocketmq2", "shop-key"] == [account.access_key for account in after.accounts]
    assert before.accounts[0].topics == after.accounts[0].topics
    assert ["12345678", "00012345678", "012345678"] == [account.secret_key for account in after.accounts]
    assert [False, True, False] == [account.is_admin for account in after.accounts]
    assert before.white == after.white
    assert DataVersion(counter=4, timestamp=7) == after.version


def test_only_the_given_fields_of_an_account_change() -> None:
    changes = {"accessKey": "RocketMQ", "admin": True, "topicPerms": ["topicC=PUB"]}

    after = again(acl_file.updated(acl_file.read(SAMPLE), changes, now_ms=7)).accounts[0]

    assert ("12345678", True, SUB) == (after.secret_key, after.is_admin, after.default_group)
    assert ({"topicC": PUB}, {"groupA": DENY}) == (after.topics, after.groups)


def test_an_account_is_removed() -> None:
    after = again(acl_file.removed(acl_file.read(SAMPLE), "RocketMQ", now_ms=7))

    assert ["rocketmq2"] == [account.access_key for account in after.accounts]


def test_white_addresses_are_replaced() -> None:
    after = again(acl_file.with_white(acl_file.read(SAMPLE), ["10.1.2.{3,4}"], now_ms=7))

    assert ["10.1.2.{3,4}"] == [pattern.text for pattern in after.white]


@pytest.mark.parametrize(
    "changes",
    [{"accessKey": "new-key", "secretKey": "short"}, {"accessKey": "RocketMQ", "whiteRemoteAddress": "nowhere"}],
)
def test_a_change_that_could_not_be_read_again_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        acl_file.updated(acl_file.read(SAMPLE), changes, now_ms=7)


KEYS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=7, max_size=20).filter(
    lambda text: len(text.strip()) >= 7
)


@given(KEYS, KEYS)
def test_every_key_and_secret_is_kept_as_it_is(key: str, secret: str) -> None:
    """A secret that looks like a number, a date or a flag of YAML must stay a text."""
    file = acl_file.updated(AclFile(), {"accessKey": key.strip(), "secretKey": secret.strip()}, now_ms=7)

    [account] = again(again(file)).accounts
    assert (key.strip(), secret.strip()) == (account.access_key, account.secret_key)


def test_the_text_of_a_file_in_memory_shows_no_secret() -> None:
    file = acl_file.read(b"accounts:\n- {accessKey: shop-key, secretKey: hidden-secret}\n")

    assert "shop-key" in repr(file)
    assert "hidden-secret" not in repr(file)
