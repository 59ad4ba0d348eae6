"""Simulated brokers: the package's server in a process that can crash, with a simulated store, disk and network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kombu_opendata.broker.access.users_file import UsersFile
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.standby.active_role import ActiveRole, ActiveRoleSettings
from kombu_opendata.broker.standby.bucket_active_role import BucketActiveRole
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.broker.wire.listener import Listening
from kombu_opendata.errors import CorruptRecord, OpenDataError
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.databases import Databases
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.engine_sizes import EngineSizes

from ..histories import events as e
from ..histories.delivery_rules import RESOLUTION_SECONDS
from .clients import ClientRecorder
from .database import Bucket, SimulatedDatabases, SimulatedRecord
from .disk import Disk, DiskCalls
from .loop import Process, SimulatedLoop
from .network import ConnectedTransport, Connection, Network
from .older_version import OlderTransport

GRACE_SECONDS = 2.0
ENGINE = EngineSettings(
    journal_segment_bytes=64 << 10,
    journal_max_bytes=192 << 10,
    tidy_interval_seconds=1.0,
    bucket_tidy_seconds=2.0,
    retention_interval_seconds=2.0,
    payload_cache_bytes=4000,
    idle_seconds=0.0,
    sizes=EngineSizes(
        reserved_bytes=2 << 10,
        bucket_entries=8,
        loaded_buckets=1,
        partitioned_factor=4,
        tail_messages=1,
        large_body_bytes=24_000,
        bucket_large_body_bytes=24_000,
        segment_bytes=100_000,
        own_segment_bytes=50_000,
        load_messages=16,
        load_below=8,
        load_first=4,
        settled_entries=16,
        block_rows=16,
    ),
)


@dataclass
class Host:
    """The wall clock of the brokers' hosts, which can be set.

    Attributes:
        last: the broker that served last, and its clock.
    """

    loop: SimulatedLoop
    offset_seconds: float = 1_769_385_600.0
    last: tuple[str, SystemClock] | None = None

    def wall_ns(self) -> int:
        return int((self.loop.time() + self.offset_seconds) * 1_000_000_000)

    def monotonic_ns(self) -> int:
        return int(self.loop.time() * 1_000_000_000)


class SimulatedListening(Listening):
    """The listening sockets of a broker, which are those of the simulated network."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Broker:
    """A broker, which a supervisor starts again when it ends.

    Attributes:
        server: of the running process; None between two.
        is_serving: clients may use it.
        is_real: its store is a real folder, with the real SlateDB.
        is_older: it is of an older version, until it is upgraded.
        skew_ns: how far the clock of its own host is ahead of the others.
        served: the time at which the last broker ended to which a session was connected, by session.
    """

    def __init__(
        self,
        name: str,
        loop: SimulatedLoop,
        network: Network,
        host: Host,
        bucket: Bucket,
        disk: Disk | None,
        folder: str,
        users: Path,
        record: ClientRecorder,
        restart_delay: Callable[[], float],
        served: dict[bytes, float],
        *,
        is_real: bool,
        is_older: bool,
        skew_ns: int,
    ) -> None:
        self.name, self.loop, self.network, self.host = name, loop, network, host
        self.bucket, self.disk, self.folder, self.users, self.record = bucket, disk, folder, users, record
        self._restart_delay, self.is_real, self.is_older = restart_delay, is_real, is_older
        self.served, self.skew_ns = served, skew_ns
        self.process: Process | None = None
        self.server: Server | None = None
        self.clock: SystemClock | None = None
        self.is_serving = False
        self.refusal: OpenDataError | None = None
        self._listening: SimulatedListening
        self.retired: list[Any] = []  # killed processes, with all that must not be collected
        self._calls: tuple[DiskCalls, DiskCalls] | None = None
        self._life = 0

    # ------------------------------------------------------------------ life
    def start(self) -> None:
        if self.process is not None:
            return
        self._life += 1
        self.process = Process(self.loop, self.name)
        self.process.start(self._main(self.process, self._life))

    async def _main(self, process: Process, life: int) -> None:
        self.clock = clock = SystemClock(lambda: self.host.wall_ns() + self.skew_ns, self.host.monotonic_ns)
        run_id = f"{self.name}{life:015x}"
        self._calls = self.disk.calls() if self.disk is not None else None
        url = f"file://{self.folder}"
        databases = Databases(url)
        if not self.is_real:
            databases = SimulatedDatabases(url, self.bucket, self.disk, self._calls, lambda: run_id)
        role = ActiveRole()
        if self.bucket.is_remote:
            settings = ActiveRoleSettings(
                standby=True,
                take_over=False,
                renew_seconds=1.0,
                instances=("default",),
                tls=_no_tls,
                id=run_id,
                key=self.name * 32,
            )
            role = BucketActiveRole(SimulatedRecord(self.bucket), settings)
        broker_settings = BrokerSettings(
            store=url,
            session_grace_seconds=GRACE_SECONDS,
            restart_grace_seconds=4.0,
            heartbeat_seconds=1.0,
            users=UsersFile(self.users),
            engine=ENGINE,
            expects_standby=self.bucket.is_remote,
        )
        server = self.server = Server(broker_settings, role, clock, databases, self.loop.time)
        server.listening = self._listening = SimulatedListening(broker_settings, server.connections, server.connection)
        server.front.gate.hold()
        error: OpenDataError | None = None
        try:
            await server.run(self._begin(server))
        except OpenDataError as exc:
            error = exc
        self._ended(process, error)

    async def _begin(self, server: Server) -> None:
        addresses = (f"{self.name}:1",)
        if self.bucket.is_remote:
            self.is_serving = True
        if not await server.become_active(addresses, ("default",)):
            return
        self.is_serving = True
        self._note_skew()
        await server.active_role.announce(addresses)
        server.front.gate.open()
        self.refusal = None
        if self.disk is not None:
            self.disk.power_lost = False
        self.record.add(e.Started, broker=self.name)

    def _note_skew(self) -> None:
        """Record by how much the time that clients see changes with the broker that now serves."""
        assert self.clock is not None
        last, self.host.last = self.host.last, (self.name, self.clock)
        if last is not None and last[0] != self.name:
            seconds = (self.clock.now_ms() - last[1].now_ms()) / 1000
            if abs(seconds) > RESOLUTION_SECONDS / 2:
                self.record.add(e.ClockSet, seconds=seconds)

    def _ended(self, process: Process, error: OpenDataError | None) -> None:
        """Handle the end of the process, by itself."""
        if self.process is not process:
            return
        how = "ended" if error is None else type(error).__name__
        self.record.add(e.Crashed, broker=self.name, how=how)
        if isinstance(error, CorruptRecord) and not self.bucket.is_damaged:
            self.refusal = error
            self.record.add(e.Started, broker=self.name, error=error.text)
        self._gone()

    def kill(self, how: str = "kill -9", synced_at: float = 0.0) -> None:
        """End the process as kill -9 does, or the host with it if ``synced_at`` is set."""
        if self.process is None:
            return
        self.record.add(e.Crashed, broker=self.name, how=how, synced_at=synced_at)
        self._gone(resets=bool(synced_at))

    def _gone(self, *, resets: bool = False) -> None:
        process = self.process
        assert process is not None
        process.kill()
        self.retired.append((process, self.server))
        self._note_sessions()
        if self._calls is not None:
            for calls in self._calls:
                calls.is_dead = True
        self.process = self.server = None
        self.is_serving = False
        for connection in self.network.of_process(self.name):
            if resets:
                connection.reset()
            else:
                connection.end()
        self.loop.call_later(self._restart_delay(), self.start, context=self.loop.root)

    def _note_sessions(self) -> None:
        """Note the sessions that are connected."""
        for instance in self.server.instances.open.values() if self.server is not None else ():
            for session in instance.sessions.values():
                if session.connection is not None:
                    self.served[session.id] = self.loop.time()

    @property
    def is_active(self) -> bool:
        return self.server is not None and self.server.health.state == "active"

    # ------------------------------------------------------------------ connections
    def accept(self, connection: Connection) -> bool:
        """Serve a connection; return False if the broker does not listen."""
        process, server = self.process, self.server
        if process is None or server is None or not self.is_serving or self._listening.is_closed:
            return False
        slot = process.context.run(server.connections.admission.take, "", "client")
        protocol = process.context.run(server.connection, slot)
        kind = OlderTransport if self.is_older else ConnectedTransport
        transport = kind(process, protocol, connection, connection.to_client)
        connection.transport = transport
        self.loop.call_soon(protocol.connection_made, transport, context=process.context)
        return True


def _no_tls() -> Any:
    raise NotImplementedError
