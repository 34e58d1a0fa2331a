"""The ACL files of one server: found, loaded, watched, changed (N1).

``plain_acl.yml`` in a directory, and every ``.yml`` and ``.yaml`` below its ``acl/``. Of two accounts with one key, the
one in the file that is read first counts: ``plain_acl.yml``, then the others by name. Names that begin with a dot do
not count: editors leave such files, and a volume of Kubernetes keeps older versions of its files in such directories,
with secrets that are valid no more.

All methods may wait for the disk, and belong to one thread at a time. ``load`` and ``reload`` give new rules or raise;
``reload`` looks at times and sizes first. A file that cannot be read or understood stops the start. Later it changes
nothing: the rules of its last good version stay in force.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from ternmq.auth import acl_file
from ternmq.auth.accounts import AccessRules
from ternmq.auth.acl_file import AclFile
from ternmq.auth.yaml_text import FILE_BYTES_MAX
from ternmq.errors import ConfigError, InvalidParameter, NotFound
from ternmq.files import sync_directory
from ternmq.wire.bodies.topics import DataVersion

log = logging.getLogger(__name__)

DEFAULT_FILE: Final = "plain_acl.yml"
DIRECTORY: Final = "acl"
FILES_MAX: Final = 1000
_SUFFIXES: Final = (".yml", ".yaml")
_NEW_FILE: Final = b"accounts: []\n"

#: What tells one version of a file from another: inode, time of change, size.
_Stamp = tuple[int, int, int]


@dataclass(slots=True, frozen=True)
class _Loaded:
    stamp: _Stamp
    file: AclFile


class AclFiles:
    """The files below one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[Path, _Loaded] = {}
        #: Versions that were refused, so that each is logged once.
        self._refused: dict[Path, _Stamp | None] = {}

    @property
    def default_path(self) -> Path:
        return self.directory / DEFAULT_FILE

    def load(self) -> AccessRules:
        """Read all files. Raises ``ConfigError`` that names the file and what is wrong with it."""
        if not self._paths():
            # As RocketMQ does. A file without accounts admits no client, which is safe.
            try:
                _replace(self.default_path, _NEW_FILE)
            except OSError as error:
                raise ConfigError(f"cannot create the ACL file {self.default_path}: {error.strerror}") from None
            log.warning("created %s without accounts: all requests are refused until you add one", self.default_path)
        self._files = {path: self._read(path) for path in self._paths()}
        for path in self._files:
            check_mode(path)
        return self._rules()

    def reload(self) -> AccessRules | None:
        """New rules if a file has changed, came or went; None if not. A file that is wrong keeps its last version."""
        try:
            paths = self._paths()
        except ConfigError as error:
            self._refuse(self.directory, None, error)
            return None
        files: dict[Path, _Loaded] = {}
        changed = False
        for path in paths:
            known = self._files.get(path)
            stamp = _stamp(path)
            if known is not None and known.stamp == stamp:
                files[path] = known
                continue
            if stamp is not None and self._refused.get(path) == stamp:
                loaded = None
            else:
                loaded = self._read_again(path, stamp)
            if loaded is not None:
                files[path] = loaded
                changed = True
                self._refused.pop(path, None)
            elif known is not None:
                files[path] = known
        changed = changed or files.keys() != self._files.keys()
        if not changed:
            return None
        self._files = files
        return self._rules()

    def versions(self) -> dict[str, DataVersion]:
        """How new each file is."""
        return {str(path): loaded.file.version for path, loaded in self._files.items()}

    @property
    def version(self) -> DataVersion:
        """How new the default file is."""
        loaded = self._files.get(self.default_path)
        return loaded.file.version if loaded is not None else DataVersion()

    @property
    def files(self) -> Sequence[AclFile]:
        return [loaded.file for loaded in self._files.values()]

    # --- Changing ----------------------------------------------------------------------------------------------

    def update(self, changes: Mapping[str, object], *, now_ms: int) -> AccessRules:
        """Make or change an account in the file that has it, or in the default file. Raises ``ConfigError``."""
        path = self._path_of(str(changes["accessKey"])) or self.default_path
        return self._change(path, lambda file: acl_file.updated(file, changes, now_ms=now_ms))

    def remove(self, access_key: str, *, now_ms: int) -> AccessRules:
        """Delete an account. Raises ``NotFound``, ``ConfigError``."""
        path = self._path_of(access_key)
        if path is None:
            raise NotFound(f"there is no account {access_key[:64]!r}")
        return self._change(path, lambda file: acl_file.removed(file, access_key, now_ms=now_ms))

    def set_white(self, patterns: Sequence[str], path: Path | None, *, now_ms: int) -> AccessRules:
        """Replace the addresses of one file that need no account. Raises ``InvalidParameter``, ``ConfigError``."""
        path = path or self.default_path
        if path != self.default_path and path not in self._files:
            # Any other path would let an administrator of messages write files of this machine.
            raise InvalidParameter("the file is none of the ACL files of this broker; see clusterAclConfigVersion")
        return self._change(path, lambda file: acl_file.with_white(file, patterns, now_ms=now_ms))

    def _change(self, path: Path, change: Callable[[AclFile], AclFile]) -> AccessRules:
        # As it is on the disk now: an operator may have edited it since it was looked at.
        loaded = self._read(path)
        new = change(loaded.file)
        data = acl_file.written(new)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"the file would have {len(data)} bytes: expected at most {FILE_BYTES_MAX}")
        try:
            _replace(path, data)
        except OSError as error:
            raise ConfigError(f"cannot write the ACL file {path}: {error.strerror}") from None
        self._files[path] = self._read(path)
        return self._rules()

    def _path_of(self, access_key: str) -> Path | None:
        for path, loaded in self._files.items():
            if any(account.access_key == access_key for account in loaded.file.accounts):
                return path
        return None

    # --- Reading -----------------------------------------------------------------------------------------------

    def _rules(self) -> AccessRules:
        files = self.files
        return AccessRules(
            (account for file in files for account in file.accounts), (one for file in files for one in file.white)
        )

    def _paths(self) -> list[Path]:
        default = self.default_path
        if not self.directory.is_dir():
            raise ConfigError(
                f"the ACL directory {self.directory} does not exist; create it with a {DEFAULT_FILE}, or set "
                "aclPath to the directory that has one"
            )
        below = self.directory / DIRECTORY
        found = [
            path
            for path in sorted(below.rglob("*"))
            if path.suffix in _SUFFIXES and not any(part.startswith(".") for part in path.relative_to(below).parts)
        ]
        if len(found) > FILES_MAX:
            raise ConfigError(f"{self.directory / DIRECTORY} has {len(found)} ACL files: expected at most {FILES_MAX}")
        # An editor may take the default file away for a moment: one that was there counts as one that cannot be read.
        # The others may be deleted, with their accounts.
        return [default, *found] if default in self._files or default.exists() else found

    def _read(self, path: Path) -> _Loaded:
        stamp = _stamp(path)
        try:
            with open_regular(path) as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"cannot read the ACL file {path}: {error.strerror}") from None
        try:
            return _Loaded(stamp or (0, 0, 0), acl_file.read(data))
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None

    def _read_again(self, path: Path, stamp: _Stamp | None) -> _Loaded | None:
        try:
            loaded = self._read(path)
        except ConfigError as error:
            self._refuse(path, stamp, error)
            return None
        with contextlib.suppress(FileNotFoundError):
            check_mode(path)
        return loaded

    def _refuse(self, path: Path, stamp: _Stamp | None, error: ConfigError) -> None:
        if path not in self._refused or self._refused[path] != stamp:
            log.error("ACL not reloaded: %s; the rules that were read before stay in force", error)
        self._refused[path] = stamp


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. Raises ``OSError``, also for what is no regular file: a named pipe would keep its reader
    waiting for ever."""
    # The flag changes nothing for regular files, and lets pipes be opened at once. Windows has neither.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_mode(path: Path) -> None:
    """Warn if other users can read a file with secrets."""
    if os.name == "posix" and path.stat().st_mode & 0o077:
        log.warning("other users of this machine can read the secrets in %s; run `chmod 600` on it", path)


def replace_file(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file so that a crash leaves the old one or the new one."""
    new = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        if os.name == "posix":
            os.fchmod(file.fileno(), mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)


def _replace(path: Path, data: bytes) -> None:
    """Replace an ACL file, which keeps its mode. A new one is for its owner only. A link stays one: what it leads to is
    replaced."""
    path = path.resolve()
    mode = 0o600
    with contextlib.suppress(FileNotFoundError):
        mode = path.stat().st_mode & 0o777
    replace_file(path, data, mode=mode)
