"""Web applications that publish in each request: gunicorn with each of its kinds of workers, and uvicorn."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from kombu_opendata import QueueClient

from ..support.processes import Child, Children, tail, wait_until
from ..support.served import ServedBroker
from .compatibility import Row
from .conftest import APPS, StartWorker

COMPATIBILITY = [
    Row(
        package="gunicorn",
        tried="sync, gthread, gevent and uvicorn workers, each with and without `--preload`, after a publish before "
        "the fork; a graceful reload",
        result="Everything works. A connection that exists before the fork is not shared with the worker processes.",
        settings="`app.finalize()` where the app is made, if requests are served by threads: on every broker, Celery "
        "raises `AttributeError` when two threads use a task first",
    ),
    Row(
        package="fastapi",
        tried="three processes of uvicorn; handlers that await, that run on threads, and that call `delay` on the "
        "event loop",
        result="Everything works.",
        settings="`await kombu_opendata.apply_async(…)` in asynchronous handlers: `delay` blocks the event loop until "
        "the task is durable",
    ),
]
SECONDS = 60
REQUESTS = 60
WORKERS = {
    "sync": ["--worker-class=sync"],
    "gthread": ["--worker-class=gthread", "--threads=8"],
    "gevent": ["--worker-class=gevent"],
    "uvicorn": ["--worker-class=uvicorn_worker.UvicornWorker"],
}


def serve(command: list[str], broker: ServedBroker, folder: Path, started: Children) -> Child:
    env = {"CELERY_BROKER_URL": broker.url, "ORDERS_IS_SERVED": "1", "PYTHONUNBUFFERED": "1"}
    started.add(server := Child([sys.executable, "-m", *command], folder / "server.log", cwd=APPS, env=env))
    return server


def wait_for_log(server: Child, pattern: str) -> None:
    def found() -> bool:
        server.check()
        return re.search(pattern, server.log.read_text()) is not None

    wait_until(found, SECONDS, lambda: tail(server.log))


def address(server: Child, running: str) -> str:
    """The URL that the server's log names, once ``running`` is there."""
    wait_for_log(server, running)
    found = re.search(r"http://127.0.0.1:\d+", server.log.read_text())
    assert found is not None
    return found[0]


def request_all(url: str, paths: list[str]) -> Counter[str]:
    """Send all requests, each over a connection of its own; return how many each process answered."""

    limits = httpx.Limits(max_keepalive_connections=0)
    with httpx.Client(base_url=url, timeout=SECONDS, limits=limits) as web, ThreadPoolExecutor(12) as threads:

        def request(number: int) -> str:
            answer = web.get(paths[number % len(paths)], params={"number": number})
            pid, value = answer.raise_for_status().text.strip('"').split()
            assert not value.isdigit() or int(value) == number**2
            return pid

        return Counter(threads.map(request, range(REQUESTS)))


@pytest.fixture
def worker(start_worker: StartWorker) -> None:
    start_worker("orders", pool="threads", concurrency=8)


@pytest.mark.parametrize("preload", [False, True], ids=["", "preload"])
@pytest.mark.parametrize("kind", WORKERS)
@pytest.mark.usefixtures("worker")
def test_gunicorn(
    kind: str, preload: bool, broker: ServedBroker, client: QueueClient, tmp_path: Path, started: Children
) -> None:
    options = [*WORKERS[kind], *(["--preload"] if preload else []), "--workers=3", "--bind=127.0.0.1:0"]
    app = "orders:asgi" if kind == "uvicorn" else "orders:wsgi"
    server = serve(["gunicorn", app, *options], broker, tmp_path, started)
    url = address(server, r"(?s)(Booting worker.*){3}")
    pids = request_all(url, ["/"])
    assert str(server.pid) not in pids
    assert_each_ran_once(client, REQUESTS + (1 if preload else 3))
    assert server.terminate() == 0, tail(server.log)
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


@pytest.mark.usefixtures("worker")
def test_gunicorn_reloads_without_losing_a_request(
    broker: ServedBroker, client: QueueClient, tmp_path: Path, started: Children
) -> None:
    options = [*WORKERS["gthread"], "--workers=2", "--bind=127.0.0.1:0"]
    server = serve(["gunicorn", "orders:wsgi", *options], broker, tmp_path, started)
    url = address(server, r"(?s)(Booting worker.*){2}")
    before = request_all(url, ["/"])
    with ThreadPoolExecutor(1) as thread:
        requests = thread.submit(request_all, url, ["/"])
        server.process.send_signal(signal.SIGHUP)
        requests.result(SECONDS)
    wait_for_log(server, r"(?s)(Booting worker.*){4}")
    after = request_all(url, ["/"])
    assert not set(before) & set(after)
    assert_each_ran_once(client, 3 * REQUESTS + 4)
    assert server.terminate() == 0, tail(server.log)


@pytest.mark.usefixtures("worker")
def test_fastapi(broker: ServedBroker, client: QueueClient, tmp_path: Path, started: Children) -> None:
    server = serve(["uvicorn", "orders:asgi", "--workers=3", "--port=0"], broker, tmp_path, started)
    url = address(server, r"(?s)(Application startup complete.*){3}")
    pids = request_all(url, ["/", "/thread", "/blocking"])
    assert len(pids) > 1
    assert_each_ran_once(client, REQUESTS + 3)
    assert server.terminate() == 0, tail(server.log)
    assert "Traceback" not in server.log.read_text()


def assert_each_ran_once(client: QueueClient, number: int) -> None:
    """All tasks have succeeded, each at its first delivery."""

    def runs() -> list[tuple[str, int]]:
        return [(attempt.state, attempt.number) for attempt in client.iter_attempts(queues=["celery"])]

    wait_until(lambda: len(runs()) >= number, SECONDS, lambda: f"{number} tasks: {runs()}")
    assert runs() == [("succeeded", 1)] * number
