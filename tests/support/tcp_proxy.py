"""A proxy for TCP that stands for a network: it holds everything back for a while, or ends all connections."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class TcpProxy:
    """A running proxy to a port of this host; its methods may be called from any thread.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._is_open = asyncio.Event()
        self._is_open.set()
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tcp-proxy", daemon=True)
        self._thread.start()
        assert self._started.wait(30)

    def hold(self) -> None:
        """Forward nothing more, until :meth:`go_on`: a network that drops everything."""
        self._loop.call_soon_threadsafe(self._is_open.clear)

    def go_on(self) -> None:
        self._loop.call_soon_threadsafe(self._is_open.set)

    def cut(self) -> None:
        """End all connections; new ones work."""
        self._loop.call_soon_threadsafe(self._cancel)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        self._loop.run_forever()
        server.close()
        self._cancel()
        self._loop.run_until_complete(self._end())
        self._loop.close()

    async def _end(self) -> None:
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _cancel(self) -> None:
        for task in self._connections:
            task.cancel()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_writer = None
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            ways = [self._loop.create_task(self._forward(*way)) for way in ((reader, far_writer), (far_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        for each in (writer, far_writer):
            if each is not None:
                each.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._is_open.wait()
                target.write(data)
                await target.drain()
