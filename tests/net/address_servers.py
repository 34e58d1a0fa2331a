"""A real HTTP server that lists name servers, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PATH = "/rocketmq/nsaddr"


class Listing:
    """What it answers; requests are counted."""

    def __init__(self, body: str, *, status: int = 200) -> None:
        self.body = body
        self.status = status
        self.requests = 0
        self.url = ""


@contextmanager
def address_server(listing: Listing, *, port: int = 0) -> Iterator[Listing]:
    """Serve ``listing`` at ``listing.url``, from a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            listing.requests += 1
            body = listing.body.encode()
            self.send_response(listing.status if self.path == PATH else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        listing.url = f"http://127.0.0.1:{server.server_port}{PATH}"
        try:
            yield listing
        finally:
            server.shutdown()
            thread.join()
