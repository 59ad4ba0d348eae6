"""The engine against a model, with a crash or a clean restart at any step.

A crash is a copy of the store's folder as it is at that instant, opened again; the engine that was writing is
abandoned. In memory, where nothing can be copied, a crash is a second engine on the same store.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kombu_opendata.errors import StoreError
from kombu_opendata.storage import object_store, queue_state, settled_log
from kombu_opendata.storage.clock import ManualClock
from kombu_opendata.storage.engine import Engine, EngineSettings
from kombu_opendata.storage.queue_state import Entry
from kombu_opendata.storage.records import active, keys, settled
from kombu_opendata.storage.records.keys import RecordKind
from kombu_opendata.storage.settled_log import SettledLog
from kombu_opendata.storage.slate import SlateSettings
from kombu_opendata.storage.state import Queue, QueueOptions
from tests.property.engine_model import Message, Model, ModelQueue
from tests.support.plain_store import PlainStore

NAMES = ("a", "b", "c")
BINDINGS = (("direct", "amq.direct", "k"), ("topic", "amq.topic", "k.*"), ("fanout", "amq.fanout", ""))
ROUTES = (("", "a"), ("", "b"), ("", "c"), ("amq.direct", "k"), ("amq.topic", "k.x"), ("amq.fanout", "any"))
#: what SlateDB is still writing has another name
_UNFINISHED = shutil.ignore_patterns("*#*")
SESSIONS = tuple(bytes([number]) * 16 for number in (1, 2))
PRODUCER = b"p" * 16
LETTERS_GO_TO_B = {"x-dead-letter-routing-key": "b"}
SETTINGS = EngineSettings(
    sync=False,
    payload_cache_bytes=1000,
    journal_segment_bytes=64 << 10,
    slate=SlateSettings(l0_max_ssts=1000, block_cache_bytes=0),
)
TERMS = st.sampled_from(NAMES)
TTLS = st.sampled_from([-1, -1, 0, 3000])
RETRY_DELAYS = st.sampled_from([0, 700])


class Crash(StoreError):
    """Thrown out of a checkpoint to abandon it."""


class EngineMachine(RuleBasedStateMachine):
    """On a local folder, with the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.model = Model()
        self.committed = Model()
        self.number = itertools.count(1)
        self.stale: list[tuple[str, int, int]] = []  # queue, id, token of leases that ended
        self.root = Path(tempfile.mkdtemp(prefix="odq-engine-"))
        self.life = 0
        self.abandoned: list[Engine] = []
        self._small = _small_buckets()
        self._small.__enter__()

    def run(self, step: Any) -> Any:
        return self.loop.run_until_complete(step)

    # ------------------------------------------------------------------ opening, crashing
    @property
    def folder(self) -> Path:
        return self.root / str(self.life)

    def url(self) -> str:
        return f"file://{self.folder}"

    @initialize(queues=st.dictionaries(TERMS, st.tuples(TTLS, RETRY_DELAYS), min_size=1))
    def begin(self, queues: dict[str, tuple[int, int]]) -> None:
        self.open()
        for name in sorted(queues):
            self.declare(name, 2, 2, 1, True, *queues[name])

    def open(self) -> None:
        self.engine: Engine = self.run(Engine.open(self.url(), "default", self.clock, SETTINGS))

    def freeze(self) -> Callable[[], None]:
        """Keep the store as it is now; the returned function goes on with it."""
        target = self.root / str(self.life + 1)
        shutil.rmtree(target, ignore_errors=True)
        database = Path("default")
        # In the order of what refers to what, as a background write may add files meanwhile.
        for part in ("default.journal", database / "manifest", database / "compactions", database / "wal"):
            if (self.folder / part).exists():
                shutil.copytree(self.folder / part, target / part, ignore=_UNFINISHED)
        shutil.copytree(self.folder, target, dirs_exist_ok=True, ignore=_only_new(target, self.folder))

        def go_on() -> None:
            self.life += 1

        return go_on

    def abandon(self) -> None:
        """Let go of the old engine's files; whatever that writes is in a folder that is not looked at again."""
        with contextlib.suppress(StoreError):
            self.run(self.engine.store.close())
        if self.engine.journal is not None:
            self.engine.journal.close()

    def after_crash(self) -> None:
        self.model = copy.deepcopy(self.committed)
        self.model.after_crash()
        self.committed = copy.deepcopy(self.model)
        self.open()

    # ------------------------------------------------------------------ commits
    def note_commit(self, checkpoint: bool = False) -> None:
        if checkpoint or self.engine.journal is None:
            self.model.swept.clear()
        self.committed = copy.deepcopy(self.model)

    def end(self, commit: bool) -> None:
        """The end of a step: some commit, some leave their effects to a later one."""
        if commit:
            self.run(self.engine.commit())
            self.note_commit()

    # ------------------------------------------------------------------ definitions
    @rule(
        name=TERMS,
        max_attempts=st.integers(1, 3),
        done=st.sampled_from([0, 2, 100]),
        failed=st.sampled_from([0, 1, 100]),
        commit=st.booleans(),
        ttl_ms=TTLS,
        retry_delay_ms=RETRY_DELAYS,
    )
    def declare(
        self,
        name: str,
        max_attempts: int,
        done: int,
        failed: int,
        commit: bool,
        ttl_ms: int = -1,
        retry_delay_ms: int = 0,
    ) -> None:
        if name not in self.model.queues:
            has_dead_letters = name != "b"
            self.model.queues[name] = ModelQueue(
                max_attempts, 30, done, failed, ttl_ms, retry_delay_ms, has_dead_letters=has_dead_letters
            )
            arguments = {"x": name, "x-retry-delay": retry_delay_ms, "x-max-length-bytes": 0}
            if ttl_ms >= 0:
                arguments["x-message-ttl"] = ttl_ms
            if has_dead_letters:
                arguments |= {"x-dead-letter-exchange": "", **LETTERS_GO_TO_B}
            self.engine.declare_queue(name, QueueOptions(max_attempts, done, failed, 30, arguments))
            self.end(commit)

    @rule(name=TERMS, binding=st.sampled_from(BINDINGS), commit=st.booleans())
    def bind(self, name: str, binding: tuple[str, str, str], commit: bool) -> None:
        if name in self.model.queues:
            self.engine.bind(name, *binding[1:], {})
            self.model.bindings.add((name, *binding[1:]))
            self.end(commit)

    @rule(name=TERMS, binding=st.sampled_from(BINDINGS), commit=st.booleans())
    def unbind(self, name: str, binding: tuple[str, str, str], commit: bool) -> None:
        if (name, *binding[1:]) in self.model.bindings:
            self.engine.unbind(name, *binding[1:], {})
            self.model.bindings.discard((name, *binding[1:]))
            self.end(commit)

    @rule(name=TERMS)
    def purge(self, name: str) -> None:
        if name in self.model.queues:
            waiting = self.model.queues[name].available
            assert self.run(self.engine.purge(self.engine.state.queues[name])) == len(waiting)
            waiting.clear()
            self.note_commit()

    @rule(name=TERMS, kept=st.integers(0, 20), commit=st.booleans())
    def drop_oldest(self, name: str, kept: int, commit: bool) -> None:
        """As for a maximum length."""
        if name in self.model.queues:
            queue, waiting = self.engine.state.queues[name], self.model.queues[name].available
            dropped = self.run(self.engine.collector.drop_oldest(queue, lambda: len(queue.messages) > kept))
            for id in sorted(waiting)[:dropped]:
                del waiting[id]
            assert len(waiting) == len(queue.messages) <= kept
            self.end(commit)

    @rule(name=TERMS, again=st.booleans(), commit=st.booleans())
    def delete(self, name: str, again: bool, commit: bool) -> None:
        gone = self.model.queues.pop(name, None)
        if gone is None:
            return
        self.model.bindings = {binding for binding in self.model.bindings if binding[0] != name}
        self.model.orphans.update({(name, id): reason for id, reason in gone.letters.items()})
        if again:  # declared again before the checkpoint
            self.run(self.engine._remove_available(self.engine.state.queues[name]))
            self.engine.drop_queue(name)
            self.forget_swept(name)
            self.declare(name, 2, 2, 1, commit)
        else:
            assert self.run(self.engine.delete_queue(self.engine.state.queues[name])) == len(gone.available)
            self.forget_swept(name)
            self.note_commit(checkpoint=True)

    def forget_swept(self, name: str) -> None:
        self.model.swept = {place: rows for place, rows in self.model.swept.items() if place[0] != name}

    # ------------------------------------------------------------------ publishing
    @rule(
        route=st.sampled_from(ROUTES),
        priority=st.integers(253, 255),
        delay=st.sampled_from([0, 0, 0, 500, 5000]),
        ttl=st.sampled_from([-1, -1, -1, 0, 1000, 6000]),
        size=st.sampled_from([None, None, None, 0, 900, 70_000]),
        count=st.integers(1, 12),
        commit=st.booleans(),
    )
    def publish(
        self, route: tuple[str, str], priority: int, delay: int, ttl: int, size: int | None, count: int, commit: bool
    ) -> None:
        names = self.engine.state.topology.route(*route)
        assert set(names) == self.routed(*route)
        now = self.clock.now_ms()
        for _ in range(count if names else 0):
            number = next(self.number)
            envelope = b"%d" % number if size is None else b"x" * size
            assert self.engine.published(PRODUCER, number) is None
            id = self.engine.publish(
                [self.engine.state.queues[name] for name in names],
                envelope,
                {"n": str(number)},
                priority=priority,
                created_at=now,
                visible_at=now + delay if delay else -1,
                ttl_ms=ttl,
                session=PRODUCER,
                seq=number,
                total=len(names),
            )
            assert id not in self.model.envelopes
            self.model.envelopes[id] = envelope
            self.model.producers[PRODUCER] = (number, id, len(names))
            for name in names:
                deadline = now + ttl if ttl >= 0 else 0
                self.model.queues[name].publish(Message(id, priority, now + delay, deadline), now)
        self.end(commit)

    def routed(self, exchange: str, key: str) -> set[str]:
        if exchange == "":
            return {key} & self.model.queues.keys()
        return {queue for queue, bound, _key in self.model.bindings if bound == exchange}

    @invariant()
    def repeated_publishes_are_recognized(self) -> None:
        for session, (number, id, queues) in self.model.producers.items():
            for seq in (1, number):
                last = self.engine.published(session, seq)
                assert last is not None
                assert last[:3] == (number, id, queues)

    # ------------------------------------------------------------------ consuming
    async def loads(self) -> None:
        """Wait until everything that is being loaded is there."""
        while self.engine._loading:
            await asyncio.gather(*self.engine._loading.values())

    async def next_entry(self, queue: Queue) -> tuple[Entry | None, bytes | None]:
        """The next one and its payload, as the broker does it: if something must be loaded, wait and try again."""
        for _ in range(1000):
            self.engine.prefetch(queue)
            entry, loading = self.engine.next_entry(queue, self.clock.now_ms())
            if not loading:
                return entry, self.engine.payloads.find(entry.id) if entry is not None else None
            await self.loads()
        raise AssertionError("loading does not end")

    @rule(name=TERMS, session=st.sampled_from(SESSIONS), count=st.integers(1, 10), commit=st.booleans())
    def claim(self, name: str, session: bytes, count: int, commit: bool) -> None:
        if name not in self.model.queues:
            return
        queue, expected = self.engine.state.queues[name], self.model.queues[name]
        now = self.clock.now_ms()
        for _ in range(count):
            entry, envelope = self.run(self.next_entry(queue))
            patient = copy.deepcopy(expected)
            message = expected.next(now)
            if (message.id if message else None, len(expected.available)) != (
                entry.id if entry else None, len(queue.messages),
            ):  # fmt: skip
                expected = self.model.queues[name] = patient
                message = expected.next(now, at_once=False)
            assert (entry.id if entry else None) == (message.id if message else None)
            if entry is None or message is None:
                break
            assert envelope == self.model.envelopes[entry.id]
            self.engine.claim(queue, (entry,), session)
            assert (name, entry.id, entry.claimed_at) not in self.stale
            expected.claim(message, session, now)
            assert (entry.claimed_at, entry.attempts) == (message.token, message.attempts)
        self.end(commit)

    @rule(
        name=TERMS,
        outcome=st.sampled_from(["ack", "ack", "reject", "requeue", "release"]),
        count=st.integers(1, 20),
        newest=st.booleans(),
        commit=st.booleans(),
    )
    def settle(self, name: str, outcome: str, count: int, newest: bool, commit: bool) -> None:
        if name not in self.model.queues:
            return
        held = sorted(self.model.queues[name].in_flight, reverse=newest)[:count]
        queue = self.engine.state.queues[name]
        entries = [queue.messages.in_flight[id] for id in held]
        if not entries:
            return
        self.stale += [(name, entry.id, entry.claimed_at) for entry in entries]
        if outcome == "ack":
            self.engine.ack(queue, entries)
        elif outcome == "reject":
            self.engine.fail(queue, entries, "consumer")
        else:
            self.engine.put_back(queue, entries, "consumer", costs_attempt=outcome == "requeue")
        self.settle_in_model(name, outcome, held, "consumer")
        self.end(commit)

    def settle_in_model(self, name: str, outcome: str, held: list[int], consumer: str) -> None:
        queue, now, spent = self.model.queues[name], self.clock.now_ms(), []
        for id in held:
            message = queue.in_flight[id]
            if outcome in ("requeue", "reject"):
                self.model.attempts.setdefault(id, []).append(consumer)
            if outcome in ("requeue", "release"):
                queue.put_back(message, now, outcome == "requeue")
                continue
            del queue.in_flight[id]
            spent.append((id, now, message.attempts))
            if outcome == "reject":
                queue.dead_letter(id, "rejected")
        (queue.done if outcome == "ack" else queue.failed).extend(spent)

    @rule(session=st.sampled_from(SESSIONS), lease_ms=st.integers(0, 60_000), commit=st.booleans())
    def renew(self, session: bytes, lease_ms: int, commit: bool) -> None:
        self.engine.renew(session, lease_ms)
        for queue in self.model.queues.values():
            for message in queue.in_flight.values():
                if message.session == session:
                    message.lease_until = self.clock.now_ms() + lease_ms
        self.end(commit)

    @rule(ms=st.sampled_from([0, 1, 1, 500, 1000, 3000, 40_000]), commit=st.booleans())
    def time_passes(self, ms: int, commit: bool) -> None:
        """Leases whose session did not come back end, as the broker does it."""
        self.clock.advance(ms)
        now, state = self.clock.now_ms(), self.engine.state
        for session in list(state.leases):
            for entry in list(state.leases[session].values()):
                if entry.lease_until <= now:
                    self.engine.put_back(state.queues[entry.queue], (entry,), "lost", costs_attempt=True)
                    self.stale.append((entry.queue, entry.id, entry.claimed_at))
                    self.settle_in_model(entry.queue, "requeue", [entry.id], "lost")
        assert not any(m.lease_until <= now for queue in self.model.queues.values() for m in queue.in_flight.values())
        self.end(commit)

    # ------------------------------------------------------------------ dead letters
    @rule(count=st.integers(1, 5), routable=st.booleans(), commit=st.booleans())
    def publish_dead_letters(self, count: int, routable: bool, commit: bool) -> None:
        """As the broker does it: the payload is read, then the copy is published and the letter forgotten at once."""
        for (name, id), letter in list(self.engine.state.dead_letters.items())[:count]:
            self.run(self.engine.payloads.load([id]))
            assert self.engine.payloads.find(id) == self.model.envelopes[id]
            assert (letter.exchange, letter.routing_key) == ("", "b")
            if routable and "b" in self.model.queues:
                self.publish_copy(id, letter.priority)
            self.engine.dead_letter_sent(name, id)
            self.model.forget_letter(name, id)
        self.end(commit)

    def publish_copy(self, id: int, priority: int) -> None:
        now, envelope = self.clock.now_ms(), b"copy of %d" % id
        copied = self.engine.publish(
            [self.engine.state.queues["b"]],
            envelope,
            {},
            priority=priority,
            created_at=now,
            visible_at=0,
            ttl_ms=-1,
            session=b"",
            seq=0,
            total=1,
        )
        self.model.envelopes[copied] = envelope
        self.model.queues["b"].available[copied] = Message(copied, priority, now, 0)

    # ------------------------------------------------------------------ maintenance
    @rule()
    def checkpoint(self) -> None:
        self.run(self.engine.checkpoint())
        self.note_commit(checkpoint=True)

    @rule(tidy=st.sampled_from([True, False, False]))
    def tidy(self, tidy: bool) -> None:
        if tidy:
            self.run(self.engine.tidy())

    @rule(commit=st.booleans())
    def sweep(self, commit: bool) -> None:
        self.run(self.engine.collector.sweep())
        now = self.clock.now_ms()
        for name, expected in self.model.queues.items():
            queue = self.engine.state.queues[name]
            for id in [message.id for message in expected.available.values() if message.is_expired(now)]:
                del expected.available[id]
                expected.dead_letter(id, "expired")
            for which, log, retention in (
                ("done", queue.done, expected.done_retention),
                ("failed", queue.failed, expected.failed_retention),
            ):
                rows = getattr(expected, which)
                left = self.run(self.settled_rows(queue, log, which))
                gone = rows[: len(rows) - len(left)]
                assert rows[len(gone) :] == left
                assert all(retention and row[1] + 1000 * retention <= now for row in gone)
                self.model.swept.setdefault((name, which), []).extend(gone)
                setattr(expected, which, left)
        self.end(commit)

    # ------------------------------------------------------------------ ends
    @rule()
    def crash(self) -> None:
        go_on = self.freeze()
        self.abandon()
        go_on()
        self.after_crash()

    @rule(moment=st.sampled_from(["before the write", "after the write", "after the flush"]))
    def crash_in_checkpoint(self, moment: str) -> None:
        store, go_on = self.engine.store, []
        name = "write" if moment.endswith("write") else "flush_wal"
        original: Callable[..., Any] = getattr(store, name)

        async def interrupted(*arguments: Any) -> None:
            if not moment.startswith("before"):
                await original(*arguments)
            go_on.append(self.freeze())
            raise Crash("crashed")

        setattr(store, name, interrupted)
        with pytest.raises(Crash):
            self.run(self.engine.checkpoint())
        delattr(store, name)
        self.note_commit(checkpoint=moment == "after the flush")
        swept = self.model.swept
        self.abandon()
        go_on[0]()
        self.after_crash()
        if moment == "after the write" and swept:
            self.adopt_swept(swept)

    def adopt_swept(self, swept: dict[tuple[str, str], list[tuple[int, int, int]]]) -> None:
        """What was written but not flushed may have survived: the batch as a whole or not at all."""
        lengths = {}
        for name, which in swept:
            queue = self.engine.state.queues[name]
            left = self.run(self.settled_rows(queue, getattr(queue, which), which))
            kept = getattr(self.model.queues[name], which)
            lengths[name, which] = len(kept) - len(left)
        without = {place: len(rows) for place, rows in swept.items()}
        assert lengths in (without, dict.fromkeys(without, 0))
        if lengths == without:
            for (name, which), gone in lengths.items():
                del getattr(self.model.queues[name], which)[:gone]
        self.committed = copy.deepcopy(self.model)

    @rule()
    def restart(self) -> None:
        self.run(self.engine.close())
        self.note_commit(checkpoint=True)
        self.open()

    # ------------------------------------------------------------------ comparing
    async def settled_rows(self, queue: Queue, log: SettledLog, which: str) -> list[tuple[int, ...]]:
        """A done or failed list, from memory where that has it and from the store where not."""
        key_of = keys.done_key if which == "done" else keys.failed_key
        found: list[tuple[int, ...]] = []
        for number in range(log.first, log.tail + 1):
            rows = log.rows if number == log.tail else log.dirty.get(number)
            value = settled.join(rows) if rows is not None else await self.engine.store.get(key_of(queue.name, number))
            found += settled.decode(b"", value) if value is not None else []
        return found

    async def cold_rows(self, queue: Queue) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for number, summary in queue.messages.cold.items():
            key = keys.active_key(queue.name, number)
            available, in_flight = active.decode(key, await self.engine.store.get(key) or b"")
            assert not in_flight
            assert len(available) == summary.messages > 0
            found += available
        return found

    @invariant()
    def engine_is_as_the_model(self) -> None:
        self.run(self.loads())
        state, model = self.engine.state, self.model
        assert state.queues.keys() == model.queues.keys()
        bindings = {(queue, exchange, key) for queue, exchange, key, _arguments in state.topology.bindings()}
        assert bindings == model.bindings
        assert {place: letter.reason for place, letter in state.dead_letters.items()} == model.letters()
        leased = {(session, *place) for session, held in state.leases.items() for place in held}
        for name, expected in model.queues.items():
            queue = state.queues[name]
            assert queue.options[:4] == (
                expected.max_attempts, expected.done_retention, expected.failed_retention, expected.lease_seconds,
            )  # fmt: skip
            loaded = queue.messages.available.values()
            available = [(e.id, e.priority, e.visible_at, e.deadline, e.attempts) for e in loaded]
            available += self.run(self.cold_rows(queue))
            assert sorted(available) == sorted(
                (m.id, m.priority, m.visible_at, m.deadline, m.attempts) for m in expected.available.values()
            )
            assert len(queue.messages) == len(expected.available)
            sizes = [len(model.envelopes[id]) for id in expected.available]
            assert queue.messages.available_bytes == sum(sizes)
            deadlines = [m.deadline for m in expected.available.values() if m.deadline]
            assert not deadlines or 0 < queue.messages.next_deadline <= min(deadlines)
            assert sorted(
                (e.id, e.priority, e.deadline, e.attempts, e.claimed_at, e.lease_until, e.session)
                for e in queue.messages.in_flight.values()
            ) == sorted(
                (m.id, m.priority, m.deadline, m.attempts, m.token, m.lease_until, m.session)
                for m in expected.in_flight.values()
            )
            assert {place for place in leased if place[1] == name} == {
                (m.session, name, m.id) for m in expected.in_flight.values()
            }
            assert self.run(self.settled_rows(queue, queue.done, "done")) == expected.done
            assert self.run(self.settled_rows(queue, queue.failed, "failed")) == expected.failed
            ids = expected.ids()
            assert len(ids) == len(set(ids))

    # ------------------------------------------------------------------ the end
    def teardown(self) -> None:
        try:
            if hasattr(self, "engine") and sys.exc_info()[0] is None:
                self.run(self.engine.close())
                self.note_commit(checkpoint=True)
                self.check_store()
                self.open()
                self.settle_everything()
                self.run(self.engine.close())
                self.check_store()
        finally:
            self._small.__exit__(None, None, None)
            self.loop.close()
            shutil.rmtree(self.root, ignore_errors=True)

    def settle_everything(self) -> None:
        """Afterwards no queue has anything, so nothing may be left of any message."""
        self.publish_dead_letters(1_000_000, True, False)
        self.clock.advance(10_000)
        for name, expected in self.model.queues.items():
            queue = self.engine.state.queues[name]
            self.settle(name, "ack", 1_000_000, True, False)
            self.clock.advance(1)
            while expected.next(self.clock.now_ms()) is not None:
                self.claim(name, SESSIONS[0], 1000, False)
                self.settle(name, "ack", 1000, True, True)
            assert self.run(self.next_entry(queue)) == (None, None)
            queue.options = queue.options._replace(done_retention_seconds=1, failed_retention_seconds=1)
            expected.done_retention = expected.failed_retention = 1
        self.clock.advance(200_000)
        self.publish_dead_letters(1_000_000, False, True)
        for _ in range(2):  # a bucket that is not stored yet is left for the next sweep
            self.sweep(True)
            self.checkpoint()
        assert self.model.needed() == set()

    def check_store(self) -> None:
        """What the database has, read without this package's engine."""
        store = PlainStore(self.folder)
        needed = self.model.needed()
        ids = store.message_ids()
        assert ids[RecordKind.PAYLOAD] == ids[RecordKind.METADATA] == needed
        assert ids[RecordKind.ATTEMPTS] <= needed
        stored = {(name, id): letter.reason for (id, name), letter in store.of[RecordKind.DEAD_LETTER].items()}
        assert stored == self.model.letters()
        assert ids[RecordKind.ROUTES] <= needed
        assert ids[RecordKind.CHUNK] == {id for id in needed if len(self.model.envelopes[id]) > 65_535}
        for id in needed:
            assert store.envelope(id) == self.model.envelopes[id]
            assert store.of[RecordKind.METADATA][id].message_id == id
            assert list(store.of[RecordKind.ATTEMPTS].get(id, [])) == self.model.attempts.get(id, [])
        assert set(store.of[RecordKind.CONFIG]) == set(store.of[RecordKind.OPTIONS]) == set(self.model.queues)
        bindings = {(queue, exchange, key) for exchange, queue, key in store.of[RecordKind.BINDING]}
        assert bindings == self.model.bindings
        for name, expected in self.model.queues.items():
            available, in_flight = store.active(name)
            assert {row[0] for row in available} == set(expected.available)
            assert {row[0] for row in in_flight} == set(expected.in_flight)
            assert store.rows(RecordKind.DONE, name) == expected.done
            assert store.rows(RecordKind.FAILED, name) == expected.failed
            for kind in (RecordKind.ACTIVE, RecordKind.DONE, RecordKind.FAILED):
                buckets = store.buckets(kind, name)
                assert 0 in buckets
                for number, rows in buckets.items():
                    assert any(rows) or number in (0, max(buckets)), (kind, number)


class StoreModeMachine(EngineMachine):
    """In memory, without a journal: every commit is a checkpoint."""

    def url(self) -> str:
        return f"memory://{self.root}"

    def freeze(self) -> Callable[[], None]:
        return lambda: None

    def abandon(self) -> None:
        """Opening the store again fences the old engine."""
        self.abandoned.append(self.engine)

    def teardown(self) -> None:
        super().teardown()
        loop = asyncio.new_event_loop()
        for engine in self.abandoned:
            with contextlib.suppress(StoreError):
                loop.run_until_complete(engine.store.close())
        loop.close()
        object_store._memory_stores.pop(str(self.root), None)

    @precondition(lambda self: False)
    @rule()
    def crash_in_checkpoint(self) -> None:
        """Whether the write or the fence comes first is not ours to choose."""

    def check_store(self) -> None:
        """The store is this process's memory."""


def _only_new(target: Path, source: Path) -> Callable[[str, list[str]], set[str]]:
    def ignored(folder: str, names: list[str]) -> set[str]:
        there = target / Path(folder).relative_to(source)
        first = there.name in ("manifest", "compactions", "wal", "default.journal")
        return set(names) if first and there.exists() else _UNFINISHED(folder, names)

    return ignored


@contextlib.contextmanager
def _small_buckets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_state, "BUCKET_ENTRIES", 4)
        patch.setattr(queue_state, "MAX_LOADED_BUCKETS", 3)
        patch.setattr(queue_state, "KEPT_LOADED_BUCKETS", 2)
        patch.setattr(settled_log, "BUCKET_ENTRIES", 4)
        yield


COMMON: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": list(HealthCheck),
}
TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=25, stateful_step_count=40, **COMMON)
TestStoreMode = StoreModeMachine.TestCase
TestStoreMode.settings = settings(max_examples=15, stateful_step_count=40, **COMMON)
