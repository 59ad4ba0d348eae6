"""What comes, from a real broker: when delayed messages are due, and what a real beat publishes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.errors import NotFound, RequestError
from kombu_opendata.protocol.messages import DueCountsReply, PeriodicTaskList
from kombu_opendata.queue_client import QueueOptions

from ...support.processes import Child, Children, tail, wait_until
from ...support.users import user_table, write_users
from .test_recent_metrics import SECONDS, serve, signed_in

HOURS = 6
SCHEDULE = """
from celery import Celery

app = Celery("beats", broker={url!r})
app.conf.broker_connection_retry_on_startup = True
app.conf.beat_schedule = {{
    "one": {{"task": "beats.one", "schedule": 0.5}},
    "two": {{
        "task": "beats.two", "schedule": 0.5,
        "options": {{"queue": "slow", "headers": {{"periodic_task_name": "named"}}}},
    }},
}}
"""


@pytest.fixture
def client(store_folder: Path) -> Iterator[QueueClient]:
    with QueueClient(f"opendata://{store_folder}", connect_timeout=SECONDS) as opened:
        yield opened


def total(found: DueCountsReply) -> int:
    return sum(found.counts) + found.later


def test_when_messages_are_due(client: QueueClient) -> None:
    client.create("a")
    client.create("b")
    client.create("memory", QueueOptions(durable=False))
    now = client.count_due().at
    for hour in range(HOURS):
        client.send_batch("a", list(range(hour + 1)), delay=3600 * (hour + 1))
    client.send("b", 1, at=now + timedelta(days=365))
    client.send("memory", 1, delay=60)
    client.send("a", "ready")
    found = client.count_due(["a"], bucket_seconds=3600, buckets=HOURS + 2)
    assert found.start <= found.at < found.start + timedelta(hours=1)
    assert found.counts[1 : HOURS + 1] == list(range(1, HOURS + 1))
    assert (total(found), found.later, found.is_estimate) == (HOURS * (HOURS + 1) // 2, 0, False)
    every = client.count_due(bucket_seconds=3600, buckets=HOURS + 2)
    assert (total(every), every.later) == (total(found) + 2, 1)
    first = client.read("a", vt=60)[0]
    assert first.body == "ready"
    assert total(client.count_due(["a"])) == total(found)


def test_messages_that_are_not_in_memory(client: QueueClient) -> None:
    client.create("big")
    sent = 20_000
    for start in range(0, sent, 1000):
        client.send_batch("big", list(range(1000)), delay=3600 + start // 10)

    def is_cold() -> bool:
        return bool(client.status()["instances"]["default"]["queues"]["big"]["cold_buckets"])

    wait_until(is_cold, SECONDS, "buckets that left memory")
    found = client.count_due(["big"], bucket_seconds=600, buckets=30)
    assert total(found) == client.metrics("big").delayed == sent
    assert sum(found.counts) == sent


@pytest.mark.parametrize(("seconds", "number"), [(0, 1), (-1, 1), (1, 0), (1, 1001), (1e9, 1)], ids=str)
def test_what_is_refused(client: QueueClient, seconds: float, number: int) -> None:
    with pytest.raises(RequestError, match="is 1 to"):
        client.count_due(bucket_seconds=seconds, buckets=number)
    with pytest.raises(NotFound):
        client.count_due(["none"])


def test_what_a_real_beat_publishes(store_folder: Path, tmp_path: Path, started: Children) -> None:
    users = write_users(
        store_folder / "users",
        user_table("beat", "x"),
        user_table("shop", "x", {"*": {"read": "^slow$"}}),
    )
    broker = serve(store_folder, started, "--users", str(users))
    url = f"opendata://beat:x@127.0.0.1:{broker.port}"
    (tmp_path / "beats.py").write_text(SCHEDULE.format(url=url))
    line = [sys.executable, "-m", "celery", "-A", "beats", "beat", "--pidfile=", f"--schedule={tmp_path}/beat"]
    started.add(Child(line, tmp_path / "beat.log", cwd=tmp_path))
    with signed_in(broker, "beat") as client:
        client.create("plain")
        client.send("plain", 1)

        def seen() -> PeriodicTaskList:
            return client.periodic_tasks()

        def often() -> bool:
            return {one.task for one in seen().tasks if one.count > 1} >= {"beats.two"}

        wait_until(often, SECONDS, lambda: f"periodic tasks: {seen()}\n{tail(tmp_path / 'beat.log')}")
        found = {one.task: one for one in seen().tasks}
        assert (found["beats.two"].name, found["beats.two"].queue) == ("named", "slow")
        assert found["beats.two"].interval is not None
        assert found["beats.two"].first < found["beats.two"].last
        assert client.get(found["beats.two"].last_message_id).metadata["task"] == "beats.two"
        assert set(found) <= {"beats.one", "beats.two"}
    with signed_in(broker, "shop") as client:
        assert {one.queue for one in client.periodic_tasks().tasks} == {"slow"}
