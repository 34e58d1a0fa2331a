"""Name servers from an HTTP address server (A6), as with RocketMQ's ``rocketmq.namesrv.domain``.

``GET http://host:8080/rocketmq/nsaddr`` answers ``10.0.0.1:9876;10.0.0.2:9876``. Where name servers are expected, such
a URL may stand alone. The list is fetched when it is first needed, then every two minutes, and at once when no name
server of the last list answers.

An address server is needed to find name servers, not to use them: while it does not answer, or answers with something
else (the page of a proxy, say), the last addresses stay in use. That is logged when it begins and when it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from ternmq.errors import ConfigError, NameServersUnreachable, NetworkError
from ternmq.net import timed_get
from ternmq.net.endpoint import split_address
from ternmq.rare_log import one_line

log = logging.getLogger(__name__)

INTERVAL_MS: Final = 120_000
#: Between attempts while no list was ever fetched.
FIRST_RETRY_S: Final = 1.0
TIMEOUT_MS: Final = 3_000
_PORTS: Final = {"http": 80, "https": 443}
_BYTES_MAX: Final = 64 * 1024
_SERVERS_MAX: Final = 1_000
_SHOWN_CHARACTERS: Final = 80


def is_url(text: str) -> bool:
    """Whether a text is meant as the URL of an address server, not as a name server."""
    return "://" in text


def host_of(url: str) -> tuple[str, int]:
    """Host and port of an address server. Raises ``ConfigError`` for a URL that cannot be one."""
    try:
        parts = urlsplit(url)
        # urllib would also read files, and use FTP.
        usual = _PORTS.get(parts.scheme, 0)
        port = usual if parts.port is None else parts.port
    except ValueError:
        parts, usual, port = urlsplit(""), 0, 0
    # Names and passwords in a URL end in logs.
    if not (parts.hostname and usual and port) or "@" in parts.netloc or not url.isprintable() or " " in url:
        raise ConfigError(
            f"invalid address server {one_line(url)!r}: expected a URL such as http://10.0.0.5:8080/rocketmq/nsaddr"
        )
    return parts.hostname, port


def parse_list(body: bytes) -> tuple[str, ...]:
    """The name servers in the answer of an address server: its first line, each once. Raises ``ConfigError``."""
    lines = body.decode("utf-8", "replace").strip().splitlines()
    parts = lines[0].replace(",", ";").split(";") if lines else []
    addresses = tuple(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not addresses:
        raise ConfigError("the answer is empty; expected host:9876;host:9876")
    if len(addresses) > _SERVERS_MAX:
        raise ConfigError(f"the answer has {len(addresses)} addresses; expected at most {_SERVERS_MAX}")
    try:
        for address in addresses:
            split_address(address)
    except ConfigError:
        shown = one_line(lines[0][:_SHOWN_CHARACTERS])
        raise ConfigError(f"the answer begins with {shown!r}; expected host:9876;host:9876") from None
    return addresses


class AddressServer:
    """The name servers that the address server at ``url`` lists. All methods belong to one loop.

    ``changed`` is called with each list that differs from the one before.
    """

    def __init__(self, url: str, changed: Callable[[tuple[str, ...]], None], *, timeout_ms: int = TIMEOUT_MS) -> None:
        host_of(url)
        self.url = url
        #: The last list; empty until there is one.
        self.addresses: tuple[str, ...] = ()
        #: Set after the first attempt.
        self.tried = asyncio.Event()
        self._changed = changed
        self._timeout_ms = timeout_ms
        self._trouble = ""
        self._fetching: asyncio.Future[bytes] | None = None

    async def known(self) -> tuple[str, ...]:
        """The last list, or the first. Raises ``NameServersUnreachable`` if there never was one."""
        if not self.addresses:
            await self.refresh()
        if not self.addresses:
            raise NameServersUnreachable(
                f"the address server {self.url} does not tell where the name servers are: {self._trouble}; start it, "
                "or give the addresses of the name servers",
                address=self.url,
            )
        return self.addresses

    async def refresh(self) -> bool:
        """Fetch the list now; whether it differs from the last one. If that fails, the last one stays."""
        try:
            addresses = parse_list(await self._fetch())
        except (NetworkError, ConfigError) as error:
            if not self._trouble and self.addresses:
                log.warning(
                    "cannot fetch the name servers from %s: %s; continuing with %s",
                    self.url,
                    error,
                    ";".join(self.addresses),
                )
            elif not self._trouble:
                log.warning("cannot fetch the name servers from %s: %s; retrying until it answers", self.url, error)
            self._trouble = str(error)
            return False
        finally:
            self.tried.set()
        if self._trouble:
            log.info("the address server %s answers again", self.url)
            self._trouble = ""
        if set(addresses) == set(self.addresses):
            return False
        log.info("name servers from %s: %s", self.url, ";".join(addresses))
        self.addresses = addresses
        self._changed(addresses)
        return True

    async def keep(self, interval_ms: int = INTERVAL_MS) -> None:
        """Refresh the list again and again, until cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(interval_ms / 1000 if self.addresses else FIRST_RETRY_S)

    async def _fetch(self) -> bytes:
        """The body of its answer; callers at the same time share one request. Raises ``NetworkError``."""
        if self._fetching is None:
            loop = asyncio.get_running_loop()
            # In a thread: urllib follows redirects and knows TLS and proxies, and it blocks.
            get = partial(timed_get.get, self.url, timeout_ms=self._timeout_ms, bytes_max=_BYTES_MAX)
            self._fetching = loop.run_in_executor(None, get)
            self._fetching.add_done_callback(self._fetched)
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                return await asyncio.shield(self._fetching)
        except TimeoutError:
            # The thread has the same limit, but may wait for its turn, or for the resolver.
            raise NetworkError(f"no complete answer within {self._timeout_ms} ms", address=self.url) from None

    def _fetched(self, fetching: asyncio.Future[bytes]) -> None:
        self._fetching = None
        if not fetching.cancelled():
            fetching.exception()  # seen, also if all callers are gone
