"""Compiled kernels (``native/``); see ``ternmq.kernels``. Buffers are read and written in place."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, TypeVar, final

from ternmq.message import Message
from ternmq.types import Buffer
from ternmq.wire.record import Page

__version__: str

_Queue = TypeVar("_Queue")

class _Integers(Protocol):
    """A contiguous array of 8-byte integers, of ``array`` or NumPy."""

    @property
    def itemsize(self) -> int: ...
    def __len__(self) -> int: ...

def index_entries(records: list[tuple[str, str, int, int]]) -> bytes | None:
    """Index entries of records (topic, properties, log offset, store time), 20 bytes each: 4 hash, 8 log offset,
    8 store time. None if a record needs the Python version."""

def index_put(
    page: Page,
    made: bytes,
    slots: int,
    number: int,
    used_slots: int,
    begin_time_ms: int,
    begin_offset: int,
) -> tuple[int, int, int, int, int]:
    """Write such entries to an index file, from entry ``number`` on, and then its header. What the header says now:
    slots in use, begin time, begin offset, end offset and end time. ``ValueError`` if there are none, or if they do not
    fit; then nothing is written."""

def check_chain(
    entries: bytes, newest: array[int], *, number: int, low: int, high: int
) -> tuple[int, int, bool] | None:
    """Check entries of an index file, the first of which has ``number``. ``newest`` has the newest entry of each slot,
    and gets theirs.

    Returns how many do not name the entry that was the newest of their slot, the number of the first of them, and
    whether their log offsets never decrease from ``low`` up to ``high``. None if there are no slots, or numbers are too
    large; then nothing is noted.
    """

def count_same(made: bytes, at: int, entries: bytes, entries_at: int) -> int:
    """How many entries from two positions on have the same hash and log offset: those that ``index_entries`` makes, and
    those of an index file."""

def expand_batch(
    page: Page,
    at: int,
    end: int,
    data: bytes,
    *,
    log_offset: int,
    lead: int,
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
) -> tuple[list[int], tuple[bytes, int, int, list[tuple[int, int]]], bytes] | int | None:
    """Pack the messages of a batch as records into the page, between ``at`` and ``end``, ``lead`` bytes between them.

    Returns their log offsets, what they add to their queue as ``store_sends`` tells it, and their index entries as
    ``index_entries`` makes them. The bytes that they need if there is no room, None if the batch is not plain or not
    whole; then nothing is written.
    """

def deliver(
    page: Page,
    at: int,
    end: int,
    source: Buffer,
    places: list[int],
    sizes: list[int],
    waiting_at: list[int],
    *,
    log_offset: int,
    lead: int,
    store_time_ms: int,
    store_host: bytes,
    delivered: bytes,
    hour: int,
    record_bytes_max: int,
    own: dict[bytes, tuple[str, int]],
    table: dict[tuple[str, int], Any],
) -> tuple[
    int,
    tuple[int, int],
    list[tuple[Any, tuple[bytes, int, int, list[tuple[int, int]]]]],
    bytes,
    bytes,
    bytes | None,
]:
    """Write waiting records again under their own topics, into the page between ``at`` and ``end``, ``lead`` bytes
    between them.

    The records stand in ``source`` at ``places``, have ``sizes``, and wait at the log offsets ``waiting_at``; the
    source may be the same page. ``own`` tells which queue the text of topic and queue means, ``table`` has the queues.
    It stops at the first record that is not plain, not whole, not of the hour, or has no room. Returns how many were
    written; the log offset behind them, and of the last; for each queue with new entries the queue, and what they add
    to it as ``store_sends`` tells it; index entries; 16 bytes for each record, its log offset and that of the record
    that it closes; and the text of a queue that ``own`` does not have, if it stopped because of it.
    """

def has_sound_entries(data: bytes) -> bool:
    """Whether all entries of an hour's index (``delay.hour_files``) have the checksum that they tell."""

def record_starts(data: Buffer, begin: int, end: int) -> bytes | None:
    """Where each record between two positions begins, 8 bytes each in this machine's order; None if their sizes do not
    fill the range, or it is not inside the data."""

def part_crcs(data: Buffer, at: _Integers, sizes: _Integers) -> bytes | None:
    """The CRC-32 of each part, 4 bytes each in this machine's order. None if a part is not inside the data."""

def property_values(
    data: Buffer, at: _Integers, sizes: _Integers, names: list[bytes]
) -> list[tuple[bytes, bytes, bytes, int]] | None:
    """The values of some properties in the texts that these parts are, as ``wire.properties.parse`` finds them.

    For each name an Arrow array of strings: offsets, data, validity bits (unset where a text has no such property), and
    how many of them are unset. None if a text is not UTF-8.
    """

def property_pairs(data: Buffer, at: _Integers, sizes: _Integers) -> tuple[bytes, bytes, bytes, bytes, bytes] | None:
    """All pairs of such texts: offsets and data of the names, the same of the values, and the offsets of the texts in
    both. None if a text is not UTF-8, or has more than 64 names."""

def pack_rows(
    bodies: tuple[Buffer, Buffer | None, Buffer | None],
    tags: tuple[Buffer, Buffer | None, Buffer | None] | None,
    keys: tuple[Buffer, Buffer | None, Buffer | None] | None,
    begin: int,
    end: int,
    *,
    chunk_id: str,
    number: int,
    always: str,
    topic_crc: int,
    room_bytes: int,
    body_bytes_max: int,
    properties_bytes_max: int,
) -> tuple[bytes, int, int]:
    """Pack rows of Arrow columns (offsets of 4 bytes, data, validity bits) as messages of a batch send.

    ``number`` is that of the first row in its chunk, ``always`` the properties that each has. It stops before the first
    row that is not plain (no body, tags or keys that cannot be sent) or does not fit into the room or the chunk.
    Returns the messages, how many, and their checksum.
    """

def contains_any(data: bytes, texts: Sequence[bytes]) -> bool:
    """Whether one of the texts stands anywhere in the data."""

def offset_ids(host: str, log_offsets: Sequence[int]) -> str:
    """The offset ids of records, joined by commas."""

@final
class Sends:
    """Plain sends of one read that follow each other, with ends of transactions among them, parsed. It holds no state
    but what was read."""

    @property
    def data(self) -> bytes:
        """The read."""

    @property
    def count(self) -> int:
        """How many requests these are; at least one."""

    @property
    def frame_bytes(self) -> int:
        """Bytes of their frames."""

    @property
    def end(self) -> int:
        """Where the last frame ends in ``data``."""

    @property
    def places(self) -> list[tuple[str, int]]:
        """Topic and queue id of each queue that a send names, once."""

    @property
    def is_full(self) -> bool:
        """Whether the run ends because of its bounds, not because of what follows."""

    @property
    def account(self) -> SignedSends | None:
        """What has checked their signatures; None if they were not checked."""

    def frame(self, number: int) -> tuple[int, int]:
        """Where the frame of a request begins and ends in ``data``."""

    def is_transactional(self, number: int) -> bool:
        """Whether a request ends a transaction, or is a send with TRAN_MSG in its properties."""

@final
class SendTerms:
    """What all runs of sends of a broker share. A send whose properties hold one of ``marks`` is not plain."""

    def __new__(
        cls,
        *,
        store_host: bytes,
        more_properties: bytes,
        marks: Sequence[bytes],
        sysflag_mask: int,
        body_bytes_max: int,
        record_bytes_max: int,
    ) -> Self: ...

@final
class ReplyForm:
    """The six parts of a reply between which log offset, queue id, queue offset, unique key and opaque stand; there are
    seven if a recall handle stands in front of the opaque."""

    def __new__(cls, parts: Sequence[bytes]) -> Self: ...

def parse_sends(data: bytes, at: int, bytes_max: int, account: SignedSends | None = None) -> Sends | None:
    """The plain sends, and ends of transactions, whose frames follow each other from ``at`` on; None if there is none.
    The run is bounded. With an ``account``, it ends before the first request that is not a send of its codes, or not
    signed by it."""

@final
class SendHead:
    """What the headers of a client's sends to one topic share: the eight parts (``wire.template``) between which queue
    id, sysflag, born time, flag, properties, reconsume times and opaque stand."""

    def __new__(cls, parts: Sequence[bytes]) -> Self: ...
    def start(
        self,
        queue_id: int,
        sysflag: int,
        born_time_ms: int,
        flag: int,
        properties: str,
        reconsume_times: int,
        opaque: int,
        body_bytes: int,
        frame_bytes_max: int,
        /,
    ) -> bytes | None:
        """The frame of a send up to its body. None if it would be too large, or the properties are no text."""

def read_sent(
    data: bytes, frame_bytes_max: int, calls: dict[int, Any], kind: type, /
) -> tuple[list[tuple[int, str, int, int, str, str, bool]], int]:
    """The answers to sends that begin ``data``: those that say, in the usual way, that a message is stored, and whose
    call is one of ``kind``. Opaque, offset id, queue id, queue offset, transaction id, region, and whether traces are
    wanted. Ends at the first frame that is something else, or incomplete; the second value is where it begins."""

def refuse_sends(
    data: bytes, room: int, bytes_max: int, before: bytes, behind: bytes
) -> tuple[bytes, bytes, int] | None:
    """What is left of ``data`` when all sends but the first ``room`` are refused, the replies as frames, and how many
    were refused (``wire.refusal``). A reply has ``before``, the opaque and ``behind``."""

def pack_batch(
    messages: list[Message],
    id_prefix: str,
    number: int,
    *,
    namespace: str,
    body_bytes_max: int,
    reserved: frozenset[str],
    astuple: Callable[[Message], tuple[object, ...]],
) -> tuple[bytes, str] | None:
    """The body of a batch of messages, and their unique ids, joined by commas: the prefix and numbers from ``number``
    on. ``astuple`` is that of ``msgspec.structs``.

    None if one of them is not plain: of another topic, delayed, not ``wait_store_ok``, with several keys, with anything
    that would be refused, or beyond ``body_bytes_max`` together.
    """

def pack_properties(
    message: Message,
    id_prefix: str,
    number: int,
    *,
    namespace: str,
    body_bytes_max: int,
    reserved: frozenset[str],
    astuple: Callable[[Message], tuple[object, ...]],
) -> tuple[str, str] | None:
    """The unique id of a message and the text of its properties; None if it is not plain, as for ``pack_batch``. The
    topic is not looked at."""

#: Size, queue id, flag, queue offset, log offset, sysflag, born time, born host, store time, store host, reconsume
#: times, prepared transaction offset, body, topic, properties.
_Row = tuple[int, int, int, int, int, int, int, bytes, int, bytes, int, int, bytes, str, bytes]

def read_rows(data: bytes) -> tuple[list[_Row], int] | None:
    """The fields of all records in an answer, and their sysflags or-ed; None unless all of them are usual ones
    (``wire.stored``) without a ``TERN_BODY_ERROR``."""

def timed(
    properties: str, topic: str, queue_id: int, now_ms: int, max_delay_ms: int
) -> tuple[str, int, int, int] | None:
    """Let a message wait: its properties with slot, topic and queue, the slot, which of ``TIMER_PROPERTIES`` asks for
    its time, and the value of that in ms. None if no time is asked for, or Python must decide."""

def scan(
    data: bytes,
    at: int,
    *,
    begin: int,
    has_headers: bool,
    before: tuple[int, int] | None,
    check_crc: bool,
    known: dict[tuple[bytes, int], Any],
    indexed: int,
) -> tuple[int, int, int, int, list[tuple[Any, bytes, int, list[int]]], bytes, int]:
    """Check and fold the plain records of known queues that follow each other from ``at`` on; with ``has_headers`` each
    behind the header of its Raft entry, which is checked, too. With ``before`` so are the CRCs of whole records, and
    that entries follow each other, the first one that with this index and term (any, if the index is negative).

    ``known`` has (topic with its length, queue id) → (queue, …). Returns: position of the first record that is not
    plain (or behind the last), and that of the last one that was; how many were; the store time of the last; for each
    queue with new entries the queue, its entries, the log offset behind them and their tags codes; index entries of
    records behind ``indexed``; and the log offset of the last of these, or -1.
    """

def seal_entries(page: Page, at: int, end: int, index: int, term: int, position: int) -> bytes | None:
    """Fill the headers of the Raft entries between ``at`` and ``end`` of the page, whose records are packed: the first
    is ``index`` and lies at ``position``. Returns their units in the index. None if those are no records; then headers
    may be filled."""

def check_entries(
    data: Buffer, at: int, *, index: int, term: int, position: int, file_bytes: int, members_flag: int
) -> tuple[int, bytes]:
    """Check the Raft entries that follow each other from ``at`` on: of this term, from ``index`` and ``position`` on,
    in one data file, whole, each with a record that does not have ``members_flag``.

    Returns where the first begins that is not so (or the end of the last), and the units in the index of those before.
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
    @property
    def secret(self) -> Any:
        """As it was given."""

    def read(
        self, data: bytes, view: memoryview, at: int, frame_bytes_max: int, count_max: int, commands: list[Any]
    ) -> int:
        """Append the requests in at most ``count_max`` frames from ``at`` on to ``commands``, with a ``header_type`` as
        header each. Ends at the first frame that is incomplete, or not a plain send of ``codes`` with the signature of
        this account; returns where that begins. ``view`` is a view of ``data``."""

def store_sends(
    sends: Sends,
    terms: SendTerms,
    form: ReplyForm,
    first: int,
    until: int,
    page: Page,
    at: int,
    end: int,
    lead: int,
    log_offset: int,
    store_time_ms: int,
    born_host: bytes,
    targets: list[tuple[_Queue, int, bytes] | None],
) -> (
    tuple[
        int,
        int,
        int,
        list[tuple[_Queue, bytes, int, int, list[tuple[int, int]]]],
        list[tuple[_Queue, int, int]],
        bytes,
        bytes,
        bytes,
    ]
    | None
):
    """Pack the sends from number ``first`` on, those before ``until``, as records into the page, between ``at`` and
    ``end``, with ``lead`` bytes between two of them.

    ``targets`` has for each place its queue, whatever that is, its next queue offset, and its topic with its length in
    front; None for a place that is not plain. Returns: number of the first send that is not stored; log offset behind
    the last record, and of the last record; for each place with new entries its queue, the entries, the log offset
    behind them, the bytes of the bodies, and each tags code with the queue offset behind its last record; for each
    topic one of these queues, how many messages it has got, and the bytes of their bodies; index entries as
    ``index_entries`` makes them; the replies, as frames; and the log offsets behind the records that have a reply, as
    signed numbers of 8 bytes in the machine's order. None if the send ``first`` is not plain or has no room; then
    nothing is written.
    """

def store_timed_sends(
    sends: Sends,
    terms: SendTerms,
    form: ReplyForm,
    first: int,
    page: Page,
    at: int,
    end: int,
    *,
    log_offset: int,
    store_time_ms: int,
    max_delay_ms: int,
    born_host: bytes,
    broker_name: str,
    may_wait: list[bool],
    queue_offset: int,
    topic_field: bytes,
) -> (
    tuple[int, int, int, tuple[bytes, int, int, list[tuple[int, int]]], list[tuple[int, int, int]], bytes, bytes] | None
):
    """Pack the sends with a delivery time from number ``first`` on as records of the timer topic, whose next queue
    offset and name with its length in front are given. ``form`` has seven parts; ``may_wait`` tells for each place
    whether its messages may be let wait.

    Returns: number of the first send that is not stored; log offset behind the last record, and of the last record;
    what they add to the queue, as ``store_sends`` tells it; for each place of which sends were stored its number, their
    count, and the bytes of their bodies; index entries; the replies. None if the send ``first`` has no time, is not
    plain or has no room; then nothing is written.
    """

def store_transactions(
    sends: Sends,
    half_terms: SendTerms,
    commit_terms: SendTerms,
    form: ReplyForm,
    done: tuple[bytes, bytes],
    first: int,
    page: Page,
    at: int,
    end: int,
    *,
    log_offset: int,
    from_offset: int,
    store_time_ms: int,
    born_host: bytes,
    group_bytes_max: int,
    may_begin: list[bool],
    open_halves: dict[int, int] | None,
    in_doubt: set[int],
    queue_offset: int,
    topic_field: bytes,
    target: Callable[[str, int], tuple[int, bytes] | None],
) -> (
    tuple[
        int,
        int,
        int,
        tuple[bytes, int, int, list[tuple[int, int]]] | None,
        list[tuple[int, int, int]],
        list[tuple[int, bytes, int, int, list[tuple[int, int]]]],
        list[int],
        bytes,
        bytes,
    ]
    | None
):
    """Pack halves as records of the half topic, whose next queue offset and name with its length in front are given,
    and the messages of halves that are committed, from request ``first`` on, in their order.

    ``open_halves`` has the log offsets of open halves by their queue offsets; None if nothing may be ended. Those
    ``in_doubt``, and those before ``from_offset`` or before the page, are left. ``may_begin`` tells for each place
    whether its messages may become halves. ``target`` is asked once for each queue of messages, in the order of their
    numbers: its next queue offset, and its topic with its length in front; None if it is not plain. ``done`` is what
    stands before and behind the opaque in the reply to a commit.

    Returns: number of the first request that is not carried out; log offset behind the last record, and of the last
    record; what halves add to their queue, as ``store_sends`` tells it, if there are some; for each place of which
    halves were stored its number, their count, and the bytes of their bodies; for each queue of messages with new
    entries its number, and what is added; the queue offsets of the halves that were committed; index entries; the
    replies. None if the request ``first`` is not plain or has no room; then nothing is written.
    """

def store_ops(
    page: Page,
    at: int,
    end: int,
    closed: Sequence[int],
    *,
    log_offset: int,
    lead: int,
    queue_offset: int,
    born_time_ms: int,
    born_host: bytes,
    store_time_ms: int,
    store_host: bytes,
    topic_field: bytes,
) -> tuple[int, tuple[bytes, int, int, list[tuple[int, int]]]] | None:
    """Pack an op record for each of the halves ``closed`` into the page, between ``at`` and ``end``, ``lead`` bytes
    between them.

    Returns the log offset of the last record, and what they add to their queue, as ``store_sends`` tells it. None if
    they do not all fit, or a host is not IPv4; then nothing is written.
    """

def fold_waiting(
    data: Buffer, begin: int, entries: bytes, topic_field: bytes, hours: dict[int, Any]
) -> tuple[int, list[tuple[int, bytes, bytes, int]], list[tuple[str, int]], int | None]:
    """Fold records of the timer topic, given by their queue entries, for the files of their hours.

    ``data`` has the log from ``begin`` on; ``hours`` has ``HourFiles``. Returns: how many entries were taken, up to one
    that Python must look at; for each hour that grows, its number, lines of the index, the records, and the log offset
    of the last one; how many messages of which topic are new; the first time at which one of them is due.
    """
