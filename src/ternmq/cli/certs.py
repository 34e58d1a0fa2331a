"""``tern certs``: certificates for development (N2)."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.command import Commands
from ternmq.cli.options import Json
from ternmq.cli.output import Output
from ternmq.env import Env
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

app = Commands(no_args_is_help=True, help="Certificates for development.")

_DAYS_MAX: Final = 825
_LOCAL: Final = ("127.0.0.1", "::1", "localhost")


@app.callback()
def certs() -> None:
    """Certificates for development."""


@app.command()
def dev(
    directory: Annotated[Path, typer.Option("--dir", help="Where to put the files; created if missing.")] = Path(
        "ternmq-certs"
    ),
    hosts: Annotated[
        list[str] | None,
        typer.Option("--host", help="Address or name of a server. Can be repeated; this machine is always included."),
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long the certificates are valid.")] = 90,
    as_json: Json = False,
) -> None:
    """Make an authority, and certificates of a server and a client, for development.

    Writes ca.pem, server.pem, server.key, client.pem, client.key, and a tls.properties that brokers, name servers and
    Java clients can use. The key of the authority is not kept: to renew, run the command again. Files that exist are
    never overwritten.

    Example:

        tern certs dev --host 10.0.0.1
    """
    if not 1 <= days <= _DAYS_MAX:
        raise ConfigError(f"invalid --days {days}: expected 1 to {_DAYS_MAX}")
    now = datetime.datetime.fromtimestamp(Env().clock.now_ms() // 1000, datetime.UTC)
    files = make(directory, hosts or [], days=days, now=now)
    Output(as_json=as_json).item(
        {"event": "made", "dir": str(directory), "files": [path.name for path in files]},
        f"made {', '.join(path.name for path in files)} in {directory}; start servers with "
        f"--set tls.config.file={directory / 'tls.properties'}, clients with TERNMQ_TLS=true "
        f"TERNMQ_TLS_CA={directory / 'ca.pem'}",
    )


def make(directory: Path, hosts: list[str], *, days: int, now: datetime.datetime) -> list[Path]:
    """Make all files; returns them. Raises ``ConfigError``."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "making certificates needs the package cryptography; install it with `pip install ternmq[security]`"
        ) from None

    def signed(
        name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, by: ec.EllipticCurvePrivateKey, *, is_ca: bool
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            # Clocks differ.
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
            .add_extension(
                x509.KeyUsage(
                    digital_signature=not is_ca,
                    key_cert_sign=is_ca,
                    crl_sign=is_ca,
                    content_commitment=False,
                    key_encipherment=False,
                    data_encipherment=False,
                    key_agreement=False,
                    encipher_only=False,
                    decipher_only=False,
                ),
                critical=True,
            )
        )
        if not is_ca:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(by, hashes.SHA256())

    names = _alternative_names([*_LOCAL, *hosts])
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = signed(
        "TernMQ development authority", authority_key, _name("TernMQ development authority"), authority_key, is_ca=True
    )
    texts = {"ca.pem": authority.public_bytes(serialization.Encoding.PEM)}
    for who in ("server", "client"):
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = signed(f"TernMQ {who}", key, authority.subject, authority_key, is_ca=False)
        texts[f"{who}.pem"] = certificate.public_bytes(serialization.Encoding.PEM)
        # PKCS #8, as Java wants it.
        texts[f"{who}.key"] = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    texts["tls.properties"] = _properties(directory.absolute()).encode()
    return _write(directory, texts)


def _name(text: str) -> x509.Name:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _alternative_names(hosts: list[str]) -> list[x509.GeneralName]:
    from cryptography import x509

    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(hosts):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            try:
                names.append(x509.DNSName(host))
            except ValueError:
                raise ConfigError(f"invalid --host {host!r}: expected an address or a name") from None
    return names


def _properties(directory: Path) -> str:
    """Settings of servers and clients under RocketMQ's names."""
    return "".join(
        f"{key}={value}\n"
        for key, value in {
            "tls.test.mode.enable": "false",
            "tls.server.mode": "enforcing",
            "tls.server.certPath": directory / "server.pem",
            "tls.server.keyPath": directory / "server.key",
            "tls.server.trustCertPath": directory / "ca.pem",
            "tls.server.need.client.auth": "none",
            "tls.server.authClient": "false",
            "tls.enable": "true",
            "tls.client.authServer": "true",
            "tls.client.trustCertPath": directory / "ca.pem",
        }.items()
    )


def _write(directory: Path, texts: dict[str, bytes]) -> list[Path]:
    paths = [directory / name for name in texts]
    for path in paths:
        if path.exists():
            raise ConfigError(f"{path} exists already; choose another directory with --dir, or delete the old files")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path, text in zip(paths, texts.values(), strict=True):
            mode = 0o600 if path.suffix == ".key" else 0o644
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                file.write(text)
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror}") from None
    return paths
