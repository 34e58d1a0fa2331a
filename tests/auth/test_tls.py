"""TLS of brokers, name servers and clients, by settings (B4, N2)."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ternmq.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.cli import certs
from ternmq.client.config import ClientConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.config import Settings, load, to_properties
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NetworkError, NoPermission
from ternmq.message import Message, ReceivedMessage
from ternmq.net.endpoint import dial_blocking
from ternmq.net.gate import CallingPeer, Rule
from ternmq.net.tls import ClientAuth, TlsConfig, TlsMode
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.frame import encode_request
from ternmq.wire.header import Fields, Request
from tests.auth.certificates import Certificates
from tests.broker import calls
from tests.cli.conftest import tern


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "dev")


@asynccontextmanager
async def cluster(
    certificates: Certificates, mode: str = "enforcing", **more: object
) -> AsyncIterator[EmbeddedCluster]:
    """Name server and broker with TLS, which the broker uses to register, too."""
    settings = {
        "tls.server.mode": mode,
        "tls.server.certPath": certificates / "server.pem",
        "tls.server.keyPath": certificates / "server.key",
        "tls.enable": mode != "disabled",
        "tls.client.trustCertPath": certificates / "ca.pem",
        "aclReloadInterval": 100,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    async with EmbeddedCluster(settings=settings) as running:
        yield running


async def journey(config: ClientConfig, topic: str = "orders") -> bytes:
    """A topic made, a message sent and received."""
    seen: asyncio.Queue[ReceivedMessage] = asyncio.Queue()

    async def listen(message: ReceivedMessage) -> None:
        await seen.put(message)

    async with Admin(config=config) as admin:
        await admin.topics.create(topic, queues=1)
    async with (
        Producer("shop", client=config) as producer,
        PushConsumer("billing", listen, client=config, start=StartPosition.FIRST) as consumer,
    ):
        consumer.subscribe(topic)
        await producer.send(Message(topic, b"x" * 100_000))
        return (await asyncio.wait_for(seen.get(), 60)).body


async def test_a_cluster_and_its_clients_speak_tls(certificates: Certificates) -> None:
    async with cluster(certificates) as running:
        config = ClientConfig(running.name_servers, tls=certificates.client())
        assert b"x" * 100_000 == await journey(config)


async def test_a_permissive_port_serves_both(certificates: Certificates) -> None:
    async with cluster(certificates, "permissive") as running:
        await journey(ClientConfig(running.name_servers, tls=certificates.client()), "with-tls")
        await journey(ClientConfig(running.name_servers), "plain")


async def test_plain_clients_of_a_tls_port_are_named_at_both_ends(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(certificates) as running:
        with pytest.raises(NetworkError, match="whether it needs TLS"):
            async with Producer("shop", name_servers=running.name_servers) as producer:
                await producer.send(Message("orders", b"1"))

    assert "this port needs TLS" in caplog.text


async def test_tls_clients_of_a_plain_port_are_named_at_both_ends(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async with cluster(certificates, "disabled") as running:
        config = ClientConfig(running.name_servers, tls=certificates.client())
        with pytest.raises(NetworkError, match="check that this port speaks TLS"):
            async with Producer("shop", client=config) as producer:
                await producer.send(Message("orders", b"1"))
        address = running.name_servers
        with pytest.raises(NetworkError, match="check that this port speaks TLS"):
            await asyncio.to_thread(dial_blocking, address, config.tls_context(), timeout_ms=60_000)

    assert "the peer speaks TLS, which this port does not" in caplog.text


async def test_a_certificate_that_is_not_trusted_is_refused(certificates: Certificates, tmp_path: Path) -> None:
    other = Certificates(tmp_path / "other")
    async with cluster(certificates) as running:
        for tls in (other.client(), TlsConfig()):
            with pytest.raises(NetworkError, match="check that the certificate is trusted here"):
                async with Admin(config=ClientConfig(running.name_servers, tls=tls)) as admin:
                    await admin.topics.create("orders")
        unchecked = ClientConfig(running.name_servers, tls=TlsConfig(verify=False))
        assert b"x" * 100_000 == await journey(unchecked)


async def test_a_certificate_must_be_for_the_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "_LOCAL", ("10.0.0.9",))
    elsewhere = Certificates(tmp_path / "elsewhere")
    async with cluster(elsewhere, "permissive", tls__enable=False) as running:
        checked = ClientConfig(running.name_servers, tls=elsewhere.client())
        with pytest.raises(NetworkError, match="is for this address"):
            await journey(checked)
        await journey(ClientConfig(running.name_servers, tls=elsewhere.client(check_hostname=False)))


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3_are_spoken_and_nothing_older(
    certificates: Certificates, version: ssl.TLSVersion
) -> None:
    async with cluster(certificates) as running:
        context = certificates.client().context()
        context.minimum_version = context.maximum_version = version
        connection = await asyncio.to_thread(dial_blocking, running.name_servers, context, timeout_ms=60_000)
        with connection:
            assert isinstance(connection, ssl.SSLSocket)
            assert version.name.replace("_", ".") == connection.version()
    assert certificates.client().context().minimum_version is ssl.TLSVersion.TLSv1_2


# --- Certificates of clients ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "without"), [("require", False), ("optional", True), ("none", True)])
async def test_clients_show_certificates_if_they_are_asked(
    certificates: Certificates, tmp_path: Path, asked: str, without: bool
) -> None:
    other = Certificates(tmp_path / "other")
    stranger = TlsConfig(
        ca_file=str(certificates / "ca.pem"), cert_file=str(other / "client.pem"), key_file=str(other / "client.key")
    )
    settings: dict[str, Any] = {
        "tls__server__need__client__auth": asked,
        "tls__server__trustCertPath": certificates / "ca.pem",
        "tls__client__certPath": certificates / "client.pem",
        "tls__client__keyPath": certificates / "client.key",
    }
    async with cluster(certificates, **settings) as running:
        names = running.name_servers
        assert b"x" * 100_000 == await journey(ClientConfig(names, tls=certificates.client(shows=True)))
        for tls, is_served in ((certificates.client(), without), (stranger, asked == "none")):
            try:
                async with Admin(config=ClientConfig(names, tls=tls)) as admin:
                    await admin.brokers.all()
            except NetworkError:
                assert not is_served
            else:
                assert is_served


_SUBJECTS: list[object] = []


def noting_certificates() -> Any:
    """A factory of a validator that goes by the certificates of clients."""

    def check(caller: CallingPeer, _request: Request[Any], _fields: Fields, _rule: Rule) -> None:
        _SUBJECTS.append(caller.certificate.get("subject"))
        if not caller.certificate:
            raise NoPermission("show a certificate")

    return check


async def test_validators_know_the_certificates_of_clients(certificates: Certificates, tmp_path: Path) -> None:
    """N1: who calls is a key, a certificate or an address."""
    given = certificates.server(
        tls_server_need_client_auth=ClientAuth.OPTIONAL, auth_validators=f"{__name__}:noting_certificates"
    )
    given["tls_server_mode"] = TlsMode.ENFORCING
    async with Broker(calls.settings(**given), calls.small_store(tmp_path / "store")) as broker:
        answers = []
        for shows in (True, False):
            context = certificates.client(shows=shows).context()
            with await asyncio.to_thread(dial_blocking, broker.address, context, timeout_ms=60_000) as one:
                one.sendall(b"".join(encode_request(Code.GET_BROKER_RUNTIME_INFO, opaque=1)))
                answers.append(await asyncio.to_thread(one.recv, 1 << 16))

    assert [False, True] == [b"show a certificate" in answer for answer in answers]
    assert "commonName" in str(_SUBJECTS[0])
    assert _SUBJECTS[-1] is None


# --- Reload ---------------------------------------------------------------------------------------------------------


def shown(address: str) -> bytes:
    """The certificate that a port shows."""
    context = TlsConfig(verify=False).context()
    with dial_blocking(address, context, timeout_ms=60_000) as connection:
        assert isinstance(connection, ssl.SSLSocket)
        return connection.getpeercert(binary_form=True) or b""


async def test_a_new_certificate_is_used_without_a_restart(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after one that does not fit its key, which changes nothing."""
    used, new = Certificates(tmp_path / "used"), Certificates(tmp_path / "new")
    async with cluster(used) as running:
        # Each server looks at the files for itself.
        addresses = (running.name_servers, running.brokers[0].address)
        before = await asyncio.to_thread(shown, addresses[0])
        config = ClientConfig(running.name_servers, tls=used.client())
        async with Producer("shop", client=config) as open_before:
            await open_before.send(Message("orders", b"1"))

            shutil.copy(new / "server.pem", used / "server.pem")
            async with asyncio.timeout(60):
                while caplog.text.count("stays in use") < len(addresses):
                    await asyncio.sleep(0.01)
            for address in addresses:
                assert before == await asyncio.to_thread(shown, address)
            shutil.copy(new / "server.key", used / "server.key")
            async with asyncio.timeout(60):
                for address in addresses:
                    while before == await asyncio.to_thread(shown, address):
                        await asyncio.sleep(0.01)

            await open_before.send(Message("orders", b"2"))
        await journey(ClientConfig(running.name_servers, tls=new.client()), "afterwards")


async def test_certificates_are_exchanged_under_load_and_no_client_notices(tmp_path: Path) -> None:
    """N2: two authorities in turns, file by file, so that certificate and key do not fit for a while. An open
    connection sends on; new ones open all the time, and check what they are shown."""
    used, pair = Certificates(tmp_path / "used"), [Certificates(tmp_path / name) for name in ("one", "two")]
    trusted = tmp_path / "both.pem"
    trusted.write_text("".join((each / "ca.pem").read_text() for each in (used, *pair)))
    checking = TlsConfig(ca_file=str(trusted))
    counts = {"sent": 0, "opened": 0}
    async with cluster(used, tls__client__trustCertPath=trusted) as running:
        address, ended = running.brokers[0].address, asyncio.Event()
        config = ClientConfig(running.name_servers, tls=checking)

        async def send() -> None:
            async with Producer("shop", client=config) as producer:
                while not ended.is_set():
                    await producer.send(Message("orders", b"x" * 10_000))
                    counts["sent"] += 1

        async def open_more() -> None:
            while not ended.is_set():
                one = await asyncio.to_thread(dial_blocking, address, checking.context(), timeout_ms=60_000)
                one.close()
                counts["opened"] += 1

        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            tasks.create_task(open_more())
            for number in range(6):
                before, counted = await asyncio.to_thread(shown, address), dict(counts)
                for name in ("server.pem", "server.key"):
                    shutil.copy(pair[number % 2] / name, used / name)
                    while any(counts[what] < count + 3 for what, count in counted.items()):
                        await asyncio.sleep(0.01)
                    counted = dict(counts)
                while before == await asyncio.to_thread(shown, address):
                    await asyncio.sleep(0.01)
            ended.set()

        async with Admin(config=config) as admin:
            assert counts["sent"] == sum(queue.max_offset for queue in await admin.topics.status("orders"))


# --- Settings -------------------------------------------------------------------------------------------------------


def test_the_names_of_rocketmq_are_understood(certificates: Certificates, tmp_path: Path) -> None:
    """N2: in a file of their own, a file of all settings, a table, a variable, a flag."""
    server, key = certificates / "server.pem", certificates / "server.key"
    lines = f"tls.server.mode=permissive\ntls.server.certPath={server}\ntls.server.keyPath={key}\n"
    (tmp_path / "tls.properties").write_text(lines)
    (tmp_path / "broker.conf").write_text(f"brokerName=a\n{lines}")
    (tmp_path / "tern.toml").write_text(
        f'["tls.server"]\nmode = "permissive"\ncertPath = "{server}"\nkeyPath = "{key}"\n'
    )
    variables = {
        "TERNMQ_TLS_SERVER_MODE": "permissive",
        "TERNMQ_TLS_SERVER_CERT_PATH": str(server),
        "TERNMQ_TLS_SERVER_KEY_PATH": str(key),
    }
    sources: list[dict[str, Any]] = [
        {"flags": [f"tls.config.file={tmp_path / 'tls.properties'}"]},
        {"env": {"TERNMQ_TLS_CONFIG_FILE": str(tmp_path / "tls.properties")}},
        {"files": [tmp_path / "broker.conf"]},
        {"files": [tmp_path / "tern.toml"]},
        {"env": variables},
        {"flags": lines.split()},
    ]

    for source in sources:
        config = load(BrokerConfig, **source)
        assert (TlsMode.PERMISSIVE, server, key) == (
            config.tls_server_mode,
            config.tls_server_cert_path,
            config.tls_server_key_path,
        )


def test_the_file_that_certs_dev_makes_is_complete(
    certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    config = load(BrokerConfig, flags=[f"tls.config.file={certificates / 'tls.properties'}"])

    assert TlsMode.ENFORCING is config.tls_server_mode
    assert config.tls_enable
    assert config.server_tls() is not None
    assert [] == caplog.records


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"tls_server_mode": TlsMode.ENFORCING}, r"needs tls\.server\.certPath"),
        ({"tls_server_mode": TlsMode.ENFORCING, "tls_test_mode_enable": True}, "is not supported"),
        (
            {
                "tls_server_mode": TlsMode.ENFORCING,
                "tls_server_cert_path": Path("a"),
                "tls_server_key_path": Path("b"),
                "tls_server_need_client_auth": ClientAuth.REQUIRE,
            },
            r"needs tls\.server\.trustCertPath",
        ),
    ],
)
def test_settings_that_are_not_complete_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        BrokerConfig(**settings)


async def test_files_that_cannot_be_used_stop_the_start(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    for wrong, sentence in (
        ({"tls_server_cert_path": tmp_path / "nowhere"}, "No such file"),
        ({"tls_server_cert_path": tmp_path / "text"}, "no start line|not in PEM form"),
        ({"tls_server_key_path": certificates / "client.key"}, "key values mismatch"),
    ):
        given = certificates.server(tls_server_mode=TlsMode.ENFORCING) | wrong
        del given["tls_client_trust_cert_path"]
        with pytest.raises(ConfigError, match=sentence):
            await Broker(calls.settings(**given), calls.small_store(tmp_path / "store")).__aenter__()


@pytest.fixture
def encrypted_key(certificates: Certificates, tmp_path: Path) -> Path:
    key = tmp_path / "encrypted.key"
    files = ("-in", str(certificates / "server.key"), "-out", str(key), "-passout", "pass:hidden-password")
    subprocess.run(["openssl", "pkcs8", "-topk8", *files], check=True, capture_output=True)
    return key


async def test_an_encrypted_key_needs_its_password_which_is_shown_nowhere(
    certificates: Certificates, encrypted_key: Path, tmp_path: Path
) -> None:
    key = encrypted_key
    given = certificates.server(tls_server_mode=TlsMode.PERMISSIVE, tls_server_key_path=key)
    with pytest.raises(ConfigError, match="cannot load the certificate"):
        BrokerConfig(**given).server_tls()
    config = calls.settings(**given, tls_server_key_password="hidden-password")
    async with (
        Broker(config, calls.small_store(tmp_path / "store")) as broker,
        calls.dialled(broker.address) as caller,
    ):
        told = await caller.call(Code.GET_BROKER_CONFIG)

    assert b"tls.server.mode=PERMISSIVE" in bytes(told.body)
    for text in (bytes(told.body).decode(), repr(config), to_properties(config)):
        assert "hidden-password" not in text


def test_clients_take_tls_from_the_environment(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ClientConfig("a:1").tls_context() is None
    assert ClientConfig("a:1", tls=True).tls == TlsConfig()
    monkeypatch.setenv("TERNMQ_TLS", "true")
    monkeypatch.setenv("TERNMQ_TLS_CA", str(certificates / "ca.pem"))
    monkeypatch.setenv("TERNMQ_TLS_KEY_PASSWORD", "hidden")

    config = ClientConfig("a:1")

    assert certificates.client(key_password="hidden") == config.tls
    assert "hidden" not in repr(config)
    assert ClientConfig("a:1", tls=False).tls_context() is None
    assert [] == list(Settings.gather(env={"TERNMQ_TLS": "true", "TERNMQ_TLS_CA": "x"}).given)
    monkeypatch.setenv("TERNMQ_TLS", "maybe")
    with pytest.raises(ConfigError, match="expected true or false"):
        ClientConfig("a:1")


# --- tern certs dev -------------------------------------------------------------------------------------------------


def test_certificates_are_made_by_the_program_and_never_overwritten(tmp_path: Path) -> None:
    """N2: keys are for their owner only, and the certificate has the addresses that were asked for."""
    directory = tmp_path / "certs"
    arguments = ("certs", "dev", "--dir", str(directory), "--host", "10.0.0.1", "--host", "broker.example", "--json")

    made, again = tern(*arguments), tern(*arguments)
    days, host = tern(*arguments[:4], "--days", "0"), tern("certs", "dev", "--dir", str(tmp_path / "x"), "--host", "ü")

    assert 0 == made.returncode, made.stderr
    assert {0o600} == {(directory / name).stat().st_mode & 0o777 for name in ("server.key", "client.key")}
    text = subprocess.run(
        ["openssl", "x509", "-in", str(directory / "server.pem"), "-noout", "-ext", "subjectAltName"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    for name in ("10.0.0.1", "broker.example", "127.0.0.1", "localhost"):
        assert name in text
    for refused, sentence in ((again, "exists already"), (days, "invalid --days 0"), (host, "invalid --host")):
        assert 2 == refused.returncode
        assert sentence in refused.stderr
