"""The bytes between a master and a slave: RocketMQ's HA protocol, and what TernMQ adds to it (O1, V3).

::

    slave → master     8  log offset          the first one: where to start; later ones: acknowledged up to here
    master → slave     8  log offset          of the first byte of the body
                       4  body size           0: a keep-alive
                       n  body                bytes of the log, cut anywhere, all of one segment

All numbers are big endian and signed. There is no magic, no version and no checksum (RocketMQ's ``HAConnection`` and
``HAClient``, 4.9 and 5.x).

Two TernMQ nodes first agree on where their logs are equal (``replication.handshake``). They find each other by the
first report, which is -1 (``PROBE``)::

    slave → master     8  -1
    master → slave    12  header with log offset -1, and a text of the handshake
    slave → master    12  header with log offset -1, and a text of the handshake; perhaps several of both
    master → slave    12  header with log offset -1, and the verdict; from here on all is as above

A RocketMQ master ignores a report of -1, because that is the value it begins with: «the slave has not reported yet».
So it stays silent, and a slave that hears nothing sends an ordinary report. A RocketMQ slave never sends -1.

Between the transfers a TernMQ master may send more texts, and bytes of files behind a header with log offset -2
(``replication.beside``).

The decoders keep at most a header and one text of the handshake. Bytes of the log are handed on as they come.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from ternmq.errors import RemoteProtocolError
from ternmq.types import Buffer
from ternmq.wire.frame import TLS_SPOKEN, speaks_tls

#: The first report of a TernMQ slave, and the log offset in the header of each text of the handshake.
PROBE: Final = -1
#: The log offset in the header of bytes of a file.
FILE: Final = -2
#: Bytes of the log in one transfer (RocketMQ's ``haTransferBatchSize``).
BATCH_BYTES: Final = 32 * 1024
#: A RocketMQ slave has a buffer of 4 MiB for a header and its body, so no master can send more.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024 - 12
#: Bytes of one text of the handshake: some dozens of samples of 100 bytes.
TEXT_BYTES_MAX: Final = 16 * 1024

_REPORT: Final = struct.Struct(">q")
_HEADER: Final = struct.Struct(">qi")
_OFFSET_MAX: Final = (1 << 63) - 1


class Probe(NamedTuple):
    """A TernMQ slave waits for the master's text."""


class Text(NamedTuple):
    """A text of the handshake."""

    data: bytes


class Report(NamedTuple):
    """The slave has all before ``log_offset``; the first one asks for what follows it."""

    log_offset: int


class Transfer(NamedTuple):
    """Bytes of the log, or none: a keep-alive."""

    log_offset: int
    data: memoryview


class FilePart(NamedTuple):
    """Bytes of the file that the last text named."""

    data: memoryview


def pack_report(log_offset: int) -> bytes:
    return _REPORT.pack(log_offset)


def pack_header(log_offset: int, body_bytes: int) -> bytes:
    return _HEADER.pack(log_offset, body_bytes)


def pack_text(data: bytes) -> bytes:
    """A whole frame of the handshake, either way."""
    assert 0 < len(data) <= TEXT_BYTES_MAX, "texts of the handshake are short"
    return _HEADER.pack(PROBE, len(data)) + data


class ReportDecoder:
    """What a slave sends: ``Probe`` and texts, or nothing of both, then reports."""

    __slots__ = ("_has_text", "_is_first", "_is_ours", "_kept", "_reports")

    def __init__(self) -> None:
        self._kept = b""
        self._is_first = True
        #: A probe came: texts follow, until the first report.
        self._is_ours = False
        self._has_text = False
        self._reports = False

    @property
    def kept_bytes(self) -> int:
        """How much is kept for the next call."""
        return len(self._kept)

    def feed(self, data: Buffer) -> list[Probe | Text | Report]:
        """What is complete now; of several reports only the last one. Raises ``RemoteProtocolError``."""
        kept = self._kept + bytes(data)
        events: list[Probe | Text | Report] = []
        at = 0
        if self._is_first and len(kept) >= _REPORT.size:
            self._is_first = False
            if speaks_tls(kept):
                # As a log offset, it would be a million terabytes.
                raise RemoteProtocolError(TLS_SPOKEN)
            (first,) = _REPORT.unpack_from(kept)
            if first == PROBE:
                self._is_ours = True
                at = _REPORT.size
                events.append(Probe())
            else:
                self._reports = True
        while self._is_ours and not self._reports and len(kept) - at >= _REPORT.size:
            (offset,) = _REPORT.unpack_from(kept, at)
            if offset != PROBE:
                if not self._has_text:
                    raise RemoteProtocolError(f"a slave sent log offset {offset} before the handshake ended")
                self._reports = True
                break
            if len(kept) - at < _HEADER.size:
                break
            _, size = _HEADER.unpack_from(kept, at)
            _check_text(size)
            if len(kept) - at < _HEADER.size + size:
                break
            at += _HEADER.size
            events.append(Text(kept[at : at + size]))
            at += size
            self._has_text = True
        whole = (len(kept) - at) // _REPORT.size * _REPORT.size
        if self._reports and whole:
            at += whole
            (last,) = _REPORT.unpack_from(kept, at - _REPORT.size)
            if last < 0:
                raise RemoteProtocolError(f"a slave reported the log offset {last}")
            events.append(Report(last))
        self._kept = kept[at:]
        return events


class TransferDecoder:
    """What a master sends: transfers, and between TernMQ nodes first the texts of the handshake."""

    __slots__ = ("_kept", "_next", "_rest")

    def __init__(self) -> None:
        #: Part of a header, or of a frame with a text.
        self._kept = b""
        #: Log offset of the next byte of a body (``FILE``: of a file), and how many of it are to come.
        self._next = 0
        self._rest = 0

    @property
    def kept_bytes(self) -> int:
        """How much is kept for the next call."""
        return len(self._kept)

    def feed(self, data: Buffer) -> list[Text | Transfer | FilePart]:
        """All that came, bodies as far as they did. Views are of ``data``. Raises ``RemoteProtocolError``."""
        if self._kept:
            data = self._kept + bytes(data)
            self._kept = b""
        view = memoryview(data)
        end, at = len(view), 0
        events: list[Text | Transfer | FilePart] = []
        while at < end:
            if self._rest:
                part = view[at : at + self._rest]
                at += len(part)
                self._rest -= len(part)
                if self._next == FILE:
                    events.append(FilePart(part))
                else:
                    events.append(Transfer(self._next, part))
                    self._next += len(part)
                continue
            if end - at < _HEADER.size:
                break
            offset, size = _HEADER.unpack_from(view, at)
            if offset == PROBE:
                _check_text(size)
                if end - at < _HEADER.size + size:
                    break
                at += _HEADER.size
                events.append(Text(bytes(view[at : at + size])))
                at += size
                continue
            is_file = offset == FILE and size > 0
            if (offset < 0 and not is_file) or not 0 <= size <= BODY_BYTES_MAX or offset > _OFFSET_MAX - size:
                raise RemoteProtocolError(f"a master sent a header for {size} bytes at log offset {offset}")
            at += _HEADER.size
            self._next, self._rest = offset, size
            if not size:
                events.append(Transfer(offset, view[:0]))
        self._kept = bytes(view[at:])
        return events


def _check_text(size: int) -> None:
    if not 0 < size <= TEXT_BYTES_MAX:
        raise RemoteProtocolError(f"a text of the handshake has {size} bytes; expected 1 to {TEXT_BYTES_MAX}")
