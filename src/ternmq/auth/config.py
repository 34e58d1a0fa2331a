"""Settings of access control and TLS, which brokers and name servers share (B4, N1, N2)."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final

import msgspec

from ternmq.config import check_factories
from ternmq.errors import UNREADABLE, ConfigError
from ternmq.net.limits import Limits
from ternmq.net.tls import ClientAuth, LiveTls, ServerTls, TlsConfig, TlsMode


@dataclass(slots=True, frozen=True, kw_only=True)
class AccessConfig(Limits):
    """Who may call a server, and the bounds of its connections. Raises ``ConfigError`` that names the setting."""

    #: Whether requests must be signed, and may do only what their account may. RocketMQ has it on brokers only.
    acl_enable: bool = False
    #: The directory with ``plain_acl.yml`` and ``acl/``. None: ``conf`` below the variable ROCKETMQ_HOME.
    acl_path: Path | None = None
    #: How often the files are looked at for changes, in ms.
    acl_reload_interval: int = 5_000
    #: More validators, which all have to agree: ``module:factory``, separated by commas. Each factory is called without
    #: arguments and returns a ``net.gate.Validator``. They are asked after the ACL, or alone if that is off.
    auth_validators: str = ""

    # --- TLS: RocketMQ's names with dots, as in tls.server.mode ------------------------------------------------

    #: A file with the settings below, as RocketMQ's ``tls.properties``; read by ``config``.
    tls_config_file: Path | None = None
    #: RocketMQ's default is permissive, with a certificate that it makes for itself.
    tls_server_mode: TlsMode = TlsMode.DISABLED
    #: Whether RocketMQ makes a certificate for itself, which is not supported here.
    tls_test_mode_enable: bool = False
    #: In PEM form. The files are looked at again every ``aclReloadInterval``.
    tls_server_cert_path: Path | None = None
    tls_server_key_path: Path | None = None
    tls_server_key_password: str = field(default="", repr=False, metadata={"secret": True})
    #: Authorities of the clients' certificates.
    tls_server_trust_cert_path: Path | None = None
    #: RocketMQ needs this switch to check certificates that it asks for. Here they are always checked.
    tls_server_auth_client: bool = False
    tls_server_need_client_auth: ClientAuth = ClientAuth.NONE
    #: Whether this server uses TLS for its own calls, to name servers.
    tls_enable: bool = False
    #: Whether it checks the certificates of others. RocketMQ's default is false.
    tls_client_auth_server: bool = True
    tls_client_trust_cert_path: Path | None = None
    tls_client_cert_path: Path | None = None
    tls_client_key_path: Path | None = None
    tls_client_key_password: str = field(default="", repr=False, metadata={"secret": True})

    def __post_init__(self) -> None:
        Limits.__post_init__(self)
        if not 100 <= self.acl_reload_interval <= 3_600_000:
            raise ConfigError(f"invalid aclReloadInterval {self.acl_reload_interval}: expected 100 to 3600000")
        check_factories("authValidators", self.auth_validators)
        if self.tls_server_mode is not TlsMode.DISABLED:
            if self.tls_test_mode_enable:
                raise ConfigError(
                    "tls.test.mode.enable=true is not supported: set it to false, with tls.server.certPath and "
                    "tls.server.keyPath; `tern certs dev` makes certificates for development"
                )
            if self.tls_server_cert_path is None or self.tls_server_key_path is None:
                raise ConfigError(
                    f"tls.server.mode={self.tls_server_mode.value} needs tls.server.certPath and tls.server.keyPath; "
                    "`tern certs dev` makes certificates for development"
                )
            if self.client_auth is not ClientAuth.NONE and self.tls_server_trust_cert_path is None:
                raise ConfigError(
                    f"tls.server.need.client.auth={self.client_auth.value} needs tls.server.trustCertPath, the "
                    "certificates of the authorities that sign those of clients"
                )

    @property
    def client_auth(self) -> ClientAuth:
        """Whether clients show certificates."""
        asked = self.tls_server_need_client_auth
        return ClientAuth.OPTIONAL if asked is ClientAuth.NONE and self.tls_server_auth_client else asked

    @property
    def checks_callers(self) -> bool:
        """Whether strangers are kept out: by accounts, validators, or certificates that they must show."""
        needs_certificate = self.tls_server_mode is TlsMode.ENFORCING and self.client_auth is ClientAuth.REQUIRE
        return self.acl_enable or bool(self.validator_names) or needs_certificate

    def server_tls(self) -> LiveTls | None:
        """TLS of the ports; None: they are plain. Raises ``ConfigError`` for files that cannot be used."""
        if self.tls_server_mode is TlsMode.DISABLED:
            return None
        assert self.tls_server_cert_path is not None
        assert self.tls_server_key_path is not None
        tls = ServerTls(
            self.tls_server_cert_path,
            self.tls_server_key_path,
            self.tls_server_key_password,
            self.tls_server_trust_cert_path,
            self.client_auth,
        )
        return LiveTls(tls, plain_too=self.tls_server_mode is TlsMode.PERMISSIVE)

    def client_tls(self) -> TlsConfig | None:
        """TLS of calls to others; None: they are plain."""
        if not self.tls_enable:
            return None
        return TlsConfig(
            str(self.tls_client_trust_cert_path or ""),
            str(self.tls_client_cert_path or ""),
            str(self.tls_client_key_path or ""),
            self.tls_client_key_password,
            verify=self.tls_client_auth_server,
        )

    @property
    def validator_names(self) -> list[str]:
        return check_factories("authValidators", self.auth_validators)


@dataclass(slots=True, frozen=True, kw_only=True)
class UserAccessConfig(AccessConfig):
    """What brokers have in addition: users and policies, as RocketMQ 5.3 has them instead of ``aclEnable``."""

    #: Whether requests must be signed by a user.
    authentication_enabled: bool = False
    #: Whether users may do only what their policies allow. Otherwise only what an administrator does needs a super
    #: user.
    authorization_enabled: bool = False
    #: The directory of ``users.json``. None: ``config`` below storePathRootDir.
    auth_config_path: Path | None = None
    #: The file with the key by which passwords are encrypted. None: ``users.key`` beside ``users.json``.
    auth_key_path: Path | None = None
    #: ``{"username": …, "password": …}``: a super user that is created if there is none of that name.
    init_authentication_user: str = field(default="", repr=False, metadata={"secret": True})
    #: ``{"accessKey": …, "secretKey": …}``: the super user that this broker signs its own calls as; created likewise.
    inner_client_authentication_credentials: str = field(default="", repr=False, metadata={"secret": True})
    #: Whether accounts of ``aclPath`` become users, if there are none of these names.
    migrate_auth_from_v1_enabled: bool = False

    def __post_init__(self) -> None:
        AccessConfig.__post_init__(self)
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError("authorizationEnabled=true needs authenticationEnabled=true: policies belong to users")
        if self.authentication_enabled and self.acl_enable:
            raise ConfigError(
                "aclEnable=true and authenticationEnabled=true exclude each other; to keep the accounts of aclPath as "
                "users, set aclEnable=false and migrateAuthFromV1Enabled=true"
            )
        if self.migrate_auth_from_v1_enabled and not self.authentication_enabled:
            raise ConfigError("migrateAuthFromV1Enabled=true needs authenticationEnabled=true")
        self.first_user()
        self.inner_user()

    @property
    def checks_callers(self) -> bool:
        """Whether strangers are kept out."""
        # Not super(): dataclasses with slots are made twice.
        return self.authentication_enabled or AccessConfig.checks_callers.fget(self)  # type: ignore[attr-defined]

    def first_user(self) -> tuple[str, str] | None:
        """Name and password of ``initAuthenticationUser``. Raises ``ConfigError``."""
        return _pair("initAuthenticationUser", self.init_authentication_user, "username", "password")

    def inner_user(self) -> tuple[str, str] | None:
        """Key and secret of ``innerClientAuthenticationCredentials``. Raises ``ConfigError``."""
        text = self.inner_client_authentication_credentials
        return _pair("innerClientAuthenticationCredentials", text, "accessKey", "secretKey")


def _pair(setting: str, text: str, first: str, second: str) -> tuple[str, str] | None:
    if not text.strip():
        return None
    try:
        values = msgspec.json.decode(text, type=dict[str, str])
        return values[first], values[second]
    except (*UNREADABLE, KeyError):
        # The value has a secret, and is not repeated.
        raise ConfigError(f'invalid {setting}: expected {{"{first}": "…", "{second}": "…"}}') from None


#: The settings of access control and TLS.
SECURITY: Final = tuple(
    one.name for one in fields(UserAccessConfig) if one.name not in {limit.name for limit in fields(Limits)}
)
