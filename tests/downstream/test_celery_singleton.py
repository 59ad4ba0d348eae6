"""celery-singleton with locks in the broker's store."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient

from ..support.certificates import Authority
from ..support.processes import Child, Children, run, tail, wait_until
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import APPS, StartWorker

COMPATIBILITY = Row(
    package="celery-singleton",
    tried="twelve concurrent senders, TLS, success, failure, retries, `lock_expiry`, `raise_on_duplicate`, "
    "`clear_locks`, a broker that is killed",
    result="Works; a retried task keeps its lock. `clear_locks` is refused, because the broker does not list locks "
    "([patch](upstream/celery-singleton.md)).",
    settings='`singleton_backend_class = "kombu_opendata.celery_integration.SingletonBackend"`, with '
    '`singleton_backend_kwargs = {"ssl": …}` for TLS; `singleton_lock_expiry` in place of `clear_locks`',
)
PATIENCE_SECONDS = 60
PROCESSES, NUMBERS = 3, 20


def sent(url: str, code: str, **settings: Any) -> str:
    """What a program prints that uses the app's tasks."""
    env = {"CELERY_BROKER_URL": url, "SINGLETON_SETTINGS": json.dumps(settings)}
    return run([sys.executable, "-c", f"from singleton import *\n{code}"], APPS, env).strip()


def wait_ended(client: QueueClient, **states: int) -> None:
    """Until so many runs have ended in these states."""

    def count() -> dict[str, int]:
        found: dict[str, int] = defaultdict(int)
        for attempt in client.iter_attempts(queues=["celery"]):
            found[attempt.state] += 1
        return dict(found)

    wait_until(lambda: count() == states, PATIENCE_SECONDS, lambda: f"{states}, has {count()}")


def test_of_many_senders_one_sends(
    broker: ServedBroker, client: QueueClient, start_worker: StartWorker, tmp_path: Path, started: Children
) -> None:
    gate, env = tmp_path / "gate", {"CELERY_BROKER_URL": broker.url}
    command = [sys.executable, "singleton.py", str(gate)]
    senders = [Child(command, tmp_path / f"sender-{each}.log", cwd=APPS, env=env) for each in range(PROCESSES)]
    for each in senders:
        started.add(each)
    wait_until(lambda: all("ready" in each.log.read_text() for each in senders), PATIENCE_SECONDS, "the senders")
    gate.touch()
    ids = defaultdict(set)
    for each in senders:
        assert each.wait(PATIENCE_SECONDS) == 0, tail(each.log)
        lines = each.log.read_text().replace("ready", "").split()
        for number, task_id in zip(lines[::2], lines[1::2], strict=True):
            ids[number].add(task_id)
    assert sorted(ids, key=int) == [str(number) for number in range(NUMBERS)]
    assert {len(each) for each in ids.values()} == {1}, "all senders have the result of the one task"
    assert client.metrics("celery").ready == NUMBERS
    start_worker("singleton")
    wait_ended(client, succeeded=NUMBERS)
    again = sent(broker.url, "print(once.delay(0).id)")
    assert again not in ids["0"], "its lock was released when it had run"
    wait_ended(client, succeeded=NUMBERS + 1)


def test_a_lock_is_released_after_a_failure_and_kept_by_a_retry(
    broker: ServedBroker, client: QueueClient, start_worker: StartWorker
) -> None:
    worker = start_worker("singleton")
    for failures in (1, 2):
        sent(broker.url, "fails.delay(1)")
        wait_ended(client, raised=failures)
    sent(broker.url, "retried.delay(1)")
    wait_ended(client, raised=2, retried=2, succeeded=1)
    sent(broker.url, "retried.delay(1)")
    wait_ended(client, raised=2, retried=4, succeeded=2)
    assert worker.terminate() == 0, tail(worker.log)


def test_duplicates_expiry_and_the_locks_of_a_killed_broker(
    broker: ServedBroker, store_folder: Path, started: Children
) -> None:
    first = sent(broker.url, "print(once.apply_async((1,), task_id='first').id)")
    assert first == "first"
    assert sent(broker.url, "print(once.apply_async((1,), task_id='first').id)") == "first"
    send = "try:\n    once.delay(1)\nexcept Exception as exc:\n    print(type(exc).__name__, exc.task_id)"
    assert sent(broker.url, send, singleton_raise_on_duplicate=True) == "DuplicateTaskError first"
    broker.kill()
    listen = ("--listen", f"tcp:127.0.0.1:{broker.port}")
    started.add(second := ServedBroker(store_folder, "--store", f"file://{store_folder}/store", *listen))
    assert sent(second.url, "print(once.delay(1).id)") == "first"
    with QueueClient(second.url) as client:
        assert client.metrics("celery").ready == 1
    short = "print(once.apply_async((2,), task_id='short').id)"
    assert sent(second.url, short, singleton_lock_expiry=1) == "short"
    wait_until(lambda: sent(second.url, "print(once.delay(2).id)") != "short", PATIENCE_SECONDS, "the end of the lock")


def test_locks_over_tls(store_folder: Path, tmp_path: Path, started: Children) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server", "localhost")
    options = ("--store", f"file://{store_folder}/store", "--listen", "tcp:127.0.0.1:0")
    started.add(secured := ServedBroker(tmp_path, *options, "--tls-cert", str(issued.both)))
    url, ssl = f"opendatas://localhost:{secured.port}", {"ca_certs": str(authority.path)}
    given = {"broker_url": url, "broker_use_ssl": ssl, "singleton_backend_kwargs": {"ssl": ssl}}
    assert sent(url, "print(once.apply_async((1,), task_id='first').id)", **given) == "first"
    assert sent(url, "print(once.delay(1).id)", **given) == "first"


def test_locks_are_not_cleared_and_other_brokers_not_used(broker: ServedBroker) -> None:
    clear = (
        "import celery_singleton\ntry:\n    celery_singleton.clear_locks(app)\nexcept Exception as exc:\n    print(exc)"
    )
    assert "The broker does not list the locks SINGLETONLOCK_…" in sent(broker.url, clear)
    send = "try:\n    once.delay(1)\nexcept Exception as exc:\n    print(exc)"
    refused = sent(broker.url, send, singleton_backend_url="redis://127.0.0.1:1/0")
    assert refused.startswith("singleton_backend_url: "), refused
    unknown = sent(broker.url, send, singleton_backend_kwargs={"db": 1})
    assert "singleton_backend_kwargs: the option 'db' is unknown" in unknown


def test_without_the_class_redis_refuses_the_url(broker: ServedBroker) -> None:
    code = "try:\n    once.delay(1)\nexcept Exception as exc:\n    print(exc)"
    settings = {"singleton_backend_class": "celery_singleton.backends.RedisBackend", "broker_url": broker.url}
    assert sent(broker.url, code, **settings).startswith("Redis URL must specify one of the following schemes")
