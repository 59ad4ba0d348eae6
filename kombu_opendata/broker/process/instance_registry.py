"""Instances (virtual hosts) of one broker: opening on first use, periodic work, closing.

A client may use instances that are open or in the store; an option also permits new instances. Without the option, a
misspelt name is an error, not a new empty database.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import partial

from ...errors import InstanceNotFound, LimitExceeded, OpenDataError, RequestError
from ...protocol import messages as m
from ...storage.clock import Clock
from ...storage.databases import Databases
from ...storage.engine import Engine
from ...storage.slatedb.caches import BlockCache
from ..access.rights import User
from ..calls.admin_calls import Directory
from ..calls.all_calls import InstanceCalls
from ..delivery.active_lease import ActiveLease
from ..delivery.lease_expiry import is_timed
from ..delivery.publish_flow_control import Flow, Reason
from ..delivery.slow_turns import SlowTurns
from ..instance.instance import Instance
from ..metrics.metric_catalogue import MetricsSnapshot
from ..model.name_checks import MAX_NAME_BYTES
from ..wire.broker_settings import BrokerSettings
from .logs import code_of

log = logging.getLogger(__name__)

#: a name with one of these endings would be another instance's folder of journals or staged batches
_NAME = re.compile(r"(?!.*\.(?:journal|staged)$)[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SHOWN = 10
_SHORTEN_SECONDS = 5.0


def check_name(name: str) -> None:
    """Raise RequestError if no instance can have this name."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"instance name {name!r}: use up to 64 letters, digits, '_', '-' and '.', without '.journal' or "
            "'.staged' at the end",
            instance=name,
        )


class Instances:
    """Instances of one broker; ``open`` has the open instances by name."""

    def __init__(
        self,
        settings: BrokerSettings,
        clock: Clock,
        directory: Directory,
        active_lease: ActiveLease,
        opening: Callable[[str], Awaitable[None]],
        failed: Callable[[str, BaseException], None],
        databases: Databases,
        slow_turns: SlowTurns,
    ) -> None:
        self.open: dict[str, Instance] = {}
        self._hosts: dict[str, InstanceCalls] = {}
        self._settings, self._clock, self._directory = settings, clock, directory
        self._active_lease, self._before_opening = active_lease, opening
        self._failed, self._slow_turns = failed, slow_turns
        self._databases = databases
        self._caches: dict[str, BlockCache] = {}  # for instances that are not open yet
        self._memory_is_full = False
        self._opening: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def get(self, name: str) -> Instance:
        """Return the instance of this name; open it on first use.

        Raise RequestError if the name is not valid, and StoreError or StartError if the instance can't be opened.
        """
        check_name(name)
        async with self._opening[name]:
            instance = self.open.get(name)
            if instance is None:
                await self._before_opening(name)
                cache = self._caches.pop(name, None)
                flow = Flow(asyncio.get_running_loop())
                engine = await Engine.open(
                    self._settings.store,
                    name,
                    self._clock,
                    self._settings.engine,
                    cache,
                    on_full=partial(flow.change, Reason.STORE),
                    may_reopen=self._active_lease.renewed,
                    databases=self._databases,
                )
                largest = self._settings.max_message_bytes
                grace_ms = int(1000 * self._settings.session_grace_seconds)
                restart_grace_ms = max(grace_ms, int(1000 * self._settings.restart_grace_seconds))
                instance = Instance(
                    name,
                    engine,
                    self._active_lease,
                    flow,
                    self._slow_turns,
                    grace_ms=grace_ms,
                    restart_grace_ms=restart_grace_ms,
                    max_message_bytes=largest,
                    traced=self._settings.open_telemetry,
                )
                instance.flow.change(Reason.MEMORY, self._memory_is_full)
                self.open[name] = instance
                self._hosts[name] = calls = InstanceCalls(instance, largest, self._directory)
                instance.start(calls.publishing.store)
                instance.failure.future.add_done_callback(lambda done: self._note_failure(name, done))
        return instance

    async def read_ahead(self, names: Iterable[str]) -> None:
        """Read the data to open these instances from a bucket, while another broker still has them open."""

        async def read(name: str) -> None:
            try:
                self._caches[name] = await self._databases.read_ahead(name, self._settings.engine, self._clock)
            except OpenDataError as exc:  # it will be read later
                log.info("instance %s can't be read ahead: %s", name, exc.text, extra={"instance": name})

        await asyncio.gather(*map(read, names))

    def _note_failure(self, name: str, failure: asyncio.Future[None]) -> None:
        exc = failure.exception()
        assert exc is not None
        log.critical("instance %s failed, the broker stops: %s", name, exc, extra={"instance": name, **code_of(exc)})
        self._failed(name, exc)

    async def host_for(self, hello: m.Hello, user: User) -> InstanceCalls:
        """Return the calls of the instance that a Hello names.

        Raise RequestError if the Hello is not valid, and InstanceNotFound if there is no such instance.
        """
        if len(hello.session) != 16:
            raise RequestError("a session id has 16 bytes")
        if is_timed(hello.session):
            raise RequestError("this session id is reserved: take 16 random bytes")
        if len(hello.client) not in (0, 16):
            raise RequestError("a client id has 16 bytes, or none")
        if len(hello.name.encode()) > MAX_NAME_BYTES:
            raise RequestError(f"a client's name has at most {MAX_NAME_BYTES} bytes", limit=MAX_NAME_BYTES)
        await self._check_name(hello.instance, user)
        await self._check_count(hello.instance)
        await self.get(hello.instance)
        return self._hosts[hello.instance]

    def listing(self) -> dict[str, bool]:
        """Return the names of all instances, with True for an open instance."""
        return {name: name in self.open for name in {*self._databases.names(), *self.open}}

    async def _check_name(self, name: str, user: User) -> None:
        """Check that a user's client may name an instance; raise RequestError, InstanceNotFound or StoreError."""
        check_name(name)
        settings = self._settings
        if settings.create_instances or name in self.open or await self._databases.exists(name):
            return
        known = sorted(filter(user.may_enter, self.listing()))
        meant = get_close_matches(name, known, n=1)
        hint = f" Did you mean {meant[0]!r}?" if meant else ""
        names_text = ", ".join(known[:_SHOWN]) + (" …" if len(known) > _SHOWN else "")
        raise InstanceNotFound(
            f"this broker has no instance {name!r}; it has {names_text or 'none that you may use'}.{hint} "
            f"To create it: 'opendata-queue instance create {name}', or start the broker with --instance {name} or "
            "--create-instances",
            instance=name,
        )

    async def create(self, name: str) -> bool:
        """Open or create an instance for a client; return True if it is new. Raise as :meth:`get`."""
        check_name(name)
        created = await self._check_count(name)
        await self.get(name)
        return created

    async def _check_count(self, name: str) -> bool:
        """Return True if the instance does not exist; raise LimitExceeded if it can't be created either."""
        if name in self.open or await self._databases.exists(name):
            return False
        limit = self._settings.max_instances
        if len(self.listing()) >= limit:
            text = f"the broker may have {limit} instances at most (--max-instances): use one that exists"
            raise LimitExceeded(text, limit="instances", value=limit, whose="the broker")
        return True

    def change_memory(self, is_full: bool) -> None:
        """Delay publishes while the broker's memory is full, or resume them."""
        self._memory_is_full = is_full
        for instance in self.open.values():
            instance.flow.change(Reason.MEMORY, is_full)

    def free_memory(self) -> None:
        for instance in self.open.values():
            instance.engine.free_memory()

    def measure(self, snapshot: MetricsSnapshot) -> None:
        """Add the totals over all instances to a scrape of the metrics."""
        refusals = sum((instance.background.refused for instance in self.open.values()), Counter[str]())
        snapshot.set("publishers_waiting", sum(instance.flow.waiting for instance in self.open.values()))
        for code, count in refusals.items():
            snapshot.set("requests_refused_total", count, code)

    def fail(self, exc: BaseException) -> None:
        for instance in self.open.values():
            instance.failure.fail(exc)

    def tick(self) -> None:
        """Run the periodic work; called twice per second."""
        for instance in self.open.values():
            instance.tick()

    async def shorten_recovery(self) -> None:
        """Shorten the recovery of a successor, with a timeout of some seconds."""
        with suppress(TimeoutError, OpenDataError):
            async with asyncio.timeout(_SHORTEN_SECONDS):
                await asyncio.gather(*(instance.engine.upkeep.shorten_recovery() for instance in self.open.values()))

    async def end_calls(self) -> list[BaseException]:
        """Stop long calls and commit their changes so far; return the errors."""
        results = await asyncio.gather(
            *(instance.end_calls() for instance in self.open.values()), return_exceptions=True
        )
        return _failures(results)

    async def stop(self) -> None:
        for instance in self.open.values():
            await instance.stop()

    async def close(self) -> list[BaseException]:
        """Close all instances; return the errors."""
        await self.stop()
        failed = [
            instance.failure.future.exception() for instance in self.open.values() if instance.failure.future.done()
        ]
        results = await asyncio.gather(
            *(instance.engine.close() for instance in self.open.values()), return_exceptions=True
        )
        self.open.clear()
        return [failure for failure in failed if failure is not None] + _failures(results)


def _failures(results: Iterable[BaseException | None]) -> list[BaseException]:
    """Return the errors of this package among the results of gather(); raise any other error."""
    failures = [failure for failure in results if failure is not None]
    for failure in failures:
        if not isinstance(failure, OpenDataError):
            raise failure
    return failures
