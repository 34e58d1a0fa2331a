"""The minimum that a Python server can do for Java's producer: the reference for TernMQ's send path.

One uvloop process that is name server and broker at once. It finds where each frame ends and the ``opaque`` in its
JSON header, and answers with a fixed reply, without parsing, storing or checking. The ratio of a broker's rate to this
rate shows the cost of everything that a broker does.

Run as ``python -m bench.echo PORT``.
"""

from __future__ import annotations

import asyncio
import json
import struct
import sys
from typing import Final, cast

import uvloop

_PREFIX: Final = struct.Struct(">ii")
_REPLY: Final = (
    b'{"code":0,"extFields":{"msgId":"7F00000100002A9F0000000000000000","queueId":"0","queueOffset":"0"},'
    b'"flag":1,"language":"JAVA","opaque":%d,"serializeTypeCurrentRPC":"JSON","version":399}'
)
_OPAQUE: Final = b'"opaque":'
_GET_ROUTE: Final = b'"code":105,'


class Echo(asyncio.Protocol):
    """One connection: every frame is answered, all answers of a read with one write."""

    def __init__(self, route: bytes) -> None:
        self._route = route
        self._kept = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        data = self._kept + data
        at, end = 0, len(data)
        replies = []
        while end - at >= 8:
            frame_bytes, header_bytes = _PREFIX.unpack_from(data, at)
            if end - at < 4 + frame_bytes:
                break
            header_end = at + 8 + header_bytes
            digits_at = data.index(_OPAQUE, at + 8, header_end) + len(_OPAQUE)
            header = _REPLY % int(data[digits_at : data.index(b",", digits_at)])
            body = self._route if data.find(_GET_ROUTE, at, header_end) > 0 else b""
            replies.append(_PREFIX.pack(4 + len(header) + len(body), len(header)) + header + body)
            at += 4 + frame_bytes
        self._kept = data[at:]
        self._transport.write(b"".join(replies))


async def _serve(port: int) -> None:
    queues = {"brokerName": "echo", "perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "topicSysFlag": 0}
    broker = {"brokerName": "echo", "cluster": "echo", "brokerAddrs": {"0": f"127.0.0.1:{port}"}}
    route = json.dumps({"brokerDatas": [broker], "queueDatas": [queues], "filterServerTable": {}}).encode()
    server = await asyncio.get_running_loop().create_server(lambda: Echo(route), "127.0.0.1", port)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
