"""What clients and time do to the engine, step by step, and the same in the model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from kombu_opendata.errors import StoreError
from kombu_opendata.protocol.task_reports import STATES, TaskReport, TaskState
from kombu_opendata.storage.commit.measurements import measure_bytes
from kombu_opendata.storage.effects.deliveries import RenewEffect
from kombu_opendata.storage.operations.repeated_requests import Call
from kombu_opendata.storage.records.definitions import QueueOverrides
from kombu_opendata.storage.state.queue_buckets import QueueEntry
from kombu_opendata.storage.state.settled_list import list_name
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.property.engine_model import RATES_MS, Message, ModelQueue, StoredMessage
from tests.property.engine_store import PRODUCER, CrashableEngine

NAMES = ("a", "b", "c")
BINDINGS = (("direct", "amq.direct", "k"), ("topic", "amq.topic", "k.*"), ("fanout", "amq.fanout", ""))
ROUTES = (("", "a"), ("", "b"), ("", "c"), ("amq.direct", "k"), ("amq.topic", "k.x"), ("amq.fanout", "any"))


SESSIONS = tuple(bytes([number]) * 16 for number in (1, 2))


LETTERS_GO_TO_B = {"x-dead-letter-routing-key": "b"}


TERMS = st.sampled_from(NAMES)
#: ms, of queues and of messages: with and without whole seconds
TTLS = st.sampled_from([-1, -1, 0, 1201, 3000])
MESSAGE_TTLS = st.sampled_from([-1, -1, -1, 0, 1, 999, 1000, 1537, 6000])
RETRY_DELAYS = st.sampled_from([0, 700])
#: an expression with three values, and none for a copy
BY_REMAINDER = "n - n / 3 * 3"
EXPRESSIONS = st.sampled_from([None, BY_REMAINDER, BY_REMAINDER, "routing_key"])
#: what operators change; None takes an argument away
OVERRIDES: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "x-delivery-limit": st.sampled_from([None, -1, 1, 3]),
        "x-done-retention": st.sampled_from([None, 0, 2, 100]),
        "x-failed-retention": st.sampled_from([None, 0, 1, 100]),
        "x-message-ttl": st.sampled_from([None, 0, 1201, 3000]),
        "x-retry-delay": st.sampled_from([None, 0, 700]),
        "x-dead-letter-exchange": st.none(),
        "x-max-length-bytes": st.none(),
        "x-rate": st.sampled_from([None, *RATES_MS]),
        "x-partition-by": EXPRESSIONS,
    },
)


RAISED = TaskReport(TaskState.RAISED, 5, 6, "task", "app.Bad", "no", "Traceback: …")
SUCCEEDED = TaskReport(TaskState.SUCCEEDED, 5, 6, "task")


class Crash(StoreError):
    """Thrown out of a checkpoint to abandon it."""


class EngineRules(CrashableEngine):
    """The rules, and what must hold of answers."""

    @initialize(queues=st.dictionaries(TERMS, st.tuples(TTLS, RETRY_DELAYS, EXPRESSIONS), min_size=1))
    def begin(self, queues: dict[str, tuple[int, int, str | None]]) -> None:
        self.open()
        for name in sorted(queues):
            self.declare(name, 2, 2, 1, True, *queues[name])

    # ------------------------------------------------------------------ definitions
    @rule(
        name=TERMS,
        max_attempts=st.integers(1, 3),
        done=st.sampled_from([0, 2, 100]),
        failed=st.sampled_from([0, 1, 100]),
        commit=st.booleans(),
        ttl_ms=TTLS,
        retry_delay_ms=RETRY_DELAYS,
        partition_by=EXPRESSIONS,
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
        partition_by: str | None = None,
    ) -> None:
        if name not in self.model.queues:
            has_dead_letters = name != "b"
            self.model.queues[name] = ModelQueue(
                max_attempts, 30, done, failed, ttl_ms, retry_delay_ms, has_dead_letters=has_dead_letters,
                partition_by=partition_by,
            )  # fmt: skip
            arguments = {"x": name, "x-retry-delay": retry_delay_ms, "x-max-length-bytes": 0}
            if partition_by is not None:
                arguments["x-partition-by"] = partition_by
            if ttl_ms >= 0:
                arguments["x-message-ttl"] = ttl_ms
            if has_dead_letters:
                arguments |= {"x-dead-letter-exchange": "", **LETTERS_GO_TO_B}
            self.engine.definitions.declare_queue(name, QueueSettings(max_attempts, done, failed, 30, arguments))
            self.end(commit)

    @rule(name=TERMS, paused=st.integers(0, 3), arguments=OVERRIDES, commit=st.booleans())
    def alter(self, name: str, paused: int, arguments: dict[str, Any], commit: bool) -> None:
        """An operator's changes, in place of earlier ones."""
        if name in self.model.queues:
            overrides = QueueOverrides(paused, self.clock.now_ms() if paused else 0, arguments)
            queue, expected = self.engine.state.queues[name], self.model.queues[name]
            expected.override(overrides, self.engine.state.newest_ms)
            if expected.counts_bytes and not queue.messages.counts_bytes:
                self.run(measure_bytes(self.engine.store, queue.messages))
            self.engine.definitions.override_queue(name, overrides)
            self.end(commit)

    @rule(name=TERMS, ms=st.sampled_from([0, 1, 3000]), commit=st.booleans())
    def delay_flow(self, name: str, ms: int, commit: bool) -> None:
        if name in self.model.queues:
            until = self.clock.now_ms() + ms if ms else 0
            self.engine.operations.delay_flow(self.engine.state.queues[name], -1, until)
            self.model.queues[name].delayed_until = until
            self.end(commit)

    @rule(name=TERMS, binding=st.sampled_from(BINDINGS), commit=st.booleans())
    def bind(self, name: str, binding: tuple[str, str, str], commit: bool) -> None:
        if name in self.model.queues:
            self.engine.definitions.bind(name, *binding[1:], {})
            self.model.bindings.add((name, *binding[1:]))
            self.end(commit)

    @rule(name=TERMS, binding=st.sampled_from(BINDINGS), commit=st.booleans())
    def unbind(self, name: str, binding: tuple[str, str, str], commit: bool) -> None:
        if (name, *binding[1:]) in self.model.bindings:
            self.engine.definitions.unbind(name, *binding[1:], {})
            self.model.bindings.discard((name, *binding[1:]))
            self.end(commit)

    @rule(name=TERMS)
    def purge(self, name: str) -> None:
        if name in self.model.queues:
            waiting = self.model.queues[name].available
            call = Call(PRODUCER, next(self.number))
            assert self.run(self.engine.definitions.purge(self.engine.state.queues[name], call)) == len(waiting)
            assert self.run(self.engine.definitions.purge(self.engine.state.queues[name], call)) == len(waiting)
            for id in waiting:
                self.model.ledger.end(id, "removed")
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
                self.model.queues[name].dead_letter(id, "maxlen")
                self.model.left(name, [id], "removed")
            assert len(waiting) == len(queue.messages) <= kept
            self.end(commit)

    @rule(name=TERMS, again=st.booleans(), commit=st.booleans())
    def delete(self, name: str, again: bool, commit: bool) -> None:
        gone = self.model.queues.pop(name, None)
        if gone is None:
            return
        for id in (*gone.available, *gone.in_flight):
            self.model.ledger.end(id, "removed")
        self.model.cursors.pop(name, None)
        self.model.bindings = {binding for binding in self.model.bindings if binding[0] != name}
        self.model.orphans.update({(name, id): reason for id, reason in gone.letters.items()})
        if again:  # declared again before the checkpoint
            self.run(self.engine.definitions._remove_available(self.engine.state.queues[name]))
            self.engine.definitions.drop_queue(name)
            self.forget_swept(name)
            self.declare(name, 2, 2, 1, commit)
        else:
            assert self.run(self.engine.definitions.delete_queue(self.engine.state.queues[name])) == len(gone.available)
            self.forget_swept(name)
            self.note_commit(checkpoint=True)

    def forget_swept(self, name: str) -> None:
        self.model.swept = {place: rows for place, rows in self.model.swept.items() if place[0] != name}

    # ------------------------------------------------------------------ publishing
    @rule(
        route=st.sampled_from(ROUTES),
        priority=st.integers(253, 255),
        delay=st.sampled_from([0, 0, 0, 500, 5000]),
        ttl=MESSAGE_TTLS,
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
            assert self.engine.operations.published(PRODUCER, number) is None
            id = self.engine.operations.publish(
                [self.engine.state.queues[name] for name in names],
                envelope,
                {"n": str(number), "exchange": route[0], "routing_key": route[1], "priority": str(255 - priority)},
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
            self.numbers[id] = number
            deadline = now + ttl if ttl >= 0 else 0
            self.model.stored_messages[id] = StoredMessage(*route, priority, now + delay, deadline)
            self.model.producers[PRODUCER] = (number, id, len(names))
            self.model.stored.add(number)
            for name in names:
                self.model.queues[name].publish(Message(id, priority, now + delay, deadline), now)
        self.end(commit)

    def routed(self, exchange: str, key: str) -> set[str]:
        if exchange == "":
            return {key} & self.model.queues.keys()
        return {queue for queue, bound, _key in self.model.bindings if bound == exchange}

    @invariant()
    def repeated_publishes_are_recognized(self) -> None:
        """What was lost in a crash is not taken for stored because later ones are."""
        for session, (number, id, queues) in self.model.producers.items():
            for seq in range(1, number + 2):
                last = self.engine.operations.published(session, seq)
                assert (last is not None) == (seq in self.model.stored)
                assert last is None or last[:3] == (number, id, queues)

    # ------------------------------------------------------------------ consuming
    @rule(name=TERMS, session=st.sampled_from(SESSIONS), count=st.integers(1, 10), commit=st.booleans())
    def claim(self, name: str, session: bytes, count: int, commit: bool) -> None:
        if name not in self.model.queues:
            return
        queue, expected = self.engine.state.queues[name], self.model.queues[name]
        now = self.clock.now_ms()
        for _ in range(count):
            if queue.messages.partitions is not None:
                entry, message = self.next_of_partitions(queue, expected, now)
                self.note_expired(name)
                if entry is None or message is None:
                    break
                self.take(queue, expected, entry, message, session)
                continue
            entry, _envelope = self.run(self.next_entry(queue))
            patient = copy.deepcopy(expected)
            message = expected.next(now)
            if (message.id if message else None, len(expected.available)) != (
                entry.id if entry else None, len(queue.messages),
            ):  # fmt: skip
                expected = self.model.queues[name] = patient
                message = expected.next(now, at_once=False)
            assert (entry.id if entry else None) == (message.id if message else None)
            self.note_expired(name)
            if entry is None or message is None:
                break
            self.take(queue, expected, entry, message, session)
        self.end(commit)

    def take(self, queue: Queue, expected: ModelQueue, entry: QueueEntry, message: Message, session: bytes) -> None:
        assert self.engine.payloads.find(entry.id) == self.model.envelopes[entry.id]
        self.engine.operations.claim(queue, (entry,), session)
        assert (queue.name, entry.id, entry.claimed_at) not in self.stale
        expected.claim(message, session, self.clock.now_ms())
        assert (entry.claimed_at, entry.attempts) == (message.token, message.attempts)

    def next_of_partitions(
        self, queue: Queue, expected: ModelQueue, now: int
    ) -> tuple[QueueEntry | None, Message | None]:
        entry, _envelope = self.run(self.next_entry(queue))
        keys: dict[int, str] = {}
        if expected.partition_by == BY_REMAINDER:
            keys = {id: str(number % 3) for id, number in self.numbers.items()}
        partitions = queue.messages.partitions
        assert partitions is not None
        buckets = {id: each.bucket for id, each in queue.messages.available.items()}
        buckets |= {
            row[0]: number for number in queue.messages.cold for row in self.run(self.bucket_rows(queue, number))
        }
        expected.remove_expired(buckets, now)
        misplaced = {id for id, number in buckets.items() if not partitions.fits(partitions.of_bucket(number))}
        message = expected.next_in_partitions(entry.id if entry is not None else None, keys, now, misplaced)
        if entry is not None and entry.id in keys:
            assert partitions.of_bucket(entry.bucket).key == keys[entry.id]
        return entry, message

    @rule(name=TERMS, commit=st.booleans())
    def repartition_all(self, name: str, commit: bool) -> None:
        if name in self.model.queues:
            self.run(self.repartition(self.engine.state.queues[name]))
            self.end(commit)

    def note_expired(self, name: str) -> None:
        queue = self.model.queues[name]
        self.model.left(name, queue.expired, "expired")
        queue.expired.clear()

    @rule(
        name=TERMS,
        outcome=st.sampled_from(["ack", "ack", "start", "reported", "reject", "requeue", "release"]),
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
            self.engine.operations.ack(queue, entries)
        elif outcome == "start":
            self.engine.task_runs.start(queue, entries)
        elif outcome == "reported":
            self.acknowledge_with_reports(queue, entries)
        elif outcome == "reject":
            self.engine.operations.fail(queue, entries, "consumer")
        else:
            self.engine.operations.put_back(queue, entries, "consumer", costs_attempt=outcome == "requeue")
        self.settle_in_model(name, outcome, held, "consumer")
        self.end(commit)

    def settle_in_model(self, name: str, outcome: str, held: list[int], consumer: str) -> None:
        queue, now, spent = self.model.queues[name], self.clock.now_ms(), []
        for id in held:
            message = queue.in_flight[id]
            if outcome == "start":
                self.model.running[name, id, message.token] = (message.session, message.attempts)
            if outcome == "reported":
                state = STATES[RAISED.state if id % 2 else SUCCEEDED.state]
                self.model.ended.append((id, message.attempts, state))
                self.model.ledger.end(id, state)
            elif outcome == "ack":
                self.model.ledger.end(id, "acknowledged")
            if outcome in ("requeue", "reject"):
                self.model.attempts.setdefault(id, []).append(consumer)
            if outcome in ("requeue", "release"):
                if not queue.put_back(message, now, outcome == "requeue"):
                    self.model.left(name, [id], "rejected")
                continue
            del queue.in_flight[id]
            spent.append((id, now, message.attempts))
            if outcome == "reject":
                queue.dead_letter(id, "rejected")
                self.model.left(name, [id], "rejected")
        (queue.failed if outcome == "reject" else queue.done).extend(spent)

    def acknowledge_with_reports(self, queue: Queue, entries: list[QueueEntry]) -> None:
        """As the broker does it for each item of a frame."""
        for entry in entries:
            self.engine.task_runs.note(queue, entry, RAISED if entry.id % 2 else SUCCEEDED)
            self.engine.operations.ack(queue, (entry,))

    @rule(data=st.data(), lost=st.booleans(), commit=st.booleans())
    def tasks_end(self, data: st.DataObject, lost: bool, commit: bool) -> None:
        """A started task is reported, or all of a session are lost; the message and its queue may be gone meanwhile."""
        if not self.model.running:
            return
        lease = data.draw(st.sampled_from(sorted(self.model.running)))
        session, number = self.model.running[lease]
        if lost:
            gone = [lease for lease, (of, _number) in self.model.running.items() if of == session]
            assert {lost.task.message_id for lost in self.engine.task_runs.lose(session)} == {
                lease[1] for lease in gone
            }
            self.model.ended += [(lease[1], self.model.running.pop(lease)[1], "lost") for lease in gone]
            for _name, id, _token in gone:
                self.model.ledger.end(id, "lost")
        else:
            assert self.engine.task_runs.finish(lease, RAISED if lease[1] % 2 else SUCCEEDED) is not None
            del self.model.running[lease]
            state = STATES[RAISED.state if lease[1] % 2 else SUCCEEDED.state]
            self.model.ended.append((lease[1], number, state))
            self.model.ledger.end(lease[1], state)
        assert self.engine.task_runs.finish(lease, SUCCEEDED) is None
        self.end(commit)

    @rule(session=st.sampled_from(SESSIONS), lease_ms=st.integers(0, 60_000), commit=st.booleans())
    def renew(self, session: bytes, lease_ms: int, commit: bool) -> None:
        self.engine.commits.apply(RenewEffect(session, self.clock.now_ms() + lease_ms))
        for queue in self.model.queues.values():
            for message in queue.in_flight.values():
                if message.session == session:
                    message.lease_until = self.clock.now_ms() + lease_ms
        self.end(commit)

    @rule(ms=st.sampled_from([0, 1, 1, 499, 500, 1000, 3000, 40_000]), commit=st.booleans())
    def time_passes(self, ms: int, commit: bool) -> None:
        """Leases whose session did not come back end, as the broker does it."""
        self.clock.advance(ms)
        now, state = self.clock.now_ms(), self.engine.state
        for session in list(state.leases):
            for entry in list(state.leases[session].values()):
                if entry.lease_until <= now:
                    self.engine.operations.put_back(state.queues[entry.queue], (entry,), "lost", costs_attempt=True)
                    self.stale.append((entry.queue, entry.id, entry.claimed_at))
                    self.settle_in_model(entry.queue, "requeue", [entry.id], "lost")
        assert not any(m.lease_until <= now for queue in self.model.queues.values() for m in queue.in_flight.values())
        self.end(commit)

    @rule(name=TERMS, ttl=st.integers(1, 2500), outcome=st.sampled_from(["requeue", "release"]), clean=st.booleans())
    def expire_while_held_over_a_restart(self, name: str, ttl: int, outcome: str, clean: bool) -> None:
        """Messages are claimed, the engine ends, and what comes back just before its deadline goes at it."""
        if name not in self.model.queues:
            return
        ends = self.clock.now_ms() + ttl
        self.publish(("", name), 253, 0, ttl, 0, 2, False)
        self.claim(name, SESSIONS[0], 2, False)
        self.checkpoint()
        if clean:
            self.restart()
        else:
            self.crash()
        self.clock.advance(max(ends - 1 - self.clock.now_ms(), 0))
        self.settle(name, outcome, 2, True, False)
        self.clock.advance(1)
        self.claim(name, SESSIONS[0], 2, True)

    # ------------------------------------------------------------------ dead letters
    @rule(count=st.integers(1, 5), routable=st.booleans(), commit=st.booleans())
    def publish_dead_letters(self, count: int, routable: bool, commit: bool) -> None:
        """As the broker does it: the payload is read, then the copy is published and the letter forgotten at once."""
        for (name, id), letter in list(self.engine.state.dead_letters.items())[:count]:
            assert self.run(self.engine.payloads.load([id])) == {}
            assert self.engine.payloads.find(id) == self.model.envelopes[id]
            assert (letter.exchange, letter.routing_key) == ("", "b")
            if routable and "b" in self.model.queues:
                self.publish_copy(id, letter.priority)
            self.engine.operations.dead_letter_sent(name, id)
            self.model.forget_letter(name, id)
        self.end(commit)

    def publish_copy(self, id: int, priority: int) -> None:
        now, envelope = self.clock.now_ms(), b"copy of %d" % id
        copied = self.engine.operations.publish(
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
        self.model.stored_messages[copied] = StoredMessage("none", "", 255, now, 0)
        self.model.queues["b"].publish(Message(copied, priority, now, 0), now)

    # ------------------------------------------------------------------ maintenance
    @rule()
    def checkpoint(self) -> None:
        self.run(self.engine.commits.checkpoint())
        self.note_commit(checkpoint=True)

    @rule(tidy=st.sampled_from([True, False, False]))
    def tidy(self, tidy: bool) -> None:
        if tidy:
            self.run(self.engine.upkeep.tidy())

    @rule(commit=st.booleans())
    def sweep(self, commit: bool) -> None:
        self.run(self.engine.collector.sweep())
        now = self.clock.now_ms()
        for name, expected in self.model.queues.items():
            queue = self.engine.state.queues[name]
            for id in [message.id for message in expected.available.values() if message.is_expired(now)]:
                del expected.available[id]
                expected.dead_letter(id, "expired")
                self.model.left(name, [id], "expired")
            for which, retention in (("done", expected.done_retention), ("failed", expected.failed_retention)):
                rows = getattr(expected, which)
                left = self.run(self.settled_rows(queue, list_name(which)))
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
            self.run(self.engine.commits.checkpoint())
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
            left = self.run(self.settled_rows(queue, list_name(which)))
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
