"""Message ids and the hash that the store's files use (C2, C4, C10).

A message has two ids, both upper-case hexadecimal, 32 digits for IPv4 and 56 for IPv6:

- the *offset id* identifies one stored record: address and port of the broker (8 or 20 bytes), log offset (8). Tools
  connect to the address in it, so a store host must be reachable for clients;
- the *unique id* (property ``UNIQ_KEY``) is assigned by the producer and stays the same in retries and copies:
  address (4 or 16 bytes), process id (2), a number of this process (4), ms since the month began (4), counter (2).

``java_hash`` is ``String.hashCode``: h = 31·h + unit over **UTF-16 units**, wrapped to signed 32 bits. Tags codes and
index slots are computed from it.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import accumulate, repeat
from typing import Final

from ternmq.env import Clock
from ternmq.errors import InvalidName
from ternmq.wire.record import pack_host, unpack_host

# --- Java's hash ----------------------------------------------------------------------------------------------

_MASK: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
_UTF_16: Final = "utf-16-le" if sys.byteorder == "little" else "utf-16-be"

#: 31^0, 31^1, … modulo 2^32.
POWERS: Final = tuple(accumulate(repeat(31, 1023), lambda power, base: power * base & _MASK, initial=1))

#: The hash is a number in base 31, and ``int`` parses such numbers in C: 0.15 µs for 32 digits. A digit is at most 30,
#: so each ASCII character c becomes two digits, c = 31·q + r, one for each of two numbers. (All public for the index,
#: which hashes so many keys that it avoids the call.)
_DIGITS: Final = b"0123456789ABCDEFGHIJKLMNOPQRSTU"
QUOTIENTS: Final = bytes(_DIGITS[code // 31] for code in range(256))
REMAINDERS: Final = bytes(_DIGITS[code % 31] for code in range(256))
#: ``int`` refuses more than 4300 digits.
DIGITS_MAX: Final = len(POWERS) - 1


def java_hash(text: str) -> int:
    """``text.hashCode()`` of Java."""
    return java_hash_append(0, text)


def java_hash_append(prefix_hash: int, text: str) -> int:
    """The hash of a text whose prefix has a known hash: ``hash(a + b) == append(hash(a), b)``.

    The index hashes ``topic#key`` for each key; with this it hashes each topic once.
    """
    if text.isascii() and 0 < len(text) <= DIGITS_MAX:
        data = text.encode()
        value = (
            prefix_hash * POWERS[len(data)]
            + 31 * int(data.translate(QUOTIENTS), 31)
            + int(data.translate(REMAINDERS), 31)
        )
    else:
        value = prefix_hash
        for unit in memoryview(text.encode(_UTF_16, "surrogatepass")).cast("H"):
            value = (31 * value + unit) & _MASK
    return ((value + _SIGN) & _MASK) - _SIGN


# --- Offset ids -----------------------------------------------------------------------------------------------


def offset_id(store_host: bytes, log_offset: int) -> str:
    """The id of the record at ``log_offset`` in the log of the broker at ``store_host``."""
    return f"{store_host.hex().upper()}{log_offset:016X}"


def parse_offset_id(text: str) -> tuple[str, int, int]:
    """Address, port and log offset of an offset id; raises ``InvalidName`` if it is invalid."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    # A valid id contains neither a blank (which fromhex skips) nor a log offset below 0.
    if len(text) not in (32, 56) or len(data) * 2 != len(text) or data[-8] >= 0x80:
        raise InvalidName(
            f"{text!r} is not a valid offset id; it has 32 hexadecimal digits (56 for IPv6), and a send returns "
            "it as offset_id",
            name=text,
        )
    ip, port = unpack_host(data[:-8])
    return ip, port, int.from_bytes(data[-8:], "big")


# --- Unique ids -----------------------------------------------------------------------------------------------


class UniqueIds:
    """Creates the unique ids of one producer process.

    Time and counter together are one number that only grows: it follows the clock while the clock moves forward, and
    counts up from its last value while the clock stands still or goes back. So ids never repeat within a month.
    ``salt`` distinguishes processes with the same address and process id (containers): give it 32 random
    bits.
    """

    __slots__ = ("_clock", "_last", "_month_end_ms", "_month_start_ms", "_prefix")

    def __init__(self, ip: str, pid: int, *, salt: int, clock: Clock) -> None:
        address = pack_host(ip, 0)[:-4]
        self._prefix = (address + (pid & 0xFFFF).to_bytes(2, "big") + (salt & _MASK).to_bytes(4, "big")).hex().upper()
        self._clock = clock
        self._last = 0
        self._month_start_ms = self._month_end_ms = 0

    def next(self) -> str:
        prefix, number = self.take(1)
        return f"{prefix}{number & 0xFFFF_FFFF_FFFF:012X}"

    def take(self, count: int) -> tuple[str, int]:
        """``count`` ids in a row: their prefix, and the number that follows it in the first (``unique_ids``)."""
        now_ms = self._clock.now_ms()
        if now_ms >= self._month_end_ms:
            self._begin_month(now_ms)
        number = (now_ms - self._month_start_ms) << 16
        if number <= self._last:
            number = self._last + 1
        self._last = number + count - 1
        return self._prefix, number

    def _begin_month(self, now_ms: int) -> None:
        # Local time, as Java's readers of this id assume.
        now = time.localtime(now_ms / 1000)
        self._month_start_ms = _local_ms(now.tm_year, now.tm_mon)
        self._month_end_ms = _local_ms(now.tm_year, now.tm_mon + 1)
        self._last = 0


class ThreadsIds(UniqueIds):
    """The same for threads: any of them may call."""

    __slots__ = ("_lock",)

    def __init__(self, ip: str, pid: int, *, salt: int, clock: Clock) -> None:
        super().__init__(ip, pid, salt=salt, clock=clock)
        self._lock = threading.Lock()

    def take(self, count: int) -> tuple[str, int]:
        with self._lock:
            return super().take(count)


def unique_ids(prefix: str, number: int, count: int) -> list[str]:
    """The ids that ``UniqueIds.take`` gave."""
    return [f"{prefix}{one & 0xFFFF_FFFF_FFFF:012X}" for one in range(number, number + count)]


def _local_ms(year: int, month: int) -> int:
    # ``mktime`` accepts month 13 as January of the next year; -1 lets it determine daylight saving time.
    return int(time.mktime((year, month, 1, 0, 0, 0, 0, 0, -1))) * 1000
