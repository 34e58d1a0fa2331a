"""What a node of a broker set remembers over restarts: its epochs, and the role that a promotion gave it (O1).

``epochFileCheckpoint`` in the store's directory has the epochs (``replication.epochs``). ``config/role.json`` exists
only after a promotion, on both nodes, and wins over ``brokerRole`` and ``brokerId`` of the settings::

    {"role":"SYNC_MASTER","brokerId":0,"formerId":1,"replaced":["10.0.0.1:10911"]}

To undo it, stop the broker and remove the file: the settings count again. All is written durably before it holds.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from ternmq.errors import CorruptFile
from ternmq.replication.config import BrokerRole
from ternmq.replication.epochs import FILE_NAME, Epochs
from ternmq.store.disk.base import Disk
from ternmq.wire.requests import Int64

log = logging.getLogger(__name__)

ROLE_FILE: Final = "role.json"


class GivenRole(msgspec.Struct, frozen=True, rename="camel"):
    """The role that a promotion gave a node."""

    role: BrokerRole
    broker_id: Int64
    #: The id that it had before, which its old master takes when it returns.
    former_id: Int64 = 0
    #: SYNC_MASTER or ASYNC_MASTER: what the master was when this node became a slave; empty: it is not known.
    master_role: str = ""
    #: Masters that it has replaced, until they are back as slaves: a name server that still lists one is out of date.
    replaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if (self.role is BrokerRole.SLAVE) == (self.broker_id == 0) or self.broker_id < 0 or self.former_id < 0:
            raise ValueError(f"a {self.role.value} does not have the id {self.broker_id}")


class Memory:
    """The files of one node. Calls block while they write."""

    def __init__(self, disk: Disk, root: Path) -> None:
        """Raises ``CorruptFile`` for a file that cannot be read."""
        self._disk = disk
        self._epoch_path = root / FILE_NAME
        self.role_path = root / "config" / ROLE_FILE
        self.epochs = self._load_epochs()
        self.given = self._load_role()

    def _load_epochs(self) -> Epochs:
        data = self._disk.read(self._epoch_path)
        if data is None:
            return Epochs()
        try:
            return Epochs.parse(data)
        except ValueError as error:
            raise CorruptFile(
                f"{self._epoch_path} cannot be read: {error}; restore it from a copy, or remove it: then other nodes "
                "compare the bytes of the log only, and nothing is cut automatically",
                path=str(self._epoch_path),
            ) from None

    def _load_role(self) -> GivenRole | None:
        data = self._disk.read(self.role_path)
        if data is None:
            return None
        try:
            return msgspec.json.decode(data, type=GivenRole)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptFile(
                f"{self.role_path} cannot be read: {error}; remove it to use brokerRole and brokerId of the settings",
                path=str(self.role_path),
            ) from None

    def keep_epochs(self, epochs: Epochs) -> None:
        """Raises ``StoreError``; then nothing has changed."""
        if epochs != self.epochs:
            self._disk.replace(self._epoch_path, epochs.format())
            self.epochs = epochs

    def keep_role(self, given: GivenRole) -> None:
        """Raises ``StoreError``; then nothing has changed."""
        if given != self.given:
            before, self.given = self.given, given
            try:
                self._disk.replace(self.role_path, msgspec.json.encode(given))
            except BaseException:
                self.given = before
                raise
            if before is None or (before.role, before.broker_id) != (given.role, given.broker_id):
                log.info(
                    "the role %s with id %d is kept in %s, and wins over brokerRole and brokerId; remove the file "
                    "while the broker is stopped to undo this",
                    given.role.value,
                    given.broker_id,
                    self.role_path,
                )
