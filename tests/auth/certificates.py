"""Certificates for tests, as ``tern certs dev`` makes them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from ternmq.cli import certs
from ternmq.net.tls import TlsConfig


class Certificates:
    """A directory with an authority, a server's and a client's certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        certs.make(directory, [], days=10, now=datetime.datetime.now(datetime.UTC))

    def __truediv__(self, name: str) -> Path:
        return self.directory / name

    def server(self, mode: str = "enforcing", **more: Any) -> dict[str, Any]:
        """Settings of a server, by the names of its config class."""
        return {
            "tls_server_mode": mode,
            "tls_server_cert_path": self / "server.pem",
            "tls_server_key_path": self / "server.key",
            "tls_server_trust_cert_path": self / "ca.pem",
            "tls_client_trust_cert_path": self / "ca.pem",
            **more,
        }

    def client(self, *, shows: bool = False, **more: Any) -> TlsConfig:
        """What a client trusts, and shows if it is asked."""
        files = {"cert_file": str(self / "client.pem"), "key_file": str(self / "client.key")}
        own: dict[str, Any] = files if shows else {}
        return TlsConfig(ca_file=str(self / "ca.pem"), **own, **more)
