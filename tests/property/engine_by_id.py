"""What the queue client does to the engine: leases for a time, messages ended by their ids, idempotency keys."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kombu_opendata.storage.records.idempotency import Sending, name_of
from tests.property.engine_model import Message, ModelQueue
from tests.property.engine_replay_rules import ReplayRules
from tests.property.engine_rules import TERMS

READER = b"\0timed" + bytes(10)
KEYS = tuple(name_of("", "a", key) for key in ("first", "second"))
WAITS = st.sampled_from([0, 1, 500, 5000])


class ByIdRules(ReplayRules):
    """The rules, and these."""

    @rule(name=TERMS, lease_ms=st.sampled_from([1, 700, 50_000]), count=st.integers(1, 5), commit=st.booleans())
    def read(self, name: str, lease_ms: int, count: int, commit: bool) -> None:
        if name not in self.model.queues:
            return
        queue, expected = self.engine.state.queues[name], self.model.queues[name]
        now = self.clock.now_ms()
        self.engine.operations.name_session(READER, "reader")
        for _ in range(count):
            entry, _envelope = self.run(self.next_entry(queue))
            self.expire_before(name, entry.id if entry is not None else None, now)
            if entry is None:
                break
            self.engine.operations.claim(queue, (entry,), READER, lease_ms)
            assert (name, entry.id, entry.claimed_at) not in self.stale
            message = expected.available[entry.id]
            assert not message.is_expired(now)
            expected.claim(message, READER, now)
            message.lease_until = message.token + lease_ms
            assert (entry.claimed_at, entry.lease_until) == (message.token, message.lease_until)
        self.end(commit)

    def expire_before(self, name: str, chosen: int | None, now: int) -> None:
        """What the engine removed because it had expired on the way to the message that it chose."""
        queue = self.model.queues[name]
        left = self.engine.state.queues[name].messages
        for id, message in list(queue.available.items()):
            if id != chosen and message.is_expired(now) and left.find(id) is None and not left.cold_buckets_of([id]):
                del queue.available[id]
                queue.dead_letter(id, "expired")
                self.model.left(name, [id], "expired")

    def found(self, name: str, newest: bool, count: int, *, held: bool) -> tuple[ModelQueue, list[Message]] | None:
        """Some messages of a queue, brought into memory as the broker does it."""
        queue = self.model.queues.get(name)
        if queue is None:
            return None
        of = queue.in_flight if held else queue.available
        ids = sorted(of, reverse=newest)[:count]
        self.run(self.engine.loader.find_entries(self.engine.state.queues[name], ids))
        return queue, [of[id] for id in ids]

    @rule(name=TERMS, ms=WAITS, newest=st.booleans(), count=st.integers(1, 5), commit=st.booleans())
    def extend(self, name: str, ms: int, newest: bool, count: int, commit: bool) -> None:
        found = self.found(name, newest, count, held=True)
        if found is None:
            return
        _model, messages = found
        queue = self.engine.state.queues[name]
        until = self.engine.operations.extend(queue, [queue.messages.in_flight[message.id] for message in messages], ms)
        for message in messages:
            message.lease_until = until
        self.end(commit)

    @rule(name=TERMS, ms=WAITS, newest=st.booleans(), count=st.integers(1, 5), commit=st.booleans())
    def delay(self, name: str, ms: int, newest: bool, count: int, commit: bool) -> None:
        found = self.found(name, newest, count, held=False)
        if found is None:
            return
        self.clock.advance(200)  # no claim is of later: only memory knows of those in this millisecond
        queue, now = self.engine.state.queues[name], self.clock.now_ms()
        entries = [queue.messages.available[message.id] for message in found[1]]
        for entry, message in zip(entries, found[1], strict=True):
            message.visible_at = max(now + ms, entry.claimed_at + 1)
            message.returned = message.visible_at == entry.claimed_at + 1
        self.engine.operations.delay(queue, entries, ms)
        self.end(commit)

    @rule(name=TERMS, held=st.booleans(), newest=st.booleans(), count=st.integers(1, 5), commit=st.booleans())
    def delete_by_id(self, name: str, held: bool, newest: bool, count: int, commit: bool) -> None:
        found = self.found(name, newest, count, held=held)
        if found is None:
            return
        model, messages = found
        queue = self.engine.state.queues[name]
        of = queue.messages.in_flight if held else queue.messages.available
        self.stale += [(name, message.id, message.token) for message in messages if held]
        self.engine.operations.delete(queue, [of[message.id] for message in messages])
        for message in messages:
            del (model.in_flight if held else model.available)[message.id]
            self.model.ledger.end(message.id, "removed")
        self.end(commit)

    @rule(name=TERMS, newest=st.booleans(), count=st.integers(1, 5), commit=st.booleans())
    def archive_by_id(self, name: str, newest: bool, count: int, commit: bool) -> None:
        found = self.found(name, newest, count, held=False)
        if found is None:
            return
        model, messages = found
        queue = self.engine.state.queues[name]
        self.engine.operations.archive(queue, [queue.messages.available[message.id] for message in messages], "x")
        for message in messages:
            del model.available[message.id]
            model.done.append((message.id, self.clock.now_ms(), message.attempts))
            self.model.ledger.end(message.id, "acknowledged")
        self.end(commit)

    @rule(name=TERMS, ms=WAITS, newest=st.booleans(), count=st.integers(1, 5), commit=st.booleans())
    def release_by_id(self, name: str, ms: int, newest: bool, count: int, commit: bool) -> None:
        found = self.found(name, newest, count, held=True)
        if found is None:
            return
        model, messages = found
        queue, now = self.engine.state.queues[name], self.clock.now_ms()
        self.stale += [(name, message.id, message.token) for message in messages]
        self.engine.operations.release(
            queue, [queue.messages.in_flight[message.id] for message in messages], "reader", ms
        )
        for message in messages:
            model.put_back(message, now, False)
            message.visible_at = max(message.visible_at, now + ms)
            message.returned = message.visible_at == message.token + 1
        self.end(commit)

    @rule(name=TERMS, newest=st.booleans(), count=st.integers(1, 5), commit=st.booleans())
    def give_up(self, name: str, newest: bool, count: int, commit: bool) -> None:
        """A lease that its holder ends: visible at once, whatever the queue's retry delay."""
        found = self.found(name, newest, count, held=True)
        if found is None or not found[1]:
            return
        model, messages = found
        queue, now = self.engine.state.queues[name], self.clock.now_ms()
        self.stale += [(name, message.id, message.token) for message in messages]
        entries = [queue.messages.in_flight[message.id] for message in messages]
        self.engine.operations.put_back(queue, entries, "reader", costs_attempt=True, at_once=True)
        delay, model.retry_delay_ms = model.retry_delay_ms, 0
        for message in messages:
            self.model.attempts.setdefault(message.id, []).append("reader")
            if not model.put_back(message, now, True):
                self.model.left(name, [message.id], "rejected")
        model.retry_delay_ms = delay
        self.end(commit)

    # ------------------------------------------------------------------ idempotency keys
    @rule(key=st.sampled_from(KEYS), id=st.integers(0, 99), keep_ms=st.sampled_from([1, 3000]), commit=st.booleans())
    def remember_key(self, key: bytes, id: int, keep_ms: int, commit: bool) -> None:
        sending = Sending((id, -1), self.clock.now_ms() + keep_ms, bytes(16), (("a",), ()))
        self.engine.idempotency.remember(key, sending)
        self.model.keys[key] = sending
        self.end(commit)

    @invariant()
    def keys_are_known_for_their_time(self) -> None:
        now = self.clock.now_ms()
        for key in KEYS:
            known, sending = self.engine.idempotency.find(key)
            if not known:
                self.run(self.engine.idempotency.load([key]))
                known, sending = self.engine.idempotency.find(key)
            expected = self.model.keys.get(key)
            assert known
            assert sending == (expected if expected is not None and expected.expires_at_ms > now else None)
