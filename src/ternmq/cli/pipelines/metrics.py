"""How far a job is, for Prometheus: ``--metrics PORT`` (U5).

The last progress, as text in Prometheus' exposition format, to whoever asks on any path. What is not known is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Final

from ternmq.cli.output import note
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from ternmq.spark.jobs import Progress

#: Field of a progress → name, kind, what it is, and the factor to Prometheus' base units.
_METRICS: Final = {
    "rows": ("tern_pipeline_rows_total", "counter", "Messages read by this run.", 1.0),
    "rows_per_s": ("tern_pipeline_rows_per_second", "gauge", "Messages a second in the last batch.", 1.0),
    "lag": ("tern_pipeline_lag", "gauge", "Messages that wait to be read.", 1.0),
    "batch": ("tern_pipeline_batch", "gauge", "Number of the last batch.", 1.0),
    "batch_ms": ("tern_pipeline_batch_seconds", "gauge", "How long the last batch took.", 0.001),
    "done": ("tern_pipeline_parts_done", "gauge", "Tasks done, or messages of a stream with an end.", 1.0),
    "total": ("tern_pipeline_parts", "gauge", "All tasks, or messages.", 1.0),
}


class Metrics:
    """The text that is served. ``take`` and ``text`` may be called from different threads."""

    def __init__(self) -> None:
        self._progress: dict[str, Progress] = {}

    def take(self, progress: Progress) -> None:
        # A new table instead of a change: another thread may be going through the old one.
        self._progress = self._progress | {progress.job: progress}

    def text(self) -> str:
        lines: list[str] = []
        jobs = self._progress
        for field, (name, kind, what, factor) in _METRICS.items():
            values = {job: getattr(progress, field) for job, progress in jobs.items()}
            known = [f'{name}{{job="{job}"}} {value * factor:g}' for job, value in values.items() if value is not None]
            if known:
                lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}", *known]
        return "".join(f"{line}\n" for line in lines)


@contextmanager
def serving_metrics(port: int) -> Iterator[Metrics]:
    """Serve metrics on a port of all interfaces (0: a free one, which is told) as long as the block lasts."""
    metrics = Metrics()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = metrics.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """A line on stderr for each question is of no use to anybody."""

    try:
        server = ThreadingHTTPServer(("", port), Handler)
    except OSError as error:
        raise ConfigError(f"--metrics cannot use the port {port}: {error.strerror}; give another one") from error
    with server:
        if port == 0:
            note(f"metrics on port {server.server_port}")
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        try:
            yield metrics
        finally:
            server.shutdown()
            thread.join()
