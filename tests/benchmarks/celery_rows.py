"""Rows of Celery that are ours only: the gap of a killed broker, the cost of a call, and fair queues with limits."""

from __future__ import annotations

import os
import signal
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from kombu_opendata import QueueClient
from kombu_opendata.queue_client import QueueOptions

from . import celery_app, clients
from .celery_app import LEDGER, Run
from .clients import Content
from .peers import our_broker, server_pid
from .processes import BenchError, run_alone, wait_until
from .results import Results
from .targets import OURS
from .workloads import PUBLISHERS, Sizes, publish_together, unconfirmed

WARM_UP = 200
FOUR_THREADS = ("-P", "threads", "-c", "4", "--prefetch-multiplier=1")
_WEIGHTS = range(1, 11)
#: the tasks of tenant n have numbers from n times this
_NUMBERS = 1_000_000
_SHARED_SECONDS = 60.0
_RATE, _MINUTE_MS = 100, 60_000
Step = Callable[[str], None]


def _report(client: QueueClient) -> dict[str, Any]:
    """The broker's report of its instance."""
    report: dict[str, Any] = client.status()["instances"]["default"]
    return report


def _depth(client: QueueClient, run: Run) -> tuple[int, int]:
    """The ready tasks and those in flight."""
    queue = _report(client)["queues"][run.queue]
    return queue["available"], queue["in_flight"]


def _wait_empty(client: QueueClient, run: Run) -> None:
    wait_until(lambda: _depth(client, run) == (0, 0), "the end of the tasks", seconds=300.0)


@contextmanager
def _bench(name: str, folder: Path, *arguments: str) -> Iterator[tuple[Run, Any]]:
    """Give a broker, and a worker on it that has run a few tasks."""
    home = folder / name
    with our_broker(home) as peer:
        run = Run(peer, "celery", WARM_UP, str(home / "ledger.txt"), LEDGER)
        with celery_app.worker(run, home / "worker.log", "--prefetch-multiplier=8", *arguments) as worker:
            run_alone(celery_app.send, run, -WARM_UP)
            celery_app.wait_lines(run, worker, WARM_UP)
            yield run, worker


def gap(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure the longest time without a task around a kill -9 of the broker, which its clients start again."""
    for number in range(1, sizes.rounds + 1):
        _gap_round(f"gap{number}", sizes.tasks, results, folder)
        step(f"kill of the broker, round {number}")


def added(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure the caller's CPU for a call without waiting, beyond that of Kombu's transport in memory."""
    with our_broker(folder / "added") as peer:
        run = Run(unconfirmed(peer), "added", sizes.tasks, "")
        for number in range(1, 3 * sizes.rounds + 1):
            results.add("added.cpu", OURS, run_alone(celery_app.added_by_calls, run))
            step(f"cost of a call, round {number}")


def _gap_round(name: str, count: int, results: Results, folder: Path) -> None:
    options = ("--pool=prefork", "--concurrency=2", "-O", "fair")
    with _bench(name, folder, *options) as (run, worker), ThreadPoolExecutor(1) as pool:

        def kill() -> float:
            celery_app.wait_lines(run, worker, WARM_UP + count // 3)
            os.kill(server_pid(run.peer), signal.SIGKILL)
            return time.monotonic()

        killing = pool.submit(kill)
        run_alone(celery_app.send, replace(run, tasks=count))
        killed_at = killing.result()
        with QueueClient(run.peer.url) as client:
            _wait_empty(client, run)
        runs = [(number, at) for number, at in run.lines() if number >= 0]
    times = [killed_at, *sorted(at for _, at in runs if at > killed_at)]
    if len(times) == 1:
        raise BenchError("all tasks had run when the broker was killed")
    ran = Counter(number for number, _ in runs)
    results.add("gap.time", OURS, max(b - a for a, b in pairwise(times)))
    results.add("gap.lost", OURS, count - len(ran))
    results.add("gap.twice", OURS, sum(times > 1 for times in ran.values()))


def fair(sizes: Sizes, results: Results, folder: Path, step: Step) -> None:
    """Measure the wait of a small tenant, the shares of ten, and the rate of three under kills; then an alteration."""
    for measure in (_measure_wait, _measure_shares, _measure_rate):
        name = measure.__name__.removeprefix("_measure_")
        with our_broker(folder / name) as peer, QueueClient(peer.url, reconnect_timeout=60) as client:
            run = Run(peer, "celery", sizes.fair_tasks, str(folder / name / "ledger.txt"), LEDGER)
            client.create(run.queue)
            client.alter(run.queue, QueueOptions(partition_by="tenant"))  # Celery declares it without arguments
            measure(run, client, sizes, results)
        step(f"fair queue: {name}")
    _measure_alteration(folder / "alteration", sizes, results)
    step("fair queue: alteration")


def _measure_alteration(folder: Path, sizes: Sizes, results: Results) -> None:
    """Give partitions to a queue with a backlog, and publish to another queue until all messages are in theirs."""
    with our_broker(folder) as peer, QueueClient(peer.url) as client:
        client.create("backlog")
        client.create("other")
        each = sizes.fair_backlog // PUBLISHERS // len(_WEIGHTS)
        for tenant in _WEIGHTS:
            content = Content(headers={**clients.HEADERS, "tenant": str(tenant)})
            publish_together(unconfirmed(peer), "backlog", each, content=content)
        total = each * PUBLISHERS * len(_WEIGHTS)
        wait_until(lambda: client.metrics("backlog").ready == total, "the backlog", seconds=600.0)
        began, longest = time.monotonic(), 0.0
        client.alter("backlog", QueueOptions(partition_by="tenant"))
        while any(row.limited_by == "moving" for row in client.list_partitions("backlog").partitions):
            sent = time.monotonic()
            client.send("other", 1)
            longest = max(longest, time.monotonic() - sent)
        results.add("fair.moved", OURS, time.monotonic() - began)
        results.add("fair.moved_publish", OURS, 1000 * longest)


def _worker(run: Run, number: int = 0) -> Any:
    """A worker of a fair queue."""
    return celery_app.worker(run, Path(f"{run.path}.worker{number}.log"), *FOUR_THREADS, *celery_app.QUIET)


def _measure_wait(run: Run, client: QueueClient, sizes: Sizes, results: Results) -> None:
    content = Content(headers={**clients.HEADERS, "task": "bench.nap", "tenant": "large"})
    publish_together(unconfirmed(run.peer), run.queue, sizes.fair_backlog // PUBLISHERS, content=content)
    send = celery_app.make_app(run).tasks["bench.tick"].apply_async
    with _worker(run) as worker:
        wait_until(lambda: client.metrics(run.queue).counts["delivered"] > WARM_UP, "deliveries", seconds=60.0)
        for number in range(6):
            sent_at = time.monotonic()
            send((number,), headers={"tenant": "small"})
            celery_app.wait_lines(run, worker, number + 1)
            if number:  # the first one opens the connection
                results.add("fair.wait", OURS, run.lines()[-1][1] - sent_at)


def _measure_shares(run: Run, client: QueueClient, sizes: Sizes, results: Results) -> None:
    sender = replace(run, peer=unconfirmed(run.peer))
    for weight in _WEIGHTS:
        tenant = replace(sender, tasks=weight * run.tasks, headers={"tenant": str(weight)})
        run_alone(celery_app.send, tenant, weight * _NUMBERS)
    client.alter(run.queue, QueueOptions(partition_weights={str(weight): weight for weight in _WEIGHTS}))
    with _worker(run) as worker:
        celery_app.wait_lines(run, worker, WARM_UP)
        time.sleep(min(_SHARED_SECONDS, sizes.fair_seconds))
        lines = run.lines()[WARM_UP:]
        if not client.metrics(run.queue).ready:
            raise BenchError("the tasks are too few for the time")
    shares = Counter(number // _NUMBERS for number, _at in lines)
    fair = len(lines) / sum(_WEIGHTS)
    results.add("fair.share", OURS, 100 * max(abs(shares[weight] / weight / fair - 1) for weight in _WEIGHTS))


def _measure_rate(run: Run, client: QueueClient, sizes: Sizes, results: Results) -> None:
    """Kill the broker, a worker, the broker, … while three tenants have more tasks than the rate permits."""
    tenants, seconds = ("a", "b", "c"), sizes.fair_seconds
    sender = replace(run, peer=unconfirmed(run.peer), tasks=int(_RATE * (seconds / 60 + 2)))
    for tenant in tenants:
        run_alone(celery_app.send, replace(sender, headers={"tenant": tenant}))
    client.alter(run.queue, QueueOptions(partition_rate=f"{_RATE}/m"))
    with ExitStack() as stack:
        numbers = count()
        workers = [stack.enter_context(_worker(run, next(numbers))) for _ in range(2)]
        start, kills = time.monotonic(), max(int(seconds / 60) - 1, 1)
        for kill in range(kills):
            time.sleep(max(start + seconds * (kill + 1) / (kills + 1) - time.monotonic(), 0))
            if kill % 2:
                os.killpg(workers.pop(0).pid, signal.SIGKILL)
                workers.append(stack.enter_context(_worker(run, next(numbers))))
            else:
                os.kill(server_pid(run.peer), signal.SIGKILL)
        time.sleep(max(start + seconds - time.monotonic(), 0))
        end_ms = int(time.time() * 1000)
        for tenant in tenants:
            attempts = client.iter_attempts(headers={"tenant": tenant}, limit=1000)
            claims = {(attempt.message_id, attempt.claimed_at_ms) for attempt in attempts}
            times = sorted(at for _id, at in claims if at <= end_ms)
            most = max(bisect_left(times, at + _MINUTE_MS) - place for place, at in enumerate(times))
            results.add("fair.most", OURS, most)
            tokens = _RATE // 10 + (end_ms - times[0]) * _RATE / _MINUTE_MS
            results.add("fair.used", OURS, 100 * len(times) / tokens)
