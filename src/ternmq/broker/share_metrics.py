"""What QMQ's operators measure of shared consumption, for Prometheus (R2, R3, R4); ``broker.metrics`` asks.

The same numbers as in ``GET_BROKER_RUNTIME_INFO`` (``Sharing.measures``). Only the time of slices has a group as label,
of the groups that took most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ternmq.broker.flow import busiest_groups
from ternmq.broker.services.sharing import Sharing
from ternmq.net.lanes import Lanes

_COUNTERS: Final = (
    ("sharePulls", "ternmq_share_pulls", "Shared pulls."),
    ("shareAcks", "ternmq_share_acks", "Acks of shared consumers."),
    ("shareLostAcks", "ternmq_share_lost_acks", "Messages that a consumer passed over; they were written again."),
    ("shareRefusedAcks", "ternmq_share_refused_acks", "Acks of messages that their sender did not hold."),
    ("shareExpired", "ternmq_share_expired", "Messages that retention deleted before they were confirmed."),
    ("shareAckTimeouts", "ternmq_share_ack_timeouts", "Messages that a consumer held for too long."),
    ("shareRetried", "ternmq_share_retried", "Messages that were written again."),
    ("shareOfflineTasks", "ternmq_share_offline_tasks", "Consumers that went offline with messages."),
)
_GAUGES: Final = (
    ("shareWaiting", "ternmq_share_waiting", "Shared pulls that wait for messages."),
    ("shareConsumers", "ternmq_share_consumers", "Shared consumers that are known."),
    ("shareHeld", "ternmq_share_held", "Messages that shared consumers hold."),
    ("shareRetryWaiting", "ternmq_share_retry_waiting", "Messages that have yet to be written again."),
    ("shareBytes", "ternmq_share_state_bytes", "Memory of the state of shared consumption."),
)


class MetricRows(Protocol):
    """What takes the rows: a family of metrics, then its rows."""

    def gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> None: ...

    def counter(self, name: str, what: str, labels: Sequence[str] = ()) -> None: ...

    def row(self, labels: tuple[str, ...], value: float) -> None: ...


def read_shares(rows: MetricRows, sharing: Sharing, lanes: Lanes) -> None:
    """Tell all of them. A slave has no gauges: only a master shares messages."""
    measures = sharing.measures()
    for key, name, what in _COUNTERS:
        rows.counter(name, what)
        rows.row((), int(measures[key]))
    rows.gauge("ternmq_share_lost_ack_time_seconds", "When a consumer passed over messages last; 0: never.")
    rows.row((), int(measures["shareLostAckTimestamp"]) / 1000)
    for key, name, what in _GAUGES:
        if key in measures:
            rows.gauge(name, what)
            rows.row((), int(measures[key]))
    busiest = busiest_groups(lanes)
    rows.counter("ternmq_group_seconds", "Time of pulls and acks of the busiest groups.", ("consumer_group",))
    for group, seconds, _ in busiest:
        rows.row((group,), seconds)
    rows.counter("ternmq_group_slices", "Slices of that time.", ("consumer_group",))
    for group, _, slices in busiest:
        rows.row((group,), slices)
