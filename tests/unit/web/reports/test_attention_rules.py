"""Each kind of finding: what it takes, what it says, where it leads."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kombu_opendata.protocol.messages import PartitionInfo
from kombu_opendata.queue_client.administration import Worker
from kombu_opendata.queue_client.metrics import QueueMetrics
from kombu_opendata.web.reports.attention_rules import AttentionFinding, AttentionInput, Busy, TaskFailures, findings
from kombu_opendata.web.reports.queue_metrics import Trend

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DISK = {"size_bytes": 0, "limit_bytes": 1000, "is_stuck": False, "removed_early": 0, "removed_at_ms": 0}


def queue(name: str = "mail", **figures: Any) -> QueueMetrics:
    calm: dict[str, Any] = {
        "length": 0, "ready": 0, "delayed": 0, "in_flight": 0, "oldest_age_seconds": None,
        "newest_age_seconds": None, "total": 0, "done": 0, "failed": 0, "consumers": 1, "sent_per_second": 0.0,
        "delivered_per_second": 0.0, "acked_per_second": 0.0, "counts": {}, "counted_since": NOW, "at": NOW,
    }  # fmt: skip
    return QueueMetrics(name, **{**calm, **figures})


def worker(**figures: Any) -> Worker:
    calm: dict[str, Any] = {
        "id": "aa", "name": "w@host", "since": NOW, "connected": True, "suspended": False, "held": 0, "consumers": (),
        "reader": False,
    }  # fmt: skip
    return Worker(**{**calm, **figures})


def busy(**figures: Any) -> Busy:
    hanging: dict[str, Any] = {
        "task": "app.slow", "task_id": "id-1", "message_id": 7, "queue": "mail", "worker": "w@host", "running": True,
        "seconds": 840.0, "count": 1, "usual_seconds": None,
    }  # fmt: skip
    return Busy(**{**hanging, **figures})


def seen(*queues: QueueMetrics, **parts: Any) -> AttentionInput:
    return AttentionInput(NOW, list(queues), **parts)


def status(**changes: Any) -> dict[str, Any]:
    return {"state": "active", "standbys": [], "memory": {}, "instances": {}} | changes


def instance(**changes: Any) -> dict[str, Any]:
    return status(
        instances={"default": {"stalled_seconds": 0.0, "dead_letters": {"waiting": 0}, "disk": DISK} | changes}
    )


def told(now: AttentionInput) -> list[tuple[str, str, str]]:
    return [(one.kind, one.severity, one.text) for one in findings(now)]


TEN_MINUTES = Trend(600.0, 100, 1000, 400)
ALONE = queue(ready=1, consumers=0, oldest_age_seconds=130.0)

#: what is seen, and what is said of it
SAID: dict[str, tuple[AttentionInput, tuple[str, str, str]]] = {
    "nobody consumes": (
        seen(ALONE),
        ("not_consumed", "bad", "Queue mail has no consumers: 1 message is ready, the oldest for 2m 10s."),
    ),
    "growing": (
        seen(queue(ready=700), trends={"mail": TEN_MINUTES}),
        ("growing", "warn", "Queue mail grows: 700 ready, 100 10m ago; at this pace 4,300 in an hour."),
    ),
    "paused": (
        seen(queue(ready=3, paused=True, consumers=0)),
        ("paused", "note", "Queue mail is paused (deliveries): 3 messages ready."),
    ),
    "paused publishes": (
        seen(queue(publishes_paused=True)),
        ("paused", "note", "Queue mail is paused (publishes): 0 messages ready."),
    ),
    "expired leases": (
        seen(queue(), leases_expired={"mail": 4}),
        ("leases_expired", "warn", "Queue mail got 4 messages back from workers that did not come back."),
    ),
    "failing": (
        seen(failures=[TaskFailures("app.pay", "mail", (("ValueError", 41),))], trends={"mail": TEN_MINUTES}),
        ("failing", "bad", "Task app.pay raises ValueError: 41 in ten minutes, 10% of what its queue finished."),
    ),
    "failing seldom": (
        seen(failures=[TaskFailures("app.pay", "mail", (("ValueError", 2),))], trends={"mail": TEN_MINUTES}),
        ("failing", "warn", "Task app.pay raises ValueError: 2 in ten minutes."),
    ),
    "failing in many ways": (
        seen(failures=[TaskFailures("app.pay", "mail", (("A", 100), ("B", 2), ("C", 2), ("D", 1)))]),
        ("failing", "bad", "Task app.pay fails: 105 in ten minutes (A 100, B 2, C 2, …)."),
    ),
    "messages that are no tasks": (
        seen(failures=[TaskFailures("", "mail", (("rejected", 1),))]),
        ("failing", "warn", "Queue mail fails: 1 in ten minutes (rejected 1)."),
    ),
    "hanging": (
        seen(busy=[busy()]),
        ("hanging", "bad", "Task app.slow has run for 14m at w@host; how long it usually takes is not known."),
    ),
    "hanging longer than usual": (
        seen(busy=[busy(seconds=20.0, usual_seconds=0.25, count=3)]),
        ("hanging", "bad", "Task app.slow has run for 20s at w@host (and 2 more there); it usually takes 0.25 s."),
    ),
    "hanging at the first time": (
        seen(busy=[busy(seconds=12.0)]),
        ("hanging", "warn", "Task app.slow has run for 12s at w@host; how long it usually takes is not known."),
    ),
    "hanging in all processes": (
        seen(queue(ready=120), busy=[busy(count=4, waiting=12, usual_seconds=0.25)]),
        (
            "hanging", "bad",
            "Task app.slow has run for 14m at w@host (and 3 more there, 12 more held); it usually takes 0.25 s. "
            "Queue mail delivers nothing: 120 messages are ready.",
        ),
    ),
    "held by a program": (
        seen(busy=[busy(running=False, task="", task_id="")]),
        ("hanging", "warn", "Message 7 of queue mail has been held for 14m at w@host."),
    ),
    "a worker that is gone": (
        seen(workers=[worker(connected=False, held=2)]),
        ("worker_gone", "warn", "Worker w@host has disconnected and still holds 2 messages, which others get soon."),
    ),
    "a suspended worker": (
        seen(workers=[worker(suspended=True)]),
        ("suspended", "note", "Worker w@host is suspended and gets no messages."),
    ),
    "a clock": (
        seen(clock_ahead_seconds=-40.0),
        ("clock", "warn", "The broker's clock is 40s behind the clock of the web UI's host: ages are wrong."),
    ),
    "a hand-over": (
        seen(status=status(state="stopping")),
        ("not_active", "bad", "The broker is stopping: another broker takes its place, or it is starting."),
    ),
    "full memory": (
        seen(status=status(memory={"is_full": True, "limit_bytes": 1 << 30})),
        (
            "memory_full", "bad",
            "The broker's memory has reached its limit of 1,024 MiB: publishers wait until consumers have caught up.",
        ),
    ),
    "much memory": (
        seen(status=status(memory={"resident_bytes": 95, "limit_bytes": 100, "is_full": False})),
        ("memory", "warn", "The broker's memory is at 95% of its limit, at which publishers wait."),
    ),
    "no standby": (
        seen(status=status(), expects_standby=True),
        ("no_standby", "warn", "No standby is connected: no broker takes over if this broker's host fails."),
    ),
    "connections": (
        seen(status=status(connections=95, connections_limit=100)),
        (
            "connections", "warn",
            "The broker has nearly all of its connections: 95 of 100; beyond, clients are refused.",
        ),
    ),
    "a stalled store": (
        seen(status=instance(stalled_seconds=75.0)),
        ("store_stalled", "bad", "The store has taken no writes for 1m 15s: publishes wait or are refused."),
    ),
    "dead letters": (
        seen(status=instance(dead_letters={"waiting": 250})),
        ("dead_letters", "warn", "250 dead letters wait to be published: see whether their queues are full."),
    ),
    "a store that is too large": (
        seen(status=instance(disk=DISK | {"is_stuck": True})),
        (
            "store_full", "bad",
            "The store is larger than its limit, and there is nothing settled to remove: consume, purge or give room.",
        ),
    ),
    "messages removed early": (
        seen(status=instance(disk=DISK | {"removed_early": 9, "removed_at_ms": int(1000 * NOW.timestamp()) - 5000})),
        ("removed_early", "warn", "The store is at its limit: 9 settled messages removed early."),
    ),
    "a large store": (
        seen(status=instance(disk=DISK | {"size_bytes": 950})),
        (
            "store_large", "warn",
            "The store is at 95% of its limit: soon the oldest settled messages are removed early.",
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAID)
def test_each_kind_is_one_sentence(case: str) -> None:
    now, said = SAID[case]
    assert told(now) == [said]


#: what is normal
CALM: dict[str, Callable[[], AttentionInput]] = {
    "an empty queue without consumers": lambda: seen(queue(consumers=0)),
    "a queue that a program reads": lambda: seen(queue(ready=5, consumers=0, delivered_per_second=1.0)),
    "a queue that shrinks": lambda: seen(queue(ready=50), trends={"mail": TEN_MINUTES}),
    "a large queue that grows a little": lambda: seen(
        queue(ready=1050), trends={"mail": Trend(600.0, 1000, 1050, 1000)}
    ),
    "a queue that was filled just now": lambda: seen(queue(ready=500), trends={"mail": Trend(30.0, 0, 500, 0)}),
    "a task that always takes long": lambda: seen(busy=[busy(seconds=840.0, usual_seconds=600.0)]),
    "a task of nine seconds": lambda: seen(busy=[busy(seconds=9.0)]),
    "a message that waits in its worker": lambda: seen(busy=[busy(seconds=60.0, running=False, usual_seconds=0.25)]),
    "a message that a program holds": lambda: seen(busy=[busy(seconds=60.0, running=False)]),
    "a worker": lambda: seen(workers=[worker(held=4)]),
    "a broker that never had a standby": lambda: seen(status=instance()),
    "messages removed long ago": lambda: seen(status=instance(disk=DISK | {"removed_early": 9, "removed_at_ms": 1})),
}


@pytest.mark.parametrize("case", CALM)
def test_what_is_normal_is_not_said(case: str) -> None:
    assert told(CALM[case]()) == []


def test_a_queue_that_grows_because_its_tasks_hang() -> None:
    now = seen(
        queue(ready=700, delivered_per_second=0.1),
        trends={"mail": TEN_MINUTES},
        busy=[busy(count=3), busy(queue="x")],
    )
    (grows,) = [one.text for one in findings(now) if one.kind == "growing"]
    assert grows == "Queue mail grows: 700 ready, 100 10m ago; at this pace 4,300 in an hour. 3 of its tasks hang."


def test_the_most_severe_comes_first() -> None:
    found = findings(
        seen(
            queue("paused", paused=True),
            queue("few", ready=1, consumers=0),
            queue("many", ready=9, consumers=0),
            failures=[TaskFailures("app.pay", "many", (("ValueError", 500),))],
            busy=[busy()],
            status=instance(stalled_seconds=9.0),
            expects_standby=True,
        )
    )
    assert [one.subject for one in found] == [
        "The store", "many", "few", "app.slow", "app.pay", "No standby", "paused",
    ]  # fmt: skip


def test_each_leads_to_where_it_is_mended() -> None:
    def leads(now: AttentionInput) -> tuple[str, dict[str, str]]:
        found: AttentionFinding = findings(now)[0]
        return found.view, found.query

    assert leads(seen(ALONE)) == ("queue", {"name": "mail"})
    assert leads(SAID["failing"][0]) == ("failed", {"task": "app.pay"})
    assert leads(SAID["messages that are no tasks"][0]) == ("failed", {"queue": "mail"})
    assert leads(SAID["hanging"][0]) == ("task", {"id": "id-1"})
    assert leads(SAID["a worker that is gone"][0]) == ("workers", {})
    assert leads(SAID["a stalled store"][0]) == ("store", {})


def test_stores_of_several_instances_are_named() -> None:
    report = {"stalled_seconds": 9.0, "dead_letters": {"waiting": 0}, "disk": DISK}
    texts = [one.text for one in findings(seen(status=status(instances={"a": report, "b": report})))]
    assert [text.split(" has")[0] for text in texts] == ["The store of instance a", "The store of instance b"]


def test_a_partition_that_starves_and_one_that_floods() -> None:
    old = PartitionInfo("acme", 10, 1, 0, 1, 0.1, "rate", 5, 720.0)
    large = PartitionInfo("", 9500, 1, 0, 1, 0.1)
    busy_queue = queue("mail", ready=10_000, delivered_per_second=5.0)
    found = findings(seen(busy_queue, partitions={"mail": ([old], large)}))
    assert [(one.kind, one.text, one.view, one.query) for one in found] == [
        (
            "flooding",
            "Partition (no value) of queue mail has 9,500 of its 10,000 waiting messages.",
            "partitions",
            {"queue": "mail", "order": "backlog"},
        ),
        (
            "starving",
            "Partition acme of queue mail starves: its oldest message is ready for 12m, limited by rate.",
            "partitions",
            {"queue": "mail", "search": "acme"},
        ),
    ]
    alone, young = PartitionInfo("", 999, 0, 0, 1, 1.0), PartitionInfo("a", 1, 0, 0, 1, 1.0, "", 0, 299.0)
    assert findings(seen(busy_queue, partitions={"mail": ([young], alone)})) == []
    everything = PartitionInfo("", 10_000, 0, 0, 1, 1.0)
    assert findings(seen(busy_queue, partitions={"mail": ([young], everything)})) == []


def test_a_small_partition_starves_behind_the_one_that_floods() -> None:
    large = PartitionInfo("big", 9990, 1, 0, 1, 0.1, "", 0, 900.0)
    small = [PartitionInfo(key, 1, 0, 0, 1, 0.1, "delay", 5, 800.0) for key in ("", "b", "c", "d")]
    busy_queue = queue("mail", ready=10_000, delivered_per_second=5.0)
    found = findings(seen(busy_queue, partitions={"mail": ([large, *small], large)}))
    assert [(each.kind, each.subject, each.query) for each in found] == [
        ("flooding", "big", {"queue": "mail", "search": "big"}),
        ("starving", "(no value)", {"queue": "mail", "order": "oldest"}),
        ("starving", "b", {"queue": "mail", "search": "b"}),
        ("starving", "c", {"queue": "mail", "search": "c"}),
    ]
    limited = PartitionInfo("big", 9990, 1, 0, 1, 0.1, "rate", 0, 900.0)
    found = findings(seen(busy_queue, partitions={"mail": ([limited], limited)}))
    assert [(each.kind, each.subject) for each in found] == [("flooding", "big"), ("starving", "big")]
