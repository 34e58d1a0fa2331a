"""Credentials of our clients: where they come from, and that they are shown nowhere (N1)."""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.cli import profiles
from ternmq.client.config import ClientConfig
from ternmq.config import Settings
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError
from ternmq.wire.requests_admin import UpdateAcl
from tests.auth.accounts import BOSS, SHOP, acl_in
from tests.auth.certificates import Certificates
from tests.cli.conftest import ENVIRONMENT, TERN
from tests.cli.conftest import tern as run_tern


def tern(*arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return run_tern(*arguments, stdin=b"", **environment)


SECRETS = (BOSS.secret_key, SHOP.secret_key)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    conf = acl_in(tmp_path / "conf")
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    with EmbeddedCluster(settings={"aclEnable": True, "aclPath": conf}) as cluster:
        yield cluster


def profile_file(tmp_path: Path, name_servers: str = "127.0.0.1:9876") -> Path:
    path = tmp_path / "profiles.toml"
    path.write_text(
        "".join(
            f'[{name}]\nname_servers = "{name_servers}"\n'
            f'access_key = "{one.access_key}"\nsecret_key = "{one.secret_key}"\n'
            for name, one in (("boss", BOSS), ("shop", SHOP))
        )
    )
    path.chmod(0o600)
    return path


# --- Where they come from -----------------------------------------------------------------------------------------


def test_credentials_are_given_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClientConfig("a:1").credentials() is None
    monkeypatch.setenv("TERNMQ_ACCESS_KEY", SHOP.access_key)
    monkeypatch.setenv("TERNMQ_SECRET_KEY", SHOP.secret_key)
    monkeypatch.setenv("TERNMQ_SECURITY_TOKEN", "token")

    by_environment, given = ClientConfig("a:1"), ClientConfig("a:1", access_key="other-key", secret_key="other-secret")

    assert dataclasses.replace(SHOP, security_token="token") == by_environment.credentials()
    assert given.credentials() is not None
    assert ("other-key", "other-secret", "") == (given.access_key, given.secret_key, given.security_token)


def test_half_of_them_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERNMQ_ACCESS_KEY", SHOP.access_key)

    for secret in ("", "other-secret"):
        with pytest.raises(ConfigError, match="is missing"):
            ClientConfig("a:1", secret_key=secret)


def test_a_profile_becomes_the_environment(tmp_path: Path) -> None:
    environ = {
        "TERNMQ_PROFILES": str(profile_file(tmp_path)),
        "TERNMQ_SECURITY_TOKEN": "of another account",
        "NAMESRV_ADDR": "elsewhere:1",
    }

    profiles.use("shop", environ)

    assert {
        "TERNMQ_PROFILES": environ["TERNMQ_PROFILES"],
        "NAMESRV_ADDR": "127.0.0.1:9876",
        "TERNMQ_ACCESS_KEY": SHOP.access_key,
        "TERNMQ_SECRET_KEY": SHOP.secret_key,
    } == environ


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        (None, 0o600, "there is no file of profiles"),
        ('[shop]\naccess_key = "k"', 0o644, "other users of this machine can read"),
        ('[shop]\naccess_key = "k"', 0o640, "run `chmod 600"),
        ('[other]\naccess_key = "k"', 0o600, "there is no profile 'shop' .*; it has: other"),
        ('[shop]\nsecret = "hidden-secret"', 0o600, "unknown key 'secret'"),
        ("[shop]\nsecret_key = 12345678", 0o600, "expected a text in quotes"),
        ("[shop]\nsecret_key = hidden-secret", 0o600, "is not valid TOML"),
        ("shop = 3", 0o600, "there is no profile"),
    ],
)
def test_a_profile_that_cannot_be_used_is_refused(tmp_path: Path, text: str | None, mode: int, sentence: str) -> None:
    path = tmp_path / "profiles.toml"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)

    with pytest.raises(ConfigError, match=sentence) as refused:
        profiles.use("shop", {"TERNMQ_PROFILES": str(path)})
    assert "hidden-secret" not in str(refused.value)


def test_the_program_uses_a_profile(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """N1: by option or variable, and by the variables of the keys."""
    file = {"TERNMQ_PROFILES": str(profile_file(tmp_path, cluster.name_servers))}
    keys = {
        "NAMESRV_ADDR": cluster.name_servers,
        "TERNMQ_ACCESS_KEY": BOSS.access_key,
        "TERNMQ_SECRET_KEY": BOSS.secret_key,
    }

    made = tern("--profile", "boss", "topic", "create", "orders", environment=file)
    sent = tern("--profile", "shop", "send", "orders", "hello", environment=file)
    refused = tern("send", "payments", "hello", environment=file | {"TERNMQ_PROFILE": "shop"})
    listed = tern("topic", "list", "--json", environment=keys)
    unsigned = tern("send", "orders", "hello", "-n", cluster.name_servers, environment={})

    assert [0, 0, 4, 0, 4] == [one.returncode for one in (made, sent, refused, listed, unsigned)], made.stderr
    assert "no permission for topic:'payments'" in refused.stderr
    assert "is not signed" in unsigned.stderr
    assert "orders" in listed.stdout


# --- Where they never are -----------------------------------------------------------------------------------------


def test_settings_do_not_take_up_secrets() -> None:
    given = Settings.gather(env={"TERNMQ_SECRET_KEY": "hidden", "TERNMQ_ACCESS_KEY": "key", "TERNMQ_LISTEN_PORT": "1"})

    assert ["listen_port"] == [setting.key for setting in given.given]


def test_settings_of_clients_do_not_show_secrets() -> None:
    config = ClientConfig("a:1", access_key="key", secret_key="hidden-1", security_token="hidden-2")

    assert "hidden" not in repr(config)
    assert "access_key='key'" in repr(config)


def test_secrets_are_in_no_output_of_a_full_run(tmp_path: Path) -> None:
    """N1: servers and commands as processes, at the most talkative level; logs, JSON, errors, command lines."""
    conf = acl_in(tmp_path / "conf")
    environment = ENVIRONMENT | {"TERNMQ_ACCESS_KEY": BOSS.access_key, "TERNMQ_SECRET_KEY": BOSS.secret_key}
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [
                *(TERN, "up", "--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0", "--json"),
                *("--log-level", "debug", "--set", "aclEnable=true", "--set", f"aclPath={conf}"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            env=environment,
        )
    assert up.stdout is not None
    output = [line := up.stdout.readline().decode()]
    try:
        ready = json.loads(line)
        name_servers = ready["name_server"]
        file = {"TERNMQ_PROFILES": str(profile_file(tmp_path, name_servers))}
        for arguments in (
            ("topic", "create", "orders"),
            ("topic", "list", "--json"),
            ("topic", "route", "orders", "--json"),
            ("send", "orders", "hello", "--debug"),
            ("group", "list", "--json"),
            ("topic", "delete", "missing", "--yes", "--debug"),
        ):
            for profile in ("boss", "shop"):
                done = tern("--profile", profile, *arguments, environment=file)
                output += [done.stdout, done.stderr]
        wrong = tern(
            "send",
            "orders",
            "x",
            "--debug",
            "-n",
            name_servers,
            environment={"TERNMQ_ACCESS_KEY": "boss-key", "TERNMQ_SECRET_KEY": "secret-of-nobody"},
        )
        output += [wrong.stdout, wrong.stderr]
        for pid in (up.pid, *ready["pids"].values()):
            output.append(Path(f"/proc/{pid}/cmdline").read_text())
    finally:
        up.terminate()
        output.append(up.communicate(timeout=40)[0].decode())
    output.append((tmp_path / "up.log").read_text())
    # What servers leave on the disk beside the file of accounts.
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20:
            output.append(path.read_text(errors="replace"))

    everything = "\n".join(output)
    assert "UPDATE_AND_CREATE_TOPIC on topic:'orders'" in everything, "the audit log is part of it"
    assert "denied" in everything
    assert [] == [secret for secret in (*SECRETS, "secret-of-nobody") if secret in everything]


def test_passwords_of_users_are_in_no_output_of_a_full_run(tmp_path: Path) -> None:
    """N1: users of 5.3's access control, made, changed and asked for, with TLS whose key has a password."""
    certificates = Certificates(tmp_path / "certs")
    key = tmp_path / "encrypted.key"
    files = ("-in", str(certificates / "server.key"), "-out", str(key), "-passout", "pass:secret-of-the-key")
    subprocess.run(["openssl", "pkcs8", "-topk8", *files], check=True, capture_output=True)
    settings = tmp_path / "broker.conf"
    settings.write_text(
        "authenticationEnabled=true\nauthorizationEnabled=true\n"
        'initAuthenticationUser={"username": "boss-key", "password": "secret-of-the-boss"}\n'
        'innerClientAuthenticationCredentials={"accessKey": "inner-key", "secretKey": "secret-of-the-inner"}\n'
        f"tls.server.mode=permissive\ntls.server.certPath={certificates / 'server.pem'}\n"
        f"tls.server.keyPath={key}\ntls.server.keyPassword=secret-of-the-key\n"
    )
    settings.chmod(0o600)
    with (tmp_path / "names.log").open("wb") as names_log, (tmp_path / "broker.log").open("wb") as broker_log:
        names = subprocess.Popen(
            [TERN, "namesrv", "-p", "0", "--json"], stdout=subprocess.PIPE, stderr=names_log, env=ENVIRONMENT
        )
        assert names.stdout is not None
        port = json.loads(names.stdout.readline())["name_server"].rpartition(":")[2]
        name_server = f"127.0.0.1:{port}"
        broker = subprocess.Popen(
            [
                *(TERN, "broker", "-c", str(settings), "-n", name_server, "--json", "--log-level", "debug"),
                *("--set", f"storePathRootDir={tmp_path / 'store'}", "--set", "listenPort=0"),
                *("--set", "brokerIP1=127.0.0.1"),
            ],
            stdout=subprocess.PIPE,
            stderr=broker_log,
            env=ENVIRONMENT,
        )
    assert broker.stdout is not None
    output = [broker.stdout.readline().decode()]
    password = tmp_path / "password"
    password.write_text("secret-of-the-shop")
    password.chmod(0o600)
    boss = {
        "NAMESRV_ADDR": name_server,
        "TERNMQ_ACCESS_KEY": BOSS.access_key,
        "TERNMQ_SECRET_KEY": BOSS.secret_key,
    }
    try:
        for arguments in (
            ("user", "create", "shop-key", "--password-file", str(password), "--json"),
            ("user", "create", "shop-key", "--password-file", str(password), "--debug"),
            ("user", "allow", "shop-key", "Topic:orders", "Pub", "--json"),
            ("user", "list", "--json"),
            ("user", "policies", "--json"),
            ("broker", "list", "--json"),
            ("topic", "create", "orders", "--debug"),
            ("send", "payments", "hello", "--debug"),
        ):
            done = tern(*arguments, environment=boss)
            output += [done.stdout, done.stderr]
        shop = boss | {"TERNMQ_ACCESS_KEY": SHOP.access_key, "TERNMQ_SECRET_KEY": SHOP.secret_key}
        sent, refused = (tern("send", topic, "x", "--debug", environment=shop) for topic in ("orders", "payments"))
        output += [sent.stdout, sent.stderr, refused.stdout, refused.stderr]
        output += [Path(f"/proc/{process.pid}/cmdline").read_text() for process in (names, broker)]
    finally:
        for process in (broker, names):
            process.terminate()
            output.append(process.communicate(timeout=40)[0].decode())
    output += [(tmp_path / name).read_text() for name in ("names.log", "broker.log")]
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.stat().st_size < 1 << 20:
            output.append(path.read_text(errors="replace"))

    everything = "\n".join(output)
    assert 0 == sent.returncode, sent.stderr
    assert "no permission for topic:'payments'" in refused.stderr
    assert "AUTH_CREATE_USER on user 'shop-key'" in everything, "the audit log is part of it"
    names_of_secrets = ("boss", "shop", "inner", "key")
    assert [] == [name for name in names_of_secrets if f"secret-of-the-{name}" in everything]


def test_a_password_in_a_file_that_an_option_names_is_in_no_argument(tmp_path: Path) -> None:
    """N1, N2: ``tern up`` starts its brokers with the options that it was given, and not with what it has read."""
    certificates = Certificates(tmp_path / "certs")
    key = tmp_path / "encrypted.key"
    files = ("-in", str(certificates / "server.key"), "-out", str(key), "-passout", "pass:secret-of-the-key")
    subprocess.run(["openssl", "pkcs8", "-topk8", *files], check=True, capture_output=True)
    file = certificates / "tls.properties"
    with file.open("a") as more:
        more.write(f"tls.server.keyPath={key}\ntls.server.keyPassword=secret-of-the-key\n")
    up = subprocess.Popen(
        [
            *(TERN, "up", "--dir", str(tmp_path / "data"), "--port", "0", "--broker-port", "0", "--json"),
            *("--set", f"tls.config.file={file}"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    try:
        assert up.stdout is not None
        pids = json.loads(up.stdout.readline())["pids"].values()
        arguments = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (up.pid, *pids)]
    finally:
        up.terminate()
        errors = up.communicate(timeout=40)[1].decode()

    assert "tls.config.file" in arguments[1], errors
    assert "secret-of-the-key" not in "".join(arguments)


def test_a_secret_that_others_can_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    private, public = tmp_path / "private.conf", tmp_path / "public.conf"
    for path, mode in ((private, 0o600), (public, 0o640)):
        path.write_text("brokerName=a\ntls.server.keyPassword=hidden-password\n")
        path.chmod(mode)

    Settings.gather(files=[private], flags=["brokerName=b"]).report_exposed(BrokerConfig)
    assert "" == caplog.text
    Settings.gather(files=[public]).report_exposed(BrokerConfig)
    assert f"can read tls.server.keyPassword ({public}, line 2); run `chmod 600` on the file" in caplog.text
    Settings.gather(flags=["tls.server.keyPassword=hidden-password"]).report_exposed(BrokerConfig)
    assert "can read tls.server.keyPassword in the list of processes" in caplog.text
    assert "hidden" not in caplog.text


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("tls.server.keyPassword hidden", "'tls.server.keyPassword …'"),
        ('"password": "hidden"}', "' …'"),
        ("init_authentication_user {hidden}", "'init_authentication_user …'"),
    ],
)
def test_a_line_that_is_no_setting_does_not_show_its_secret(tmp_path: Path, line: str, shown: str) -> None:
    """Java takes a blank for ``=``."""
    path = tmp_path / "broker.conf"
    path.write_text(f"{line}\n")

    with pytest.raises(ConfigError) as in_file:
        Settings.gather(files=[path])
    with pytest.raises(ConfigError) as in_flag:
        Settings.gather(flags=[line])

    assert f"line 1: invalid line {shown}: expected key=value" in str(in_file.value)
    assert f"invalid --set {shown}: expected" in str(in_flag.value)


def test_no_command_takes_a_secret_as_an_option() -> None:
    """Options are in the list of processes."""
    source = Path(profiles.__file__).parent
    option = re.compile(r'"(--[a-z-]*(?:secret|password)[a-z-]*)"')
    found = {name for path in source.rglob("*.py") for name in option.findall(path.read_text())}

    # The name of a file, and a switch.
    assert {"--password-file", "--new-password"} == found


def test_a_request_to_change_an_account_does_not_show_its_secret() -> None:
    assert "hidden" not in repr(UpdateAcl(access_key="shop-key", secret_key="hidden-secret"))
