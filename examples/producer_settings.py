"""Automatic batches, compression, time-outs, and a hook that counts requests.

tern up &
python examples/producer_settings.py 127.0.0.1:9876
"""

from __future__ import annotations

import asyncio
import sys

from ternmq import Message, Producer, ProducerConfig, SendContext, SendHook, errors


class Count(SendHook):
    """Counts requests, not messages: a batch is one."""

    requests = 0

    def after_send(self, context: SendContext) -> None:
        self.requests += context.receipt is not None


async def main(name_servers: str = "127.0.0.1:9876") -> None:
    config = ProducerConfig(auto_batch=True, send_timeout_ms=10_000, compression="ZLIB")
    count = Count()
    async with Producer("shop", name_servers=name_servers, config=config, hooks=[count]) as producer:
        await asyncio.gather(*(producer.send(Message("orders", f"book {number}".encode())) for number in range(500)))
        print("sent 500 messages in fewer requests:", count.requests < 500)

        try:
            await producer.send(Message("no blanks, please", b"x"))
        except errors.InvalidName as error:
            print("refused:", error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
