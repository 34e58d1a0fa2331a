"""Exit codes (T1): what a script can tell from a command that failed.

They are part of the interface and never change; docs/guides/command-line.md lists them.
"""

from __future__ import annotations

import enum

from ternmq.errors import (
    BrokerMissing,
    BrokerRefused,
    ConfigError,
    ConsumerOffline,
    GroupMissing,
    InvalidExpression,
    InvalidHandle,
    InvalidMessage,
    InvalidName,
    NetworkError,
    NoMessage,
    NotFound,
    Outage,
    RouteMissing,
    ServiceNotAvailable,
    SystemBusy,
    TopicMissing,
)


class ExitCode(enum.IntEnum):
    """How a command ended."""

    DONE = 0
    #: Any other error; and for commands that check something: they found a fault, a difference or a problem.
    FAILED = 1
    #: An option, an argument or a setting is wrong. Trying again does not help.
    USAGE = 2
    #: The topic, group, message, consumer, broker or cluster does not exist.
    NOT_FOUND = 3
    #: A server refused the request: no permission, or not possible in its state.
    REFUSED = 4
    #: A server cannot be reached, did not answer in time, or is busy. Trying again later may help.
    UNREACHABLE = 5
    #: Ctrl-C (128 + SIGINT, as shells have it).
    INTERRUPTED = 130


_CODES = (
    # The first that fits: subclasses before their bases.
    (ExitCode.UNREACHABLE, (NetworkError, SystemBusy, ServiceNotAvailable, Outage)),
    (
        ExitCode.NOT_FOUND,
        (RouteMissing, TopicMissing, GroupMissing, NotFound, NoMessage, ConsumerOffline, BrokerMissing),
    ),
    (ExitCode.REFUSED, (BrokerRefused,)),
    (ExitCode.USAGE, (ConfigError, InvalidName, InvalidHandle, InvalidMessage, InvalidExpression)),
)


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error that ends a command."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    for code, kinds in _CODES:
        if isinstance(error, kinds):
            return code
    return ExitCode.FAILED
