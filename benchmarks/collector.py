"""An OTLP collector that accepts and drops everything.

Belongs here: this server, and the variables that send a deployment's traces to it. Does not belong here: the cost of
tracing (`backlog.py --traces`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Takes(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Write no log."""


@contextmanager
def collecting(share: float) -> Iterator[Mapping[str, str]]:
    """Run a collector on a loopback port; yield variables that trace a `share` of attempts."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Takes) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield {
                "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
                "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
                "OTEL_TRACES_SAMPLER_ARG": str(share),
            }
        finally:
            server.shutdown()
            thread.join()
