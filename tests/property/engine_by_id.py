"""What clients do to the engine by ids and keys: leases for a time, ends by id, idempotency keys, unique messages."""

from __future__ import annotations

from itertools import filterfalse

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kombu_opendata.protocol.unique_key import HEADER, UNTIL_DONE, UNTIL_STARTED, OnConflict, UniqueKey
from kombu_opendata.storage.operations.unique_keys import Holder, decide
from kombu_opendata.storage.records.idempotency import Sending, name_of, unique_name_of
from tests.property.engine_model import Message, ModelQueue, StoredMessage, UniqueHolder
from tests.property.engine_replay_rules import ReplayRules
from tests.property.engine_rules import MESSAGE_TTLS, ROUTES, TERMS

READER = b"\0timed" + bytes(10)
#: destinations of unique messages, which all have one key
UNIQUE_ROUTES = ROUTES[0], ROUTES[-1]
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

    # ------------------------------------------------------------------ unique keys
    def holder(self, key: bytes) -> Holder | None:
        """As the broker finds it."""
        is_known, holder = self.engine.unique_keys.find(key)
        if not is_known:
            self.run(self.engine.unique_keys.load(key))
            is_known, holder = self.engine.unique_keys.find(key)
        assert is_known
        return holder

    @rule(
        route=st.sampled_from(UNIQUE_ROUTES),
        until=st.sampled_from([UNTIL_DONE, UNTIL_DONE, UNTIL_STARTED, 700]),
        mode=st.sampled_from(OnConflict),
        task=st.sampled_from(["", "t", "u"]),
        pinned=st.booleans(),
        delay=st.sampled_from([0, 0, 500]),
        ttl=MESSAGE_TTLS,
        commit=st.booleans(),
    )
    def publish_unique(
        self,
        route: tuple[str, str],
        until: int,
        mode: OnConflict,
        task: str,
        pinned: bool,
        delay: int,
        ttl: int,
        commit: bool,
    ) -> None:
        names, now, unique = self.engine.state.topology.route(*route), self.clock.now_ms(), self.model.unique
        key = unique_name_of("key", *route)
        if not names or self.is_undefined(key):
            return
        holder, before = self.holder(key), self.model.holder(key, now)
        request = UniqueKey("", until, mode, pinned)
        decision = decide(request, task, holder)
        waits = before is not None and any(before.id in self.model.queues[name].available for name in names)
        if before is not None and mode in (OnConflict.RETURN, OnConflict.ERROR):
            assert not decision.stores
        if not decision.stores:
            return
        assert decision.takes == (before is None or decision.replaces or (bool(task) and task == before.task))
        assert not decision.replaces or (mode == OnConflict.REPLACE and before is not None and not before.is_pinned)
        assert not (waits and mode == OnConflict.REPLACE) or before is None or decision.replaces or before.is_pinned
        id = self.engine.operations.publish(
            [self.engine.state.queues[name] for name in names],
            b"unique",
            {HEADER: "key", "n": "unique", "exchange": route[0], "routing_key": route[1], "priority": "0"},
            priority=255,
            created_at=now,
            visible_at=now + delay if delay else -1,
            ttl_ms=ttl,
            session=b"",
            seq=0,
            total=len(names),
        )
        self.model.envelopes[id] = b"unique"
        deadline = now + ttl if ttl >= 0 else 0
        self.model.stored_messages[id] = StoredMessage(*route, 255, now + delay, deadline)
        for name in names:
            self.model.queues[name].publish(Message(id, 255, now + delay, deadline), now)
        if decision.takes:
            self.engine.unique_keys.take(key, request, id, task, [self.engine.state.queues[name] for name in names])
            end = {UNTIL_DONE: "done", UNTIL_STARTED: "started"}.get(until, now + until)
            unique[key] = UniqueHolder(id, task, tuple(names), end, pinned)
        if decision.replaces and holder is not None and before is not None:
            self.engine.unique_keys.remove(holder)
            for name in before.queues:
                if name in self.model.queues and self.model.queues[name].available.pop(before.id, None) is not None:
                    self.model.ledger.end(before.id, "removed")
        self.end(commit)

    def is_undefined(self, key: bytes) -> bool:
        """A message that a cursor put into a queue again may hold its key again, or not."""
        return key in self.model.unique and self.model.unique[key].id in self.model.added_again

    @rule()
    def sweep_keys(self) -> None:
        self.run(self.engine.idempotency.sweep(self.clock.now_ms()))

    @invariant()
    def unique_keys_are_held_as_long_as_their_messages(self) -> None:
        now = self.clock.now_ms()
        for key in filterfalse(self.is_undefined, self.model.unique):
            holder, expected = self.holder(key), self.model.holder(key, now)
            assert (holder and holder.message_id) == (expected and expected.id)
