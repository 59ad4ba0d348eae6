"""A broker in this process whose time the soak advances, and a client of it.

The loop's timers and the clock of the store advance together, while neither a checkpoint nor a tidy runs: the time in
which a disk answers is real.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, broker_messages, frame
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.engine_sizes import EngineSizes
from kombu_opendata.storage.records import keys
from kombu_opendata.storage.slatedb.slate_settings import SlateSettings

from ..support.clock import AdvancedLoop, ManualClock
from ..support.peer_transport import PeerTransport

HOUR = 3600
#: size of a body that is written to a payload segment
LARGE_BYTES = 16 << 10
#: so short, and so small, that each retention and each bound of memory has its effect within a few hours
SETTINGS = EngineSettings(
    sync=False,
    journal_segment_bytes=256 << 10,
    history_retention_seconds=12 * HOUR,
    log_retention_seconds=3 * HOUR,
    payload_cache_bytes=64 << 10,
    result_cache_bytes=256 << 10,
    sizes=EngineSizes(
        bucket_entries=64,
        settled_entries=64,
        index_part_rows=256,
        index_messages=256,
        index_values=2048,
        log_rows=512,
        log_chunk_rows=128,
        log_blocks=1024,
        header_messages=128,
        running_tasks=64,
        large_body_bytes=LARGE_BYTES,
        segment_bytes=64 << 10,
    ),
    slate=SlateSettings(
        replaced_seconds=2,
        compactor_poll_ms=100,
        commit_compaction_ms=100,
        block_cache_bytes=256 << 10,
        index_cache_bytes=256 << 10,
    ),
)
#: for the end of compactions, and of the checkpoints that keep the tables that they replaced
_SETTLED_SECONDS = 60.0


class AcceleratedBroker:
    """A broker of one store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, AdvancedLoop)
        self._loop = loop

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run the broker."""
        store = f"file://{self.folder / 'store'}"
        self.server = Server(BrokerSettings(store=store, engine=SETTINGS), clock=self.clock)
        serving = asyncio.create_task(self.server.run())
        self.instance: Instance = await self.server.instances.get("default")
        try:
            yield
        finally:
            self.server.stop("the end of the soak")
            await serving

    async def advance(self, seconds: float) -> None:
        """Let this time pass, and what it makes due happen."""
        commits = self.instance.engine.commits
        # the work for which a broker would have had this time
        await self.instance.engine.history.indexer.catch_up()
        await commits.checkpoint()
        async with commits.tidying, commits.checkpointing:
            self.clock.advance(int(1000 * seconds))
            self._loop.advance(seconds)
        await asyncio.sleep(0)

    async def collect(self) -> None:
        """Delete what the store does not need, whatever its age is in real time."""
        engine = self.instance.engine
        store = engine.store
        await engine.upkeep.tidy()
        async with asyncio.timeout(_SETTLED_SECONDS):
            while True:
                use = await store.admin.disk_use(store.clock.now_ms())
                if use.held or any(compaction.is_active for compaction in use.compactions):
                    await asyncio.sleep(0.05)
                    continue
                await store.flush_memtable(keys.STORE_HEADER_KEY)
                if await store.collect_garbage(
                    wal_min_age_seconds=0, manifest_min_age_seconds=0, compacted_min_age_seconds=0
                ):
                    return


class Client:
    """A session, whose numbers of requests and publishes begin near the end of 63 bits."""

    def __init__(self, broker: AcceleratedBroker, session: bytes) -> None:
        self._server = broker.server
        self._session = session
        self._rid = (1 << 63) - (1 << 24)
        self.seq = (1 << 62) + (1 << 61)
        self.settled = 0
        self.deliveries: list[m.Delivery] = []
        self._replies: dict[int, asyncio.Future[Any]] = {}

    async def connect(self) -> None:
        """Connect, and begin the session."""
        self._protocol = self._server.connection(self._server.connections.admission.take("", "a soak"))
        self._transport = _Transport(self._protocol, self._read)
        self._reader: FrameReader[Any] = FrameReader(broker_messages)
        self._skipped = 0
        self._protocol.connection_made(self._transport)
        self._protocol.data_received(PREAMBLE)
        await self.call(m.Hello(0, self._session, "soak"))

    def close(self) -> None:
        """Lose the connection."""
        self._transport.close()

    def _read(self, data: bytes) -> None:
        skipped = min(PREAMBLE_BYTES - self._skipped, len(data))
        self._skipped += skipped
        for message in self._reader.feed(data[skipped:]):
            if isinstance(message, m.Deliver):
                self.deliveries += message.deliveries
            elif (reply := self._replies.pop(getattr(message, "rid", 0), None)) is not None:
                reply.set_result(message)

    def send(self, message: Any) -> None:
        self._protocol.data_received(frame(message))

    def begin(self, message: Any) -> asyncio.Future[Any]:
        """Send a request; return its future reply."""
        self._rid += 1
        message.rid = self._rid
        reply = self._replies[self._rid] = asyncio.get_running_loop().create_future()
        self.send(message)
        return reply

    async def call(self, message: Any) -> Any:
        """Return the reply to a request, which must not be an error."""
        reply = await self.begin(message)
        assert not isinstance(reply, m.Failed), reply.text
        return reply

    async def ping(self, count: int) -> None:
        for reply in [self.begin(m.Ping(0)) for _ in range(count)]:
            await reply

    def settle(self, outcome: m.Outcome, deliveries: list[m.Delivery]) -> None:
        self.settled += len(deliveries)
        self.send(m.Settle(self.settled, outcome, 1, [delivery.lease for delivery in deliveries]))


class _Transport(PeerTransport):
    def __init__(self, protocol: asyncio.Protocol, read: Any) -> None:
        super().__init__(protocol)
        self._read = read

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._read(bytes(data))
