"""What a worker reports of its tasks, with every pool: each way in which a run can end, acknowledged early and late.

The tests of a pool share one worker, of two processes, threads or greenlets.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kombu_opendata import QueueClient
from kombu_opendata.protocol.messages import AttemptInfo
from tests.support.ticks import wait_expired
from tests.support.waiting import pass_time

from ..support.broker import EmbeddedBroker
from ..support.celery_versions import from_celery_57
from ..support.farm import Farm
from ..support.kombu_client import connected
from ..support.ledger import Ledger
from ..support.processes import children, wait_until
from ..support.workers import Worker, sender

pytestmark = pytest.mark.contract(17)

PATIENCE_SECONDS = 60
POOLS = {
    "prefork": pytest.param("prefork"),
    **{pool: pytest.param(pool, marks=pytest.mark.slow) for pool in ("solo", "threads", "gevent", "eventlet")},
}

#: what every pool reports of a task: its state, the exception's type, a part of its message
ENDS = {
    "fine": ("succeeded", "", ""),
    "raises": ("raised", "ValueError", "it went wrong"),
    "unprintable": ("raised", "outcomes.Unprintable", "str() of this Unprintable failed"),
    "unpicklable": ("raised", "outcomes.Local", "stays here"),
    "surrogates": ("raised", "ValueError", "bad ? text"),
    "huge": ("raised", "ValueError", "10000000 characters"),
    "rejects": ("rejected", "celery.exceptions.Reject", "not for me"),
    "ignores": ("ignored", "", ""),
}


class Reported(Farm):
    """A worker whose attempts are read."""

    client: QueueClient
    own: Path

    def attempts(self, *names: str, queue: str = "celery") -> dict[str, list[AttemptInfo]]:
        """The attempts of these tasks of the app, the oldest first."""
        found: dict[str, list[AttemptInfo]] = {name: [] for name in names}
        tasks = [f"farm.{name}" for name in names]
        for attempt in self.client.iter_attempts(queues=[queue], headers={"task": tasks}, tracebacks=True, order="asc"):
            assert attempt.event is not None
            found[attempt.event.headers["task"].removeprefix("farm.")].append(attempt)
        return found

    def wait_attempts(self, *names: str, each: int = 1, queue: str = "celery") -> dict[str, list[AttemptInfo]]:
        """The same, once there are so many of each."""
        wait_until(
            lambda: all(len(ended) >= each for ended in self.attempts(*names, queue=queue).values()),
            PATIENCE_SECONDS,
            lambda: f"{each} of each: {self.attempts(*names, queue=queue)}\n{self.worker.log.read_text()[-5000:]}",
        )
        return self.attempts(*names, queue=queue)

    def wait_of(self, task_id: str) -> AttemptInfo:
        """The attempt of one message."""
        found: list[AttemptInfo] = []

        def ended() -> bool:
            found[:] = self.client.iter_attempts(headers={"id": [task_id]}, tracebacks=True)
            return bool(found)

        wait_until(ended, PATIENCE_SECONDS, lambda: f"an attempt of {task_id}:\n{self.worker.log.read_text()[-5000:]}")
        return found[0]


@pytest.fixture(scope="module", params=POOLS.values())
def farm(
    request: pytest.FixtureRequest, module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reported]:
    pool: str = request.param
    store = module_store_folder / pool
    url, folder = f"opendata://{store}", tmp_path_factory.mktemp(pool)
    os.environ["FARM_OWN"] = str(folder / "own.txt")
    with children() as started, sender(url) as app, QueueClient(url) as client:
        worker = Worker(url, folder, pool, "-Q", "celery,other", pool=pool, concurrency=2, include=["outcomes"])
        started.add(worker)
        worker.wait_ready()
        farm = Reported(app, worker, EmbeddedBroker(store))
        farm.client, farm.own = client, folder / "own.txt"
        yield farm
        app.control.shutdown(destination=[worker.name])
        assert worker.wait(PATIENCE_SECONDS) == 0
        assert "can't be reported" not in worker.log.read_text()
        assert "could not be reported" not in worker.log.read_text()


def with_pools(*pools: str) -> pytest.MarkDecorator:
    """Only these pools can do what the test asks for."""
    return pytest.mark.parametrize("farm", [POOLS[pool] for pool in pools], indirect=True, scope="module")


def pool_of(farm: Farm) -> str:
    return farm.worker.name.partition("@")[0]


def test_each_end_of_a_task(farm: Reported) -> None:
    names = [f"{name}{late}" for name in ENDS for late in ("", "_late")]
    for name in names:
        farm.send(name)
    for name, (attempt, *more) in farm.wait_attempts(*names).items():
        assert not more, name
        state, exception, error = ENDS[name.removesuffix("_late")]
        assert (attempt.state, attempt.exception) == (state, exception), name
        assert error in attempt.error, name
        assert attempt.outcome == ("rejected" if name == "rejects_late" else "acked"), name
        assert attempt.runtime_ms < 60_000, name
        assert (attempt.pid == farm.worker.pid) == (pool_of(farm) != "prefork"), name
        assert ("Traceback" in attempt.traceback) == (state in ("raised", "rejected")), name
    traceback = farm.attempts("raises")["raises"][0].traceback
    assert "the cause" in traceback
    assert "in raises" in traceback


def test_how_long_a_task_ran(farm: Reported, ledger: Ledger, tmp_path: Path) -> None:
    for name in ("hangs", "hangs_late"):
        sent_at, gate = time.monotonic(), tmp_path / name
        task_id = farm.send(name, str(ledger), name, str(gate))
        ledger.wait_for(f"{name} began")
        began_at = time.monotonic()
        pass_time(0.05)
        held_ms = 1000 * (time.monotonic() - began_at)
        gate.touch()
        attempt = farm.wait_of(task_id)
        assert held_ms <= attempt.runtime_ms + 1
        assert attempt.runtime_ms <= 1000 * (time.monotonic() - sent_at)
        assert attempt.state == "succeeded"


def test_a_task_that_is_retried(farm: Reported) -> None:
    for name in ("again", "again_late"):
        farm.send(name)
    for name, ended in farm.wait_attempts("again", "again_late", each=2).items():
        ended.sort(key=lambda attempt: attempt.claimed_at_ms)
        assert [attempt.state for attempt in ended] == ["retried", "raised"], name
        assert {(attempt.exception, attempt.error) for attempt in ended} == {("TimeoutError", "not yet")}, name
        assert len({attempt.message_id for attempt in ended}) == 2, "Celery sends it again"


def test_tasks_that_are_revoked_before_they_run(farm: Reported, ledger: Ledger) -> None:
    by_id = farm.send("fine", queue="later")
    stamped = farm.send("fine_late", queue="later", stamped_headers=["account"], account="a-1")
    farm.control("revoke", by_id)
    farm.control("revoke_by_stamped_headers", {"account": ["a-1"]})
    assert "ok" in farm.control("add_consumer", "later")
    for task_id in (by_id, stamped):
        attempt = farm.wait_of(task_id)
        assert (attempt.state, attempt.error, attempt.outcome) == ("revoked", "", "acked")
    farm.control("cancel_consumer", "later")


@with_pools("prefork", "solo")
def test_a_task_that_expires_in_the_worker(farm: Reported, ledger: Ledger, tmp_path: Path) -> None:
    """The broker removes those that expire in their queue."""
    gate = tmp_path / "gate"
    for line in ("first", "second"):
        farm.send("hangs", str(ledger), line, str(gate))
    ledger.wait_for("first began")
    expires = farm.send("fine", expires=1)
    farm.broker.wait_queue("celery", 0, 1 if pool_of(farm) == "prefork" else 3)
    wait_expired(farm.client, 1)
    gate.touch()
    attempt = farm.wait_of(expires)
    assert (attempt.state, attempt.error, attempt.outcome) == ("revoked", "it expired", "acked")


@with_pools("prefork", "gevent", "eventlet")
def test_tasks_that_are_terminated(farm: Reported, ledger: Ledger, tmp_path: Path) -> None:
    for name in ("hangs", "hangs_late"):
        running = farm.send(name, str(ledger), name, str(tmp_path / "gate"))
        ledger.wait_for(f"{name} began")
        wait_until(lambda: farm.inspect("active"), PATIENCE_SECONDS, "the task to be active")
        farm.control("revoke", running, terminate=True)
        attempt = farm.wait_of(running)
        assert (attempt.state, attempt.error, attempt.outcome) == ("revoked", "it was terminated", "acked")
    assert farm.wait_of(farm.send("fine")).state == "succeeded"


@pytest.mark.parametrize("name", ["hangs", "hangs_late"])
def test_a_task_that_hangs_is_seen(farm: Reported, ledger: Ledger, tmp_path: Path, name: str) -> None:
    """Whether its message was acknowledged or not; the other tasks of the worker are not taken for running."""
    gate = tmp_path / "gate"
    hangs = farm.send(name, str(ledger), name, str(gate))
    ledger.wait_for(f"{name} began")

    def running() -> list[str]:
        found = farm.client.list_messages(statuses=["running"]).items
        return [one.headers["id"] for one in found for at in one.queues if at.consumer == farm.worker.name]

    wait_until(lambda: running() == [hangs], PATIENCE_SECONDS, lambda: str(running()))
    assert sum(one.running for one in farm.client.workers() if one.name == farm.worker.name) == 1
    gate.touch()
    assert farm.wait_of(hangs).state == "succeeded"
    assert running() == []


@with_pools("prefork", "gevent")
def test_tasks_over_their_hard_time_limit(farm: Reported, ledger: Ledger, tmp_path: Path) -> None:
    for name in ("hangs", "hangs_late"):
        attempt = farm.wait_of(farm.send(name, str(ledger), name, str(tmp_path / "gate"), time_limit=1))
        assert attempt.state == "timed_out", attempt
        assert "imit" in attempt.error + attempt.exception
        assert attempt.runtime_ms >= 900


@with_pools("prefork")
def test_tasks_over_their_soft_time_limit(farm: Reported) -> None:
    for name in ("too_long", "too_long_late"):
        attempt = farm.wait_of(farm.send(name))
        assert (attempt.state, attempt.outcome) == ("timed_out", "acked")
        assert attempt.exception.endswith("SoftTimeLimitExceeded")
        assert "in too_long" in attempt.traceback


@pytest.mark.slow  # the pool waits ten seconds for the result of a process that was killed
@with_pools("prefork")
def test_tasks_whose_process_ends(farm: Reported, tmp_path: Path) -> None:
    names = ("dies", "dies_late", "exits", "exits_late")
    for name, task_id in [(name, farm.send(name)) for name in names]:
        attempt = farm.wait_of(task_id)
        assert (attempt.state, attempt.outcome) == ("lost", "acked"), name
        assert attempt.exception
        assert attempt.pid not in (0, farm.worker.pid)
    farm.send("dies_once", str(tmp_path / "first"))
    first, second = farm.wait_attempts("dies_once", each=2)["dies_once"]
    assert (first.state, first.requeued) == ("lost", True)
    assert (second.state, second.outcome) == ("succeeded", "acked")


@with_pools("threads", "gevent", "eventlet")
def test_a_task_that_exits_where_there_is_no_process(farm: Reported) -> None:
    """Celery stumbles over it (a solo worker ends); its message is acknowledged only if it was before."""
    attempt = farm.wait_of(farm.send("exits"))
    assert (attempt.state, attempt.outcome) == ("lost", "acked")
    assert "SystemExit" in attempt.error


def test_a_task_that_is_not_acknowledged_when_it_fails(farm: Reported) -> None:
    attempt = farm.wait_of(farm.send("unkept"))
    assert (attempt.state, attempt.error, attempt.outcome) == ("raised", "not acknowledged", "rejected")


def test_a_class_of_requests_of_the_users_own(farm: Reported) -> None:
    attempt = farm.wait_of(farm.send("own"))
    assert (attempt.state, attempt.error) == ("raised", "own")
    wait_until(  # the report is sent before
        lambda: farm.own.exists() and "on_failure farm.own" in farm.own.read_text(), PATIENCE_SECONDS, "its on_failure"
    )


def test_messages_that_are_no_tasks(farm: Reported) -> None:
    """One of a task that the worker does not have, one without a task, one whose body can't be read."""
    farm.send("missing", queue="other")
    with connected(f"opendata://{farm.broker.folder}") as connection:
        producer = connection.Producer()
        producer.publish({"no": "task"}, routing_key="other", headers={"kind": "none"})
        producer.publish(b"{", routing_key="other", content_type="application/json", headers={"kind": "torn"})
    wait_until(lambda: len(farm.client.list_attempts(queues=["other"]).items) == 3, PATIENCE_SECONDS, "three attempts")
    kinds = {}
    for attempt in farm.client.iter_attempts(queues=["other"]):
        assert attempt.event is not None
        kinds[attempt.event.headers.get("task") or attempt.event.headers["kind"]] = attempt
    assert {attempt.state for attempt in kinds.values()} == {"rejected"}
    missing, none, torn = (kinds[kind] for kind in ("farm.missing", "none", "torn"))
    assert (missing.exception, missing.outcome) == ("celery.exceptions.NotRegistered", "rejected")
    assert "farm.missing" in missing.error
    assert "not the message of a task" in none.error
    assert torn.exception


# ---------------------------------------------------------------------- workers of their own
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"broker_transport_options": {"task_outcomes": False}}, id="option"),
        pytest.param({"task_queues": {"celery": {"no_ack": True}}}, id="no_ack", marks=from_celery_57),
    ],
)
def test_a_worker_that_reports_nothing(
    settings: dict[str, Any], store_folder: Path, broker_url: str, tmp_path: Path
) -> None:
    with children() as started, sender(broker_url) as app, QueueClient(broker_url) as client:
        worker = Worker(broker_url, tmp_path, "silent", pool="threads", include=["outcomes"], **settings)
        started.add(worker)
        for name in ("fine", "fine_late", "raises", "raises_late"):
            app.send_task(f"farm.{name}")

        def ended_in_log() -> int:
            log = worker.log.read_text()
            return log.count("succeeded in") + log.count("raised unexpected")

        wait_until(lambda: ended_in_log() == 4, PATIENCE_SECONDS, lambda: worker.log.read_text())
        wait_until(lambda: len(client.list_attempts().items) == 4, PATIENCE_SECONDS, lambda: worker.log.read_text())
        ended = list(client.iter_attempts())
        assert {(attempt.outcome, attempt.state, attempt.pid) for attempt in ended} == {("acked", "", 0)}
        assert worker.terminate() == 0
        assert "kombu_opendata" not in worker.log.read_text()
