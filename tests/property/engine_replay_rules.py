"""Replay, redrive and the deletion of settled messages, step by step, and the same in the model.

The model follows the engine's cursors, and says of each message that they pass whether the queue had to get it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from kombu_opendata.protocol.messages import Moved
from kombu_opendata.storage.maintain.background_router import Step
from kombu_opendata.storage.operations.archive_and_delete import Selection
from kombu_opendata.storage.operations.moves import MoveTarget
from kombu_opendata.storage.read.queue_pages import AVAILABLE, DELAYED
from kombu_opendata.storage.records import settled
from kombu_opendata.storage.records.routing_cursor import Cursor
from kombu_opendata.storage.state.settled_list import LISTS, ListName
from tests.property.engine_model import Message, ModelQueue
from tests.property.engine_rules import RETRY_DELAYS, TERMS, TTLS, EngineRules

WHICH = st.sampled_from(LISTS)


class ReplayRules(EngineRules):
    """The further rules."""

    @invariant()
    def cursors_are_as_the_model(self) -> None:
        assert self.engine.state.cursors == self.model.cursors

    @contextlib.contextmanager
    def noting_checkpoints(self) -> Iterator[None]:
        """What the engine commits by itself on the way is committed in the model, too."""
        engine, original = self.engine, self.engine.commits.checkpoint

        async def checkpoint() -> None:
            await original()
            self.model.cursors = dict(engine.state.cursors)
            self.note_commit(checkpoint=True)

        engine.commits.checkpoint = checkpoint  # type: ignore[method-assign]
        try:
            yield
        finally:
            del engine.commits.checkpoint

    # ------------------------------------------------------------------ replay
    @rule(name=TERMS, ttl_ms=TTLS, retry_delay_ms=RETRY_DELAYS, commit=st.booleans())
    def declare_from_the_first_on(self, name: str, ttl_ms: int, retry_delay_ms: int, commit: bool) -> None:
        if name not in self.model.queues:
            self.declare(name, 2, 100, 100, False, ttl_ms, retry_delay_ms)
            self.begin_cursor(name, again=False)
            self.end(commit)

    @rule(name=TERMS, commit=st.booleans())
    def replay(self, name: str, commit: bool) -> None:
        cursor = self.engine.state.cursors.get(name)
        if name in self.model.queues and (cursor is None or cursor.is_done):
            self.begin_cursor(name, again=True)
            self.end(commit)

    def begin_cursor(self, name: str, again: bool) -> None:
        now, end = self.clock.now_ms(), self.engine.state.next_id
        self.engine.router.start(self.engine.state.queues[name], Cursor(0, 0, end, started_at_ms=now, again=again))
        self.model.cursors = dict(self.engine.state.cursors)

    @rule(name=TERMS, seconds=st.sampled_from([0.0, 0.0, 5.0]), steps=st.integers(1, 20), commit=st.booleans())
    def route(self, name: str, seconds: float, steps: int, commit: bool) -> None:
        for _ in range(steps):
            before = self.engine.state.cursors.get(name)
            if before is None or before.is_done:
                break
            with self.noting_checkpoints():
                step = self.run(self.engine.router.step(name, seconds))
            self.check_step(name, before, step)
            self.model.cursors = dict(self.engine.state.cursors)
        self.end(commit)

    def check_step(self, name: str, before: Cursor, step: Step) -> None:
        queue, now = self.model.queues[name], self.clock.now_ms()
        after = self.engine.state.cursors[name]
        assert step.ids == sorted(set(step.ids))
        needed = self.model.needed() | self.kept()
        for id in range(before.position, after.position):
            message = self.model.stored_messages.get(id)
            must = (
                message is not None
                and id in needed
                and self.lets_in(name, message.exchange, message.key)
                and not message.is_expired(now)
                and (name, id) not in self.model.letters()
                and id not in queue.available
                and id not in queue.in_flight
                and (before.again or id not in queue.ids())
            )
            if id in step.ids:
                assert message is not None
                assert must or id not in needed  # what nobody needs may be stored for a while
                self.join(name, id)
            else:
                assert not must, id

    def kept(self) -> set[int]:
        """What must be stored though no queue may need it."""
        return set()

    def may_be_kept(self) -> set[int]:
        """What may be stored though no queue needs it."""
        return set()

    def lets_in(self, name: str, exchange: str, key: str) -> bool:
        return name in self.routed(exchange, key)

    def join(self, name: str, id: int) -> None:
        """The queue gets a stored message."""
        queue, now, stored = self.model.queues[name], self.clock.now_ms(), self.model.stored_messages[id]
        was_here = id in queue.ids()
        self.model.ledger.again(id)
        queue.done = [row for row in queue.done if row[0] != id]
        queue.failed = [row for row in queue.failed if row[0] != id]
        queue.archived_failed = [row for row in queue.archived_failed if row[0] != id]
        self.model.added_again.add(id)
        self.add(queue, id, max(stored.visible_at, now), was_here=was_here)

    def add(self, queue: ModelQueue, id: int, visible_at: int, *, was_here: bool = True) -> None:
        """The queue's TTL counts from now, even if the next lease has to have a later token than this."""
        now, stored = self.clock.now_ms(), self.model.stored_messages[id]
        message = Message(id, stored.priority, visible_at, stored.deadline)
        queue.publish(message, now)
        message.visible_at = max(visible_at, now + was_here)
        message.returned = message.visible_at == now + 1

    @rule(name=TERMS, commit=st.booleans())
    def bound_anew(self, name: str, commit: bool) -> None:
        """As after a binding."""
        if name in self.model.queues:
            self.engine.router.bound(name)
            self.model.cursors = dict(self.engine.state.cursors)
            self.end(commit)

    # ------------------------------------------------------------------ redrive
    @rule(
        name=TERMS,
        to=TERMS,
        steps=st.integers(1, 3),
        limit=st.sampled_from([0, 0, 2]),
        which=st.sampled_from(["failed", "failed", "archived_failed"]),
        commit=st.booleans(),
    )
    def redrive(self, name: str, to: str, steps: int, limit: int, which: ListName, commit: bool) -> None:
        if name not in self.model.queues or to not in self.model.queues:
            return
        self.clock.advance(10)  # nobody redrives a message in the millisecond that it failed in
        source, into, now = self.model.queues[name], self.model.queues[to], self.clock.now_ms()
        there = set() if name == to else set(into.ids())
        expected = [
            id for id, _at, _attempts in getattr(source, which) if id not in there and self.may_move(id, name, to)
        ]
        moved: list[int] = []

        def on_step(ids: list[int]) -> bool:
            for id in ids:
                setattr(source, which, [row for row in getattr(source, which) if row[0] != id])
                self.model.ledger.again(id)
                self.model.release(id, name, to)
                self.add(into, id, max(self.model.stored_messages[id].visible_at, now))
            moved.extend(ids)
            self.model.cursors = dict(self.engine.state.cursors)
            return len(moved) < 3 * steps

        way = MoveTarget(self.engine.state.queues[to], lambda _messages, _bytes: True, on_step)
        queue = self.engine.state.queues[name]
        with self.noting_checkpoints():
            done = self.run(self.engine.moves.redrive(queue, Selection(limit=limit), way, which))
        self.check_moves(done, moved, expected, limit, steps)
        self.end(commit)

    def may_move(self, id: int, name: str, to: str) -> bool:
        letters, now = self.model.letters(), self.clock.now_ms()
        pending = (name, id) in letters or (to, id) in letters
        return not pending and not self.model.stored_messages[id].is_expired(now)

    def check_moves(self, done: Moved, moved: list[int], expected: list[int], limit: int, steps: int) -> None:
        assert done.count == len(moved) <= (limit or len(moved))
        assert set(moved) <= set(expected)
        if not limit and len(moved) < 3 * steps:
            assert sorted(moved) == sorted(expected)

    # ------------------------------------------------------------------ moves between queues
    @rule(
        name=TERMS,
        to=TERMS,
        copies=st.booleans(),
        steps=st.integers(1, 3),
        limit=st.sampled_from([0, 0, 2]),
        states=st.sampled_from([(AVAILABLE, DELAYED), (DELAYED,)]),
        commit=st.booleans(),
    )
    def move(
        self, name: str, to: str, copies: bool, steps: int, limit: int, states: tuple[str, ...], commit: bool
    ) -> None:
        if name == to or name not in self.model.queues or to not in self.model.queues:
            return
        source, into, now = self.model.queues[name], self.model.queues[to], self.clock.now_ms()
        there = set(into.ids())
        expected = [
            id for id, message in source.available.items()
            if id not in there and not message.is_expired(now) and self.may_move(id, name, to)
            and (AVAILABLE in states or message.visible_at > now)
        ]  # fmt: skip
        moved: list[int] = []

        def on_step(ids: list[int]) -> bool:
            for id in ids:
                visible_at = max(source.available[id].visible_at, now)
                if copies:
                    self.model.ledger.again(id)
                    self.model.release(id, to)
                else:
                    del source.available[id]
                    self.model.release(id, name, to)
                self.add(into, id, visible_at)
            moved.extend(ids)
            self.model.cursors = dict(self.engine.state.cursors)
            return len(moved) < 3 * steps

        way = MoveTarget(self.engine.state.queues[to], lambda _messages, _bytes: True, on_step)
        queue = self.engine.state.queues[name]
        with self.noting_checkpoints():
            done = self.run(self.engine.moves.waiting(queue, Selection(limit=limit), way, states, copies=copies))
        if AVAILABLE in states:
            self.check_moves(done, moved, expected, limit, steps)
        else:  # what returned within this millisecond is visible, as long as it stays in memory
            assert set(moved) <= set(expected)
        self.end(commit)

    @rule(name=TERMS, which=WHICH, age=st.sampled_from([0, 0, 1500]), commit=st.booleans())
    def delete_settled(self, name: str, which: ListName, age: int, commit: bool) -> None:
        if name not in self.model.queues:
            return
        queue, before = self.engine.state.queues[name], self.clock.now_ms() - age + 1
        rows = getattr(self.model.queues[name], which)

        expected = [row for row in rows if row[1] >= before]
        with self.noting_checkpoints():
            deleted = self.run(
                self.engine.settled_moves.delete(queue, which, Selection(before_ms=before), lambda _deleted: True)
            )
        assert deleted == len(rows) - len(expected)
        setattr(self.model.queues[name], which, expected)
        self.end(commit)

    @rule(name=TERMS, age=st.sampled_from([0, 0, 1500]), limit=st.sampled_from([0, 0, 2]), commit=st.booleans())
    def archive_failed(self, name: str, age: int, limit: int, commit: bool) -> None:
        if name not in self.model.queues:
            return
        queue, model = self.engine.state.queues[name], self.model.queues[name]
        selection = Selection(before_ms=self.clock.now_ms() - age + 1, limit=limit)
        chosen = [row for row in model.failed if selection.takes(settled.SettledEntry(*row))][: limit or None]
        with self.noting_checkpoints():
            archived = self.run(self.engine.settled_moves.archive_failed(queue, selection, lambda _n: True))
        assert archived == len(chosen)
        model.failed = [row for row in model.failed if row not in chosen]
        model.archived_failed += chosen
        self.end(commit)
