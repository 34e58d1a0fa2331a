"""``tern send`` (E1)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, ReaderGone, note
from ternmq.cli.running import run
from ternmq.cli.times import later, parse_moment
from ternmq.errors import ConfigError, TernError
from ternmq.tasks import Tasks

if TYPE_CHECKING:
    from ternmq.client.send.producer import Producer
    from ternmq.message import Message, SendReceipt

    #: Sends in progress, in order; None is the end.
    Flying: TypeAlias = asyncio.Queue[asyncio.Future[SendReceipt] | None]

GROUP: Final = "tern_send"
#: Concurrent sends: enough to hide the network's latency, few enough to stop soon after an error.
WINDOW: Final = 64
READ_BYTES: Final = 64 * 1024


def send(
    topic: Annotated[str, typer.Argument(help="Topic to send to.", metavar="TOPIC")],
    bodies: Annotated[list[str] | None, typer.Argument(help="Message bodies, one per message.", metavar="BODY")] = None,
    tag: Annotated[str, typer.Option("--tag", "-T", help="Tag, by which consumers can filter.")] = "",
    keys: Annotated[
        list[str] | None, typer.Option("--key", "-k", help="Key for `tern message find`. Can be repeated.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-P", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    delay: Annotated[
        str,
        typer.Option(
            "--delay",
            metavar="DURATION",
            help="Deliver later: 500ms, 90s, 15m, 2h or 3d. A bare number is a delay level.",
        ),
    ] = "",
    at: Annotated[
        str, typer.Option("--at", metavar="TIME", help="Deliver at this time, such as 2026-12-24T18:00 (local time).")
    ] = "",
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="Send each line of a file; - is stdin.")
    ] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Send each message this many times.")] = 1,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Send messages, and print where each one is stored.

    Examples:

        tern send orders 'first' 'second' --tag new --key 4711

        tern send reminders 'pay' --delay 90s

        tern send reminders 'presents' --at 2026-12-24T18:00

        seq 1000 | tern send numbers --file -
    """
    from ternmq.message import Message

    if bool(bodies) == (file is not None):
        raise typer.BadParameter("give the messages as arguments, or a file of lines with --file (- for stdin)")
    if delay and at:
        raise typer.BadParameter("give either --delay or --at")
    when = later(delay) if delay else {"deliver_at": parse_moment(at)} if at else {}
    named = dict(_named(text) for text in properties or ())
    source = _arguments(bodies) if bodies else _lines(_open(file or "-"))

    async def messages() -> AsyncIterator[Message]:
        async for body in source:
            for _ in range(count):
                yield Message(topic, body, tags=tag, keys=tuple(keys or ()), properties=dict(named), **when)

    run(_send(messages(), name_servers, Output(as_json=as_json)))


async def _send(messages: AsyncIterator[Message], name_servers: str, output: Output) -> None:
    """Send all messages and print receipts in the same order, each as soon as it arrives; the first error stops it."""
    from ternmq.client.send.producer import Producer

    flying: Flying = asyncio.Queue(WINDOW)
    sent = 0
    try:
        async with Producer(GROUP, name_servers=name_servers) as producer, Tasks() as tasks:
            tasks.create_task(_start_all(messages, producer, flying))
            while (receipt := await flying.get()) is not None:
                _show(output, await receipt)
                sent += 1
    except ReaderGone:
        # Some messages are not sent yet. Unlike in commands that only read, this is an error.
        raise TernError(
            f"stopped after {sent} messages or a few more, because the program that read the receipts has ended; "
            "to send all messages, write the receipts to a file or to /dev/null"
        ) from None
    except BaseException:
        if sent:
            note(f"{sent} messages were sent before this error:")
        raise


async def _start_all(messages: AsyncIterator[Message], producer: Producer, flying: Flying) -> None:
    """Start a send for each message, as many at once as fit into ``flying``; None marks the end."""
    try:
        async for message in messages:
            receipt = producer.send_nowait(message)
            receipt.add_done_callback(_looked_at)
            await flying.put(receipt)
        await flying.put(None)
    except TernError as error:
        failed: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        failed.set_exception(error)
        await flying.put(failed)


def _looked_at(receipt: asyncio.Future[SendReceipt]) -> None:
    """Only the first error is reported; asyncio would log those of later sends as never retrieved."""
    if not receipt.cancelled():
        receipt.exception()


def _show(output: Output, receipt: SendReceipt) -> None:
    queue = receipt.queue
    output.item(
        {
            "status": receipt.status.value,
            "message_id": receipt.message_id,
            "offset_id": receipt.offset_id,
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queue": queue.queue_id,
            "queue_offset": receipt.queue_offset,
            **({"recall_handle": receipt.recall_handle} if receipt.recall_handle else {}),
        },
        f"{receipt.status.value}\t{receipt.message_id}\t{queue}\t{receipt.queue_offset}"
        + (f"\t{receipt.recall_handle}" if receipt.recall_handle else ""),
    )


def _named(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"invalid property {text!r}: expected NAME=VALUE", param_hint="--property")
    return name, value


async def _arguments(bodies: Sequence[str]) -> AsyncIterator[bytes]:
    for body in bodies:
        yield body.encode("utf-8", "surrogateescape")  # arguments that are not valid UTF-8 are sent unchanged


def _open(path: str) -> int:
    """The descriptor of a file, 0 for ``-``."""
    try:
        return 0 if path == "-" else os.open(path, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check the path after --file") from None


async def _lines(descriptor: int) -> AsyncIterator[bytes]:
    """Lines as they arrive, without line ends; empty lines are skipped, because messages cannot be empty."""
    rest = b""
    while data := await _read(descriptor):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            if line:
                yield line
    if rest:
        yield rest


async def _read(descriptor: int) -> bytes:
    """The available input, read in a thread: input may be slow, and heartbeats must go on meanwhile.

    A daemon thread, not the loop's executor: Python waits for the executor at the end, and Ctrl-C must not wait.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes | OSError) -> None:
        if done.done():
            return
        if isinstance(data, OSError):
            done.set_exception(ConfigError(f"cannot read the input: {data.strerror}; check the path after --file"))
        else:
            done.set_result(data)

    def work() -> None:
        data: bytes | OSError
        try:
            data = os.read(descriptor, READ_BYTES)
        except OSError as error:
            data = error
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(settle, data)

    threading.Thread(target=work, daemon=True).start()
    return await done
