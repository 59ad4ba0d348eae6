"""Results, asked for as a Celery user does: one URL is the broker and the result backend."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import group, states
from celery.app.task import Context
from celery.exceptions import NotRegistered
from celery.exceptions import TimeoutError as ResultTimeout
from celery.result import GroupResult, ResultSet

from ..support.broker import EmbeddedBroker
from ..support.celery_versions import from_celery_57
from ..support.ledger import Ledger
from ..support.orchard import SECONDS, Orchard, asking, environment, orchard
from ..support.processes import children
from ..support.served import ServedBroker
from ..support.workers import APPS

POOLS = ["solo", "prefork", "threads"]


@pytest.fixture(scope="module", params=POOLS)
def grove(
    request: pytest.FixtureRequest, module_store_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Orchard]:
    pool: str = request.param
    url = f"opendata://{module_store_folder / pool}"
    with orchard(url, tmp_path_factory.mktemp(pool), pool=pool, result_extended=True) as found:
        yield found


@pytest.fixture
def shared(request: pytest.FixtureRequest, store_folder: Path, broker_url: str, tmp_path: Path) -> Iterator[Orchard]:
    with orchard(broker_url, tmp_path, pool="prefork") as found:
        yield found


def test_a_result(grove: Orchard) -> None:
    result = grove.delay("add", 2, 3)
    assert result.get(timeout=SECONDS) == 5
    assert result.state == states.SUCCESS
    assert grove.app.AsyncResult(result.id).get(timeout=0) == 5
    assert (result.name, result.args, result.retries, result.queue) == ("farm.add", [2, 3], 0, "celery")


@from_celery_57
def test_a_result_exists(grove: Orchard) -> None:
    result = grove.delay("add", 2, 3)
    assert result.get(timeout=SECONDS) == 5
    assert grove.app.AsyncResult(result.id).exists()
    assert not grove.app.AsyncResult("nobody").exists()
    with pytest.raises(ResultTimeout):
        grove.app.AsyncResult("nobody").get(timeout=0)


def test_an_error_and_an_unknown_task(grove: Orchard) -> None:
    failed = grove.delay("fall", "down")
    with pytest.raises(Exception, match="down") as caught:
        failed.get(timeout=SECONDS)
    assert type(caught.value).__name__ == "Fallen"
    assert failed.state == states.FAILURE
    assert "raise Fallen" in failed.traceback
    with pytest.raises(ResultTimeout):
        grove.app.AsyncResult("nobody").get(timeout=0.2)
    assert grove.app.AsyncResult("nobody").state == states.PENDING


@pytest.mark.parametrize("protocol", [1, 2])
def test_a_message_for_a_task_that_the_worker_does_not_know(grove: Orchard, protocol: int) -> None:
    grove.app.conf.task_protocol, usual = protocol, grove.app.conf.task_protocol
    try:
        unknown = grove.app.send_task("farm.renamed", (1,))
    finally:
        grove.app.conf.task_protocol = usual
    with pytest.raises(NotRegistered, match=r"farm\.renamed"):
        unknown.get(timeout=SECONDS)
    assert unknown.state == states.FAILURE
    assert grove.delay("add", 1, 1).get(timeout=SECONDS) == 2


def test_states_on_the_way_are_pushed(grove: Orchard, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    told: list[Any] = []

    def on_message(meta: Any) -> None:
        told.append((meta["status"], meta["result"]))
        gate.touch()

    result = grove.delay("climb", str(gate))
    assert result.get(timeout=SECONDS, on_message=on_message) == "top"
    assert told[0] == ("PROGRESS", {"done": 1})
    assert told[-1] == ("SUCCESS", "top")
    assert grove.delay("again", "third time").get(timeout=SECONDS) == "third time"


def test_a_forgotten_result(grove: Orchard) -> None:
    result = grove.delay("add", 1, 1)
    assert result.get(timeout=SECONDS) == 2
    result.forget()
    assert grove.app.AsyncResult(result.id).state == states.PENDING
    assert grove.delay("add", 1, 1, ignore_result=True).get() is None


@from_celery_57
def test_a_task_that_ignores_its_result(grove: Orchard) -> None:
    ignored = grove.delay("silent", 1)
    grove.delay("add", 1, 1).get(timeout=SECONDS)
    assert grove.app.AsyncResult(ignored.id).state == states.PENDING


def test_many_results_at_once(grove: Orchard) -> None:
    results = [grove.delay("add", number, number) for number in range(50)]
    assert ResultSet(results, app=grove.app).join_native(timeout=SECONDS) == [2 * number for number in range(50)]
    assert ResultSet(results, app=grove.app).join(timeout=SECONDS) == [2 * number for number in range(50)]
    found = dict(ResultSet(results, app=grove.app).iter_native(timeout=SECONDS))
    assert {meta["result"] for meta in found.values()} == {2 * number for number in range(50)}


def test_a_group_that_is_saved_and_restored(grove: Orchard) -> None:
    result = group(grove.sig("add", number, 1) for number in range(10)).apply_async()
    result.save()
    group_id = result.id
    del result  # up to Celery 5.6, one object waits for the result of a task
    restored = GroupResult.restore(group_id, app=grove.app)
    assert restored.get(timeout=SECONDS) == list(range(1, 11))
    assert restored.completed_count() == 10
    restored.delete()
    assert GroupResult.restore(group_id, app=grove.app) is None


def test_children(grove: Orchard) -> None:
    result = grove.delay("parent", 3)
    leaves = [value for found, value in result.collect(intermediate=True, timeout=SECONDS) if not found.children]
    assert sorted(leaves) == [0, 2, 4]


def test_a_promise(grove: Orchard) -> None:
    kept: list[Any] = []
    first = grove.delay("add", 1, 2)
    first.then(lambda result: kept.append(result.result))
    assert grove.delay("add", 1, 1).get(timeout=SECONDS) == 2
    assert first.get(timeout=SECONDS) == 3
    assert kept == [3]


@pytest.mark.parametrize("is_shared", [True, False], ids=["one backend", "a backend each"])
def test_threads_that_wait_at_once(grove: Orchard, is_shared: bool) -> None:
    """Each is woken when its own result comes, not at the next turn of a poll."""
    found: dict[int, Any] = {}

    def ask(number: int, result: Any) -> None:
        result = result or grove.delay("add", number, number)
        found[number] = result.get(timeout=SECONDS)

    start = time.monotonic()
    for turn in range(3):
        given = {n: grove.delay("add", n, n) if is_shared else None for n in range(10 * turn, 10 * turn + 10)}
        threads = [threading.Thread(target=ask, args=pair) for pair in given.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {number: 2 * number for number in range(30)}
    assert time.monotonic() - start < SECONDS


def test_purge_leaves_results_alone(grove: Orchard) -> None:
    result = grove.delay("add", 4, 4)
    assert result.get(timeout=SECONDS) == 8
    grove.app.control.purge()
    assert grove.app.AsyncResult(result.id).get(timeout=SECONDS) == 8


def test_the_command_that_shows_a_result(grove: Orchard) -> None:
    result = grove.delay("add", 20, 22)
    assert result.get(timeout=SECONDS) == 42
    command = [sys.executable, "-m", "celery", "-A", "orchard", "result", result.id]
    env = {**os.environ, **environment(grove.app.conf.broker_url)}
    done = subprocess.run(command, cwd=APPS, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert "42" in done.stdout, done


def test_a_task_waits_for_another_one(store_folder: Path, broker_url: str, tmp_path: Path) -> None:
    """In a prefork worker's child, over a connection that is its own."""
    with orchard(broker_url, tmp_path, "-Q", "celery,asked", pool="prefork") as grove:
        assert grove.delay("ask", 1, 2).get(timeout=SECONDS) == 3
        results = [grove.delay("who", number) for number in range(20)]
        pids = {pid for _value, pid in (result.get(timeout=SECONDS) for result in results)}
        assert grove.worker.pid not in pids


def test_a_forked_child_waits_for_what_its_parent_sent(shared: Orchard, ledger: Ledger, tmp_path: Path) -> None:
    result = shared.delay("add", 3, 4)
    result.then(lambda _: None)
    assert shared.delay("add", 1, 1).get(timeout=SECONDS) == 2
    gate = tmp_path / "gate"
    later = shared.delay("hold_late_and_return", 5, str(ledger), str(gate))
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if later.get(timeout=SECONDS) == 5 and result.get(timeout=SECONDS) == 7 else 1)
        finally:
            os._exit(2)
    gate.touch()
    assert later.get(timeout=SECONDS) == 5
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_result_over_the_limit_fails_and_nobody_hangs(tmp_path: Path, store_folder: Path) -> None:
    options = ["--store", f"file://{store_folder}", "--listen", "tcp:127.0.0.1:0", "--max-message-bytes", "40000"]
    with children() as started:
        broker = ServedBroker(tmp_path, *options)
        started.add(broker)
        with orchard(f"opendata://127.0.0.1:{broker.port}", tmp_path, pool="prefork") as grove:
            assert grove.delay("large", 30_000).get(timeout=SECONDS) == "x" * 30_000
            result = grove.delay("large", 50_000)
            with pytest.raises(Exception, match=r"the result has 50.* bytes and the broker's limit is 40000") as caught:
                result.get(timeout=SECONDS)
            assert type(caught.value).__name__ == "ResultTooLarge"
            assert result.state == states.FAILURE
            fell = grove.delay("fall_hard", 50_000)
            with pytest.raises(Exception, match="broker's limit is 40000"):
                fell.get(timeout=SECONDS)
            header = [grove.sig("add", 1, 1), grove.sig("large", 50_000)]
            failed = (group(header) | grove.sig("same")).apply_async()
            with pytest.raises(Exception, match="broker's limit is 40000"):
                failed.get(timeout=SECONDS)
        assert broker.terminate() == 0


@pytest.mark.slow
def test_a_task_that_returns_its_50_megabytes_with_what_it_was_called_with(broker_url: str, tmp_path: Path) -> None:
    text = "x" * 50_000_000
    with orchard(broker_url, tmp_path, pool="solo", result_extended=True) as grove:
        result = grove.delay("same", text)
        assert result.get(timeout=SECONDS) == text
        assert result.args == [text]
        assert grove.app.AsyncResult(result.id).get(timeout=SECONDS) == text


def test_the_limit_is_an_option_of_a_folders_broker(broker_url: str, tmp_path: Path) -> None:
    options = {"broker_options": {"max_message_bytes": 40_000}}
    with orchard(broker_url, tmp_path, broker_transport_options=options) as grove:
        grove.app.conf.broker_transport_options = options
        with pytest.raises(Exception, match=r"broker's limit is 40000: .* or raise the broker's --max-message-bytes"):
            grove.delay("same", "x" * 50_000)


def test_the_result_of_an_id_that_is_used_again_is_kept_over_a_restart(store_folder: Path, broker_url: str) -> None:
    first_run = Context(id="report-2026", delivery_info={"redelivered": False})
    with asking(broker_url) as app:
        app.backend.store_result("report-2026", "first", states.SUCCESS, request=first_run)
        EmbeddedBroker(store_folder).terminate()
        app.backend.store_result("report-2026", "second", states.SUCCESS, request=first_run)
        assert app.AsyncResult("report-2026").get(timeout=SECONDS) == "first"


def test_rpc_results(store_folder: Path, broker_url: str, tmp_path: Path) -> None:
    """Kombu's own way: a reply queue for each client."""
    with orchard(broker_url, tmp_path, backend="rpc://", pool="prefork") as grove:
        assert grove.delay("add", 2, 3).get(timeout=SECONDS) == 5
        results = [grove.delay("add", number, 1) for number in range(20)]
        assert [result.get(timeout=SECONDS) for result in results] == list(range(1, 21))
        with pytest.raises(Exception, match="down"):
            grove.delay("fall", "down").get(timeout=SECONDS)
        grove.app.backend.result_consumer.stop()  # Celery leaves its connection to the garbage collector


def test_the_backend_takes_the_brokers_url(broker_url: str) -> None:
    with asking(broker_url, backend="opendata") as app:
        assert app.backend.as_uri() == app.conf.broker_url
