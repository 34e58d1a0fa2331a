"""A disk in memory that can lose power, fill up, fail and corrupt data: the store's seam, simulated (C8).

``sync`` writes the dirty pages of a file to the disk (``testing.image``), ``sync_names`` the names of a directory.
``power_cut`` keeps durable data and a random part of the rest: each dirty page, each length that was never synced, each
name that was created, changed or removed since its directory was synced. With ``names_in_order`` the changes of names
are kept up to some moment, as a journal does; without it any of them may be lost or kept, which is all that POSIX
guarantees. ``die`` ends only the process: the page cache stays.

A failed sync marks pages clean without writing them, as Linux does: they stay readable until the cache drops them
(``die``), and no later sync writes them. Therefore a failed sync must not be retried.

``before`` is called before each step that changes or syncs something, and may raise: ``PowerCut`` to stop there, or an
error of the store to make the step fail. Data is written page by page, so a write can stop or fail half-way. A hook
that moves a clock simulates a slow disk. The steps of each operation are those of ``FileDisk``, in its order.

This module uses no randomness of its own, and no order depends on a set: the same calls give the same disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Final, TypeAlias

from ternmq.errors import DiskFull, StoreError, StoreLocked
from ternmq.store.disk.base import PAGE_BYTES, DiskUsage, FileEntry
from ternmq.testing.image import Image, UnreservedStore
from ternmq.types import Buffer

__all__ = ["Hook", "PowerCut", "SimulatedDisk", "UnreservedStore"]

#: The arguments of ``before``: kind of step (create, size, write, claim, sync, sync names, remove, rename), and path.
Hook: TypeAlias = Callable[[str, Path], None]

#: The size of a disk without ``capacity_bytes``.
_PLENTY_BYTES: Final = 1 << 50


class PowerCut(BaseException):
    """Raised by a ``before`` hook: the machine is off. No part of the store catches it."""


class _Directory:
    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, _Node] = {}
        self.durable: dict[str, _Node] = {}


_Node: TypeAlias = Image | _Directory
#: Names that change together, or not at all; None: the name is removed.
_Change: TypeAlias = tuple[tuple[_Directory, str, _Node | None], ...]


class SimulatedDisk:
    """Implements ``ternmq.store.disk.base.Disk``."""

    def __init__(
        self,
        *,
        page_bytes: int = PAGE_BYTES,
        capacity_bytes: int | None = None,
        names_in_order: bool = False,
        now_ms: Callable[[], int] = int,
    ) -> None:
        """``page_bytes``: what is written whole or not at all. Less than the 4096 of a real page finds more faults."""
        self.capacity_bytes = capacity_bytes
        self.before: Hook | None = None
        self._page_bytes = page_bytes
        self._names_in_order = names_in_order
        self._now_ms = now_ms
        self._root = _Directory()
        #: Changes of names that are not durable, in order.
        self._unsynced: list[_Change] = []
        self._locked: set[Path] = set()
        self._boots = 1

    # --- Faults -------------------------------------------------------------------------------------------------

    def power_cut(self, random: Random) -> None:
        """Lose power, and start again. Writes to files that were open before have no effect."""
        for image in self._images(self._root):
            image.check_stores()
        changes, self._unsynced = self._unsynced, []
        if self._names_in_order:
            changes = changes[: random.randint(0, len(changes))]
        else:
            changes = [change for change in changes if random.random() < 0.5]
        for change in changes:
            _carry_out(change)
        self._root = _map(self._root, lambda directory: directory.durable, lambda image: image.after_cut(random))
        self._boots += 1
        self._forget_processes()

    def die(self) -> None:
        """End the process that used the disk. The page cache stays, except for pages of a failed sync."""
        for image in self._images(self._root):
            image.check_stores()
            image.evict()
        self._forget_processes()

    def write_back(self, random: Random) -> None:
        """The kernel makes some pages and names durable at any time."""
        for image in self._images(self._root):
            image.write_back(random)
        if self._names_in_order:
            count = random.randint(0, len(self._unsynced))
            for change in self._unsynced[:count]:
                _carry_out(change)
            del self._unsynced[:count]

    def flip_bit(self, path: Path, bit: int) -> None:
        """Corrupt one bit of a file."""
        self._image(path).flip_bit(bit)

    def lose_page(self, path: Path, at: int) -> None:
        """Lose the page of a file that has the byte ``at``: zeros are read from now on."""
        self._image(path).lose_page(at)

    def files(self) -> dict[Path, bytes]:
        """All files that processes see, by path, with their bytes."""
        return {path: bytes(image.cached) for path, image in sorted(self._paths(Path("/"), self._root))}

    def copy(self) -> SimulatedDisk:
        """Another disk with the files of this one, all of them synced."""
        other = SimulatedDisk(page_bytes=self._page_bytes, names_in_order=self._names_in_order, now_ms=self._now_ms)
        other._root = _map(self._root, lambda directory: directory.entries, Image.copy)
        return other

    def _forget_processes(self) -> None:
        self._locked.clear()
        self.before = None

    # --- Disk ---------------------------------------------------------------------------------------------------

    def list(self, directory: Path) -> list[FileEntry]:
        node = self._find(directory)
        if node is None:
            return []
        if isinstance(node, Image):
            raise StoreError(f"cannot read {directory}: it is not a directory")
        return sorted(
            FileEntry(name, 0, True) if isinstance(entry, _Directory) else FileEntry(name, len(entry.cached), False)
            for name, entry in node.entries.items()
        )

    def open_segment(self, path: Path, *, size: int, create: bool = False, writable: bool = True) -> SimulatedSegment:
        if not create:
            image = self._image(path)
            if len(image.cached) < size:
                raise StoreError(f"cannot map {size} bytes of {path}: it has {len(image.cached)}")
        elif self._find(path) is not None:
            raise StoreError(f"cannot make {path}: it exists")
        else:
            image = self._create(path, size)
            self.sync_image(image, path)
            self.sync_names(path.parent)
        return SimulatedSegment(self, path, image, size=size, writable=writable)

    def open_file(self, path: Path, *, create_size: int | None = None) -> SimulatedFile:
        if create_size is not None and self._find(path) is None:
            return SimulatedFile(self, path, self._create(path, create_size, durably=False))
        image = self._image(path)
        if create_size is not None and len(image.cached) < create_size:
            self._step("size", path)
            image.set_length(create_size)
        return SimulatedFile(self, path, image)

    def read(self, path: Path) -> bytes | None:
        node = self._find(path)
        return bytes(node.cached) if isinstance(node, Image) else None

    def read_at(self, path: Path, at: int, length_bytes: int) -> bytes:
        return bytes(self._image(path).cached[at : at + length_bytes])

    def write(self, path: Path, data: bytes) -> None:
        is_new = self._find(path) is None
        image = self._create(path, 0) if is_new else self._image(path)
        self.write_pages(image, path, 0, data)
        self.sync_image(image, path)
        if is_new:
            self.sync_names(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        fresh = path.with_name(path.name + ".tmp")
        self.remove(fresh)
        image = self._create(fresh, 0)
        self.write_pages(image, fresh, 0, data)
        self.sync_image(image, fresh)
        self.rename(fresh, path)
        self.sync_names(path.parent)

    def remove(self, path: Path) -> None:
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, _Directory):
            for name in [*node.entries]:
                self.remove(path / name)
        self._step("remove", path)
        self._change((self._directory(path.parent), path.name, None))

    def move(self, path: Path, to: Path) -> None:
        self.make_directory(to.parent)
        self.rename(path, to)
        self.sync_names(to.parent)
        self.sync_names(path.parent)

    def make_directory(self, path: Path, *, durably: bool = True) -> None:
        """Create a directory and its parents; their names are on disk, unless not ``durably``."""
        if self._find(path) is None:
            self.make_directory(path.parent, durably=durably)
            self._step("create", path)
            self._change((self._directory(path.parent), path.name, _Directory()))
            if durably:
                self.sync_names(path.parent)

    def rename(self, path: Path, to: Path) -> None:
        """Rename a file; the new name is on disk with the next ``sync_names``."""
        node = self._find(path)
        if node is None:
            raise StoreError(f"cannot move {path}: there is no such file")
        self._step("rename", path)
        self._change((self._directory(path.parent), path.name, None), (self._directory(to.parent), to.name, node))

    def check_writable(self, path: Path) -> None:
        """All files are writable."""

    def modified_ms(self, path: Path) -> int:
        return self._image(path).modified_ms

    def usage(self, path: Path) -> DiskUsage:  # noqa: ARG002 - one disk for all paths
        used_bytes = self._used_bytes()
        return DiskUsage(used_bytes, (self.capacity_bytes or _PLENTY_BYTES) - used_bytes)

    def boot_id(self) -> str:
        return f"boot-{self._boots}"

    def sync_file(self, path: Path) -> None:
        node = self._find(path)
        if isinstance(node, Image):
            self.sync_image(node, path)

    def sync_names(self, directory: Path) -> None:
        node = self._find(directory)
        if node is None:
            return
        self._step("sync names", directory)
        waiting, self._unsynced = self._unsynced, []
        for change in waiting:
            if any(changed is node for changed, _, _ in change):
                _carry_out(change)
            else:
                self._unsynced.append(change)

    def lock(self, path: Path) -> SimulatedLock:
        if path in self._locked:
            raise StoreLocked(str(path.parent))
        if self._find(path) is None:
            self._create(path, 0)
        self._locked.add(path)
        return SimulatedLock(self._locked, path)

    # --- Steps: for the classes below ------------------------------------------------------------------------------

    def write_pages(self, image: Image, path: Path, at: int, data: Buffer) -> None:
        for begin, end in image.chunks(at, len(data)):
            self._step("write", path)
            self._claim(image, path, begin, end)
            image.write(begin, data[begin - at : end - at])
        image.modified_ms = self._now_ms()

    def claim_pages(self, image: Image, path: Path, begin: int, end: int) -> None:
        self._step("claim", path)
        self._claim(image, path, begin, end)

    def sync_image(self, image: Image, path: Path) -> None:
        image.check_stores()
        if image.is_dirty:
            image.modified_ms = self._now_ms()
        try:
            self._step("sync", path)
        except StoreError:
            image.fail_to_sync()
            raise
        image.sync()

    def _step(self, kind: str, path: Path) -> None:
        if self.before is not None:
            self.before(kind, path)

    def _claim(self, image: Image, path: Path, begin: int, end: int) -> None:
        lacking = image.lacking(begin, end)
        if lacking and self.capacity_bytes is not None:
            wanted_bytes = len(lacking) * self._page_bytes
            if self._used_bytes() + wanted_bytes > self.capacity_bytes:
                raise DiskFull(f"cannot write {path}: no space left; free some space, or lower fileReservedTime")
        image.claimed.update(lacking)

    def _used_bytes(self) -> int:
        return sum(len(image.claimed) for image in self._images(self._root)) * self._page_bytes

    # --- Names --------------------------------------------------------------------------------------------------

    def _create(self, path: Path, size: int, *, durably: bool = True) -> Image:
        self.make_directory(path.parent, durably=durably)
        self._step("create", path)
        image = Image(self._page_bytes)
        image.modified_ms = self._now_ms()
        self._change((self._directory(path.parent), path.name, image))
        if size:
            self._step("size", path)
            image.set_length(size)
        return image

    def _change(self, *names: tuple[_Directory, str, _Node | None]) -> None:
        for directory, name, node in names:
            if node is None:
                directory.entries.pop(name, None)
            else:
                directory.entries[name] = node
        self._unsynced.append(names)

    def _find(self, path: Path) -> _Node | None:
        node: _Node = self._root
        for part in path.parts[1:]:
            if isinstance(node, Image) or part not in node.entries:
                return None
            node = node.entries[part]
        return node

    def _image(self, path: Path) -> Image:
        node = self._find(path)
        if not isinstance(node, Image):
            raise StoreError(f"cannot open {path}: there is no such file")
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise StoreError(f"cannot use {path}: there is no such directory")
        return node

    def _images(self, directory: _Directory) -> Iterator[Image]:
        for _, image in self._paths(Path("/"), directory):
            yield image

    def _paths(self, path: Path, directory: _Directory) -> Iterator[tuple[Path, Image]]:
        for name, node in directory.entries.items():
            if isinstance(node, _Directory):
                yield from self._paths(path / name, node)
            else:
                yield path / name, node


class SimulatedSegment:
    """Implements ``ternmq.store.disk.base.Segment``: ``page`` is a view of the page cache."""

    __slots__ = ("_disk", "_image", "page", "path", "ready", "size", "start")

    def __init__(self, disk: SimulatedDisk, path: Path, image: Image, *, size: int, writable: bool) -> None:
        self._disk = disk
        self._image = image
        self.path = path
        self.start = int(path.name) if path.name.isdigit() else 0
        self.size = size
        page = memoryview(image.cached)[:size]
        self.page = page if writable else page.toreadonly()
        self.ready = 0

    def zero(self, begin: int, end: int) -> None:
        self._disk.write_pages(self._image, self.path, begin, bytes(end - begin))

    def reserve(self, begin: int, end: int) -> None:
        self._disk.claim_pages(self._image, self.path, begin, end)

    def remains(self, begin: int) -> Iterator[tuple[int, bytes]]:
        for at, end in self._image.chunks(begin, self.size - begin):
            if any(self.page[at:end]):
                yield at, bytes(self.page[at:end])

    def wipe(self, begin: int) -> None:
        is_changed = False
        for at, data in self.remains(begin):
            self._disk.write_pages(self._image, self.path, at, bytes(len(data)))
            is_changed = True
        if is_changed:
            self.sync()

    def sync(self) -> None:
        self._disk.sync_image(self._image, self.path)


class SimulatedFile:
    """Implements ``ternmq.store.disk.base.PlainFile``."""

    __slots__ = ("_disk", "_image", "_path")

    def __init__(self, disk: SimulatedDisk, path: Path, image: Image) -> None:
        self._disk = disk
        self._path = path
        self._image = image

    def read(self, at: int, length_bytes: int) -> bytes:
        return bytes(self._image.cached[at : at + length_bytes])

    def write(self, at: int, data: bytes | bytearray) -> None:
        self._disk.write_pages(self._image, self._path, at, data)

    def zero_from(self, at: int) -> None:
        for begin, end in self._image.chunks(at, len(self._image.cached) - at):
            if not self._image.lacking(begin, end):
                self._disk.write_pages(self._image, self._path, begin, bytes(end - begin))

    def close(self) -> None:
        """A simulated descriptor costs nothing."""


class SimulatedLock:
    """A lock that is held until it is released, or its process ends."""

    __slots__ = ("_locked", "_path")

    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


def _carry_out(change: _Change) -> None:
    """Make a change of names durable."""
    for directory, name, node in change:
        if node is None:
            directory.durable.pop(name, None)
        else:
            directory.durable[name] = node


def _map(
    directory: _Directory, names: Callable[[_Directory], dict[str, _Node]], change: Callable[[Image], Image]
) -> _Directory:
    """A tree with the names that ``names`` returns, and each file changed; all names in it are durable."""
    found = _Directory()
    for name, node in names(directory).items():
        found.entries[name] = _map(node, names, change) if isinstance(node, _Directory) else change(node)
    found.durable = dict(found.entries)
    return found
