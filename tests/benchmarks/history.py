"""History: the first pages of lists over many messages.

The store is made through the engine, as fast as that goes: the messages look like Celery's, nine tenths are settled.
Pages are asked for in the engine as well, so that what is measured is the query and not the machine's sockets, and
after the compaction of what was just written.
"""

from __future__ import annotations

import asyncio
import statistics
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kombu_opendata.protocol.task_reports import TaskReport, TaskState
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.engine_settings import EngineSettings
from kombu_opendata.storage.history import query
from kombu_opendata.storage.state.store_state import Queue, QueueSettings
from tests.support.clock import ManualClock

from . import machine
from .results import Results
from .targets import OURS
from .workloads import Sizes

SESSION = b"b" * 16
QUEUES = 4
RARE_TASK = "shop.tasks.audit"
_BATCH = 2000
_LIMIT = 100
_TASKS = tuple(f"shop.tasks.{name}" for name in ("send_mail", "charge", "refund", "resize", "index", "sync"))
_REPEATS = 5
FAILED_REPORTS = [
    TaskReport.cut(TaskState.RAISED, 1000, 7, "", f"shop.errors.Error{number}", "it failed", "Traceback\n" * 40)
    for number in range(5)
]
_REST_SECONDS = 1800.0


SETTINGS = EngineSettings(sync=False)


def headers_of(number: int) -> dict[str, str]:
    """The metadata of a Celery task; one in ten thousand is a rare one."""
    id = str(uuid.UUID(int=number * 0x9E3779B97F4A7C15 % (1 << 128)))
    task = RARE_TASK if number % 10_000 == 5 else _TASKS[number % len(_TASKS)]
    return {
        "task": task, "id": id, "root_id": id, "lang": "py", "retries": "0", "origin": f"gen{number % 40}@web",
        "ignore_result": "false", "replaced_task_nesting": "0", "exchange": "", "routing_key": f"q{number % 4}",
        "priority": "0", "content_type": "application/json", "customer": str(number % 5000),
    }  # fmt: skip


async def publish(engine: Engine, queues: list[Queue], first: int, count: int) -> None:
    """Publish messages in turn to the queues; nothing waits for the disk."""
    now = engine.clock.now_ms()
    for number in range(first, first + count):
        engine.operations.publish(
            [queues[number % len(queues)]], b"x" * 200, headers_of(number), priority=255, created_at=now, visible_at=-1,
            ttl_ms=-1, session=SESSION, seq=number + 1, total=1,
        )  # fmt: skip


async def settle(engine: Engine, queue: Queue, count: int) -> None:
    """Claim and acknowledge messages; the tasks of one in a hundred fail, half of which are rejected."""
    for number in range(count):
        entry, loading = engine.loader.next_entry(queue, engine.clock.now_ms())
        while loading:
            await asyncio.sleep(0)
            entry, loading = engine.loader.next_entry(queue, engine.clock.now_ms())
        assert entry is not None
        engine.operations.claim(queue, (entry,), SESSION)
        if number % 100 == 0:
            engine.task_runs.note(queue, entry, FAILED_REPORTS[number // 100 % len(FAILED_REPORTS)])
        if number % 200:
            engine.operations.ack(queue, (entry,))
        else:
            engine.operations.fail(queue, (entry,), "worker")


class Filler:
    """A filler of a store with indexed messages; of each batch nine tenths are settled."""

    def __init__(self, engine: Engine, clock: ManualClock) -> None:
        self._engine, self._clock = engine, clock
        self._filled = 0
        for number in range(QUEUES):
            engine.definitions.declare_queue(f"q{number}", QueueSettings())
        engine.operations.name_session(SESSION, "worker")

    async def fill(self, upto: int) -> None:
        engine = self._engine
        queues = [engine.state.queues[f"q{number}"] for number in range(QUEUES)]
        for start in range(self._filled, upto, _BATCH):
            await publish(engine, queues, start, _BATCH)
            for queue in queues:
                await settle(engine, queue, _BATCH // QUEUES * 9 // 10)
            self._clock.advance(100)
            await engine.commits.checkpoint()
            await engine.history.indexer.catch_up()
            if start % (100 * _BATCH) == 0:
                while await engine.history.sweeper.merge_some():
                    pass
                await engine.upkeep.tidy()
        self._filled = upto
        while await engine.history.sweeper.merge_some():
            pass
        await engine.upkeep.tidy()


def pages(messages: int, clock: ManualClock, began_ms: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the measured lists and their filters, by name."""
    middle = (began_ms + clock.now_ms()) // 2
    one = messages // 3
    found: dict[str, tuple[str, dict[str, Any]]] = {
        "all": (query.MESSAGES, {}),
        "a queue": (query.MESSAGES, {"queues": ["q1"]}),
        "available": (query.MESSAGES, {"statuses": ["available"]}),
        "done": (query.MESSAGES, {"statuses": ["done"]}),
        "failed": (query.MESSAGES, {"statuses": ["failed"]}),
        "a task": (query.MESSAGES, {"headers": {"task": [_TASKS[0]]}}),
        "a rare task": (query.MESSAGES, {"headers": {"task": [RARE_TASK]}}),
        "a customer": (query.MESSAGES, {"headers": {"customer": ["77"]}}),
        "a task's id": (query.MESSAGES, {"headers": {"id": [headers_of(one)["id"]]}}),
        "no such id": (query.MESSAGES, {"headers": {"id": ["unknown"]}}),
        "up to a time": (query.MESSAGES, {"lte": middle}),
        "a queue, up to a time": (query.MESSAGES, {"queues": ["q1"], "lte": middle}),
        "a queue, a task, failed": (
            query.MESSAGES, {"queues": ["q1"], "headers": {"task": [_TASKS[1]]}, "statuses": ["failed"]}
        ),
        "attempts": (query.ATTEMPTS, {}),
        "attempts in a queue": (query.ATTEMPTS, {"queues": ["q1"]}),
        "attempts rejected": (query.ATTEMPTS, {"outcomes": ["rejected"]}),
        "attempts of a task": (query.ATTEMPTS, {"headers": {"task": [_TASKS[0]]}}),
        "attempts of a task's id": (query.ATTEMPTS, {"headers": {"id": [headers_of(one)["id"]]}}),
        "attempts of a message": (query.ATTEMPTS, {"ids": [one]}),
        "attempts up to a time": (query.ATTEMPTS, {"lte": middle}),
    }  # fmt: skip
    return found


async def ask(engine: Engine, kind: str, filters: dict[str, Any], order: str) -> tuple[float, float, int]:
    """Milliseconds and milliseconds of CPU of a first page, and how many items it had."""
    checked = query.check_filters(**filters)
    paging = query.check_paging(kind, checked, order=order, limit=_LIMIT, after=None, before=None)
    listing: Any = engine.history.list_messages if kind == query.MESSAGES else engine.history.list_attempts
    began, cpu = time.perf_counter(), time.process_time()
    page = await listing(checked, paging)
    return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu), len(page.items)


class Page(NamedTuple):
    """The times of the first pages of one list."""

    name: str
    order: str
    milliseconds: float
    cpu_milliseconds: float
    items: int
    single: bool


async def ask_all(engine: Engine, clock: ManualClock, began_ms: int, messages: int) -> list[Page]:
    """The medians of several first pages of each list."""
    found = []
    for name, (kind, filters) in pages(messages, clock, began_ms).items():
        for order in query.ORDERS:
            samples = [await ask(engine, kind, filters, order) for _ in range(_REPEATS)]
            wall, cpu = (statistics.median(one[at] for one in samples) for at in (0, 1))
            found.append(Page(name, order, wall, cpu, samples[0][2], len(filters) < 2))
    return found


async def _measure_pages(
    folder: Path, messages: int, remarks: list[str], step: Callable[[str], None]
) -> list[list[Page]]:
    """The first pages from a tenth of the messages and from all, in two stores."""
    sizes = (messages // 10, messages)
    clocks = [ManualClock() for _ in sizes]
    began_ms = clocks[0].now_ms()
    engines = []
    try:
        for size, clock in zip(sizes, clocks, strict=True):
            engines.append(await Engine.open(f"file://{folder}/history-{size}", "default", clock, SETTINGS))
            await Filler(engines[-1], clock).fill(size)
            step(f"history of {size:,}")
        busy = await asyncio.to_thread(machine.wait_until_idle, _REST_SECONDS)
        remarks.append(f"History: before the pages were asked for, the machine was {100 * busy:.0f} % busy.")
        return [
            await ask_all(engine, clock, began_ms, size)
            for size, clock, engine in zip(sizes, clocks, engines, strict=True)
        ]
    finally:
        for engine in engines:
            await engine.close()


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measure pages of large stores."""
    small, large = asyncio.run(_measure_pages(folder, sizes.history, results.remarks, step))
    slowest, of_tenth = (max(page.milliseconds for page in pages if page.single) for pages in (large, small))
    results.add("history.page", OURS, slowest)
    results.add("history.growth", OURS, slowest / of_tenth)
    results.remarks.append(
        f"History: the time for the first page from {sizes.history:,} messages and then from a tenth of them, with the "
        "CPU time in parentheses."
    )
    for before, page in zip(small, large, strict=True):
        results.remarks.append(
            f"History, {page.name}, {page.order}, page of {page.items}: {page.milliseconds:.1f} ms "
            f"({page.cpu_milliseconds:.1f} ms), {before.milliseconds:.1f} ms ({before.cpu_milliseconds:.1f} ms)."
        )
