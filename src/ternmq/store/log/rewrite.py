"""A record under a new topic: the one act behind retry, delay, commit of a half message and pop's revive.

The log cannot be changed, so a message moves by being written again: same body, flags, time and host of birth, another
topic and queue, some properties changed. All else (offsets, store time and host) the store gives it anew.

A message may have as many properties as a record can hold, and its copy has some more. It was accepted, so there must
be a copy: ``put_first_that_fits`` tries one with all properties, and then those with less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from ternmq.errors import MessageIllegal, RecordRefused
from ternmq.store.log.draft import Draft
from ternmq.wire import properties as props
from ternmq.wire.record import Record

#: Java's largest ``int``. A sender says how often its message was consumed already, and may say anything.
_RECONSUME_MAX: Final = 2**31 - 1

_T = TypeVar("_T")


def rewrite(
    record: Record,
    topic: str,
    queue_id: int,
    changes: Mapping[str, str],
    *,
    reconsume_times: int | None = None,
    closes: int | None = None,
) -> Draft:
    """The draft of ``record`` under ``topic``.

    ``changes`` are properties to set; one set to "" is removed, all others stay byte for byte and in their order. None
    keeps the record's ``reconsume_times``; others stop at the largest that a record can hold. ``closes`` is the
    log offset of the record that the new one closes (``Draft.closes``).
    """
    properties = record.properties
    if changes:
        kept = props.remove(props.closed(properties), *changes)
        properties = kept + props.join({name: value for name, value in changes.items() if value})
    draft = Draft(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=properties,
        born_time_ms=record.born_time_ms,
        born_host=record.born_host,
        flag=record.flag,
        sysflag=record.sysflag,
        reconsume_times=record.reconsume_times if reconsume_times is None else min(reconsume_times, _RECONSUME_MAX),
    )
    if closes is not None:
        draft.closes = closes
    return draft


def put_first_that_fits(put: Callable[[Draft], _T], drafts: Iterable[Draft]) -> _T:
    """Store the first draft that a record can hold; each has less than the one before. Raises what ``put`` raises for
    the last one."""
    refusal: Exception = RecordRefused("there is nothing to store")
    for draft in drafts:
        try:
            return put(draft)
        except (RecordRefused, MessageIllegal) as error:
            refusal = error
    raise refusal
