"""A run of the simulation: brokers, clients, disk, bucket, network and clock of one plan, in one process."""

from __future__ import annotations

import asyncio
import hashlib
import random
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kombu_opendata.broker import memory
from kombu_opendata.broker.process.server import Server
from kombu_opendata.errors import ConnectionLost, OpenDataError, StoreError
from kombu_opendata.storage.clock import SystemClock
from kombu_opendata.storage.slatedb import ffi_choice

from ..histories import events as e
from ..histories.checker import Anomaly, check
from ..histories.programs import TENANTS, THROTTLED, WEIGHTED
from ..histories.queue_programs import EXCHANGE, GRAVEYARD, LETTER_ATTEMPTS, LETTERS
from ..support.logged_errors import LoggedErrors
from ..support.users import user_table, write_users
from .brokers import GRACE_SECONDS, Broker, Host
from .clients import Client, ClientRecorder, Consumer, Driver, KombuClient, Surroundings
from .database import Bucket
from .disk import Disk
from .faults import Faults
from .loop import Process, SimulatedLoop, current_fiber, current_process
from .network import ClientSocket, ConnectedTransport, Connection, Network
from .plan import CLIENTS, GROUPED, ROOT, SECRET, SPLIT, TASKS, TENANT, Plan, begins_older
from .queue_clients import Operator, Reader, Tenant
from .store_reader import StoreReader
from .task_clients import Backend, Worker

#: time for which the clients may go on after the last step, and for which brokers may start
_PATIENCE_SECONDS = 300.0
#: time after which no lease is left and each lost task is known as lost, which take a minute: the store comes to rest
_LEASES_END_SECONDS = 80.0
#: for a report of the real SlateDB, before the simulated time goes on
_REAL_SECONDS = 0.0005
#: by how much the clocks of both brokers are ahead
SKEWS_MS = ([0, 0], [0, 0], [0, 1500], [1500, 0], [0, 20_000], [20_000, 0])
RULES = {
    "orders": e.Rules(max_attempts=20),
    "mail": e.Rules(max_attempts=3, dead_letters="dead"),
    "jobs": e.Rules(max_attempts=5),
    LETTERS: e.Rules(max_attempts=LETTER_ATTEMPTS, dead_letters=GRAVEYARD),
    TASKS: e.Rules(max_attempts=20, is_ordered=False, concurrency=6, partition_concurrency=3),
    TENANTS: e.Rules(max_attempts=20, is_ordered=False, concurrency=4, partition_concurrency=1),
    THROTTLED: e.Rules(max_attempts=20, is_ordered=False, rate=0.4, partition_rate=0.25),
    SPLIT: e.Rules(max_attempts=20, is_ordered=False),
    WEIGHTED: e.Rules(max_attempts=20, is_ordered=False),
    GROUPED: e.Rules(max_attempts=20, is_ordered=False),
}
_KINDS: dict[str, type[Client]] = {
    "producer": KombuClient,
    "consumer": Consumer,
    "reader": Reader,
    "worker": Worker,
    "operator": Operator,
    "driver": Driver,
    "backend": Backend,
    "tenant": Tenant,
}


@dataclass
class Outcome:
    """What a run found.

    Attributes:
        steps: events of the simulation: packets, requests to the disk and the store, calls of clients, faults.
        trace: a digest of all of them with their times.
    """

    plan: Plan
    anomalies: list[Anomaly]
    steps: int = 0
    calls: int = 0
    messages: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    trace: str = ""
    history: e.History | None = None


class World:
    """A run.

    Attributes:
        counts: events of the simulation by their kind.
    """

    def __init__(self, plan: Plan, *, shows_logs: bool = False) -> None:
        self.plan, self.shows_logs = plan, shows_logs
        self.loop = SimulatedLoop(self.dice("threads"), _REAL_SECONDS if plan.store == "slatedb" else 0.0)
        self.counts: Counter[str] = Counter()
        self._trace = hashlib.blake2b(digest_size=16)
        self.network = Network(self.loop, self.dice("network"), self.count)
        self.host = Host(self.loop)
        self.events: list[e.AnyEvent] = []
        self.record = ClientRecorder(self.events, self.loop.time, "")
        self.folder = tempfile.mkdtemp(prefix="odq-simulation-", dir="/dev/shm")
        self.bucket = Bucket(self.dice("store"), self.count, is_remote=plan.store == "bucket")
        self.disk = Disk(self.dice("disk"), self.count, self.loop.time) if plan.store == "folder" else None
        self.users = write_users(
            Path(f"{self.folder}.users"),
            user_table(ROOT, SECRET, roles=("admin", "operator", "monitor")),
            user_table(TENANT, SECRET, {"default": {"write": "^eve-", "read": f"^(eve-|{EXCHANGE}$)"}}),
        )
        restarts = self.dice("restarts")
        skews: list[int] = self.dice("clocks").choice(SKEWS_MS)
        served: dict[bytes, float] = {}
        self.brokers = {
            name: Broker(
                name,
                self.loop,
                self.network,
                self.host,
                self.bucket,
                self.disk,
                self.folder,
                self.users,
                self.record,
                lambda: restarts.uniform(0.05, 1.0),
                served,
                is_real=plan.store == "slatedb",
                is_older=begins_older(plan.seed),
                skew_ns=skew * 1_000_000,
            )
            for name, skew in zip(plan.brokers, skews, strict=False)
        }
        address = f"simulated-{id(self)}"
        self.around = Surroundings(
            self.loop, self.events, self.wall_ms, self.broker_of, address, plan.seed, served=served
        )
        self.clients: dict[str, Client] = {}
        self.loop.connect = self._connect_broker
        self._routes: dict[str, int] = {}
        self._clock: SystemClock | None = None
        self._rest_began_ms = 0
        self.faults = Faults(self)

    def dice(self, name: str) -> random.Random:
        return random.Random(f"{self.plan.seed} {name}")

    def count(self, kind: str) -> None:
        self.counts[kind] += 1
        self._trace.update(f"{kind} {self.loop.time():.9f}\n".encode())

    def wall_ms(self) -> int:
        """Return the time of the brokers' host as the broker that serves, or that served last, sees it."""
        active = next((broker.clock for broker in self.brokers.values() if broker.is_active), None)
        self._clock = active or self._clock
        return self._clock.now_ms() if self._clock is not None else self.host.wall_ns() // 1_000_000

    def broker_of(self, id: bytes, user: str) -> Server | None:
        """Return the server of the broker to which a session of a user is connected; None if there is none."""
        for broker in self.brokers.values():
            if broker.server is not None and broker.is_active:
                for instance in broker.server.instances.open.values():
                    session = instance.sessions.get(id)
                    if session is not None and session.connection is not None and session.user.name == user:
                        return broker.server
        return None

    def _note_error(self, error: BaseException) -> None:
        """Note an error that a broker logs, unless a fault explains it."""
        if not isinstance(error, OpenDataError | OSError):
            self.loop.errors.append(error)

    # ------------------------------------------------------------------ connections
    def connect(self) -> Any:
        """Connect the fiber that calls this to one of the brokers, each in turn until one works."""
        fiber = current_fiber()
        process = fiber.process
        names = self.plan.brokers
        route = self._routes[process.name] = self._routes.get(process.name, -1) + 1
        broker = self.brokers[names[route % len(names)]]
        connection = Connection(self.network, process.name, broker.name)
        fiber.block(self.network.delay())
        if connection.link in self.network.partitions:
            fiber.block(2.0)
            raise ConnectionLost("a partition")
        socket = ClientSocket(fiber, connection)
        connection.peer = socket
        if not broker.accept(connection):
            raise ConnectionLost("connection refused")
        self.network.connections[connection] = None
        socket.on_lost = lambda: self._note_loss(process)
        return socket

    def stop(self) -> None:
        pass

    def _note_loss(self, process: Process) -> None:
        """Record a client's loss of what it holds if it does not come back in time."""
        client = self.around.started.get(process.name)

        def look() -> None:
            if client is not None and process.is_alive and not client.is_connected:
                client.record.lost("cut")

        if client is not None:
            client.record.add(e.Cut, client=client.label)
            self.loop.call_later(0.9 * GRACE_SECONDS, look, context=self.loop.root)

    async def _connect_broker(self, factory: Callable[[], asyncio.Protocol], address: str) -> Any:
        """Connect the broker that calls this to another one."""
        process, broker = current_process(), self.brokers[address.partition(":")[0]]
        await asyncio.sleep(self.network.delay())
        connection = Connection(self.network, process.name, broker.name)
        while connection.link in self.network.partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        protocol = factory()
        peer = connection.peer = ConnectedTransport(process, protocol, connection, connection.to_broker)
        if not broker.accept(connection):
            raise ConnectionRefusedError(address)
        self.network.connections[connection] = None
        protocol.connection_made(peer)
        return peer, protocol

    # ------------------------------------------------------------------ the run
    def run(self) -> Outcome:
        random.seed(self.plan.seed)
        asyncio.run(ffi_choice.select())  # a broker does so at its start, with threads of its own
        memory.register(self.around.address, self)
        try:
            with LoggedErrors(self._note_error, shows_logs=self.shows_logs):
                return self.loop.run_until_complete(self._main())
        finally:
            memory.stop(self.around.address)
            self.loop.close()
            shutil.rmtree(self.folder, ignore_errors=True)
            self.users.unlink()

    async def _main(self) -> Outcome:
        anomalies: list[Anomaly] = []
        history = None
        try:
            for broker in self.brokers.values():
                broker.start()
            await self.until(self._has_active, "a broker serves")
            reader = StoreReader(self.around)
            await self.until(lambda: reader.is_ready, "the queues exist")
            for name in CLIENTS:
                self.start_client(name)
            for step in self.plan.steps:
                await asyncio.sleep(step.after)
                self.count(step.action)
                if step.actor:
                    self.clients[step.actor].take(step)
                else:
                    self.faults.strike(step)
                if self.loop.errors:
                    break
            await self._settle()
            store = await self._read(reader)
            history = e.History(events=tuple(self.events), store=store, rules=RULES)
            anomalies = check(history)
        except Stuck as exc:
            anomalies = [Anomaly(0, str(exc))]
        anomalies += [Anomaly(0, f"an error: {error!r}") for error in self.loop.errors]
        self._end()
        if self.plan.store == "slatedb":
            await self._close_stores()
        return Outcome(
            self.plan,
            anomalies,
            sum(self.counts.values()),
            sum(isinstance(event, e.Called) for event in self.events),
            sum(isinstance(event, e.Delivered) for event in self.events),
            self.faults.counts,
            self.loop.time() - 1000.0,
            self._trace.hexdigest(),
            history,
        )

    def start_client(self, name: str, life: int = 0) -> None:
        self.clients[name] = _KINDS[name.rstrip("0123456789")](name, self.around, life)

    def _has_active(self) -> bool:
        return any(broker.is_active for broker in self.brokers.values())

    def _busy(self) -> list[str]:
        """Return the steps of clients that are not at their ends, such as a request without an answer."""
        steps = [(client.label, client.step or next(iter(client.steps), None)) for client in self.clients.values()]
        return [f"{label}'s {step.action}" for label, step in steps if step is not None]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        for _ in range(int(_PATIENCE_SECONDS / 0.1)):
            if condition():
                return
            if self.loop.errors:
                raise Stuck(f"not reached: {what}")
            await asyncio.sleep(0.1)
        raise Stuck(f"not reached in {_PATIENCE_SECONDS:g} s: {what}")

    async def _settle(self) -> None:
        """End the faults, and let the clients take their remaining steps."""
        self.faults.heal()
        try:
            await self.until(lambda: not self._busy(), "the clients' last steps")
        except Stuck as exc:
            raise Stuck(f"{exc}: {', '.join(self._busy())}") from exc
        await asyncio.sleep(1.0)
        for client in self.clients.values():
            client.kill(is_last=True)
            for connection in self.network.of_process(client.label):
                connection.reset()
        for broker in self.brokers.values() if self.plan.seed % 2 else ():  # a restart would hide what is in memory
            broker.kill()
        await asyncio.sleep(GRACE_SECONDS)
        await self.until(self._has_active, "a broker serves at the end")
        self._rest_began_ms = self.wall_ms()
        await asyncio.sleep(_LEASES_END_SECONDS)

    async def _read(self, reader: StoreReader) -> e.Store:
        reader.read((self.wall_ms() - self._rest_began_ms) / 1000)
        await self.until(lambda: reader.store is not None, "the store is read")
        assert reader.store is not None
        return reader.store

    async def _close_stores(self) -> None:
        """Close the real databases of killed brokers, and of the last one."""
        servers = [server for broker in self.brokers.values() for _process, server in broker.retired]
        for server in (*servers, *(broker.server for broker in self.brokers.values())):
            for instance in server.instances.open.values() if server is not None else ():
                with suppress(StoreError):
                    await instance.engine.store.close()

    def _end(self) -> None:
        for client in list(self.around.started.values()):
            client.process.kill()
            client.fiber.end()
        processes = [process for broker in self.brokers.values() for process, _server in broker.retired]
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.kill()
                processes.append(broker.process)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a coroutine that was made at the end was not awaited
            for process in processes:
                process.context.run(process.bury)


class Stuck(Exception):
    """The simulation does not reach what must come."""
