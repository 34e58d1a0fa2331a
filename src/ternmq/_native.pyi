"""Compiled kernels (``native/``); see ``ternmq.kernels``. Buffers are read and written in place."""

from collections.abc import Sequence
from typing import Any, final

from ternmq.types import Buffer
from ternmq.wire.record import Page

__version__: str

def index_entries(records: list[tuple[str, str, int, int]]) -> bytes | None:
    """Index entries of records (topic, properties, log offset, store time), 20 bytes each: 4 hash, 8 log offset,
    8 store time. None if a record needs the Python version."""

def index_put(
    page: Page, made: bytes, *, slots: int, number: int, used_slots: int, begin_time_ms: int
) -> tuple[int, int, int]:
    """Write such entries to an index file, from entry ``number`` on: slots in use, begin time, and the begin offset or
    -1 if it did not change. ``ValueError`` if they do not fit; then nothing is written."""

def expand_batch(
    page: Page,
    at: int,
    end: int,
    data: bytes,
    *,
    log_offset: int,
    queue_id: int,
    queue_offset: int,
    store_time_ms: int,
    magic: int,
    shared: bytes,
    topic_field: bytes,
    topic: bytes,
    more_properties: bytes,
    body_bytes_max: int,
    record_bytes_max: int,
) -> tuple[list[int], int, bytes, list[int], bytes] | None:
    """Pack the messages of a batch as records into the page, between ``at`` and ``end``.

    Returns their log offsets, the offset behind the last, their queue entries, each of their tags codes once, and
    their index entries as ``index_entries`` makes them. None if the batch is not plain, not whole, or has no room; then
    nothing is written.
    """

def offset_ids(host: str, log_offsets: Sequence[int]) -> str:
    """The offset ids of records, joined by commas."""

def scan(
    data: bytes,
    at: int,
    *,
    begin: int,
    lead: int,
    check_crc: bool,
    known: dict[tuple[bytes, int], Any],
    indexed: int,
) -> tuple[int, int, int, list[tuple[Any, bytes, int, list[int]]], bytes, int]:
    """Check and fold the plain records of known queues that follow each other from ``at`` on.

    ``known`` has (topic with its length, queue id) → (queue, …). Returns: position of the first record that is not
    plain (or behind the last); how many were; the store time of the last; for each queue with new entries the queue,
    its entries, the log offset behind them and their tags codes; index entries of records behind ``indexed``; and the
    log offset of the last of these, or -1.
    """

@final
class SigningKey:
    """A secret key, ready to sign (``wire.auth.Secret``)."""

    def __new__(cls, secret: bytes) -> SigningKey: ...
    def sign(self, text: bytes, body: Buffer) -> bytes:
        """The signature of a request: of the values of its fields in their order, and its body. As ASCII."""

@final
class SignedSends:
    """Reads sends that one account has signed (``wire.shapes``). It does not change."""

    def __new__(
        cls,
        access_key: str,
        key: SigningKey,
        secret: object,
        *,
        codes: Sequence[int],
        body_bytes_max: int,
        request_type: type,
        header_type: type,
        no_body: memoryview,
    ) -> SignedSends: ...
    def read(self, data: bytes, view: memoryview, at: int, frame_bytes_max: int, commands: list[Any]) -> int:
        """Append the requests in the frames from ``at`` on to ``commands``, with a ``header_type`` as header each. Ends
        at the first frame that is incomplete, or not a plain send of ``codes`` with the signature of this account;
        returns where that begins. ``view`` is a view of ``data``."""
