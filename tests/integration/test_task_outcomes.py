"""What became of tasks, through a real broker: reported late with the settlement, or early and again at the end."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kombu import asynchronous
from kombu import connection as kombu_connection

from kombu_opendata import QueueClient
from kombu_opendata.client.connection_options import Options
from kombu_opendata.client.session.broker_connection import BrokerConnection
from kombu_opendata.client.session.unconfirmed import TaskRun
from kombu_opendata.errors import InvalidFilter, PreconditionFailed, RequestError
from kombu_opendata.protocol.envelope import encode_envelope
from kombu_opendata.protocol.messages import AttemptInfo, DeclareQueue, Lease, Outcome, Ping, Publish
from kombu_opendata.protocol.task_reports import MAX_ERROR, MAX_EXCEPTION, MAX_TRACEBACK, TaskReport, TaskState
from kombu_opendata.url import parse

from ..support import history_calls
from ..support.processes import children, wait_until
from ..support.served import ServedBroker

pytestmark = pytest.mark.contract(17)

# untyped
Connection: Any = kombu_connection.Connection
Hub: Any = asynchronous.Hub

RAISED = TaskReport.cut(
    TaskState.RAISED, 2_500, 77, "app.add", "app.errors.Bad", "no “luck” 😀", "Traceback (most recent call last):\n…"
)
SUCCEEDED = TaskReport(TaskState.SUCCEEDED, 1_250, 78, "app.add")


class Worker:
    """A connection that publishes, claims and reports."""

    def __init__(self, broker: Path | str, name: str = "worker-1") -> None:
        self.connection = BrokerConnection(parse(f"opendata://{broker}"), Options(name=name, start_timeout=60))
        self.connection.connect()

    def claim(self, queue: str) -> Lease:
        """Publish a message into the queue and claim it."""
        self.connection.call(DeclareQueue(0, queue, True, False, False, {}, False))
        envelope = encode_envelope(b"body", None, None, {"task": "app.add"}, {}, "", queue)
        self.connection.io.publish(Publish(0, 0, "", queue, envelope, {}, 0, 1))
        delivery = self.connection.get(1, queue, no_ack=False)
        assert delivery is not None
        return delivery.lease

    def start(self, queue: str) -> Lease:
        lease = self.claim(queue)
        self.connection.settle(1, Outcome.START, [lease])
        return lease

    def end(self, lease: Lease, outcome: Outcome, report: TaskReport) -> None:
        self.connection.settle_task(1, outcome, lease, report)

    def attempts(self, queue: str, **asked: object) -> list[AttemptInfo]:
        return list(history_calls.list_attempts(self.connection, queues=[queue], order="asc", **asked).items)


@pytest.fixture(scope="module")
def worker(module_store_folder: Path) -> Iterator[Worker]:
    opened = Worker(module_store_folder)
    yield opened
    opened.connection.close()


@pytest.mark.parametrize(
    ("outcome", "ended"), [(Outcome.ACK, "acked"), (Outcome.REJECT, "rejected"), (Outcome.REQUEUE, "rejected")]
)
def test_a_settlement_says_what_became_of_the_task(worker: Worker, outcome: Outcome, ended: str) -> None:
    queue = f"late/{outcome.name}"
    lease = worker.claim(queue)
    worker.end(lease, outcome, RAISED)
    (found,) = worker.attempts(queue)
    assert (found.outcome, found.state, found.runtime_ms, found.pid) == (ended, "raised", 2.5, 77)
    assert (found.exception, found.error, found.traceback) == ("app.errors.Bad", "no “luck” 😀", "")
    again = history_calls.retrieve_attempt(worker.connection, found.id)
    assert again is not None
    assert again.traceback == RAISED.traceback


def test_a_task_that_was_started_is_one_attempt(worker: Worker) -> None:
    lease = worker.start("early")
    assert worker.attempts("early") == []
    worker.end(lease, Outcome.REPORT, SUCCEEDED)
    (found,) = worker.attempts("early")
    assert (found.outcome, found.state, found.runtime_ms, found.number) == ("acked", "succeeded", 1.25, 1)
    assert (found.consumer, found.claimed_at_ms) == ("worker-1", lease[2])


def test_a_started_task_is_shown_as_running(worker: Worker, module_store_folder: Path) -> None:
    lease = worker.start("shown")
    listed = history_calls.list_messages(worker.connection, queues=["shown"], statuses=["running"])
    (status,) = listed.items[0].queues
    assert (status.status, status.consumer, status.attempts) == ("running", "worker-1", 1)
    with QueueClient(f"opendata://{module_store_folder}") as client:
        (held,) = [state for one in client.workers() for state in client.worker_messages(one.id)]
        assert (held.queue, held.id, held.state, held.holder) == ("shown", lease[1], "running", "worker-1")
        assert held.running_since is not None
        assert sum(one.running for one in client.workers()) == 1
        found = client.get(lease[1])
        assert [state.state for state in found.states] == ["running"]
        worker.end(lease, Outcome.REPORT, SUCCEEDED)
        assert client.metrics("shown").in_flight == 0
    listed = history_calls.list_messages(worker.connection, queues=["shown"], statuses=["done"])
    assert [one.queues[0].status for one in listed.items] == ["done"]


def test_a_task_whose_message_is_held_is_shown_as_running(worker: Worker, module_store_folder: Path) -> None:
    lease, waits = worker.claim("held"), worker.claim("held")
    other = Worker(module_store_folder, "worker-2")
    with QueueClient(f"opendata://{module_store_folder}") as client:

        def seen() -> tuple[list[tuple[int, str]], list[tuple[int, int]]]:
            listed = client.list_messages(queues=["held"], order="asc").items
            holders = [(one.held, one.running) for one in client.workers() if one.name == "worker-1"]
            return [(one.id, one.queues[0].status) for one in listed], holders

        other.connection.report_running([(*lease, 5_000)], None)
        other.connection.call(Ping(0))
        assert seen() == ([(lease[1], "in_flight"), (waits[1], "in_flight")], [(2, 0)]), "it is not its lease"
        socket = worker.connection.report_running([(*lease, 5_000)], None)
        worker.connection.call(Ping(0))
        assert seen() == ([(lease[1], "running"), (waits[1], "in_flight")], [(1, 1)])
        (status,) = client.list_messages(statuses=["running"], queues=["held"]).items[0].queues
        assert lease[2] - 5_000 < status.at_ms <= lease[2] + 60_000
        (found,) = client.get(lease[1]).states
        assert (found.state, found.holder, found.token) == ("running", "worker-1", lease[2])
        assert found.running_since is not None
        states = {one.id: one.state for of in client.workers() for one in client.worker_messages(of.id)}
        assert states == {lease[1]: "running", waits[1]: "in_flight"}
        assert worker.connection.report_running([], socket) is socket, "nothing is sent twice over a socket"
        worker.connection.link.drop()
        worker.connection.call(Ping(0))
        assert seen()[1] == [(1, 1)], "the session kept its leases"
        assert worker.connection.report_running([], socket) is not socket
        worker.connection.call(Ping(0))
        assert seen()[1] == [(2, 0)]
        worker.connection.report_running([(*lease, 5_000)], None)
        worker.end(lease, Outcome.ACK, SUCCEEDED)
        worker.connection.settle(1, Outcome.RELEASE, [waits])
        worker.connection.call(Ping(0))
        assert seen() == ([(lease[1], "done"), (waits[1], "available")], [(0, 0)])
    other.connection.close()


def test_a_task_is_lost_with_its_session(worker: Worker, module_store_folder: Path) -> None:
    other = Worker(module_store_folder, "worker-2")
    lease = other.start("lost")
    other.connection.close()
    (found,) = worker.attempts("lost")
    assert (found.outcome, found.state, found.consumer) == ("acked", "lost", "worker-2")
    worker.end(lease, Outcome.REPORT, SUCCEEDED)
    assert worker.attempts("lost") == [found], "too late"


def test_a_task_whose_client_goes_on_is_reported_over_another_session(
    worker: Worker, module_store_folder: Path
) -> None:
    other = Worker(module_store_folder, "worker-2")
    lease = other.start("moved")
    other.connection.abandon()
    worker.connection.call(Ping(0))
    worker.end(lease, Outcome.REPORT, SUCCEEDED)
    (found,) = worker.attempts("moved")
    assert (found.state, found.consumer) == ("succeeded", "worker-2")


def test_a_task_that_ends_while_the_network_is_cut_is_reported_afterwards(store_folder: Path, tmp_path: Path) -> None:
    """The session is given up after two seconds; its worker lives, and nobody can tell."""
    with children() as started:
        broker = ServedBroker(tmp_path, "--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0")
        started.add(broker)
        worker = Worker(f"127.0.0.1:{broker.port}")
        lease, held = worker.start("early"), worker.claim("late")
        worker.connection.link.drop()
        with QueueClient(f"opendata://127.0.0.1:{broker.port}") as client:
            wait_until(lambda: client.metrics("late").ready == 1, 60, "the end of the session")
            worker.end(lease, Outcome.REPORT, SUCCEEDED)
            worker.end(held, Outcome.ACK, SUCCEEDED)  # another consumer may have it
            assert [(one.state, one.outcome) for one in worker.attempts("early")] == [("succeeded", "acked")]
            assert [one.outcome for one in worker.attempts("late")] == ["expired"]
        worker.connection.close()


def test_attempts_are_found_by_state_exception_and_task(worker: Worker) -> None:
    for name in ("app.errors.Bad", "builtins.ValueError", "app.errors.Bad"):
        report = TaskReport.cut(TaskState.RAISED, 1, 1, "app.add", name, "text", "traceback")
        worker.end(worker.claim("found"), Outcome.ACK, report)
    worker.end(worker.claim("found"), Outcome.ACK, SUCCEEDED)
    worker.connection.settle(1, Outcome.ACK, [worker.claim("found")])
    assert [one.state for one in worker.attempts("found")] == ["raised"] * 3 + ["succeeded", ""]
    raised = worker.attempts("found", states=["raised"], headers={"task": "app.add"})
    assert [one.exception for one in raised] == ["app.errors.Bad", "builtins.ValueError", "app.errors.Bad"]
    assert len(worker.attempts("found", exceptions=["app.errors.Bad"])) == 2
    assert worker.attempts("found", states=["lost"]) == []
    (shown,) = worker.attempts("found", exceptions=["builtins.ValueError"], tracebacks=True)
    assert (shown.error, shown.traceback) == ("text", "traceback")
    counts = history_calls.count_attempts(
        worker.connection, gte=0, lt=1 << 42, bucket_seconds=1 << 32, queues=["found"], states=["raised"]
    )
    assert sum(one.count for one in counts) == 3
    with pytest.raises(InvalidFilter, match="there is no task state 'broken': use one of succeeded, raised"):
        worker.attempts("found", states=["broken"])


@pytest.mark.parametrize("state", ["late", "early"])
def test_texts_are_cut_and_made_utf8(worker: Worker, state: str) -> None:
    long = "\udcff" + "é" * 10_000_000
    report = TaskReport.cut(TaskState.RAISED, -1, 1 << 40, "t" * 999, "x" * 300, long, long)
    queue = f"cut/{state} 😀 \"'"
    if state == "late":
        worker.end(worker.claim(queue), Outcome.REJECT, report)
    else:
        worker.end(worker.start(queue), Outcome.REPORT, report)
    (found,) = worker.attempts(queue, tracebacks=True)
    assert len(found.exception.encode()) <= MAX_EXCEPTION
    assert MAX_ERROR - 4 < len(found.error.encode()) <= MAX_ERROR
    assert MAX_TRACEBACK - 4 < len(found.traceback.encode()) <= MAX_TRACEBACK
    assert found.traceback.startswith("?é")
    assert found.traceback.endswith("é")
    assert "10000001 characters, cut here" in found.traceback


def test_a_text_that_is_too_long_is_refused(worker: Worker) -> None:
    lease = worker.claim("refused")
    with pytest.raises(RequestError, match="more than 16384 bytes"):
        worker.end(lease, Outcome.ACK, TaskReport(TaskState.RAISED, traceback="x" * 16385))
    worker.end(lease, Outcome.ACK, SUCCEEDED)
    assert [one.state for one in worker.attempts("refused")] == ["succeeded"]


@pytest.mark.parametrize("state", ["late", "early"])
def test_tasks_of_transient_queues_are_only_counted(worker: Worker, state: str) -> None:
    queue = f"transient-{state}"
    worker.connection.call(DeclareQueue(0, queue, False, False, False, {}, False))
    worker.connection.io.publish(Publish(0, 0, "", queue, b"body", {}, 0, 1))
    delivery = worker.connection.get(1, queue, no_ack=False)
    assert delivery is not None
    if state == "early":
        worker.connection.settle(1, Outcome.START, [delivery.lease])
    worker.end(delivery.lease, Outcome.ACK if state == "late" else Outcome.REPORT, RAISED)
    assert worker.attempts(queue) == []
    with QueueClient(worker.connection.address.as_uri()) as client:
        assert (client.metrics(queue).in_flight, client.metrics(queue).counts["acked"]) == (0, 1)


@pytest.mark.parametrize(
    ("options", "states"),
    [(("--no-task-outcomes",), [("acked", ""), ("acked", "")]), (("--history-days", "0"), None)],
    ids=["no outcomes", "no history"],
)
def test_reports_are_not_stored(
    options: tuple[str, ...], states: list[tuple[str, str]] | None, store_folder: Path, tmp_path: Path
) -> None:
    with children() as started:
        store = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
        broker = ServedBroker(tmp_path, *store, *options)
        started.add(broker)
        worker = Worker(store_folder)
        assert worker.connection.takes_reports == (states is None)
        worker.end(worker.claim("q"), Outcome.ACK, RAISED)
        lease = worker.start("q")  # a worker that was connected before does not know
        with QueueClient(f"opendata://{store_folder}") as client:
            running = sum(one.running for one in client.workers())
            assert running == (states is None)
            worker.end(lease, Outcome.REPORT, RAISED)
            assert client.metrics("q").done == 2
            assert sum(one.running for one in client.workers()) == 0
        if states is None:
            with pytest.raises(PreconditionFailed, match="keeps no history"):
                worker.attempts("q")
        else:
            assert [(one.outcome, one.state) for one in worker.attempts("q")] == states
        worker.connection.close()


def test_tasks_do_not_run_for_ever_when_reports_are_turned_off(store_folder: Path, tmp_path: Path) -> None:
    """Their worker resumes its session with a broker that takes no reports, so it will not tell how they end."""
    store = ("--store", f"file://{store_folder}", "--listen", f"unix:{store_folder}/broker.sock")
    with children() as started, QueueClient(f"opendata://{store_folder}") as client:
        broker = ServedBroker(tmp_path, *store)
        started.add(broker)
        worker = Worker(store_folder)
        worker.start("q")
        assert sum(one.running for one in client.workers()) == 1
        assert broker.terminate() == 0
        started.add(ServedBroker(tmp_path, *store, "--no-task-outcomes"))
        assert worker.connection.call(Ping(0)) is not None
        wait_until(lambda: sum(one.running for one in client.workers()) == 0, 60, "no running task")
        assert [(one.outcome, one.state) for one in worker.attempts("q")] == [("acked", "")]
        worker.connection.close()


@pytest.fixture
def on_loop(module_store_folder: Path) -> Iterator[tuple[Any, Any]]:
    """A channel, and the event loop that reads its connection, as a worker has them."""
    hub = Hub()
    with Connection(f"opendata://{module_store_folder}") as connection:
        connection.register_with_event_loop(hub)
        yield connection.channel(), hub
        connection.transport.unregister_from_event_loop(connection.connection, hub)
    hub.close()


def started(channel: Any, queue: str) -> Lease:
    """Publish a message into the queue, and begin its task."""
    channel.queue_declare(queue, durable=True, auto_delete=False)
    channel.basic_publish(channel.prepare_message("{}"), "", queue)
    message = channel.basic_get(queue)
    message.run = TaskRun.BEGUN
    message.ack()
    lease: Lease = message.lease
    return lease


def report(channel: Any, lease: Lease, said: TaskReport) -> None:
    channel.connection.settle_task(channel.channel_id, Outcome.REPORT, lease, said)


def test_a_success_waits_for_the_next_frame_and_not_longer_than_the_loop_is_idle(
    worker: Worker, on_loop: tuple[Any, Any]
) -> None:
    channel, hub = on_loop
    waiting = channel.connection.session.settlements
    lease = started(channel, "waits")
    report(channel, lease, SUCCEEDED)
    assert [item[1:4] for item in waiting.reports] == [lease]
    assert worker.attempts("waits") == []
    other = started(channel, "waits")
    assert waiting.reports == [], "it went with the next start"
    wait_until(lambda: [one.message_id for one in worker.attempts("waits")] == [lease[1]], 60, "the first report")
    report(channel, other, SUCCEEDED)
    while waiting.reports:
        hub.run_once()
    wait_until(lambda: len(worker.attempts("waits")) == 2, 60, "the second report")


def test_a_failure_and_what_another_thread_reports_do_not_wait(worker: Worker, on_loop: tuple[Any, Any]) -> None:
    channel, _hub = on_loop
    report(channel, started(channel, "at once"), RAISED)
    lease = started(channel, "at once")
    with ThreadPoolExecutor(1) as threads:
        threads.submit(report, channel, lease, SUCCEEDED).result(10)
    wait_until(
        lambda: [one.state for one in worker.attempts("at once")] == ["raised", "succeeded"], 10, "both reports"
    )  # fmt: skip


def test_a_worker_may_report_nothing(worker: Worker, module_store_folder: Path) -> None:
    options = {"task_outcomes": False}
    with Connection(f"opendata://{module_store_folder}", transport_options=options) as connection:
        channel: Any = connection.channel()
        assert not channel.takes_reports
        for queue in ("silent", "silent"):
            channel.queue_declare(queue, durable=True, auto_delete=False)
            channel.basic_publish(channel.prepare_message("{}"), "", queue)
        for settle in ("ack", "reject"):
            message = channel.basic_get("silent")
            message.run = RAISED
            getattr(message, settle)()
    assert [(one.outcome, one.state) for one in worker.attempts("silent")] == [("acked", ""), ("rejected", "")]
