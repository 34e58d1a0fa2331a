"""Keys in Redis (S1), by redis-py with asyncio.

A key is one value, with a time to live. A change watches it, reads it and the server's time, decides, and writes in a
``MULTI`` that the server refuses if another client was faster; then the change is made again.

Redis forgets what it did not write to its disk, and a replica that takes over may lack the last writes: after either,
a key that was done may be claimed again.
"""

from __future__ import annotations

from typing import Final

import msgspec

from ternmq.env import Clock
from ternmq.errors import ConfigError, KeyStoreFailed
from ternmq.once.keystore import ABANDONED_MS, Decide, KeyEntry, State, T

try:
    from redis.asyncio import Redis
    from redis.asyncio.client import Pipeline
    from redis.exceptions import RedisError, WatchError
except ImportError as error:
    raise ImportError("keys in Redis need redis-py; install it with `pip install ternmq[redis]`") from error

#: Attempts of a change that loses to others, each time.
_RACES_MAX: Final = 100


class RedisKeys:
    """A ``KeyStore`` in Redis. ``client`` belongs to the caller, and to one loop.

    ``prefix`` is what all names of keys begin with. ``clock`` replaces the server's, for tests.
    """

    def __init__(self, client: Redis, *, prefix: str = "ternmq:once:", clock: Clock | None = None) -> None:
        if not isinstance(client, Redis):
            raise ConfigError(f"invalid client {client!r}: expected a redis.asyncio.Redis")
        place = client.connection_pool.connection_kwargs
        self.name = f"Redis {place.get('host', '')}:{place.get('port', '')}/{place.get('db', 0)}"
        self._client = client
        self._prefix = prefix
        self._clock = clock

    async def change(self, key: str, decide: Decide[T]) -> T:
        name = self._prefix + key
        try:
            for _ in range(_RACES_MAX):
                async with self._client.pipeline(transaction=True) as pipe:
                    await pipe.watch(name)
                    stored = await pipe.get(name)
                    entry = None if stored is None else _ENTRIES.decode(stored)
                    now_ms = await self._now_ms(pipe)
                    result, changed = decide(entry, now_ms)
                    if changed is None or changed is entry:
                        return result
                    left_ms = changed.until_ms - now_ms + (ABANDONED_MS if changed.state is State.RUNNING else 0)
                    pipe.multi()  # type: ignore[no-untyped-call] # of redis-py
                    pipe.set(name, msgspec.json.encode(changed), px=max(1, left_ms))
                    try:
                        await pipe.execute()
                    except WatchError:
                        continue
                    return result
        except (RedisError, OSError) as error:
            raise KeyStoreFailed(f"cannot use the key store {self.name}: {error}", store=self.name) from error
        except msgspec.MsgspecError as error:
            raise KeyStoreFailed(
                f"the key store {self.name} has a value at {name!r} that is not one of a key: {error}; use another "
                "prefix",
                store=self.name,
            ) from error
        raise KeyStoreFailed(f"too many clients change {name!r} in the key store {self.name}", store=self.name)

    async def purge(self, count_max: int) -> int:  # noqa: ARG002 - Redis forgets by itself
        return 0

    async def _now_ms(self, pipe: Pipeline) -> int:
        if self._clock is not None:
            return self._clock.now_ms()
        seconds, micros = await pipe.time()
        return int(seconds) * 1000 + int(micros) // 1000


_ENTRIES: Final = msgspec.json.Decoder(KeyEntry)
