"""Brokers that take, keep, pass on and lose the active role of a bucket, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import math
import selectors
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kombu_opendata.broker.delivery.active_lease import ActiveLease
from kombu_opendata.broker.standby.active_record import (
    ACTIVE,
    HANDING_OVER,
    STOPPED,
    ActiveRecord,
    BucketRecord,
    RecordChanged,
    TakeOverClaim,
    VersionedRecord,
    decode,
    own_process,
)
from kombu_opendata.broker.standby.active_role import ActiveRoleSettings, ClientEntry
from kombu_opendata.broker.standby.bucket_active_role import (
    UNGUARDED_LEASE_SECONDS,
    UNGUARDED_PERIOD_SECONDS,
    BucketActiveRole,
)
from kombu_opendata.broker.wire.standby_connections import Gate, Standby, Standbys
from kombu_opendata.errors import NewerFormat, OpenDataError, StoreError, StoreFenced, StoreInUse
from kombu_opendata.protocol.framing import PREAMBLE, PREAMBLE_BYTES, FrameReader, client_messages, frame
from kombu_opendata.protocol.messages import Prepare, StandbyHello, TakeOver, prove

#: no broker listens there
HERE, THERE, OTHER = "/nowhere/here", "/nowhere/there", "/nowhere/other"
KEY = "5ec4e7"
RENEW_SECONDS = 1.0
LEASE_SECONDS = 3.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time passes only when it waits for a timer, and no socket is ready."""

    def __init__(self) -> None:
        loop = self
        self.now = 0.0

        class Selector(selectors.DefaultSelector):
            def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
                events = super().select(0)
                if not events:
                    loop.now += timeout or 0.0
                return events

        super().__init__(Selector())

    def time(self) -> float:
        return self.now


class Record(BucketRecord):
    """The record of a bucket in memory; with an ``error``, the bucket fails."""

    def __init__(self) -> None:
        self.url = "memory:///"
        self.newest: VersionedRecord | None = None
        self.error: Exception | None = None
        self.writes = self.reads = 0

    async def read(self) -> VersionedRecord | None:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return self.newest

    async def write(self, record: ActiveRecord, replacing: VersionedRecord | None) -> VersionedRecord:
        if self.error is not None:
            raise self.error
        if (replacing and replacing.version) != (self.newest and self.newest.version):
            raise RecordChanged
        self.writes += 1
        self.newest = VersionedRecord(record, {"number": str(self.writes)})
        return self.newest

    @property
    def content(self) -> ActiveRecord:
        assert self.newest is not None
        return self.newest.record

    async def set(self, **fields: Any) -> None:
        """Write as another broker does."""
        await self.write(ActiveRecord(**{"id": "another", "addresses": [THERE], **fields}), self.newest)


class Connection:
    """The connection of a standby."""

    def __init__(self) -> None:
        self.slot: Any = SimpleNamespace(logged_in=lambda: None)
        self.sent: list[Any] = []

    def send_all(self, outgoing: list[Any]) -> None:
        self.sent += outgoing


class Socket(asyncio.Protocol):
    """A connection to a broker that listens for other brokers."""

    def __init__(self, standbys: Standbys) -> None:
        self.slot: Any = SimpleNamespace(logged_in=lambda: None)
        self._standbys = standbys
        self._reader: FrameReader[Any] = FrameReader(client_messages)
        self._preamble_bytes = PREAMBLE_BYTES

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(PREAMBLE)

    def data_received(self, data: bytes) -> None:
        rest = data[self._preamble_bytes :]
        self._preamble_bytes = max(self._preamble_bytes - len(data), 0)
        for message in self._reader.feed(rest):
            self._standbys.takes(self, message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._standbys.discard(self)

    def send_all(self, outgoing: list[Any]) -> None:
        self._transport.write(b"".join(map(frame, outgoing)))


class Broker:
    """What an active role controls, and has caused."""

    def __init__(self, record: Record, *, standby: bool = False, take_over: bool = False, **more: Any) -> None:
        self.errors: list[OpenDataError] = []
        self.read_ahead: list[set[str]] = []
        self.gate = Gate()
        self.lease = ActiveLease(asyncio.get_running_loop().time)
        self.successors: list[list[str]] = []
        self.standbys = Standbys(lambda: True, self.successors.append, asyncio.get_running_loop().time)
        self.settings = ActiveRoleSettings(
            standby, take_over, RENEW_SECONDS, ("default",), ssl.create_default_context, **more
        )
        self.role = BucketActiveRole(record, self.settings)

        async def read_ahead(names: Any) -> None:
            self.read_ahead.append(set(names))

        self.entry = ClientEntry(self.gate, self.standbys, self.lease, self.errors.append, read_ahead)

    async def take(self, *addresses: str) -> float:
        """Take the role; return the seconds until then."""
        began = asyncio.get_running_loop().time()
        await self.role.take(self.entry, addresses or (HERE,))
        return asyncio.get_running_loop().time() - began

    @asynccontextmanager
    async def watching(self) -> Any:
        task = asyncio.ensure_future(self.role.watch())
        try:
            yield task
        finally:
            task.cancel()

    @asynccontextmanager
    async def listening(self, address: Path) -> AsyncIterator[None]:
        """Take the role, and listen for other brokers."""
        await self.take(str(address))
        await self.role.announce((str(address),))
        server = await asyncio.get_running_loop().create_unix_server(lambda: Socket(self.standbys), address)
        try:
            yield
        finally:
            server.close()


def run(steps: Callable[[Record], Awaitable[None]]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(steps(Record()))  # type: ignore[arg-type]


def test_the_first_broker_takes_the_role_without_a_wait() -> None:
    async def steps(record: Record) -> None:
        broker = Broker(record, key=KEY, serves_tls=True, id="me")
        assert await broker.take(HERE, OTHER) == 0
        content = record.content
        assert (content.id, content.state, content.key, content.tls) == ("me", ACTIVE, KEY, True)
        assert (content.addresses, content.instances) == ([HERE, OTHER], ["default"])
        assert (content.lease_seconds, content.process) == (UNGUARDED_LEASE_SECONDS, own_process())
        assert broker.role.instances == ("default",)
        assert (broker.gate.is_open, broker.gate.sends_away) == (False, False), "clients wait for the instances"
        assert broker.lease.ends_at == math.inf, "without a standby, nothing can replace it"

    run(steps)


def test_a_broker_with_standbys_has_a_short_lease() -> None:
    async def steps(record: Record) -> None:
        broker = Broker(record, standby=True)
        await broker.take()
        assert record.content.lease_seconds == LEASE_SECONDS
        assert broker.lease.ends_at == LEASE_SECONDS

    run(steps)


def test_a_stopped_broker_is_replaced_and_its_instances_are_opened() -> None:
    async def steps(record: Record) -> None:
        await record.set(state=STOPPED, instances=["tenant"], lease_seconds=5)
        broker = Broker(record)
        assert await broker.take() == 0
        assert broker.role.instances == ("default", "tenant")
        assert record.content.instances == ["default", "tenant"]

    run(steps)


def test_a_hand_over_is_for_the_successor_only() -> None:
    async def steps(record: Record) -> None:
        await record.set(state=HANDING_OVER, successor="heir", lease_seconds=5)
        other = Broker(record, id="other")
        heir = Broker(record, id="heir")
        waiting = asyncio.ensure_future(other.take())
        await asyncio.sleep(1)
        assert record.content.claim == TakeOverClaim(id="other")
        assert await heir.take() == 0
        with pytest.raises(StoreInUse, match=f"at {THERE}"):
            await waiting

    run(steps)


def test_a_broker_that_does_not_answer_is_replaced_after_its_lease() -> None:
    async def steps(record: Record) -> None:
        await record.set(lease_seconds=10.0, instances=["tenant"])
        broker = Broker(record, id="me")
        assert 10.0 < await broker.take() < 12.0
        assert (record.content.id, record.content.claim) == ("me", None)
        assert broker.read_ahead == [{"default", "tenant"}]

    run(steps)


def test_a_process_of_this_host_that_has_ended_is_replaced_without_a_wait() -> None:
    async def steps(record: Record) -> None:
        namespace, pid, start = own_process().rsplit("/", 2)
        await record.set(lease_seconds=10.0, process=own_process())
        assert await Broker(record).take() > 10.0, "it runs"
        await record.set(lease_seconds=10.0, process=f"{namespace}/{pid}/{int(start) - 1}")
        assert await Broker(record).take() == 0, "another process has its number"

    run(steps)


def test_a_live_broker_withdraws_a_claim() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True, id="active")
        await active.take()
        async with active.watching():
            with pytest.raises(StoreInUse, match=f"at {HERE}"):
                await Broker(record).take(OTHER)
        assert (record.content.id, record.content.claim, active.errors) == ("active", None, [])
        assert not active.lease.is_over

    run(steps)


def test_a_live_broker_ends_by_a_forced_claim() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True, id="active")
        await active.take()
        async with active.watching() as watch:
            successor = Broker(record, take_over=True, id="successor")
            assert await successor.take(OTHER) > LEASE_SECONDS
            await watch
        assert [type(error) for error in active.errors] == [StoreFenced]
        assert (record.content.id, active.lease.is_over) == ("successor", True)

    run(steps)


def test_a_broker_that_answers_is_not_replaced(store_folder: Path) -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, id="active", key=KEY)
        async with active.listening(store_folder / "active.sock"):
            writes = record.writes
            with pytest.raises(StoreInUse, match=f"at {store_folder}"):
                await Broker(record).take()
            assert (asyncio.get_running_loop().time(), record.writes) == (0, writes), "without a claim"

    run(steps)


def test_a_replaced_broker_that_cannot_reach_the_store_is_notified(store_folder: Path) -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, id="active", key=KEY)
        async with active.listening(store_folder / "active.sock"):
            await Broker(record, take_over=True, id="successor").take(OTHER)
            await asyncio.sleep(1)
            assert active.successors == [[OTHER]]

    run(steps)


def test_a_standby_gets_prepared_and_takes_over_through_its_connection(store_folder: Path) -> None:
    async def steps(record: Record) -> None:
        loop = asyncio.get_running_loop()
        active = Broker(record, standby=True, id="active", key=KEY)
        standby = Broker(record, standby=True, id="standby")
        async with active.listening(store_folder / "active.sock"), active.watching():
            waiting = asyncio.ensure_future(standby.take(OTHER))
            await asyncio.sleep(60)
            assert (standby.gate.sends_away, record.content.claim, record.writes) == (True, None, 1)
            (connected,) = active.standbys.ready
            await active.role.prepare(connected)
            assert standby.read_ahead == [{"default"}]
            await active.role.hand_over(connected)
            handed_over_at = loop.time()
            async with asyncio.timeout(10):
                await waiting
            assert (record.content.id, record.writes, loop.time()) == ("standby", 2, handed_over_at)

    run(steps)


def test_a_standby_waits_for_the_end_of_the_lease_after_the_record_was_deleted() -> None:
    async def steps(record: Record) -> None:
        await record.set(lease_seconds=10.0)
        waiting = asyncio.ensure_future(Broker(record, standby=True, id="standby").take())
        await asyncio.sleep(0.1)
        record.newest = None
        assert 11.0 < await waiting < 13.0
        assert record.content.id == "standby"

    run(steps)


def test_a_second_claim_waits_for_the_first() -> None:
    async def steps(record: Record) -> None:
        await record.set(lease_seconds=10.0, claim=TakeOverClaim(id="first"))
        broker = Broker(record)
        assert await broker.take() > 21.0, "for the claim of the other one, and for the lease after its own"

    run(steps)


def test_a_standby_claims_when_the_active_broker_is_gone_and_follows_otherwise() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True, id="active")
        await active.take()
        standby = Broker(record, standby=True, id="standby")
        waiting = asyncio.ensure_future(standby.take(OTHER))
        async with active.watching():
            await asyncio.sleep(60)  # it can't connect, as nothing listens, and its claims are withdrawn
            assert not waiting.done()
            assert (standby.gate.active, standby.gate.sends_away) == ((HERE,), True)
            assert record.content.id == "active"
        await waiting
        assert (record.content.id, standby.gate.sends_away) == ("standby", False)
        assert active.lease.is_over

    run(steps)


def test_a_standby_waits_while_the_bucket_fails_and_a_starting_broker_does_not() -> None:
    async def steps(record: Record) -> None:
        record.error = StoreError("no answer", url="memory:///")
        with pytest.raises(StoreError, match="no answer"):
            async with asyncio.timeout(60):
                await Broker(record).take()
        record.error = None
        await record.set(lease_seconds=10.0)
        standby = Broker(record, standby=True, id="standby")
        waiting = asyncio.ensure_future(standby.take())
        await asyncio.sleep(1)
        record.error = StoreError("no answer", url="memory:///")
        await asyncio.sleep(60)
        assert not waiting.done()
        record.error = None
        await waiting
        assert record.content.id == "standby"

    run(steps)


def test_a_deleted_record_is_written_again_by_the_active_broker_before_a_standby_takes_it() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True, id="active")
        await active.take()
        standby = Broker(record, standby=True, id="standby")
        waiting = asyncio.ensure_future(standby.take(OTHER))
        async with active.watching():
            await asyncio.sleep(0.1)
            record.newest = None
            await asyncio.sleep(20)
            assert (record.content.id, waiting.done(), active.errors) == ("active", False, [])
        record.newest = None
        await waiting
        assert record.content.id == "standby"

    run(steps)


def test_the_active_broker_reads_its_record_and_extends_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def steps(record: Record) -> None:
        active = Broker(record, standby=True)
        await active.take()
        async with active.watching():
            before = record.reads
            await asyncio.sleep(10.5)
            assert record.reads - before == 10
            assert active.lease.ends_at == 10 + LEASE_SECONDS
            record.error = StoreError("no answer", url="memory:///")
            await asyncio.sleep(LEASE_SECONDS)
            assert (active.lease.is_over, active.errors) == (True, [])
            record.error = None
            await asyncio.sleep(1)
            assert not active.lease.is_over, "it serves again"
        texts = [log.getMessage() for log in caplog.records if "active" in log.getMessage()]
        assert texts == [
            "the active record can't be read: no answer",
            "the store shows again which broker is active: this one",
        ], "not at each failure"

    run(steps)


@pytest.mark.parametrize("change", [{"id": "another"}, {"id": "active", "state": HANDING_OVER}])
def test_a_broker_ends_when_its_record_is_not_its_own(change: dict[str, Any]) -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True, id="active")
        await active.take()
        await record.set(**change)
        await active.role.watch()
        (error,) = active.errors
        assert isinstance(error, StoreFenced)
        assert THERE in str(error)
        assert active.gate.active == (THERE,)
        assert active.lease.is_over

    run(steps)


def test_a_broker_ends_when_a_newer_version_wrote_the_record_and_does_not_replace_it() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True)
        await active.take()
        record.error = NewerFormat("newer", version=9, supported=1)
        await active.role.watch()
        assert [type(error) for error in active.errors] == [StoreFenced]
        assert str(active.errors[0]) == "another broker has taken over the store: this one ends"
        with pytest.raises(NewerFormat):
            await Broker(record, standby=True).take()

    run(steps)


def test_the_lease_becomes_shorter_with_the_first_standby() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, key=KEY)
        await active.take()
        await active.role.announce((HERE, OTHER))
        assert record.content.addresses == [HERE, OTHER]
        writes = record.writes
        await active.role.announce((HERE, OTHER))
        assert record.writes == writes, "nothing has changed"
        async with active.watching():
            await asyncio.sleep(UNGUARDED_PERIOD_SECONDS + 1)
            assert (record.content.lease_seconds, active.lease.ends_at) == (UNGUARDED_LEASE_SECONDS, math.inf)
            proof = prove(KEY, "standby", "new", b"", [])
            assert active.standbys.takes(Connection(), StandbyHello(1, "new", [], b"", proof))
            await asyncio.sleep(0.1)
            assert record.content.lease_seconds == LEASE_SECONDS
            assert active.lease.ends_at < UNGUARDED_PERIOD_SECONDS + 1.1 + LEASE_SECONDS

    run(steps)


def test_an_instance_is_in_the_record_before_it_is_opened() -> None:
    async def steps(record: Record) -> None:
        broker = Broker(record)
        await broker.take()
        await broker.role.opening("default")
        assert record.writes == 1, "it was there"
        await broker.role.opening("first")
        assert record.content.instances == ["default", "first"]
        assert broker.errors == []
        await record.set()
        with pytest.raises(StoreFenced, match=THERE) as caught:
            await broker.role.opening("second")
        assert broker.errors == [caught.value]

    run(steps)


def test_a_claim_that_comes_in_between_does_not_prevent_a_change() -> None:
    async def steps(record: Record) -> None:
        broker = Broker(record, id="me")
        await broker.take()
        await record.set(id="me", claim=TakeOverClaim(id="another"))
        await broker.role.opening("first")
        assert (record.content.instances, record.content.claim) == (["default", "first"], None)

    run(steps)


def test_a_standby_gets_the_record_at_a_hand_over() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True, id="active")
        await active.take()
        connection = Connection()
        standby = Standby(StandbyHello(1, "heir", [OTHER], b"", b"", prepares=True), connection, 0.0)
        preparing = asyncio.ensure_future(active.role.prepare(standby))
        await asyncio.sleep(0.1)
        assert (connection.sent, preparing.done()) == ([Prepare(["default"])], False)
        standby.is_prepared.set()
        await preparing
        assert await active.role.hand_over(standby)
        take_over = connection.sent[1]
        assert isinstance(take_over, TakeOver)
        assert VersionedRecord(decode(take_over.record), take_over.version) == record.newest
        await active.role.wait_for_successor()
        assert (record.content.state, record.content.successor) == (HANDING_OVER, "heir")
        heir = Broker(record, standby=True, id="heir")
        assert await heir.take(OTHER) == 0
        await active.role.find_successor()
        assert active.gate.active == (OTHER,)

    run(steps)


def test_a_standby_that_does_not_prepare_is_not_waited_for_without_end() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record, standby=True)
        await active.take()
        older, silent = Connection(), Connection()
        await active.role.prepare(Standby(StandbyHello(1, "old", [], b"", b"", prepares=False), older, 0.0))
        assert older.sent == []
        await active.role.prepare(Standby(StandbyHello(1, "new", [], b"", b"", prepares=True), silent, 0.0))
        assert asyncio.get_running_loop().time() == 5.0

    run(steps)


def test_the_end_of_the_active_broker_is_in_the_record_and_that_of_a_standby_is_not() -> None:
    async def steps(record: Record) -> None:
        active = Broker(record)
        await active.take()
        await Broker(record, standby=True).role.leave()
        assert record.content.state == ACTIVE
        record.error = StoreError("no answer", url="memory:///")
        await active.role.leave()
        await active.role.find_successor()
        record.error = None
        await active.role.leave()
        assert record.content.state == STOPPED
        await active.role.find_successor()
        assert active.gate.active == ()

    run(steps)
