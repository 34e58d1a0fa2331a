"""The ACL files of a server: all of them, as they change, and as administrators change them (N1)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ternmq.auth import acl_files
from ternmq.auth.acl_files import AclFiles
from ternmq.errors import ConfigError, InvalidParameter, NotFound


def account(key: str, secret: str = "some-secret") -> str:
    return f"- accessKey: {key}\n  secretKey: {secret}\n"


def write(path: Path, *accounts: str, before: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}accounts:\n{''.join(accounts)}" if accounts else f"{before}accounts: []\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def default(tmp_path: Path) -> Path:
    return write(tmp_path / "plain_acl.yml", account("first-key"))


def test_all_files_below_the_directory_count(tmp_path: Path, default: Path) -> None:
    write(tmp_path / "acl" / "team" / "a.yml", account("team-key"), before="globalWhiteRemoteAddresses: [10.1.1.1]\n")
    write(tmp_path / "acl" / "b.yaml", account("second-key"))
    write(tmp_path / "acl" / "notes.txt", account("ignored-key"))
    write(tmp_path / "tools.yml", account("ignored-key"))

    rules = AclFiles(tmp_path).load()

    assert {"first-key", "second-key", "team-key"} == rules.accounts.keys()
    assert rules.is_white("10.1.1.1")


def test_a_mounted_volume_counts_once_and_only_in_its_newest_version(tmp_path: Path, default: Path) -> None:
    """As Kubernetes mounts secrets: links to a link to a hidden directory, which is exchanged; the old one stays for a
    while. An editor leaves a link to nowhere."""
    volume = tmp_path / "acl"
    write(volume / "..2024_01" / "shop.yml", account("shop-key", "old-secret"), account("gone-key"))
    (volume / "..data").symlink_to("..2024_01")
    (volume / "shop.yml").symlink_to("..data/shop.yml")
    (volume / ".#shop.yml").symlink_to("nowhere")
    files = AclFiles(tmp_path)
    assert {"first-key", "shop-key", "gone-key"} == files.load().accounts.keys()

    write(volume / "..2024_02" / "shop.yml", account("shop-key", "new-secret"))
    assert files.reload() is None
    (volume / "..data_tmp").symlink_to("..2024_02")
    (volume / "..data_tmp").rename(volume / "..data")
    rules = files.reload()

    assert rules is not None
    assert {"first-key", "shop-key"} == rules.accounts.keys()
    assert "new-secret" == rules.accounts["shop-key"].secret_key


def test_a_change_goes_through_a_link_which_stays(tmp_path: Path) -> None:
    """Servers of one machine may share a file by links; what is changed on one must not part them."""
    shared = write(tmp_path / "shared" / "accounts.yml", account("first-key"))
    directories = tmp_path / "one", tmp_path / "two"
    for directory in directories:
        directory.mkdir()
        (directory / "plain_acl.yml").symlink_to(shared)
    one, two = map(AclFiles, directories)
    one.load()
    two.load()

    one.update({"accessKey": "first-key", "secretKey": "new-secret"}, now_ms=1)
    rules = two.reload()

    assert (directories[0] / "plain_acl.yml").is_symlink()
    assert rules is not None
    assert "new-secret" == rules.accounts["first-key"].secret_key
    assert 0o600 == shared.stat().st_mode & 0o777


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_what_is_no_file_is_refused_and_not_waited_for(
    tmp_path: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = AclFiles(tmp_path)
    files.load()
    (tmp_path / "acl").mkdir()
    os.mkfifo(tmp_path / "acl" / "pipe.yml")

    assert files.reload() is None
    assert "pipe.yml: it is not a regular file; the rules that were read before stay in force" in caplog.text
    with pytest.raises(ConfigError, match="not a regular file"):
        AclFiles(tmp_path).load()


def test_a_changed_file_that_others_can_read_is_named(
    tmp_path: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = AclFiles(tmp_path)
    files.load()
    assert "other users" not in caplog.text
    write(default, account("other-key")).chmod(0o644)

    assert files.reload() is not None
    assert "other users of this machine can read the secrets" in caplog.text


def test_of_two_files_with_one_key_the_default_file_counts(tmp_path: Path, default: Path) -> None:
    write(tmp_path / "acl" / "a.yml", account("first-key", "another-secret"))

    assert "some-secret" == AclFiles(tmp_path).load().accounts["first-key"].secret_key


def test_a_first_start_makes_a_file_that_admits_no_client(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert {} == AclFiles(tmp_path).load().accounts
    assert 0o600 == (tmp_path / "plain_acl.yml").stat().st_mode & 0o777
    assert "all requests are refused until you add one" in caplog.text


def test_a_start_without_the_directory_or_with_a_wrong_file_fails(tmp_path: Path, default: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        AclFiles(tmp_path / "nowhere").load()
    default.write_text("accounts: [")
    with pytest.raises(ConfigError, match=r"plain_acl\.yml: line 2: not valid YAML"):
        AclFiles(tmp_path).load()


def test_secrets_that_others_can_read_are_warned_of(
    tmp_path: Path, default: Path, caplog: pytest.LogCaptureFixture
) -> None:
    default.chmod(0o644)

    AclFiles(tmp_path).load()

    assert "other users of this machine can read the secrets" in caplog.text


# --- Changes of the files -----------------------------------------------------------------------------------------


def test_files_are_read_again_only_when_they_changed(tmp_path: Path, default: Path) -> None:
    files = AclFiles(tmp_path)
    files.load()

    assert files.reload() is None
    write(default, account("first-key"), account("other-key"))
    rules = files.reload()
    assert rules is not None
    assert {"first-key", "other-key"} == rules.accounts.keys()
    assert files.reload() is None


def test_files_may_come_and_go(tmp_path: Path, default: Path) -> None:
    files = AclFiles(tmp_path)
    files.load()
    more = write(tmp_path / "acl" / "a.yml", account("team-key"))

    came = files.reload()
    more.unlink()
    went = files.reload()

    assert came is not None
    assert went is not None
    assert [{"first-key", "team-key"}, {"first-key"}] == [came.accounts.keys(), went.accounts.keys()]


@pytest.mark.parametrize("text", ["accounts: [", "accounts:\n- accessKey: x\n", None])
def test_a_broken_file_keeps_the_old_rules_and_is_told_once(
    tmp_path: Path, default: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    files = AclFiles(tmp_path)
    files.load()
    if text is None:
        default.unlink()
    else:
        default.write_text(text)

    assert [None, None] == [files.reload(), files.reload()]
    assert 1 == caplog.text.count("the rules that were read before stay in force")
    # The others are still looked after, with the last good version of the broken one.
    write(tmp_path / "acl" / "a.yml", account("team-key"))
    rules = files.reload()
    assert rules is not None
    assert {"first-key", "team-key"} == rules.accounts.keys()
    write(default, account("repaired-key"))
    rules = files.reload()
    assert rules is not None
    assert {"repaired-key", "team-key"} == rules.accounts.keys()


# --- Changes by administrators ------------------------------------------------------------------------------------


def test_a_change_is_in_force_and_on_disk(tmp_path: Path, default: Path) -> None:
    files = AclFiles(tmp_path)
    files.load()

    rules = files.update({"accessKey": "other-key", "secretKey": "other-secret"}, now_ms=5)

    assert {"first-key", "other-key"} == rules.accounts.keys() == AclFiles(tmp_path).load().accounts.keys()
    assert files.reload() is None, "what was just written is not news"
    assert (1, 5) == (files.version.counter, files.version.timestamp)
    assert 0o600 == default.stat().st_mode & 0o777
    assert [] == list(tmp_path.glob("*.tmp"))


def test_an_account_is_changed_in_the_file_that_has_it(tmp_path: Path, default: Path) -> None:
    team = write(tmp_path / "acl" / "a.yml", account("team-key"))
    files = AclFiles(tmp_path)
    files.load()

    files.update({"accessKey": "team-key", "admin": True}, now_ms=5)

    assert "admin: true" in team.read_text()
    assert "team-key" not in default.read_text()
    assert "team-key" not in files.remove("team-key", now_ms=6).accounts
    assert "team-key" not in team.read_text()


def test_a_change_keeps_what_was_edited_by_hand_meanwhile(tmp_path: Path, default: Path) -> None:
    files = AclFiles(tmp_path)
    files.load()
    write(default, account("first-key"), account("edited-key"))

    rules = files.update({"accessKey": "other-key", "secretKey": "other-secret"}, now_ms=5)

    assert {"first-key", "edited-key", "other-key"} == rules.accounts.keys()


def test_a_change_that_fails_changes_nothing(tmp_path: Path, default: Path) -> None:
    files = AclFiles(tmp_path)
    files.load()
    before = default.read_bytes()

    with pytest.raises(ConfigError):
        files.update({"accessKey": "new-key-1", "secretKey": "short"}, now_ms=5)
    with pytest.raises(NotFound):
        files.remove("unknown-key", now_ms=5)

    assert before == default.read_bytes()


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.yml", "tools.yml"])
def test_white_lists_of_other_files_cannot_be_written(tmp_path: Path, default: Path, path: str) -> None:
    files = AclFiles(tmp_path)
    files.load()

    with pytest.raises(InvalidParameter, match="none of the ACL files"):
        files.set_white(["*"], Path(path), now_ms=5)
    assert files.set_white(["10.1.1.*"], None, now_ms=5).is_white("10.1.1.9")
    assert files.set_white(["10.1.2.*"], default, now_ms=6).is_white("10.1.2.9")


def test_too_many_files_are_refused(tmp_path: Path, default: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_files, "FILES_MAX", 2)
    for number in range(3):
        write(tmp_path / "acl" / f"{number}.yml")

    with pytest.raises(ConfigError, match="expected at most 2"):
        AclFiles(tmp_path).load()
