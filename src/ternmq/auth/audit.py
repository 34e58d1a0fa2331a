"""The audit log: one line for each change that an administrator makes, and for denials (N1).

Lines go to the logger ``ternmq.audit``, so that they can have a file of their own. Each is one sentence and the same
facts as fields (``extra``), for log formats that have them: who, from where, what, on which resources, and why not.

Any client can cause denials as often as it wants. So of each kind, from one address with one key, one line is logged
in ten seconds; the next one tells how many there were. All keys of no account count as one, as a client can invent
them, and in ten seconds there are at most a hundred lines. Changes are never left out. Texts of clients are shortened
and quoted: they cannot break lines.
"""

from __future__ import annotations

import logging
from typing import Final

from ternmq.env import Clock
from ternmq.net.gate import CallingPeer
from ternmq.rare_log import one_line
from ternmq.wire.codes import RequestCode

log = logging.getLogger("ternmq.audit")

PAUSE_S: Final = 10.0
#: Kinds of denials that are remembered; the one that was seen longest ago is forgotten.
KINDS_MAX: Final = 10_000
_SHOWN_MAX: Final = 64
#: Lines about denials in ``PAUSE_S``.
LINES_MAX: Final = 100


class Audit:
    """Writes the lines. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: Reason, address and key → when the next line may be logged, and how many were left out.
        self._denials: dict[tuple[str, str, str], tuple[float, int]] = {}
        #: When the current period ends, and how many lines about denials it may still have.
        self._period_ends, self._lines_left = 0.0, 0

    def changed(self, *, key: str, address: str, code: int, resources: str) -> None:
        """An administrator's request was admitted, and is carried out now."""
        log.info(
            "%s from %s: %s on %s",
            shown(key),
            address,
            code_name(code),
            resources or "the server",
            extra={"event": "admin", "key": shown(key), "from": address, "code": code, "resources": resources},
        )

    def denied(self, *, kind: str, key: str, is_known: bool, ip: str, address: str, code: int, reason: str) -> None:
        """A request was refused. ``kind`` is one of a few words, ``reason`` a sentence; ``is_known``: the key is one of
        an account."""
        what = kind, ip, key if is_known else ""
        now = self._clock.monotonic()
        if now >= self._period_ends:
            self._period_ends, self._lines_left = now + PAUSE_S, LINES_MAX
        next_at, left_out = self._denials.pop(what, (0.0, 0))
        if len(self._denials) >= KINDS_MAX:
            del self._denials[next(iter(self._denials))]
        if now < next_at or not self._lines_left:
            self._denials[what] = next_at, left_out + 1
            return
        self._lines_left -= 1
        self._denials[what] = now + PAUSE_S, 0
        log.warning(
            "denied %s of %s from %s: %s%s",
            code_name(code),
            shown(key) if key else "a client without a key",
            address,
            reason,
            f" ({left_out} similar denials since the last line)" if left_out else "",
            extra={"event": "denied", "kind": kind, "key": shown(key), "from": address, "code": code, "more": left_out},
        )

    def __call__(self, caller: CallingPeer, code: int, reason: str, /) -> None:
        """Denials that no account decides (``net.gate.DenialLog``): of validators of your own, of ports for servers."""
        self.denied(
            kind="other",
            key=caller.proved,
            is_known=bool(caller.proved),
            ip=caller.remote_ip,
            address=caller.address,
            code=code,
            reason=one_line(reason),
        )


def shown(text: str) -> str:
    """A text of a client, safe to print."""
    quoted = repr(text[:_SHOWN_MAX])
    return f"{quoted}…" if len(text) > _SHOWN_MAX else quoted


def code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
