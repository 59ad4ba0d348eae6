"""A proxy before an S3 server: it delays, fails, cuts and holds back answers, and logs each request.

It runs in a thread of the test, so a test changes its behaviour while requests are under way. Requests are delayed side
by side, as by a network. Conditional puts of one object run one at a time: the server checks and stores in two steps.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import parse_qs, unquote, urlsplit

from .waiting import turns

_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
_INTERNAL = b"<Error><Code>InternalError</Code><Message>We encountered an internal error.</Message></Error>"
#: folders of a database, and those of the broker beside it
_KINDS = ("wal", "manifest", "compacted", "compactions", "gc")


class Fault(Enum):
    """What happens to a request."""

    SLOW_DOWN = "503 before the server sees it"
    INTERNAL = "500 before the server sees it"
    CUT = "the connection ends before the server sees it"
    CUT_ANSWER = "the server has done it, and the connection ends in the middle of the answer"
    SILENCE = "it reaches the server when the proxy is told to go on; until then nothing happens"
    LATE = "the server has done it; the answer waits until the proxy is told to go on"


@dataclass
class Request:
    """One request.

    Attributes:
        kind: a folder of SlateDB (wal, manifest, compacted, compactions), list, or other.
        status: of the answer; 0 as long as there is none.
        began: by the monotonic clock.
    """

    method: str
    path: str
    kind: str
    conditional: bool
    status: int = 0
    began: float = field(default_factory=time.monotonic)
    ended: float | None = None

    @property
    def is_commit(self) -> bool:
        """Whether it is an answered write of the write-ahead log."""
        return self.method == "PUT" and self.kind == "wal" and self.ended is not None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended or time.monotonic()) - self.began

    def __str__(self) -> str:
        return f"{self.method} {self.kind} {self.path.rpartition('/')[2]} {self.status}"


class S3Proxy:
    """A running proxy; every method may be called from any thread.

    Attributes:
        port: where it listens.
        delay_seconds: how long each request takes, unless the server is slower.
        rule: decides what happens to a request; None for nothing.
        log: all requests, in the order in which they arrived.
    """

    def __init__(self, server_port: int, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server_port = server_port
        self._host = host
        self.delay_seconds = 0.0
        self.rule: Callable[[Request], Fault | None] = lambda request: None
        self.log: list[Request] = []
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._released: asyncio.Event
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._connections: set[asyncio.Task[None]] = set()
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="s3-proxy", daemon=True)
        self._thread.start()
        self._started.result(30)

    # ------------------------------------------------------------------ for tests
    def stop_answering(self, fault: Fault = Fault.SILENCE) -> None:
        """All requests from now on get this fault."""
        self.rule = lambda request: fault

    def go_on(self) -> None:
        """No faults any more; what was held back goes on, too."""
        self.rule = lambda request: None
        self._loop.call_soon_threadsafe(self._release)

    def once(self, fault: Fault, matches: Callable[[Request], bool]) -> threading.Event:
        """Give one matching request this fault. The event is set when that has happened."""
        happened = threading.Event()

        def rule(request: Request) -> Fault | None:
            if happened.is_set() or not matches(request):
                return None
            happened.set()
            return fault

        self.rule = rule
        return happened

    def counts(self, since: int = 0) -> Counter[str]:
        """The number of requests by method and kind, from an index of the log on."""
        return Counter(f"{one.method} {one.kind}" for one in self.log[since:])

    def close(self) -> None:
        """Close all connections and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    # ------------------------------------------------------------------ the thread
    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            server = self._loop.run_until_complete(self._listen())
            self._started.set_result(None)
            self._loop.run_forever()
            self._loop.run_until_complete(self._end(server))
        finally:
            self._loop.close()

    async def _listen(self) -> asyncio.Server:
        self._released = asyncio.Event()
        server = await asyncio.start_server(self._connected, self._host, self.port, backlog=512)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _end(self, server: asyncio.Server) -> None:
        server.close()
        await turns()  # what was accepted in this turn of the loop has its task in the next one
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(tasks)  # asyncio accepts connections in tasks; cancelled, they would not close them
            await turns()  # a transport closes its socket one turn after it was told to

    def _release(self) -> None:
        self._released.set()
        self._released = asyncio.Event()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await _head(reader):
                body = await reader.readexactly(int(_header(head, b"content-length") or 0))
                request = _parse(head)
                self.log.append(request)
                if not await self._answer(request, head, body, writer):
                    break
                request.ended = time.monotonic()
            writer.close()
            await writer.wait_closed()

    async def _answer(self, request: Request, head: bytes, body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer the request; False if the connection is to be closed."""
        fault, released, ends = self.rule(request), self._released, request.began + self.delay_seconds
        if fault in (Fault.CUT, Fault.SLOW_DOWN, Fault.INTERNAL):
            await _until_time(ends)
        if fault is Fault.CUT:
            return False
        if fault in (Fault.SLOW_DOWN, Fault.INTERNAL):
            request.status, text = (503, _SLOW_DOWN) if fault is Fault.SLOW_DOWN else (500, _INTERNAL)
            writer.write(b"HTTP/1.1 %d Fault\r\nContent-Length: %d\r\n\r\n%b" % (request.status, len(text), text))
            await writer.drain()
            return True
        if fault is Fault.SILENCE:
            await released.wait()
        answer = await self._forward(request, head, body)
        await _until_time(ends)
        if fault is Fault.LATE:
            await released.wait()
        if fault is Fault.CUT_ANSWER:
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _forward(self, request: Request, head: bytes, body: bytes) -> bytes:
        if not request.conditional:
            return await self._ask(request, head, body)
        async with self._locks[request.path]:
            return await self._ask(request, head, body)

    async def _ask(self, request: Request, head: bytes, body: bytes) -> bytes:
        """Ask the server over a connection of its own, and make its answer one that keeps the client's connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        try:
            first, *lines = head.split(b"\r\n")
            kept = [line for line in lines if line and not line.lower().startswith((b"connection:", b"expect:"))]
            first = first.replace(b"HTTP/1.1", b"HTTP/1.0")
            writer.write(b"\r\n".join([first, *kept, b"Connection: close", b"", b""]) + body)
            answer_head, _, payload = (await reader.read()).partition(b"\r\n\r\n")
        finally:
            writer.transport.abort()  # all was read, or the proxy ends
        status, *lines = answer_head.split(b"\r\n")
        request.status = int(status.split()[1])
        dropped = (b"connection:", b"transfer-encoding:") + (() if request.method == "HEAD" else (b"content-length:",))
        kept = [line for line in lines if not line.lower().startswith(dropped)]
        if request.method != "HEAD":
            kept.append(b"Content-Length: %d" % len(payload))
        status = status.replace(b"HTTP/1.0", b"HTTP/1.1")
        return b"\r\n".join([status, *kept, b"", b""]) + payload


@contextmanager
def s3_proxy(server_port: int) -> Iterator[S3Proxy]:
    """A proxy that ends with the block."""
    proxy = S3Proxy(server_port)
    try:
        yield proxy
    finally:
        proxy.close()


async def _until_time(at: float) -> None:
    """Delay an answer until this time of the monotonic clock."""
    if (seconds := at - time.monotonic()) > 0:
        await asyncio.sleep(seconds)


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def _parse(head: bytes) -> Request:
    method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
    parts = urlsplit(target)
    path = unquote(parts.path)
    conditional = any(_header(head, name) for name in (b"if-none-match", b"if-match"))
    query = parse_qs(parts.query, keep_blank_values=True)
    kind = "list" if "list-type" in query else next((one for one in _KINDS if one in path.split("/")), "other")
    return Request(method, path, kind, conditional)
