"""The broker: listens, keeps instances open, and does the work that time brings."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import stat
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from ..errors import InvalidUsersFile, OpenDataError, RequestError
from ..protocol import messages as m
from ..protocol.envelope import DEFAULT_MAX_MESSAGE_BYTES
from ..protocol.framing import DEFAULT_MAX_FRAME_BYTES
from ..storage.clock import Clock, SystemClock
from ..storage.engine import Engine, EngineSettings
from ..storage.slate import database_exists
from ..storage.state import DEFAULT_LEASE_SECONDS
from ..url import masked
from . import leases
from .admission import Admission, ConnectionLimits, descriptor_limit
from .arguments import MAX_NAME_BYTES
from .connection import Connection
from .entities import Session
from .handlers import Handlers
from .instance import Instance
from .instance_names import InstanceNames, check_name
from .listener import BACKLOG, Listener
from .logins import Logins
from .logs import code_of
from .maintenance import Maintenance
from .notices import Notices
from .pace import Pace, encoded
from .timed import is_timed
from .users import UsersFile

log = logging.getLogger(__name__)

_TICK_SECONDS = 0.5
#: how often leases are prolonged in the store: three times within the default one, once within the shortest
_RENEW_SECONDS = DEFAULT_LEASE_SECONDS / 3


@dataclass(frozen=True)
class BrokerSettings:
    """How a broker serves."""

    store: str  # URL of the object store
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
    session_grace_seconds: float = 2.0
    idle_exit_seconds: float = 0.0  # 0: never
    heartbeat_seconds: float = 60.0  # over TCP; 0: as a client wishes
    users: UsersFile | None = None  # None: everybody may connect
    tls: ssl.SSLContext | None = None
    create_instances: bool = False  # a client may name any instance
    connections: ConnectionLimits = field(default_factory=ConnectionLimits)
    engine: EngineSettings = field(default_factory=EngineSettings)


class Server:
    """A broker. :meth:`run` serves until :meth:`stop`."""

    def __init__(self, settings: BrokerSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.version = version("kombu-opendata")
        self.instances: dict[str, Instance] = {}
        self.names = InstanceNames(settings.store, settings.create_instances)
        self.connections: set[Connection] = set()
        self.connections_opened = 0
        self.connections_refused: Counter[str] = Counter()  # by the error's code
        self.requests_refused: Counter[str] = Counter()
        self._opening = asyncio.Lock()
        self.admission = Admission(settings.connections.within(descriptor_limit()))
        self.logins = Logins(settings.users, asyncio.get_running_loop().time) if settings.users is not None else None
        self._listeners: list[Listener] = []
        self._socket_paths: list[str] = []
        self._background: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._stopped_by = ""
        self._stalled: set[str] = set()
        loop = asyncio.get_running_loop()
        self.notices = Notices(log, loop.time)
        self._idle_since = loop.time()
        self._renewed_at = loop.time()

    # ------------------------------------------------------------------ life
    async def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket for this user, or with logins for all; a stale one is replaced."""
        _remove_stale_socket(path)
        mask = os.umask(0o177 if self.logins is None else 0o111)
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(path)
        finally:
            os.umask(mask)
        self._socket_paths.append(path)
        self._listen(sock)

    async def listen_tcp(self, host: str, port: int) -> int:
        """Listen on TCP, with TLS if the settings have it; returns the port."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened: list[Listener] = []
        for family, kind, protocol, _name, address in dict.fromkeys(found):
            try:
                sock = socket.socket(family, kind, protocol)
            except OSError:
                continue  # a host without IPv6 may have a name for such an address all the same
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(address)
                opened.append(self._listen(sock, self.settings.tls))
            except OSError as exc:
                sock.close()
                if exc.errno != errno.EADDRNOTAVAIL:
                    raise
        if not opened:
            raise OSError(errno.EADDRNOTAVAIL, f"{host} is no address of this host")
        return int(opened[0].address[1])

    def _listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None) -> Listener:
        sock.listen(BACKLOG)
        listener = Listener(sock, self.admission, lambda slot: Connection(self, slot), self._turned_away, tls)
        self._listeners.append(listener)
        return listener

    async def run(self) -> str:
        """Serve until stopped; returns why it stopped.

        Raises:
            OpenDataError: an engine failed for good.
        """
        ticking = asyncio.get_running_loop().create_task(self._tick_forever())
        ticking.add_done_callback(self._ticking_ended)
        try:
            await self._stopping.wait()
            return self._stopped_by
        finally:
            ticking.cancel()
            await self.close()

    def _ticking_ended(self, task: asyncio.Task[None]) -> None:
        """Without its ticks a broker expires no lease: an unforeseen error in one ends it, as one in a commit does."""
        if not task.cancelled() and (exc := task.exception()) is not None:
            log.critical("the broker stops: what it does twice a second failed", exc_info=exc)
            for instance in self.instances.values():
                instance.fail(exc)
            self.stop(f"the broker failed: {exc!r}")

    def stop(self, reason: str) -> None:
        """Have :meth:`run` end."""
        self._stopped_by = self._stopped_by or reason
        self._stopping.set()

    async def close(self) -> None:
        """Say goodbye to the clients and close the stores, with everything in them."""
        for listener in self._listeners:
            listener.close()
        if self.logins is not None:
            self.logins.close()
        for path in self._socket_paths:
            with suppress(FileNotFoundError):
                os.unlink(path)
        failures = []
        for instance in self.instances.values():
            await instance.maintenance.close()
            await instance.replay_calls.close()
            try:
                if not instance.failed.done():
                    await instance.engine.commits.commit()
            except OpenDataError as exc:
                failures.append(exc)
        for connection in list(self.connections):
            connection.say_goodbye("the broker stops")
        for instance in self.instances.values():
            instance.upkeep.stop()
            instance.timed.stop()
            instance.calls.stop()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for instance in self.instances.values():
            if instance.failed.done():
                failures.append(instance.failed.exception())  # type: ignore[arg-type]
            try:
                await instance.engine.close()
            except OpenDataError as exc:
                failures.append(exc)
        self.instances.clear()
        if failures:
            raise failures[0]

    # ------------------------------------------------------------------ instances and sessions
    async def instance(self, name: str) -> Instance:
        """The instance of this name, opened when it is the first time.

        Raises:
            RequestError: not a valid name.
            StoreError, StartError: it can't be opened.
        """
        check_name(name)
        async with self._opening:
            found = self.instances.get(name)
            if found is None:
                engine = await Engine.open(self.settings.store, name, self.clock, self.settings.engine)
                found = self.instances[name] = Instance(name, engine)
                found.maintenance = Maintenance(
                    found,
                    grace_ms=int(1000 * self.settings.session_grace_seconds),
                    interval_seconds=self.settings.engine.retention_interval_seconds,
                )
                found.staging.router.max_message_bytes = self.settings.max_message_bytes
                own = Handlers(found, Session(b"", "the broker"), self.settings.max_message_bytes, self.status)
                works = (
                    engine.run_maintenance(),
                    engine.history.run(),
                    found.dead_letters.run(own.store),
                    found.replays.run(),
                    found.staging.run(),
                )
                for work in works:
                    task = asyncio.get_running_loop().create_task(work)
                    self._background.add(task)
                    task.add_done_callback(lambda done: self._maintenance_ended(found, done))
                found.failed.add_done_callback(lambda done: self._failed(name, done))
        return found

    def _maintenance_ended(self, instance: Instance, task: asyncio.Task[None]) -> None:
        self._background.discard(task)
        if not task.cancelled() and task.exception() is not None:
            instance.fail(task.exception() or RuntimeError("maintenance ended"))

    def _failed(self, name: str, failure: asyncio.Future[None]) -> None:
        text = "instance %s failed, the broker stops: %s"
        log.critical(text, name, failure.exception(), extra={"instance": name, **code_of(failure.exception())})
        self.stop(f"instance {name} failed: {failure.exception()}")

    async def instance_for(self, hello: m.Hello) -> Instance:
        """The instance that a client who has logged in asks for.

        Raises:
            RequestError: the Hello is wrong.
            InstanceNotFound: there is no such instance.
        """
        if len(hello.session) != 16:
            raise RequestError("a session id has 16 bytes")
        if is_timed(hello.session):
            raise RequestError("this session id is reserved: take 16 random bytes")
        if len(hello.client) not in (0, 16):
            raise RequestError("what names a client has 16 bytes, or none")
        if len(hello.name.encode()) > MAX_NAME_BYTES:
            raise RequestError(f"a client's name has at most {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)
        await self.names.check(hello.instance, self.instances)
        return await self.instance(hello.instance)

    async def about_instances(self, call: m.CreateInstance | m.ListInstances) -> m.InstanceCreated | m.InstanceList:
        """Answer a call about instances; :meth:`instance` says what it raises."""
        if isinstance(call, m.ListInstances):
            return m.InstanceList(call.rid, self.names.listing(self.instances))
        check_name(call.name)
        created = call.name not in self.instances and not await database_exists(self.settings.store, call.name)
        await self.instance(call.name)
        if created:
            log.info("instance %s was made by a client", call.name, extra={"instance": call.name})
        return m.InstanceCreated(call.rid, created)

    def session(self, instance: Instance, hello: m.Hello) -> Session:
        """The session of this id; new ones are registered."""
        found = instance.sessions.get(hello.session)
        if found is None:
            found = instance.sessions[hello.session] = Session(hello.session, hello.name)
            found.since_ms = instance.engine.clock.now_ms()
            if hello.client:  # one more connection of a client that may be suspended
                others = instance.sessions.values()
                found.suspended = any(each.suspended for each in others if each.client == hello.client)
        found.name = hello.name
        found.client = hello.client or hello.session
        return found

    def connected(self, connection: Connection) -> None:
        self.connections.add(connection)
        self.connections_opened += 1

    def refused(self, exc: OpenDataError, what: str, who: str) -> None:
        """A connection is cut off, or its client not let in.

        Args:
            what: happened; one of a few texts.
            who: it happened to.
        """
        self.connections_refused[exc.code] += 1
        kind = f"{what} ({exc.code})"  # so that a flood of one kind hides no other
        self.notices.say(logging.WARNING, kind, "%s (%s): %s", what, who, exc.text, code=exc.code)

    def _turned_away(self, exc: OpenDataError, who: str) -> None:
        self.refused(exc, "a connection was refused", who)

    def disconnected(self, connection: Connection) -> None:
        self.connections.discard(connection)
        self._idle_since = asyncio.get_running_loop().time()

    # ------------------------------------------------------------------ what time brings
    async def _tick_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            for instance in self.instances.values():
                instance.maintenance.tick()
                instance.upkeep.tick()
                instance.rates.tick()
                self._watch_store(instance)
                instance.notices.tick()
            self.notices.tick()
            if loop.time() - self._renewed_at > _RENEW_SECONDS:
                self._renewed_at = loop.time()
                for instance in self.instances.values():
                    leases.renew_all(instance)
            idle = self.settings.idle_exit_seconds
            if idle and not self.connections and loop.time() - self._idle_since > idle:
                self.stop(f"no client for {idle:g} s")
            self._reload_users()

    def _reload_users(self) -> None:
        """Look whether the file of users changed, and end the connections of those who may not be here any more."""
        if self.logins is None:
            return
        try:
            if not self.logins.users.reload():
                return
        except InvalidUsersFile as exc:
            log.error("the users stay as they were: %s", exc.text, extra=code_of(exc))
            return
        log.info("the users file was read again: %d users", len(self.logins.users.hashes))
        for connection in list(self.connections):
            connection.check_login(self.logins)

    def _watch_store(self, instance: Instance) -> None:
        """Say once that the store stopped taking writes, and once that it does again."""
        stalled = instance.engine.stalled_seconds
        if stalled and instance.name not in self._stalled:
            self._stalled.add(instance.name)
            text = "instance %s: the store has taken no writes for %.0f s (disk full?); waiting"
            log.error(text, instance.name, stalled, extra={"instance": instance.name})
        elif not stalled and instance.name in self._stalled:
            self._stalled.discard(instance.name)
            log.info("instance %s: the store takes writes again", instance.name, extra={"instance": instance.name})
        count, slowest = instance.engine.figures.take_slow()
        if count:
            text = "instance %s: %d commits were slow, the slowest took %.2f s"
            instance.notices.say(logging.WARNING, "slow commits", text, instance.name, count, slowest)

    async def status(self) -> dict[str, Any]:
        """What the status call reports. Queues may be of moments that are some milliseconds apart."""
        queues = {name: await _queue_figures(instance) for name, instance in list(self.instances.items())}
        return {
            "version": self.version,
            "pid": os.getpid(),
            "store": masked(self.settings.store),
            "connections": len(self.connections),
            "connections_limit": self.admission.limits.connections,
            "connections_not_logged_in": self.admission.strangers,
            "instances": {
                name: {
                    **instance.engine.report(),
                    "queues": queues[name],
                    "sessions": len(instance.sessions),
                    "published": instance.published,
                    "delivered": instance.delivered,
                    "dead_letters": instance.dead_letters.report(),
                    "staging": instance.staging.report(),
                    "transient_queues": len(instance.queues) - len(instance.engine.state.queues),
                    "maintenance": instance.maintenance.report(),
                }
                for name, instance in self.instances.items()
                if name in queues
            },
        }


async def _queue_figures(instance: Instance) -> dict[str, Any]:
    """The encoded figures of all stored queues, by name."""
    found = {}
    async for queue in Pace().over(list(instance.queues.values())):
        if queue.stored is None:
            continue
        messages = queue.messages
        figures: dict[str, Any] = {
            "available": len(messages),
            "in_flight": len(messages.in_flight),
            "loaded_buckets": len(messages.buckets),
            "cold_buckets": len(messages.cold),
            "consumers": len(queue.consumers),
        }
        replay = instance.replays.report(queue.name)
        if replay is not None:
            figures["replay"] = replay
        found[queue.name] = encoded(figures)
    return found


def _remove_stale_socket(path: str) -> None:
    """Remove the socket that a killed broker left behind.

    Raises:
        OSError: something else is there, or somebody listens.
    """
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, f"{path} exists and is no socket")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        os.unlink(path)
        return
    raise OSError(errno.EADDRINUSE, f"another broker listens on {path}")
