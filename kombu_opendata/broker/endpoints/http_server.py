"""HTTP server for scrapes and probes: a few threads with deadlines, as protection against slow or hostile clients.

A connection is closed after one response. When too many connections are open, the oldest is closed: a scrape takes only
milliseconds, so the oldest connection is not a scrape. A thread requests its data from the broker's event loop by
:func:`ask`, with a deadline.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as FutureTimeout
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar, cast

from ...errors import StartError

log = logging.getLogger(__name__)

#: maximum number of open connections; beyond it, the oldest is closed
MAX_CONNECTIONS = 16
#: maximum number of threads, including those of connections that are being closed; beyond it, new connections wait
MAX_THREADS = 32
#: how long new connections wait before they are closed
_WAIT_SECONDS = 1.0
#: maximum size of the request line and the headers
MAX_REQUEST_BYTES = 16 << 10
#: maximum duration of a connection
CONNECTION_SECONDS = 15.0
_SILENCE_SECONDS = 5.0
_POLL_SECONDS = 0.25
T = TypeVar("T")

#: deadline of the event loop's reply; Prometheus times out after 10 s
ANSWER_SECONDS = 8.0
#: how long a reply is reused
FRESH_SECONDS = 1.0


class HttpBody(NamedTuple):
    """A response body, plain and compressed."""

    status: HTTPStatus
    content_type: str
    body: bytes
    gzipped: bytes = b""


#: the handler of a path; its argument is the query
Route = Callable[[str], HttpBody]
TEXT, JSON = "text/plain; charset=utf-8", "application/json"


class _Bounded:
    """A stream that limits the size of a request's lines."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._left = stream, MAX_REQUEST_BYTES

    def readline(self, size: int = -1) -> bytes:
        if self._left <= 0:
            raise http.client.HTTPException(f"the request has more than {MAX_REQUEST_BYTES} bytes")
        line = self._stream.readline(min(size, self._left) if size >= 0 else self._left)
        self._left -= len(line)
        return line

    def close(self) -> None:
        self._stream.close()


class _Handler(BaseHTTPRequestHandler):
    server: HttpServer
    server_version = "opendata-queue"
    sys_version = ""
    default_request_version = "HTTP/1.0"  # the response to an unreadable request has a status, too
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = TEXT
    timeout = _SILENCE_SECONDS  # the maximum time between two bytes; socketserver reads it

    def setup(self) -> None:
        super().setup()
        self.rfile = cast(Any, _Bounded(cast(BinaryIO, self.rfile)))

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if (route := self.server.routes.get(path)) is not None:
            self._send(route(query))
            return
        known = f"there is {', '.join(self.server.routes)}\n".encode()
        self._send(HttpBody(HTTPStatus.OK if path == "/" else HTTPStatus.NOT_FOUND, TEXT, known))

    do_HEAD = do_GET

    def _send(self, page: HttpBody) -> None:
        zipped = bool(page.gzipped) and "gzip" in self.headers.get("Accept-Encoding", "")
        body = page.gzipped if zipped else page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug("http: %s %s", self.client_address[0], format % args)


class HttpServer(ThreadingMixIn, TCPServer):
    """A server that listens and responds in its own threads; see :meth:`start` and :meth:`stop`."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        """Bind the address, or raise StartError; the routes' handlers are called in threads."""
        self.routes = routes
        self._open: dict[socket.socket, float] = {}
        self._ending: set[socket.socket] = set()  # connections whose threads have not ended yet
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        try:
            family, _type, _proto, _name, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self.address_family = family
            super().__init__(cast(tuple[str, int], address), _Handler)
        except OSError as exc:
            text = f"metrics can't be served at {host}:{port}: {exc.strerror or exc}; give --metrics another HOST:PORT"
            raise StartError(text, host=host, port=port) from exc

    @property
    def port(self) -> int:
        """Port, which the system chooses for 0."""
        return int(self.socket.getsockname()[1])

    def start(self) -> None:
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_SECONDS,), name="http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. Takes up to a quarter of a second, and a second more if all threads are busy."""
        if self._thread is not None:
            self.shutdown()
        self.server_close()

    # ------------------------------------------------------------------ hooks of socketserver
    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self._open) + len(self._ending) < MAX_THREADS, _WAIT_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._open[request] = time.monotonic()
            if len(self._open) > MAX_CONNECTIONS:
                self._hang_up(next(iter(self._open)))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._open.pop(request, None)
            self._ending.discard(request)
            self._changed.notify_all()
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Close connections that have reached the maximum duration. Called several times per second."""
        limit = time.monotonic() - CONNECTION_SECONDS
        with self._changed:
            for request in [request for request, opened_at in self._open.items() if opened_at < limit]:
                self._hang_up(request)

    def _hang_up(self, request: socket.socket) -> None:
        """Shut a connection down, so that its thread ends."""
        del self._open[request]
        self._ending.add(request)
        try:
            request.shutdown(socket.SHUT_RDWR)
        except OSError:
            log.debug("http: a connection was gone already")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the error of a client that disconnected or sent an invalid request."""
        log.debug("http: a request of %s failed", client_address, exc_info=True)


class Unanswered(Exception):
    """The event loop did not reply in time, or is closed."""


def ask(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], seconds: float = ANSWER_SECONDS) -> T:
    """Return the result of a coroutine in another thread's loop; raise Unanswered if it is late or closed."""
    try:
        future = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError as exc:
        work.close()
        raise Unanswered("the broker has stopped") from exc
    try:
        return future.result(seconds)
    except CancelledError as exc:
        raise Unanswered("the broker stops") from exc
    except FutureTimeout as exc:
        future.cancel()
        raise Unanswered(f"the broker did not answer within {seconds:g} s") from exc


class Fresh(Generic[T]):
    """Value that is cached for a second, for callers in any thread."""

    def __init__(self, make: Callable[[], T], seconds: float = FRESH_SECONDS) -> None:
        self._seconds, self._make = seconds, make
        self._lock = threading.Lock()
        self._made: tuple[T, float] | None = None

    def get(self) -> T:
        """Return the last value if it is fresh, else a new one."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made[1] >= self._seconds:
                self._made = (self._make(), time.monotonic())
            return self._made[0]
