"""The checker: a history without an anomaly is accepted, and each with one planted anomaly is refused, by its point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from . import events as e
from .checker import REPORTED, UNDETECTED, WITHOUT_EFFECT, Anomaly, check, effect_of_damage, summaries
from .checker import RULES as POINTS

ORDERS, LETTERS = "orders", "letters"
HOUR = 3600.0


class Writer:
    """Writes a history, one second after the other."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[e.AnyEvent] = []
        self.calls = 0
        self.rules = {ORDERS: e.Rules(max_attempts=3, dead_letters=LETTERS)}
        self.store: dict[str, Any] = {"runs": ()}

    def add(self, kind: type[e.Event], **fields: Any) -> Any:
        self.now += 1.0
        event = kind(at=self.now, **fields)
        self.events.append(event)  # type: ignore[arg-type]
        return event

    def call(
        self, operation: e.Operation, reply: Any = None, client: str = "a", outcome: str | None = "returned"
    ) -> None:
        self.calls += 1
        self.add(e.Called, client=client, call=self.calls, operation=operation)
        if outcome is not None:
            self.add(e.Returned, client=client, call=self.calls, outcome=outcome, reply=reply)

    def publish(
        self, key: str, id: int | None, queue: str = ORDERS, outcome: str | None = "returned", **fields: Any
    ) -> None:
        self.call(e.Publish(key=key, queues=(queue,), **fields), id if outcome == "returned" else None, outcome=outcome)

    def deliver(self, key: str, id: int, token: int, client: str = "b", queue: str = ORDERS, **fields: Any) -> None:
        self.add(e.Delivered, client=client, queue=queue, key=key, id=id, token=token, **fields)

    def get(self, key: str, id: int, token: int, **fields: Any) -> None:
        self.deliver(key, id, token, requested_at=self.now + 0.5, **fields)

    def settle(self, id: int, token: int, end: e.End = "ack", client: str = "b", outcome: str | None = "sent") -> None:
        self.call(e.Settle(queue=ORDERS, id=id, token=token, end=end), client=client, outcome=outcome)

    def entry(self, key: str, id: int, state: e.State = "done", queue: str = ORDERS, attempts: int = 1) -> None:
        found = e.Entry(queue=queue, id=id, key=key, state=state, attempts=attempts)
        self.store["entries"] = (*self.store.get("entries", ()), found)

    def run(self, id: int, number: int = 1, outcome: str = "acked", state: str = "", ended_at_ms: int = 0) -> None:
        found = e.Run(queue=ORDERS, id=id, number=number, outcome=outcome, state=state, ended_at_ms=ended_at_ms)
        self.store["runs"] = (*self.store["runs"], found)

    def whole(self, key: str, id: int, token: int, **fields: Any) -> None:
        """A message from its publish to its acknowledgement."""
        self.publish(key, id, **fields)
        self.deliver(key, id, token)
        self.settle(id, token)
        self.entry(key, id)
        self.run(id)

    def history(self) -> e.History:
        in_order = sorted(self.events, key=lambda event: event.at)
        return e.History(events=tuple(in_order), store=e.Store(**self.store), rules=self.rules)

    def anomalies(self) -> list[Anomaly]:
        return check(self.history())


def counts(held: int = 0, **ends: int) -> dict[str, int]:
    """The counters of a queue with so many messages in flight."""
    every = dict.fromkeys(("acked", "rejected", "requeued", "released", "lease_expired", "deleted"), 0)
    return every | ends | {"delivered": held + sum(ends.values())}


def clean(w: Writer) -> None:
    """Something of everything, with a crash."""
    w.call(e.Define(name="queue orders", value={"limit": 3}))
    w.call(e.Define(name="pause orders", value=True))
    w.call(e.Read(name="pause orders"), True)
    w.call(e.Define(name="pause orders", value=None), outcome=None)
    w.publish("one", 1, digest="d1")
    w.publish("two", 2, priority=5)
    w.publish("two", 2, priority=5)
    w.publish("maybe", None, outcome=None)
    w.publish("refused", None, outcome="refused")
    w.deliver("two", 2, 10)
    w.add(e.Crashed, broker="broker")
    w.add(e.Started, broker="broker")
    w.settle(2, 10)
    w.deliver("one", 1, 11, digest="d1")
    w.settle(1, 11, "requeue", outcome="returned")
    w.get("one", 1, 12, digest="d1", attempt=2)
    w.settle(1, 12, "release", outcome="returned")
    w.get("one", 1, 13, digest="d1", attempt=2)
    w.settle(1, 13, "reject", outcome="returned")
    w.entry("one", 1, "failed", attempts=2)
    w.entry("one", 3, "available", queue=LETTERS)
    w.entry("two", 2)
    w.run(2)
    for number, outcome in ((1, "rejected"), (2, "released"), (2, "rejected")):
        w.run(1, number, outcome)
    w.call(e.StartChord(callback="sum", parts=("t1", "t2")))
    for task in ("t1", "t2"):
        w.call(e.StoreResult(task=task, result=task.upper()))
        w.call(e.GetResult(task=task), task.upper())
    w.deliver("sum", 6, 16, client="c")
    w.entry("sum", 6, "in_flight")
    w.call(e.CommitJob(job="job", queue=ORDERS, keys=("r1", "r2")))
    w.call(e.AbortJob(job="other", keys=("r3",)))
    w.entry("r1", 7, "available", attempts=0)
    w.entry("r2", 8, "available", attempts=0)
    w.call(
        e.Forbidden(action="read secret-queue", secrets=("secret-queue",)), "no access", client="eve", outcome="refused"
    )
    w.add(e.Measured, name="length of orders", value=3, limit=3)
    w.publish("holder", 40, unique="u")
    w.publish("not stored", 40, unique="u")
    w.entry("holder", 40, "available", attempts=0)
    w.store |= {
        "counts": {ORDERS: counts(1, acked=1, rejected=2, released=1)},
        "definitions": {"queue orders": {"limit": 3}, "pause orders": None},
        "results": {"t1": "T1", "t2": "T2"},
    }


def faulty(w: Writer) -> None:
    """Faults that open several explanations: a client that is lost, and a clock that is set back."""
    w.publish("later", 4, delay=20.0)
    w.publish("short", 5, ttl=10.0)
    w.add(e.ClockSet, seconds=-HOUR)
    w.now += 30
    w.deliver("later", 4, 14)
    w.add(e.Lost, client="b")
    w.deliver("later", 4, 15, client="c", attempt=2)
    w.settle(4, 14, client="b")
    w.settle(4, 15, client="c")
    w.entry("later", 4, attempts=2)
    w.run(4, 1, "expired")
    w.run(4, 2, state="succeeded")
    w.add(e.TaskEnded, client="c", key="later", end="succeeded")
    w.store["counts"] = {ORDERS: counts(1, acked=2, rejected=2, released=1, lease_expired=1)}


def test_a_clean_history_is_accepted() -> None:
    w = Writer()
    clean(w)
    faulty(w)
    assert w.anomalies() == []


def test_a_history_is_read_back_from_lines(tmp_path: Path) -> None:
    w = Writer()
    clean(w)
    faulty(w)
    files = [tmp_path / "one", tmp_path / "two"]
    for number, file in enumerate(files):
        file.write_bytes(b"".join(map(e.line, w.events[number::2])))
    with files[0].open("ab") as torn:
        torn.write(e.line(w.events[0])[:-10])
    assert e.read_events(files) == w.history().events
    assert msgspec.json.decode(msgspec.json.encode(w.history()), type=e.History) == w.history()


Plant = Callable[[Writer], object]
PLANTED: list[tuple[int, Plant]] = []


def planted(point: int) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        PLANTED.append((point, plant))
        return plant

    return register


@planted(1)
def lost(w: Writer) -> None:
    w.publish("gone", 20)


@planted(1)
def gone_without_a_reason(w: Writer) -> None:
    w.publish("gone", 20)
    w.entry("gone", 20, "gone")


@planted(1)
def stored_twice(w: Writer) -> None:
    w.publish("twice", 20)
    w.entry("twice", 20, "available")
    w.entry("twice", 21, "available")


@planted(1)
def stored_twice_and_delivered(w: Writer) -> None:
    w.publish("twice", None, outcome=None)
    w.deliver("twice", 20, 20)
    w.deliver("twice", 21, 21)


@planted(1)
def answered_with_another_id(w: Writer) -> None:
    w.publish("other", 20)
    w.entry("other", 21, "available")


@planted(2)
def in_two_states(w: Writer) -> None:
    w.publish("both", 20)
    w.deliver("both", 20, 20)
    w.entry("both", 20, "in_flight")
    w.entry("both", 20, "available", attempts=0)


@planted(3)
def held_by_two(w: Writer) -> None:
    w.publish("held", 20)
    w.entry("held", 20, "in_flight")
    w.deliver("held", 20, 20)
    w.deliver("held", 20, 21, client="c", attempt=2)


@planted(3)
def the_same_token_for_two(w: Writer) -> None:
    w.publish("held", 20)
    w.entry("held", 20, "in_flight")
    w.deliver("held", 20, 20)
    w.deliver("held", 20, 20, client="c")


@planted(3)
def the_same_token_after_a_return(w: Writer) -> None:
    w.publish("held", 20)
    w.entry("held", 20, "in_flight", attempts=2)
    w.deliver("held", 20, 20)
    w.settle(20, 20, "requeue")
    w.deliver("held", 20, 20, attempt=2)


@planted(4)
def again_after_a_restart(w: Writer) -> None:
    w.publish("again", 20)
    w.deliver("again", 20, 20)
    w.add(e.Crashed, broker="broker")
    w.settle(20, 20)
    w.run(20)
    w.deliver("again", 20, 21, attempt=2)
    w.entry("again", 20, "in_flight")


@planted(4)
def settled_by_a_stale_token(w: Writer) -> None:
    w.publish("stale", 20)
    w.deliver("stale", 20, 20)
    w.add(e.Lost, client="b")
    w.deliver("stale", 20, 21, client="c", attempt=2)
    w.settle(20, 20)
    w.entry("stale", 20)


@planted(4)
def a_stale_token_settles_what_another_has(w: Writer) -> None:
    w.publish("stale", 20)
    w.deliver("stale", 20, 20, lease_seconds=0.5)
    w.deliver("stale", 20, 21, client="c", attempt=2)
    w.settle(20, 20, outcome="returned")
    w.settle(20, 21, client="c", outcome="refused")
    w.entry("stale", 20)
    w.run(20)


@planted(4)
def a_stale_token_settles_what_returned_again(w: Writer) -> None:
    w.publish("stale", 20)
    w.deliver("stale", 20, 20)
    w.settle(20, 20, "requeue")
    w.deliver("stale", 20, 21, attempt=2)
    w.settle(20, 20)
    w.settle(20, 21, "requeue")
    w.entry("stale", 20)
    w.run(20)


@planted(5)
def run_after_its_ack(w: Writer) -> None:
    w.whole("again", 20, 20)
    w.deliver("again", 20, 21, client="c", attempt=2)


@planted(5)
def available_after_its_ack(w: Writer) -> None:
    w.publish("again", 20)
    w.deliver("again", 20, 20)
    w.settle(20, 20)
    w.run(20)
    w.entry("again", 20, "available")


@planted(5)
def acknowledged_by_a_client_that_was_killed_later(w: Writer) -> None:
    w.publish("again", 20)
    w.deliver("again", 20, 20)
    w.settle(20, 20)
    w.run(20)
    w.call(e.Read(name="confirms"), client="b")
    w.add(e.Lost, client="b")
    w.entry("again", 20, "available")


@planted(5)
def done_without_an_ack(w: Writer) -> None:
    w.publish("done", 20)
    w.deliver("done", 20, 20)
    w.entry("done", 20)


@planted(5)
def rejected_without_a_dead_letter(w: Writer) -> None:
    w.publish("bad", 20)
    w.deliver("bad", 20, 20)
    w.settle(20, 20, "reject")
    w.entry("bad", 20, "failed")


@planted(5)
def too_many_attempts(w: Writer) -> None:
    w.publish("bad", 20)
    w.deliver("bad", 20, 20, attempt=4)
    w.entry("bad", 20, "in_flight")


@planted(5)
def a_release_that_costs_an_attempt(w: Writer) -> None:
    w.publish("back", 20)
    w.deliver("back", 20, 20)
    w.settle(20, 20, "release", outcome="returned")
    w.deliver("back", 20, 21, attempt=2)
    w.entry("back", 20, "in_flight")


@planted(5)
def failed_too_soon(w: Writer) -> None:
    w.publish("soon", 20)
    w.entry("soon", 20, "failed", attempts=1)


def test_a_message_whose_payload_was_damaged_may_fail() -> None:
    w = Writer()
    failed_too_soon(w)
    assert w.anomalies()
    w.add(e.Unreadable, keys=("soon",))
    assert w.anomalies() == []


@planted(5)
def a_task_runs_twice(w: Writer) -> None:
    w.publish("run", 20)
    w.entry("run", 20)
    for _ in range(2):
        w.add(e.TaskEnded, client="d", key="run", end="succeeded")
        w.run(20, state="succeeded", outcome="released")


@planted(6)
def younger_first(w: Writer) -> None:
    w.publish("old", 20)
    w.publish("new", 21)
    w.deliver("new", 21, 20)
    w.deliver("old", 20, 21)
    w.entry("old", 20, "in_flight")
    w.entry("new", 21, "in_flight")


@planted(6)
def low_priority_first(w: Writer) -> None:
    w.publish("low", 20)
    w.publish("high", 21, priority=9)
    w.get("low", 20, 20)
    w.get("high", 21, 21)
    w.entry("low", 20, "in_flight")
    w.entry("high", 21, "in_flight")


@planted(6)
def a_returned_message_loses_its_place(w: Writer) -> None:
    w.publish("old", 20)
    w.publish("new", 21)
    w.get("old", 20, 20)
    w.settle(20, 20, "requeue", outcome="returned")
    w.get("new", 21, 21)
    w.get("old", 20, 22, attempt=2)
    w.entry("old", 20, "in_flight")
    w.entry("new", 21, "in_flight")


def read_group(w: Writer, *ids: int, requested_at: float = 0.0, order: str = "fill", **fields: Any) -> None:
    """Deliver messages of a group in one read; a message has its id as its token."""
    requested_at = requested_at or w.now + 0.5
    for id in ids:
        w.deliver(f"m{id}", id, id, requested_at=requested_at, order=order, **fields)


def group(w: Writer, *states: e.State) -> None:
    """Write the messages of a group, with ids from 20, and their states at the end."""
    w.rules[ORDERS].is_ordered = False
    for id, state in enumerate(states, 20):
        w.publish(f"m{id}", id, partition="p")
        w.entry(f"m{id}", id, state)


@planted(6)
def a_group_in_another_order(w: Writer) -> None:
    group(w, "in_flight", "in_flight")
    read_group(w, 21, 20)


@planted(6)
def two_messages_at_the_head_of_a_group(w: Writer) -> None:
    group(w, "in_flight", "in_flight")
    read_group(w, 20, 21, order="head")


@planted(6)
def an_earlier_message_of_a_group_is_left(w: Writer) -> None:
    group(w, "available", "in_flight")
    read_group(w, 21)


@planted(6)
def an_earlier_message_of_a_group_comes_later(w: Writer) -> None:
    group(w, "done", "in_flight")
    read_group(w, 21, client="c")
    w.deliver("m20", 20, 22)
    w.settle(20, 22)
    w.run(20)


@planted(6)
def a_group_with_a_message_in_flight(w: Writer) -> None:
    group(w, "in_flight", "in_flight")
    w.deliver("m20", 20, 20)
    read_group(w, 21, client="c")


def test_a_group_is_read_in_order() -> None:
    """Also after a read without groups, by several readers, and if its messages are moved to other groups."""
    w = Writer()
    group(w, "done", "done", "in_flight")
    read_group(w, 20, 21)
    for id in (20, 21):
        w.settle(id, id, outcome="returned")
        w.run(id)
    read_group(w, 22, client="c")
    w.publish("m23", 23, partition="p")
    w.entry("m23", 23, "in_flight")
    w.deliver("m23", 23, 23)
    assert w.anomalies() == []
    w.deliver("m23", 23, 24, order="fill", requested_at=w.now)
    assert {anomaly.point for anomaly in w.anomalies()} >= {6}
    w.call(e.Define(name=f"x-partition-by of {ORDERS}", value="shard"))
    assert {anomaly.point for anomaly in w.anomalies()} == {3}


@planted(7)
def early(w: Writer) -> None:
    w.publish("later", 20, delay=60.0)
    w.deliver("later", 20, 20)
    w.entry("later", 20, "in_flight")


@planted(8)
def late(w: Writer) -> None:
    w.publish("short", 20, ttl=10.0)
    w.now += 20
    w.get("short", 20, 20)
    w.entry("short", 20, "in_flight")


@planted(9)
def refused_after_a_crash(w: Writer) -> None:
    w.add(e.Crashed, broker="broker")
    w.add(e.Started, broker="broker", error="the journal has a gap")


@planted(9)
def a_finding(w: Writer) -> None:
    w.store["findings"] = ("message-twice",)


@planted(10)
def a_pause_is_gone(w: Writer) -> None:
    w.call(e.Define(name="pause letters", value=True))
    w.store["definitions"] = {"pause letters": None}


@planted(10)
def an_old_value_is_read(w: Writer) -> None:
    w.call(e.Define(name="limit", value=1))
    w.call(e.Define(name="limit", value=2))
    w.call(e.Read(name="limit"), 1)


@planted(11)
def a_result_changes(w: Writer) -> None:
    w.call(e.StoreResult(task="t", result="a"))
    w.call(e.StoreResult(task="t", result="b"))
    w.call(e.GetResult(task="t"), "a")
    w.call(e.GetResult(task="t"), "b")


@planted(11)
def a_result_is_gone(w: Writer) -> None:
    w.call(e.StoreResult(task="t", result="a"))
    w.call(e.GetResult(task="t"), None)


@planted(11)
def a_callback_comes_twice(w: Writer) -> None:
    chord(w)
    w.deliver("end", 20, 20)
    w.deliver("end", 21, 21)


@planted(11)
def a_callback_is_early(w: Writer) -> None:
    w.call(e.StartChord(callback="end", parts=("p1", "p2")))
    w.call(e.StoreResult(task="p1", result="r"))
    w.deliver("end", 20, 20)
    w.call(e.StoreResult(task="p2", result="r"))


@planted(11)
def a_callback_is_missing(w: Writer) -> None:
    chord(w)


@planted(11)
def a_callback_is_sent_by_two_workers(w: Writer) -> None:
    chord(w)
    send_callback_twice(w)


def send_callback_twice(w: Writer) -> None:
    for id, client in ((20, "a"), (21, "b")):
        w.call(e.SendCallback(callback="end"), client=client)
        w.entry("end", id, "available", attempts=0)


def chord(w: Writer) -> None:
    w.call(e.StartChord(callback="end", parts=("p1", "p2")))
    w.call(e.StoreResult(task="p1", result="r"))
    w.call(e.StoreResult(task="p2", result="r"))


@planted(12)
def a_row_is_lost(w: Writer) -> None:
    w.call(e.CommitJob(job="j", queue=ORDERS, keys=("x1", "x2")))
    w.entry("x1", 20, "available")


@planted(12)
def a_row_comes_twice(w: Writer) -> None:
    w.call(e.CommitJob(job="j", queue=ORDERS, keys=("x1",)))
    w.entry("x1", 20, "available")
    w.entry("x1", 21, "available")


@planted(12)
def half_of_an_unknown_commit(w: Writer) -> None:
    w.call(e.CommitJob(job="j", queue=ORDERS, keys=("x1", "x2")), outcome=None)
    w.entry("x1", 20, "available")


@planted(12)
def a_row_of_an_aborted_job(w: Writer) -> None:
    w.call(e.AbortJob(job="j", keys=("one-more",)))
    w.publish("one-more", 20)
    w.entry("one-more", 20, "available")


@planted(13)
def a_forbidden_call_works(w: Writer) -> None:
    w.call(e.Forbidden(action="purge orders"), client="eve")


@planted(13)
def a_refusal_names_a_secret(w: Writer) -> None:
    w.call(
        e.Forbidden(action="delete an exchange", secrets=("hidden",)),
        "bound to hidden",
        client="eve",
        outcome="refused",
    )


@planted(14)
def early_by_a_clock_that_is_set_back(w: Writer) -> None:
    w.publish("later", 20, delay=60.0)
    w.add(e.ClockSet, seconds=-HOUR)
    w.deliver("later", 20, 20)
    w.entry("later", 20, "in_flight")


@planted(14)
def revived_by_a_clock_that_is_set_back(w: Writer) -> None:
    w.publish("short", 20, ttl=10.0)
    w.now += 20
    w.add(e.ClockSet, seconds=-HOUR)
    w.get("short", 20, 20)
    w.entry("short", 20, "in_flight")


@planted(15)
def another_body(w: Writer) -> None:
    w.publish("whole", 20, digest="right")
    w.deliver("whole", 20, 20, digest="wrong")
    w.entry("whole", 20, "in_flight")


@planted(15)
def a_message_from_nowhere(w: Writer) -> None:
    w.deliver("nowhere", 20, 20)


@planted(15)
def unreported_damage(w: Writer) -> None:
    w.add(e.Damaged, file="wal/1.sst")
    w.publish("gone", 20)


@planted(16)
def a_refused_publish_is_stored(w: Writer) -> None:
    w.publish("no", None, outcome="refused")
    w.entry("no", 20, "available")


@planted(16)
def over_a_limit(w: Writer) -> None:
    w.add(e.Measured, name="length of orders", value=4, limit=3)


@planted(16)
def two_messages_with_one_key(w: Writer) -> None:
    w.publish("first", 20, unique="k")
    w.publish("second", 21, unique="k")
    w.entry("first", 20, "available", attempts=0)
    w.entry("second", 21, "available", attempts=0)


@planted(16)
def too_many_in_flight(w: Writer) -> None:
    w.rules[ORDERS].concurrency = 1
    held_twice(w)


@planted(16)
def too_many_of_a_partition_in_flight(w: Writer) -> None:
    w.rules[ORDERS].partition_concurrency = 1
    held_twice(w)


def held_twice(w: Writer) -> None:
    for number in (20, 21):
        w.publish(f"held{number}", number, partition="p")
        w.deliver(f"held{number}", number, number)
        w.entry(f"held{number}", number, "in_flight")


@planted(16)
def a_key_is_held_after_the_end(w: Writer) -> None:
    w.publish("first", 20, unique="k")
    w.deliver("first", 20, 20)
    w.settle(20, 20, outcome="returned")
    w.entry("first", 20)
    w.run(20)
    w.call(e.Publish(key="second", queues=(ORDERS,), unique="k"), 20)


@planted(16)
def a_key_is_held_by_a_revoked_task(w: Writer) -> None:
    w.publish("first", 20, unique="k", delay=60.0)
    w.call(e.Revoke(key="first"))
    w.call(e.Publish(key="second", queues=(ORDERS,), unique="k"), 20)
    w.entry("first", 20, "available", attempts=0)


@planted(16)
def a_key_of_another_message(w: Writer) -> None:
    w.publish("first", 20, unique="k")
    w.entry("first", 20, "available", attempts=0)
    w.call(e.Publish(key="second", queues=(ORDERS,), unique="other"), 20)


@planted(16)
def a_started_task_has_no_slot(w: Writer) -> None:
    w.rules[ORDERS].concurrency = 1
    for number in (20, 21):
        w.publish(f"run{number}", number)
        w.deliver(f"run{number}", number, number)
        w.call(e.Settle(queue=ORDERS, id=number, token=number, end="ack", runs=True), client="b", outcome="sent")
        w.entry(f"run{number}", number)
        w.run(number, state="lost")


@planted(16)
def more_than_an_altered_limit(w: Writer) -> None:
    w.rules[ORDERS].concurrency = 2
    w.call(e.Define(name=f"x-concurrency of {ORDERS}", value=1))
    held_twice(w)


@planted(16)
def too_many_in_a_second(w: Writer) -> None:
    w.rules[ORDERS].rate = 1
    held_twice(w)


@planted(16)
def too_many_of_a_partition_in_a_second(w: Writer) -> None:
    w.rules[ORDERS].partition_rate = 1
    held_twice(w)


@planted(16)
def delivered_while_its_partition_is_delayed(w: Writer) -> None:
    w.call(e.Delay(queue=ORDERS, partition="p", seconds=60.0), 60_000)
    held_twice(w)


@planted(17)
def a_lost_task_has_no_outcome(w: Writer) -> None:
    w.publish("run", 20)
    w.deliver("run", 20, 20)
    w.call(e.Settle(queue=ORDERS, id=20, token=20, end="ack", runs=True), client="b", outcome="sent")
    w.entry("run", 20)
    w.run(20)


@planted(17)
def a_task_is_lost_long_after_its_client_left(w: Writer) -> None:
    w.publish("run", 20)
    w.deliver("run", 20, 20)
    w.call(e.Settle(queue=ORDERS, id=20, token=20, end="ack", runs=True), client="b", outcome="sent")
    w.add(e.Lost, client="b", why="closed")
    w.call(e.Leave(), 5000, client="b")
    w.entry("run", 20)
    w.run(20, state="lost", ended_at_ms=65_000)


@planted(17)
def an_outcome_is_missing(w: Writer) -> None:
    w.publish("run", 20)
    w.deliver("run", 20, 20)
    w.settle(20, 20)
    w.entry("run", 20)


@planted(17)
def an_outcome_is_recorded_twice(w: Writer) -> None:
    w.whole("run", 20, 20)
    w.run(20, state="succeeded")


@planted(17)
def an_outcome_is_counted_twice(w: Writer) -> None:
    w.whole("run", 20, 20)
    w.store["counts"] = {ORDERS: counts(acked=4)}


@planted(17)
def a_repeated_report_is_counted(w: Writer) -> None:
    w.publish("run", 20)
    w.deliver("run", 20, 20)
    w.settle(20, 20)
    w.entry("run", 20)
    w.run(20, state="succeeded")
    w.add(e.TaskEnded, client="b", key="run", end="succeeded")
    w.add(e.Counted, runs={"run": 2, "another": 2})


@planted(17)
def a_delivery_is_not_counted(w: Writer) -> None:
    w.whole("run", 20, 20)
    w.store["counts"] = {ORDERS: counts(acked=1) | {"delivered": 2}}


@planted(17)
def a_reported_end_is_missing(w: Writer) -> None:
    w.whole("run", 20, 20)
    w.add(e.TaskEnded, client="b", key="run", end="raised")


@pytest.mark.parametrize(("point", "plant"), PLANTED, ids=lambda value: getattr(value, "__name__", None))
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "among others"])
def test_a_planted_anomaly_is_refused(point: int, plant: Plant, alone: bool) -> None:
    w = Writer()
    if not alone:
        clean(w)
        w.store["counts"] = {}
    plant(w)
    assert {anomaly.point for anomaly in w.anomalies()} == {point}, w.anomalies()


def test_each_point_has_an_anomaly() -> None:
    w = Writer()
    assert w.anomalies() == []
    assert {point for point, _plant in PLANTED} == set(POINTS) == set(range(1, 18))


def test_a_cut_explains_that_an_older_message_is_later() -> None:
    w = Writer()
    w.publish("unreceived", 20)
    w.publish("newer", 21)
    w.deliver("newer", 21, 20)
    w.add(e.Cut, client="c")
    w.deliver("unreceived", 20, 21)
    w.entry("unreceived", 20, "in_flight")
    w.entry("newer", 21, "in_flight")
    assert w.anomalies() == []


def test_a_clock_that_is_set_forward_during_a_read_explains_the_end_of_its_lease() -> None:
    w = Writer()
    w.publish("read", 20)
    requested_at = w.now + 0.5
    w.add(e.ClockSet, seconds=19.0)
    w.deliver("read", 20, 20, requested_at=requested_at, lease_seconds=20.0)
    w.get("read", 20, 21, client="c", attempt=2)
    w.entry("read", 20, "in_flight", attempts=2)
    w.run(20, outcome="lease_expired")
    assert not w.anomalies()


def test_the_end_of_a_worker_explains_that_another_one_sends_its_callback() -> None:
    w = Writer()
    chord(w)
    w.add(e.Lost, client="a", why="killed")
    send_callback_twice(w)
    assert w.anomalies() == []


@pytest.mark.parametrize(("delay", "until", "restarts"), [(4.5, -1.0, False), (60.0, 90.0, False), (60.0, -1.0, True)])
def test_a_revoked_task_may_hold_its_key(delay: float, until: float, restarts: bool) -> None:
    w = Writer()
    w.publish("first", 20, unique="k", delay=delay, until=until)
    w.call(e.Revoke(key="first"))
    if restarts:
        w.add(e.Started, broker="broker")
    w.call(e.Publish(key="second", queues=(ORDERS,), unique="k"), 20)
    w.entry("first", 20, "available", attempts=0)
    assert w.anomalies() == []


def test_a_task_of_an_earlier_session_is_lost_later() -> None:
    w = Writer()
    a_task_is_lost_long_after_its_client_left(w)
    assert {anomaly.point for anomaly in w.anomalies()} == {17}
    w.events.insert(-3, e.Lost(at=w.events[-4].at, client="b", why="closed"))
    assert w.anomalies() == []


def test_a_task_of_a_killed_client_may_still_run() -> None:
    w = Writer()
    w.publish("run", 20)
    w.deliver("run", 20, 20)
    w.call(e.Settle(queue=ORDERS, id=20, token=20, end="ack", runs=True), client="b", outcome="sent")
    w.entry("run", 20)
    w.store["counts"] = {ORDERS: counts(acked=1)}
    assert {anomaly.point for anomaly in w.anomalies()} == {17}
    w.add(e.Lost, client="b", why="killed")
    assert w.anomalies() == []


def test_reported_damage_explains_what_is_missing() -> None:
    w = Writer()
    w.add(e.Damaged, file="wal/1.sst")
    w.publish("gone", 20)
    w.store["findings"] = ("payload-missing",)
    assert w.anomalies() == []


@pytest.mark.parametrize(
    ("is_stored", "finding", "effect"),
    [
        (True, "", WITHOUT_EFFECT),
        (False, "", UNDETECTED),
        (False, "payload-missing", REPORTED),
        (True, "payload-missing", REPORTED),
    ],
)
def test_damage_is_reported_or_has_no_effect(is_stored: bool, finding: str, effect: str) -> None:
    w = Writer()
    w.publish("damaged", 20)
    if is_stored:
        w.entry("damaged", 20, "available", attempts=0)
    w.add(e.Damaged, file="wal/1.sst")
    w.store["findings"] = tuple(filter(None, [finding]))
    assert effect_of_damage(w.history(), w.anomalies()) == effect


def test_the_anomalies_of_a_seed_are_summed_up_by_their_points() -> None:
    raised = "Traceback (most recent call last):\n  File …\nAssertionError: no broker\nits log"
    assert summaries(7, [Anomaly(1, "a is lost"), Anomaly(0, raised), Anomaly(1, "b is lost")]) == [
        "2 anomalies such as SEED=7, point 1: a is lost",
        "SEED=7, point 0: AssertionError: no broker",
    ]
