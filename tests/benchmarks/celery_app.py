"""The measured Celery producer, worker and caller: an app with trivial tasks that note their times.

`celery_pool` is the application that ``celery -A`` loads for a worker in another process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from celery import Celery, chain, chord, group
from celery.signals import worker_ready

from . import clients
from .clients import WARM_UP, Timing
from .peers import Peer
from .processes import BenchError, Waiter, server, wait_until

QUIET = ("--without-gossip", "--without-mingle", "--without-heartbeat")
SOLO = ("-P", "solo", "-c", "1", "--prefetch-multiplier", "8", *QUIET)
RUN = "OPENDATA_BENCH_RUN"
"""The environment variable with a worker's run."""
TIMES, LEDGER, READY = "times", "ledger", "ready"
"""The content of a run's file: the times of all tasks once the last has run, a line for each, or nothing."""
CHAIN = 50
"""The tasks of a chain."""
_TIMEOUT_SECONDS = 300.0
#: calls with a broker before as many without
_TURN = 50


@dataclass(frozen=True)
class Run:
    """One measurement: the broker, the queue, the number of tasks, and the file that the worker writes."""

    peer: Peer
    queue: str
    tasks: int
    path: str
    content: str = TIMES
    acks_late: bool = False
    backend: str = ""
    headers: dict[str, str] | None = None

    def lines(self) -> list[tuple[int, float]]:
        """Return the number and time of each complete line of the ledger, in order."""
        path = Path(self.path)
        lines = path.read_text(encoding="ascii").split("\n")[:-1] if path.exists() else []
        return [(int(number), float(at)) for number, at in map(str.split, lines)]


def make_app(run: Run) -> Any:
    """Return the measured application, with the tasks ``bench.tick``, ``add``, ``nap``, ``row`` and ``total``."""
    if run.peer.url.startswith("opendata"):
        importlib.import_module("kombu_opendata")
    app = Celery("bench", set_as_current=False)
    app.conf.update(
        broker_url=run.peer.url,
        broker_transport_options=dict(run.peer.options),
        broker_connection_retry_on_startup=True,
        result_backend=run.backend or None,
        task_default_queue=run.queue,
        task_ignore_result=not run.backend,
        task_acks_late=run.acks_late,
    )
    note = _ledger(run) if run.content == LEDGER else _Counter(run).add
    if run.content == READY:
        worker_ready.connect(lambda **_: Path(run.path).touch(), weak=False)

    @app.task(name="bench.tick")
    def tick(number: int) -> None:
        note(number)

    @app.task(name="bench.add")
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="bench.nap")
    def nap(x: int, y: int) -> None:
        time.sleep(0.05)

    @app.task(name="bench.row")
    def row(**columns: Any) -> Any:
        return columns["id"]

    @app.task(name="bench.total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    return app


def _ledger(run: Run) -> Callable[[int], object]:
    """Return a function that notes a task and its time, in any process or thread."""
    file = os.open(run.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return lambda number: os.write(file, f"{number} {time.monotonic():.6f}\n".encode())


class _Counter:
    """The tasks in memory; their times are written once the last one has run."""

    def __init__(self, run: Run) -> None:
        self._run, self._seen = run, set[int]()
        self._start = self._cpu = 0.0

    def add(self, number: int) -> None:
        if not self._seen:
            self._start, self._cpu = time.monotonic(), time.process_time()
        self._seen.add(number)
        if len(self._seen) == self._run.tasks:
            timing = Timing(self._run.tasks - 1, self._start, time.monotonic(), time.process_time() - self._cpu)
            part = Path(f"{self._run.path}.part")
            part.write_text(json.dumps(timing), encoding="ascii")
            os.replace(part, self._run.path)


# ---------------------------------------------------------------------- the worker
@contextmanager
def worker(run: Run, log: Path, *arguments: str) -> Iterator[Any]:
    """Run a worker in a new process group."""
    command = [sys.executable, "-m", "celery", "-A", "tests.benchmarks.celery_pool", "worker", "-l", "WARNING"]
    environment = {**os.environ, RUN: json.dumps(asdict(run))}
    with server([*command, *arguments], log=str(log), env=environment) as process:
        yield process


def read_run(settings: str) -> Run:
    values = json.loads(settings)
    return Run(**{**values, "peer": Peer(**values["peer"])})


def wait_lines(run: Run, process: Any, count: int) -> None:
    """Wait until a worker's ledger has as many lines.

    Raises:
        BenchError: the worker has exited, or is too slow.
    """
    path = Path(run.path)

    def is_over() -> bool:
        return process.poll() is not None or (path.exists() and path.read_bytes().count(b"\n") >= count)

    wait_until(is_over, f"{count} tasks of {run.queue}", seconds=300.0)
    if process.poll() is not None:
        raise BenchError("the worker exited; see its log with --keep")


def work(run: Run, log: Path) -> Timing:
    """Run a solo worker until it has executed all tasks; return its times."""
    with worker(run, log, *SOLO) as process:
        wait_for_file(run, process, 300.0)
    return Timing(*json.loads(Path(run.path).read_text(encoding="ascii")))


def wait_for_file(run: Run, process: Any, seconds: float) -> None:
    """Wait until a worker has written its file.

    Raises:
        BenchError: it has exited, or is too slow.
    """
    path = Path(run.path)
    wait_until(lambda: path.exists() or process.poll() is not None, f"a worker of {run.queue}", seconds=seconds)
    if not path.exists():
        raise BenchError("the worker exited; see its log with --keep")


# ---------------------------------------------------------------------- the clients
def added_by_calls(barrier: Waiter, run: Run) -> float:
    """Return how much more CPU a call takes its caller than with Kombu's transport in memory, in µs: a median."""
    apps = make_app(run), Celery("memory", broker="memory://", set_as_current=False)  # which get the same tasks
    calls = [app.tasks["bench.tick"].apply_async for app in apps]
    differences = []
    for _ in range(run.tasks // _TURN):
        times = [time.process_time()]
        for call in calls:
            for number in range(_TURN):
                call((number,))
            times.append(time.process_time())
        differences.append((2 * times[1] - times[0] - times[2]) / _TURN * 1e6)
    return median(differences)


def send(barrier: Waiter, run: Run, first: int = 0, countdown: float | None = None) -> Timing:
    """Send the run's tasks with ``apply_async``, numbered from `first`; the first one opens the connection."""
    task = make_app(run).tasks["bench.tick"]
    task.apply_async((first,), countdown=countdown, headers=run.headers)
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    for number in range(first + 1, first + run.tasks):
        task.apply_async((number,), countdown=countdown, headers=run.headers)
    with task.app.producer_pool.acquire() as producer:  # the one that sent them
        clients.flush(producer.channel)
    return Timing(run.tasks - 1, start, time.monotonic(), time.process_time() - cpu)


def call(barrier: Waiter, run: Run, kind: str) -> Timing:
    """Call tasks for their results: ``trip``, ``chord``, ``group`` or ``chain``; a small one warms up."""
    tasks = make_app(run).tasks
    add, total = tasks["bench.add"], tasks["bench.total"]

    def result(signature: Any) -> Any:
        return signature.get(timeout=_TIMEOUT_SECONDS)

    def adds(count: int) -> list[Any]:
        return [add.s(number, 1) for number in range(count)]

    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any]] = {
        "trip": (
            lambda: [result(add.delay(number, 1)) for number in range(WARM_UP)],
            lambda: [result(add.delay(number, 1)) for number in range(run.tasks)],
            list(range(1, run.tasks + 1)),
        ),
        "chord": (
            lambda: result(chord(adds(10))(total.s())),
            lambda: result(chord(header)(total.s())),
            run.tasks * (run.tasks + 1) // 2,
        ),
        "group": (lambda: result(group(adds(10))()), lambda: result(group(header)()), list(range(1, run.tasks + 1))),
        "chain": (
            lambda: result(chain(add.s(0, 1), add.s(1))()),
            lambda: [result(chain(add.s(0, 1), *[add.s(1)] * (CHAIN - 1))()) for _ in range(run.tasks // CHAIN)],
            [CHAIN] * (run.tasks // CHAIN),
        ),
    }
    warm_up, function, expected = calls[kind]
    warm_up()
    header = adds(run.tasks) if kind in ("chord", "group") else []
    barrier.wait()
    start, cpu = time.monotonic(), time.process_time()
    if function() != expected:
        raise BenchError(f"{kind}: a wrong result")
    return Timing(run.tasks, start, time.monotonic(), time.process_time() - cpu)
