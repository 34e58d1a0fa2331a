"""Compressed bodies, within a limit of memory (M2)."""

from __future__ import annotations

import asyncio

from ternmq.client.consume.decode import INLINE_BYTES, Inflater
from ternmq.wire.compress import compress


async def test_a_client_decompresses_only_so_many_bytes_at_once() -> None:
    """M2: many queues with large bodies; each may become as large as allowed before any limit counts it."""
    large = INLINE_BYTES + 1
    body, bits = compress(bytes(large))
    inflater = Inflater(large, at_once_bytes_max=2 * large)
    seen: list[int] = []

    async def one() -> int:
        result, _, error = await inflater.body(body, bits)
        seen.append(inflater.at_work)
        assert not error
        return len(result)

    bodies = [asyncio.create_task(one()) for _ in range(12)]
    while not all(task.done() for task in bodies):
        seen.append(inflater.at_work)
        await asyncio.sleep(0)
    assert [large] * 12 == [task.result() for task in bodies]
    assert 2 == max(seen)


async def test_a_body_may_be_larger_than_the_limit_of_all() -> None:
    """M2: one at a time then."""
    large = INLINE_BYTES + 1
    body, bits = compress(bytes(large))
    assert large == len((await Inflater(large, at_once_bytes_max=1).body(body, bits))[0])
