"""An HTTP server that takes what Sentry's SDK or an OTLP exporter sends, or lets them wait."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import brotli

from ..support.processes import wait_until

PATIENCE_SECONDS = 60


class Collector:
    """A server on 127.0.0.1.

    Attributes:
        port: which the system chose.
        hangs: set for a server that accepts requests and does not answer them.
        requests: the number of requests so far.
        bodies: path and uncompressed body of each request that was answered.
    """

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs
        self.requests = 0
        self.bodies: list[tuple[str, bytes]] = []
        self.ending = threading.Event()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.requests += 1
                if collector.hangs:
                    collector.ending.wait()
                    return
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.bodies.append((self.path, _decoded(body, self.headers.get("Content-Encoding", ""))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def envelope_items(self, kind: str) -> list[dict[str, Any]]:
        """The items of a type in Sentry's envelopes."""
        return [item for path, body in self.bodies if "/envelope/" in path for item in _items(body, kind)]

    def wait_items(self, kind: str, number: int) -> list[dict[str, Any]]:
        """The same, once there are so many."""
        wait_until(
            lambda: len(self.envelope_items(kind)) >= number,
            PATIENCE_SECONDS,
            lambda: f"{number} of {kind}, has {self.envelope_items(kind)}",
        )
        return self.envelope_items(kind)


@contextmanager
def collecting(*, hangs: bool = False) -> Iterator[Collector]:
    collector = Collector(hangs=hangs)
    try:
        yield collector
    finally:
        collector.close()


def _decoded(body: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.decompress(body)
    if encoding == "br":
        return bytes(brotli.decompress(body))
    assert not encoding, encoding
    return body


def _items(envelope: bytes, kind: str) -> Iterator[dict[str, Any]]:
    """The payloads of a type: an envelope is a line of JSON, then a line of JSON and a payload for each item."""
    rest = envelope.partition(b"\n")[2]
    while rest:
        line, _, rest = rest.partition(b"\n")
        header = json.loads(line)
        length = header.get("length", rest.find(b"\n") if b"\n" in rest else len(rest))
        payload, rest = rest[:length], rest[length + 1 :]
        if header["type"] == kind:
            yield json.loads(payload)
