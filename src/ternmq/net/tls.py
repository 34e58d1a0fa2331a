"""TLS: from files to contexts, for servers and clients (B4, N2).

TLS 1.2 and 1.3, with Python's choice of ciphers. A server's certificate can change while it runs: ``LiveTls`` holds the
context that the next connection gets, and ``reload`` replaces it when the files have changed and fit together.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from ternmq.errors import ConfigError

log = logging.getLogger(__name__)


class TlsMode(Enum):
    """What a port accepts (RocketMQ's ``tls.server.mode``)."""

    DISABLED = "disabled"
    #: Plain connections and those with TLS, told apart by their first byte.
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


class ClientAuth(Enum):
    """Whether clients show certificates (RocketMQ's ``tls.server.need.client.auth``)."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRE = "require"


@dataclass(slots=True, frozen=True)
class TlsConfig:
    """How a client uses TLS.

    Args:
        ca_file: Certificates of the authorities that are trusted, in PEM form. Empty: those of the system.
        cert_file: The client's own certificate, for servers that ask for one, in PEM form.
        key_file: Its private key. Empty: it is in ``cert_file``, too.
        key_password: The password of the key, if it is encrypted.
        verify: Whether the server's certificate is checked. Otherwise an attacker between client and server can read
            and change everything.
        check_hostname: Whether the certificate must be for the address that is connected to. Clients connect to brokers
            by the addresses in the routes, mostly IP addresses; certificates need those as alternative names.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    key_password: str = field(default="", repr=False)
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """What connections are made with. Raises ``ConfigError`` for files that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verify and self.check_hostname
        context.verify_mode = ssl.CERT_REQUIRED if self.verify else ssl.CERT_NONE
        if self.ca_file:
            _trust(context, self.ca_file)
        elif self.verify:
            context.load_default_certs(ssl.Purpose.SERVER_AUTH)
        if self.cert_file:
            _show(context, self.cert_file, self.key_file, self.key_password)
        return context


@dataclass(slots=True, frozen=True)
class ServerTls:
    """What a server's context is made of."""

    cert_file: Path
    key_file: Path
    key_password: str = field(default="", repr=False)
    trust_file: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE

    def context(self) -> ssl.SSLContext:
        """What connections are accepted with. Raises ``ConfigError`` for files that cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        _show(context, str(self.cert_file), str(self.key_file), self.key_password)
        if self.client_auth is not ClientAuth.NONE:
            assert self.trust_file is not None
            _trust(context, str(self.trust_file))
            context.verify_mode = ssl.CERT_REQUIRED if self.client_auth is ClientAuth.REQUIRE else ssl.CERT_OPTIONAL
        return context

    def stamp(self) -> tuple[object, ...]:
        """What tells one version of the files from another."""
        files = [self.cert_file, self.key_file, *([self.trust_file] if self.trust_file is not None else [])]
        return tuple(_stamp(path) for path in files)


class LiveTls:
    """TLS of a server's ports. ``context`` is for the next connection; those that are open keep theirs."""

    def __init__(self, tls: ServerTls, *, plain_too: bool) -> None:
        """Raises ``ConfigError`` for files that cannot be used."""
        self._tls = tls
        self.plain_too = plain_too
        self._stamp = tls.stamp()
        self.context = tls.context()

    def reload(self) -> bool:
        """Take over files that have changed; may wait for the disk. Files that do not fit together change nothing.

        They are often replaced one after the other, so this is logged and tried again with the next change.
        """
        stamp = self._tls.stamp()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.context = self._tls.context()
        except ConfigError as error:
            log.error("TLS certificate not reloaded: %s; the one that was loaded before stays in use", error)
            return False
        log.info("TLS certificate reloaded from %s", self._tls.cert_file)
        return True


def _trust(context: ssl.SSLContext, ca_file: str) -> None:
    try:
        context.load_verify_locations(ca_file)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot load the trusted certificates in {ca_file}: {_reason(error)}") from None


def _show(context: ssl.SSLContext, cert_file: str, key_file: str, password: str) -> None:
    def asked() -> str:
        # OpenSSL would ask on the terminal.
        return password

    try:
        context.load_cert_chain(cert_file, key_file or None, asked)
    except (OSError, ValueError) as error:
        where = f"{cert_file} with the key in {key_file}" if key_file else cert_file
        raise ConfigError(f"cannot load the certificate {where}: {_reason(error)}") from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "").lower().replace("_", " ")
        return reason or "it is not in PEM form, or the password of the key is wrong"
    return getattr(error, "strerror", None) or str(error)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
