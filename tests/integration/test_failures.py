"""What failed, through a real broker: failed messages and acknowledged tasks, listed, grouped, run again, dismissed."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.errors import (
    BulkInterrupted,
    CursorOfOtherFilters,
    InvalidFilter,
    LimitOutOfRange,
    MalformedCursor,
    MessageNotFound,
    NotFound,
)
from kombu_opendata.protocol.envelope import encode_envelope, metadata_headers
from kombu_opendata.protocol.messages import FailureInfo, Outcome, Ping, Publish, StoreResult
from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.queue_client.queue_options import QueueOptions
from kombu_opendata.url import parse

from ..support.broker import EmbeddedBroker
from ..support.processes import INTERRUPTIBLE, Child, Children, tail, wait_until
from ..support.served import COMMAND, ServedBroker

NAMES = itertools.count()
EMBED: dict[str, Any] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
RAISED = TaskReport.cut(TaskState.RAISED, 2_500, 77, "app.pay", "app.errors.Bad", "no luck", "Traceback …")
LOST = TaskReport.cut(TaskState.LOST, 0, 0, "app.pay", "WorkerLostError", "signal 9")


class Worker:
    """A connection that publishes tasks of Celery, claims them, and says what became of them."""

    def __init__(self, folder: Path, name: str = "worker-1") -> None:
        self.connection = BrokerConnection(parse(f"opendata://{folder}"), Options(name=name, start_timeout=60))
        self.connection.connect()

    def send(self, queue: str, task_id: str, task: str = "app.pay", body: Any = None, **headers: Any) -> int:
        about = {"task": task, "id": task_id, "root_id": "root", "parent_id": None, "retries": 3, **headers}
        about |= {"eta": "2020-01-01T00:00:00+00:00", "group": "g", "group_index": 2}
        properties = {
            "correlation_id": task_id, "reply_to": "me", "priority": 4,
            "x-opendata-result": [f"celery-task-meta-{task_id}", "prefix-", 1000],
        }  # fmt: skip
        content = body if body is not None else json.dumps([[1], {"a": 2}, EMBED])
        kind = "application/json" if isinstance(content, str) else "application/x-python-serialize"
        envelope = encode_envelope(content, kind, "utf-8", about, properties, "", queue)
        texts = metadata_headers(about, "", queue, 4, kind)
        return int(self.connection.io.publish(Publish(0, 0, "", queue, envelope, texts, 4, 1)).message_id)

    def fail(self, queue: str, report: TaskReport = RAISED, outcome: Outcome = Outcome.ACK) -> None:
        """Claim a message, and end it so."""
        delivery = self.connection.get(1, queue, no_ack=False)
        assert delivery is not None
        self.connection.settle_task(1, outcome, delivery.lease, report)
        self.connection.call(Ping(0))


@pytest.fixture(scope="module")
def client(module_store_folder: Path) -> Iterator[QueueClient]:
    with QueueClient(f"opendata://{module_store_folder}", name="operator") as opened:
        yield opened


@pytest.fixture(scope="module")
def worker(client: QueueClient, module_store_folder: Path) -> Iterator[Worker]:
    opened = Worker(module_store_folder)
    yield opened
    opened.connection.close()


@pytest.fixture
def queue(client: QueueClient) -> str:
    name = f"it's/{next(NAMES)} ✉"
    client.create(name)
    return name


def failed(client: QueueClient, queue: str, **asked: Any) -> list[FailureInfo]:
    return list(client.iter_failures(queues=[queue], order="asc", **asked))


def test_both_kinds_are_in_one_view(client: QueueClient, worker: Worker, queue: str) -> None:
    ids = [worker.send(queue, f"{queue}-{number}") for number in range(3)]
    worker.fail(queue, RAISED)
    worker.fail(queue, LOST, Outcome.REJECT)
    worker.fail(queue, TaskReport(TaskState.SUCCEEDED))
    first, second = failed(client, queue, tracebacks=True)
    assert (first.message_id, first.kind, first.reason, first.exception) == (
        ids[0],
        "acknowledged",
        "raised",
        "app.errors.Bad",
    )
    assert (first.task, first.task_id, first.worker, first.attempts) == ("app.pay", f"{queue}-0", "worker-1", 1)
    assert (first.error, first.traceback, first.runtime_ms) == ("no luck", "Traceback …", 2.5)
    assert (second.message_id, second.kind, second.reason, second.error) == (ids[1], "failed", "lost", "signal 9")
    assert not failed(client, queue)[0].traceback
    assert client.retrieve_attempt(first.attempt) is not None


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({"kinds": ["failed"]}, {1, 3}),
        ({"kinds": ["acknowledged"]}, {0, 2}),
        ({"tasks": ["app.mail"]}, {2, 3}),
        ({"tasks": ["app.pay"], "kinds": ["failed"]}, {1}),
        ({"exceptions": ["app.errors.Bad"]}, {0, 1}),
        ({"reasons": ["lost"]}, {2, 3}),
        ({"reasons": ["delivery_limit"]}, set()),
        ({"workers": ["worker-1"]}, {0, 1, 2, 3}),
        ({"workers": ["nobody"]}, set()),
        ({"where": "id LIKE '%-1'"}, {1}),
        ({"where": "task = 'app.mail' AND NOT id LIKE '%-2'"}, {3}),
        ({"gte": 0, "lte": 5}, set()),
        ({"gte": 5}, {0, 1, 2, 3}),
        ({"task_ids": ["t-0", "t-3"]}, {0, 3}),
    ],
)
def test_every_filter_works_for_both_kinds(
    client: QueueClient, asked: Any, found: set[int], some: dict[int, int]
) -> None:
    assert {some[one.message_id] for one in failed(client, "filtered", **asked)} == found
    assert sum(group.count for group in client.group_failures(["task"], queues=["filtered"], **asked).groups) == len(
        found
    )


@pytest.fixture(scope="module")
def some(client: QueueClient, worker: Worker) -> dict[int, int]:
    """Four failures, two of each kind: numbers by message id."""
    client.create("filtered")
    numbers = {
        worker.send("filtered", f"t-{number}", "app.pay" if number < 2 else "app.mail"): number for number in range(4)
    }
    for number in range(4):
        worker.fail("filtered", RAISED if number < 2 else LOST, Outcome.REJECT if number % 2 else Outcome.ACK)
    return numbers


def test_ids_are_a_filter(client: QueueClient, some: dict[int, int]) -> None:
    ids = list(some)
    assert [one.message_id for one in failed(client, "filtered", ids=ids[1:3])] == ids[1:3]
    assert not failed(client, "filtered", ids=[])


def test_groups_have_counts_and_times(client: QueueClient, some: dict[int, int]) -> None:
    groups = client.group_failures(["exception", "reason"], queues=["filtered"]).groups
    assert {group.values: (group.count, group.acknowledged) for group in groups} == {
        ("WorkerLostError", "lost"): (2, 1),
        ("app.errors.Bad", "raised"): (2, 1),
    }
    times = [one.failed_at_ms for one in failed(client, "filtered")]
    assert min(group.first_at_ms for group in groups) == min(times)
    assert max(group.last_at_ms for group in groups) == max(times)


def test_groups_over_time(client: QueueClient, some: dict[int, int]) -> None:
    infos = failed(client, "filtered")
    since = datetime.fromtimestamp(min(one.failed_at_ms for one in infos) / 1000, UTC)
    groups = client.group_failures(["exception"], queues=["filtered"], gte=since, bucket_seconds=0.1).groups
    for group in groups:
        times = [one.failed_at_ms for one in infos if (one.exception,) == group.values]
        assert group.over_time == Counter(at // 100 * 100 for at in times)
    hours = client.group_failures(["queue"], queues=["filtered"], gte=since, bucket_seconds=3600).groups[0].over_time
    assert (sum(hours.values()), len(hours)) <= (len(infos), 2)
    assert client.group_failures(["queue"], queues=["filtered"]).groups[0].over_time == {}
    for seconds in (-1, 0.001):
        with pytest.raises(InvalidFilter, match="bucket"):
            client.group_failures(["queue"], gte=since - timedelta(hours=1), bucket_seconds=seconds)


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_of_any_size_have_each_once(client: QueueClient, some: dict[int, int], order: str) -> None:
    ids = sorted(some, reverse=order == "desc")
    for limit in (1, 2, 3, 100):
        found = client.iter_failures(queues=["filtered"], order=order, limit=limit)
        assert [one.message_id for one in found] == ids


def test_what_is_refused(client: QueueClient, some: dict[int, int]) -> None:
    cursor = client.list_failures(queues=["filtered"], limit=1).next
    for asked, error in (
        ({"reasons": ["bad luck"]}, InvalidFilter),
        ({"kinds": ["done"]}, InvalidFilter),
        ({"order": "up"}, InvalidFilter),
        ({"limit": 0}, LimitOutOfRange),
        ({"next": "nonsense"}, MalformedCursor),
        ({"next": cursor}, CursorOfOtherFilters),
        ({"queues": ["there is none"]}, NotFound),
        ({"color": "red"}, TypeError),
    ):
        with pytest.raises(error):
            client.list_failures(**asked)
    for by in (["color"], []):
        with pytest.raises(InvalidFilter):
            client.group_failures(by)


# ---------------------------------------------------------------------- running again
def again(client: QueueClient, queue: str) -> Any:
    """The message that runs a task again, and its headers."""
    (message,) = client.read(queue, vt=60, qty=10)
    client.archive(queue, message)
    return message


def test_a_failed_message_runs_again_with_its_id(client: QueueClient, worker: Worker, queue: str) -> None:
    id = worker.send(queue, "t")
    worker.fail(queue, RAISED, Outcome.REJECT)
    assert client.retry_failures(queues=[queue]).redriven == 1
    assert again(client, queue).id == id
    assert not failed(client, queue)


def test_an_acknowledged_task_runs_again_with_its_id(client: QueueClient, worker: Worker, queue: str) -> None:
    about: dict[str, Any] = {"expires": "2020-01-01T00:00:00", "stamps": {"a": 1}, "x-death": [{"queue": "q"}]}
    id = worker.send(queue, "t", **about)
    worker.fail(queue)
    assert client.retry_failures(queues=[queue]).published == 1
    message = again(client, queue)
    assert message.id > id
    assert {name: message.headers[name] for name in ("id", "root_id", "parent_id", "retries", "eta", "expires")} == {
        "id": "t", "root_id": "root", "parent_id": None, "retries": 0, "eta": None, "expires": None,
    }  # fmt: skip
    assert (message.headers["group"], message.headers["group_index"], message.headers["stamps"]) == ("g", 2, {"a": 1})
    assert "x-death" not in message.headers
    assert message.body == [[1], {"a": 2}, EMBED]
    assert message.properties["reply_to"] == "me"
    assert message.properties["priority"] == 4
    assert message.properties["correlation_id"] == "t"
    assert message.properties["x-opendata-result"][0] == "celery-task-meta-t"
    assert client.retrieve_message(message.id).headers["id"] == "t"  # type: ignore[union-attr]
    assert not failed(client, queue)
    (handled,) = failed(client, queue, handled=True)
    assert (handled.handled, handled.retried_as) == ("retried", message.id)


def test_a_task_that_expires_later_still_does(client: QueueClient, worker: Worker, queue: str) -> None:
    worker.send(queue, "t", expires="2999-01-01T00:00:00")
    worker.fail(queue)
    client.retry_failures(queues=[queue])
    message = again(client, queue)
    assert message.headers["expires"] == "2999-01-01T00:00:00"
    assert int(message.properties["expiration"]) > 1 << 40


@pytest.mark.parametrize(
    "body", [json.dumps([[], {}, EMBED | {"chord": {"task": "app.total"}}]), b"\x80\x04pickle", "not json"]
)
def test_a_member_of_a_chord_runs_outside_of_it(client: QueueClient, worker: Worker, queue: str, body: Any) -> None:
    worker.send(queue, "t", body=body)
    worker.fail(queue)
    client.retry_failures(queues=[queue])
    assert not {"group", "group_index"} & set(again(client, queue).headers)


def test_each_runs_again_once(client: QueueClient, worker: Worker, queue: str) -> None:
    for number in range(3):
        worker.send(queue, f"t{number}")
        worker.fail(queue)
    assert client.retry_failures(queues=[queue], limit=2).published == 2
    assert client.retry_failures(queues=[queue]).published == 1
    assert client.retry_failures(queues=[queue]).handled == 0
    assert [message.headers["id"] for message in client.read(queue, vt=60, qty=10)] == ["t0", "t1", "t2"]


def test_another_queue_may_get_them(client: QueueClient, worker: Worker, queue: str) -> None:
    client.create(f"{queue}-slow")
    for outcome in (Outcome.ACK, Outcome.REJECT):
        worker.send(queue, "t")
        worker.fail(queue, RAISED, outcome)
    done = client.retry_failures(f"{queue}-slow", queues=[queue])
    assert (done.redriven, done.published) == (1, 1)
    assert len(client.read(f"{queue}-slow", vt=60, qty=10)) == 2


def test_a_full_queue_stops_and_the_rest_stays(client: QueueClient, worker: Worker, queue: str) -> None:
    client.create(f"{queue}-small", QueueOptions(max_length=2, overflow="reject-publish"))
    for number in range(4):
        worker.send(queue, f"t{number}")
        worker.fail(queue, RAISED, Outcome.REJECT if number == 0 else Outcome.ACK)
    done = client.retry_failures(f"{queue}-small", queues=[queue])
    assert (done.redriven, done.published, done.full) == (1, 1, f"{queue}-small")
    assert [one.task_id for one in failed(client, queue)] == ["t2", "t3"]
    assert client.retry_failures(queues=[queue]).published == 2


def test_what_can_not_be_run_again_is_counted(client: QueueClient, worker: Worker, queue: str) -> None:
    worker.connection.io.publish(Publish(0, 0, "", queue, b"no envelope", {}, 0, 1))
    worker.fail(queue)
    worker.send(queue, "collected")
    worker.fail(queue)
    client.delete_settled(queue, ids=[failed(client, queue)[1].message_id])
    client.create(f"{queue}-gone")
    worker.send(f"{queue}-gone", "t")
    worker.fail(f"{queue}-gone")
    ids = [one.message_id for name in (queue, f"{queue}-gone") for one in failed(client, name)]
    client.delete_queue(f"{queue}-gone")
    wait_until(lambda: client.retrieve_message(ids[1]) is None, 60, lambda: "the message is still stored")
    worker.send(queue, "t")
    worker.fail(queue)
    assert [one.task for one in failed(client, queue) if one.message_id == ids[1]] == ["app.pay"]
    assert (client.task("collected").name, client.task("collected").state) == ("app.pay", "raised")
    assert client.retry_failures(task_ids=["collected"]).left == {"collected": 1}
    assert failed(client, queue, tasks=["app.pay"])[0].message_id == ids[1]
    done = client.retry_failures(ids=[*ids, 1 << 40, failed(client, queue)[-1].message_id])
    assert done.left == {"collected": 1, "not_tasks": 1, "without_queue": 1}
    assert done.published == 1
    assert len(failed(client, queue)) == 2


def test_a_paused_queue_keeps_its_failures(client: QueueClient, worker: Worker, queue: str) -> None:
    for outcome in (Outcome.ACK, Outcome.REJECT):
        worker.send(queue, "t")
        worker.fail(queue, RAISED, outcome)
    client.pause(queue, publishes=True)
    assert client.retry_failures(queues=[queue]).left == {"paused": 2}
    client.resume(queue)
    assert client.retry_failures(queues=[queue]).handled == 2


def test_dismissed_failures_are_gone_for_good(client: QueueClient, worker: Worker, queue: str) -> None:
    for outcome in (Outcome.ACK, Outcome.REJECT, Outcome.ACK):
        worker.send(queue, "t")
        worker.fail(queue, RAISED, outcome)
    done = client.delete_failures(queues=[queue], limit=2)
    assert (done.deleted, done.dismissed) == (1, 1)
    assert client.delete_failures(queues=[queue]).dismissed == 1
    assert not failed(client, queue)
    assert client.retry_failures(queues=[queue]).handled == 0
    assert [one.state for one in client.list_attempts(queues=[queue]).items] == ["raised"] * 3
    assert {one.handled for one in failed(client, queue, handled=True)} == {"dismissed"}


def test_archived_ones_are_seen_on_request(client: QueueClient, worker: Worker, queue: str) -> None:
    worker.send(queue, "t")
    worker.fail(queue, RAISED, Outcome.REJECT)
    client.archive_failed(queue)
    assert not failed(client, queue)
    (one,) = failed(client, queue, kinds=["archived"])
    assert (one.kind, one.exception) == ("archived", "app.errors.Bad")
    assert client.retry_failures(queues=[queue], kinds=["archived"]).redriven == 1


def test_a_task_that_fails_again_is_a_new_failure(client: QueueClient, worker: Worker, queue: str) -> None:
    worker.send(queue, "t")
    worker.fail(queue)
    client.retry_failures(queues=[queue])
    worker.fail(queue, LOST)
    (one,) = failed(client, queue)
    assert one.reason == "lost"
    assert client.retry_failures(queues=[queue]).published == 1


# ---------------------------------------------------------------------- interruptions
def fill(folder: Path, client: QueueClient, count: int) -> None:
    """Let so many tasks of queue q fail, a third of them rejected."""
    client.create("q")
    worker = Worker(folder)
    for number in range(count):
        worker.send("q", f"t{number}")
        delivery = worker.connection.get(1, "q", no_ack=False)
        assert delivery is not None
        worker.connection.settle_task(1, Outcome.REJECT if number % 3 == 0 else Outcome.ACK, delivery.lease, RAISED)
    worker.connection.close()
    wait_until(lambda: counted(client) == count, 60, lambda: f"{count} failures, not {counted(client)}")


def counted(client: QueueClient) -> int:
    return sum(group.count for group in client.group_failures(["task"]).groups)


def ran_again(client: QueueClient) -> list[str]:
    """The ids of the tasks that run again."""
    found: list[str] = []
    while some := client.read("q", vt=60, qty=1000):
        found += [message.headers["id"] for message in some]
    return sorted(found)


def test_what_ran_again_stays_so_when_the_broker_is_killed(store_folder: Path) -> None:
    with QueueClient(f"opendata://{store_folder}", start_timeout=60, reconnect_timeout=60) as client:
        fill(store_folder, client, 30)
        assert client.retry_failures(limit=20).handled == 20
        EmbeddedBroker(store_folder).kill()
        assert counted(client) == 10
        assert client.retry_failures().handled == 10
        assert ran_again(client) == sorted(f"t{number}" for number in range(30))


@pytest.mark.slow
def test_a_bulk_goes_on_over_kills_of_the_broker(store_folder: Path) -> None:
    broker = EmbeddedBroker(store_folder)
    with QueueClient(f"opendata://{store_folder}", start_timeout=60, reconnect_timeout=60) as client:
        fill(store_folder, client, 600)
        ended = threading.Event()

        def kill() -> None:
            for _ in range(3):
                broker.kill()
                if ended.wait(0.4):
                    return

        killer = threading.Thread(target=kill)
        killer.start()
        client.retry_failures()
        ended.set()
        killer.join()
        assert counted(client) == 0
        assert ran_again(client) == sorted(f"t{number}" for number in range(600))


# ---------------------------------------------------------------------- single tasks
def test_a_task_tells_what_became_of_it(client: QueueClient, worker: Worker, queue: str) -> None:
    id = worker.send(queue, f"{queue}-task")
    child = worker.send(queue, f"{queue}-child", "app.child", parent_id=f"{queue}-task")
    worker.fail(queue)
    task = client.task(f"{queue}-task")
    assert client.task(id) == task
    assert (task.name, task.state, task.args, task.kwargs) == ("app.pay", "raised", [1], {"a": 2})
    assert (task.message_ids, task.queues[0].queue, task.queues[0].status) == ((id,), queue, "done")
    assert [(one.state, one.exception, one.traceback) for one in task.attempts] == [
        ("raised", "app.errors.Bad", "Traceback …")
    ]
    assert [(one.message_id, one.name) for one in task.children] == [(child, "app.child")]
    assert [one.message_id for one in task.failures] == [id]
    client.retry_failures(ids=[id])
    task = client.task(f"{queue}-task")
    assert not task.failures
    assert task.handled[0].handled == "retried"
    (again,) = task.again
    assert again.task_id == f"{queue}-task"
    assert task.message_ids == (id, again.message_id)
    assert task.state == "available"


@pytest.mark.parametrize("body", [b"\x80\x04never loaded", "not json", json.dumps({"n": 1}), json.dumps([1, 2])])
def test_arguments_that_are_no_celery_body_are_not_shown(
    client: QueueClient, worker: Worker, queue: str, body: Any
) -> None:
    worker.send(queue, f"{queue}-task", body=body)
    task = client.task(f"{queue}-task")
    assert (task.name, task.state, task.args, task.kwargs) == ("app.pay", "available", None, None)


def test_a_task_that_there_is_not(client: QueueClient, queue: str) -> None:
    for id in ("none", 1 << 40, client.send(queue, "no task")):
        with pytest.raises(MessageNotFound):
            client.task(id)


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        (b'{"status": "SUCCESS", "result": [1]}', ("json", "SUCCESS", [1])),
        (b'{"status": "FAILURE", "result": {"exc_type": "E"}}', ("json", "FAILURE", {"exc_type": "E"})),
        (b"\x80\x04\x95cos\nsystem\n", ("pickle", "", None)),
        (b"\xff\xfe", ("unknown", "", None)),
        (b"[1]", ("unknown", "", None)),
        (b"", ("unknown", "", None)),
    ],
)
def test_a_result_is_shown_but_no_pickle_loaded(client: QueueClient, queue: str, stored: bytes, shown: Any) -> None:
    client.calls.call(StoreResult(0, f"celery-task-meta-{queue}".encode(), 1, stored, 0))
    found = client.task_result(queue)
    assert found is not None
    assert (found.encoding, found.state, found.value, found.size) == (*shown, len(stored))
    assert client.task_result("none") is None


def one_step_broker(store_folder: Path, tmp_path: Path, started: Children) -> ServedBroker:
    """A broker that answers the first step of a bulk, of 100 failures, and does the second without an answer."""
    target = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
    broker = ServedBroker(tmp_path, *target, app="one_step.py")
    started.add(broker)
    return broker


def test_a_bulk_that_loses_its_broker_says_how_far_it_came(
    store_folder: Path, tmp_path: Path, started: Children
) -> None:
    url = f"opendata://{store_folder}"
    broker = one_step_broker(store_folder, tmp_path, started)
    with QueueClient(url) as client:
        fill(store_folder, client, 300)
    with QueueClient(url, may_start=False, reconnect_timeout=0.0) as impatient:
        with pytest.raises(BulkInterrupted) as caught:
            impatient.retry_failures(progress=lambda _done: broker.kill())
        values = caught.value.values
    assert values["reason"] == "connection_lost"
    assert values["redriven"] + values["published"] == 100
    with QueueClient(url, start_timeout=60) as client:
        assert counted(client) == 200
        assert client.retry_failures().handled == 200
        assert ran_again(client) == sorted(f"t{number}" for number in range(300))


def test_after_ctrl_c_the_same_command_does_the_rest(store_folder: Path, tmp_path: Path, started: Children) -> None:
    url = f"opendata://{store_folder}"
    broker = one_step_broker(store_folder, tmp_path, started)
    line = [str(COMMAND), "failed", "retry", "--all", "--url", url]
    with QueueClient(url) as client:
        fill(store_folder, client, 300)
        process = Child([*INTERRUPTIBLE, *line], tmp_path / "retry.log", cwd=tmp_path)
        started.add(process)
        wait_until(lambda: counted(client) == 100, 60, lambda: f"{counted(client)} left: {tail(process.log)}")
        process.process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert "at least 100 done; the same command continues with the rest" in tail(process.log)
    broker.kill()
    subprocess.run(line, check=True, capture_output=True, timeout=60)
    with QueueClient(url, start_timeout=60) as client:
        assert counted(client) == 0
        assert ran_again(client) == sorted(f"t{number}" for number in range(300))
