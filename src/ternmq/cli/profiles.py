"""Profiles: name servers and credentials of clusters, under a name (N1).

``~/.config/ternmq/profiles.toml`` (or the file that the variable TERNMQ_PROFILES names)::

    [production]
    name_servers = "10.0.0.1:9876;10.0.0.2:9876"
    access_key = "…"
    secret_key = "…"
    tls = true
    tls_ca = "/etc/ternmq/ca.pem"

``tern --profile production topic list`` uses it. A profile becomes the environment of the command, so that all that it
starts has it, too (Spark, brokers of ``tern up``), and nothing of it is on a command line, where other users see it.

The file holds secrets: it must belong to the user who runs ``tern``, and no other user may read it.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from ternmq.errors import ConfigError

ENV_FILE: Final = "TERNMQ_PROFILES"
_FILE: Final = Path("ternmq") / "profiles.toml"
_BYTES_MAX: Final = 1024 * 1024
#: Keys of a profile, and the variables that they become.
VARIABLES: Final = {
    "name_servers": "NAMESRV_ADDR",
    "access_key": "TERNMQ_ACCESS_KEY",
    "secret_key": "TERNMQ_SECRET_KEY",
    "security_token": "TERNMQ_SECURITY_TOKEN",
    "tls": "TERNMQ_TLS",
    "tls_ca": "TERNMQ_TLS_CA",
    "tls_cert": "TERNMQ_TLS_CERT",
    "tls_key": "TERNMQ_TLS_KEY",
}


def use(name: str, environ: MutableMapping[str, str]) -> None:
    """Make a profile the environment. Raises ``ConfigError``."""
    path = profile_file(environ)
    profile = _profile(path, name)
    # Credentials belong together: none of another account may be left.
    for variable in VARIABLES.values():
        if variable != "NAMESRV_ADDR":
            environ.pop(variable, None)
    for key, value in profile.items():
        environ[VARIABLES[key]] = value


def profile_file(environ: Mapping[str, str]) -> Path:
    if environ.get(ENV_FILE):
        return Path(environ[ENV_FILE])
    home = environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path("~/.config").expanduser()) / _FILE


def _profile(path: Path, name: str) -> dict[str, str]:
    try:
        with path.open("rb") as file:
            _check_owner(path, os.fstat(file.fileno()))
            data = file.read(_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(f"there is no file of profiles {path}; create it with a table [{name}]") from None
    except OSError as error:
        raise ConfigError(f"cannot read the profiles in {path}: {error.strerror}") from None
    if len(data) > _BYTES_MAX:
        raise ConfigError(f"the profiles in {path} have more than {_BYTES_MAX} bytes")
    try:
        profiles = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # Not the parser's own sentence: it may show a part of the line.
        raise ConfigError(f"{path} is not valid TOML; put each value in quotes") from None
    profile = profiles.get(name)
    if not isinstance(profile, dict):
        known = ", ".join(sorted(key for key, value in profiles.items() if isinstance(value, dict)))
        raise ConfigError(f"there is no profile {name!r} in {path}; it has: {known or 'none'}")
    for key, value in profile.items():
        if key not in VARIABLES:
            raise ConfigError(f"unknown key {key!r} in profile {name!r} of {path}: expected {', '.join(VARIABLES)}")
        if key == "tls" and isinstance(value, bool):
            profile[key] = str(value).lower()
        elif not isinstance(value, str):
            raise ConfigError(f"invalid {key} in profile {name!r} of {path}: expected a text in quotes")
    return profile


def _check_owner(path: Path, status: os.stat_result) -> None:
    if os.name != "posix":
        return
    if status.st_mode & 0o077:
        raise ConfigError(f"other users of this machine can read the secrets in {path}; run `chmod 600 {path}`")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"{path} belongs to another user; use a file of your own")
