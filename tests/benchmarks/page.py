"""The web UI over a large store: time and weight of its views, and the cost of open views to the broker (ours only).

The store has 1,000 queues, and messages of which nine tenths are settled and one in a hundred has failed. The share of
the broker's CPU is that of 20 open views in a second, over that of 10,000 messages.
"""

from __future__ import annotations

import asyncio
import http.client
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from kombu_opendata import QueueClient
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import ManualClock
from tests.support.page import PageServer, chromium
from tests.support.processes import children

from . import clients
from .history import SESSION, SETTINGS, publish, settle
from .peers import embedded, server_pid, stop
from .processes import BenchError, cpu_seconds, memory_mb, run_alone, wait_at_rest
from .results import Results
from .targets import OURS, WITHOUT
from .workloads import PUBLISHERS, Sizes, publish_together

QUEUES = 1000
#: messages of a batch, and the queues that it goes to
_BATCH, _SPREAD = 2000, 4
OPEN_VIEWS = 20
#: of a broker that is busy
MESSAGES_PER_SECOND = 10_000
_REPEATS, _PAINTS, _SECONDS = 20, 5, 20.0
VIEWS = (
    "", "?sort=ready&page=3", "queue?name=q0001", "queue?name=q0001&tab=done", "queue?name=q0001&tab=failed",
    "message?id=7", "failed", "workers", "exchanges", "schedules", "replays", "store",
)  # fmt: skip
#: of the first view and its resources, without the stream of events
_WEIGHT = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .filter(entry => !entry.name.includes('live=')).map(entry => entry.transferSize)"""
_PAINTED = "performance.getEntriesByName('first-contentful-paint')"


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    home = folder / "page"
    store = home / "store"
    store.mkdir(parents=True, mode=0o700)
    asyncio.run(fill(store, sizes.page))
    peer = embedded(store)
    try:
        with QueueClient(peer.url, name="keeper") as keeper, children() as started:
            keeper.list_queues()
            ui, broker = PageServer(home, peer.url), server_pid(peer)
            started.add(ui)
            wait_at_rest(broker)
            _first_bytes(ui.url, results, step)
            results.add("page.memory", OURS, memory_mb(ui.process.pid))
            _weight(ui.url, results)
            run_alone(clients.declare, peer, "bench-page")
            before = cpu_seconds(broker)
            publish_together(peer, "bench-page", sizes.consume // PUBLISHERS)
            run_alone(clients.consume, peer, "bench-page", sizes.consume)
            busy = MESSAGES_PER_SECOND * (cpu_seconds(broker) - before) / sizes.consume
            for _ in range(sizes.rounds):
                wait_at_rest(broker)
                alone = _cpu_per_second(keeper, broker)
                with opened(ui.url, OPEN_VIEWS):
                    watched = _cpu_per_second(keeper, broker)
                    results.add("page.memory", OURS, memory_mb(ui.process.pid))
                results.add("page.cpu", OURS, 100 * max(watched - alone, 0.0) / busy)
                results.add("page.busy", OURS, 100 * watched)
                results.add("page.busy", WITHOUT, 100 * alone)
                step(f"{OPEN_VIEWS} open views")
    finally:
        stop(store)


async def fill(folder: Path, messages: int) -> None:
    """Make a store."""
    clock = ManualClock(int(1000 * time.time()) - 600_000)
    engine = await Engine.open(f"file://{folder}", "default", clock, SETTINGS)
    for number in range(QUEUES):
        engine.definitions.declare_queue(f"q{number:04}", QueueSettings())
    engine.operations.name_session(SESSION, "worker")
    queues = [engine.state.queues[f"q{number:04}"] for number in range(QUEUES)]
    for start in range(0, messages, _BATCH):
        first = start // _BATCH * _SPREAD % QUEUES
        some = queues[first : first + _SPREAD]
        await publish(engine, some, start, _BATCH)
        for queue in some:
            await settle(engine, queue, _BATCH // _SPREAD * 9 // 10)
        clock.advance(100)
        await engine.commits.checkpoint()
        await engine.history.indexer.catch_up()
    await engine.tidy()
    await engine.close()


def _first_bytes(url: str, results: Results, step: Callable[[str], None]) -> None:
    """Add the median time to the first byte of the slowest view."""
    medians = []
    for view in VIEWS:
        times = [first_byte_ms(url + view) for _ in range(_REPEATS)]
        medians.append(statistics.median(times))
        results.remarks.append(
            f"First byte of /{view}: median {medians[-1]:.0f} ms, slowest {max(times):.0f} ms, the first one "
            f"{times[0]:.0f} ms."
        )
        step(f"first byte of /{view}")
    results.add("page.first", OURS, max(medians))


def first_byte_ms(url: str) -> float:
    """Return the time until the answer's first byte."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    began = time.perf_counter()
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    took = 1000 * (time.perf_counter() - began)
    answer.read()
    connection.close()
    if answer.status != 200:
        raise BenchError(f"{url}: {answer.status}")
    time.sleep(0.1)
    return took


def _weight(url: str, results: Results) -> None:
    """Add the bytes that a browser transfers for the first view, and the time of its paint."""
    if shutil.which("chromium") is None:
        results.remarks.append("There is no chromium: the web UI was not weighed.")
        return
    with chromium() as browser:
        for _ in range(_PAINTS):
            page = browser.new_context().new_page()
            page.goto(url)
            page.wait_for_function(f"{_PAINTED}.length > 0")
            results.add("page.weight", OURS, sum(page.evaluate(_WEIGHT)) / 1000)
            results.add("page.paint", OURS, page.evaluate(f"{_PAINTED}[0].startTime"))
            page.context.close()


def _cpu_per_second(keeper: QueueClient, broker: int) -> float:
    """The broker's CPU in a second, while queues change slowly."""
    before, began = cpu_seconds(broker), time.perf_counter()
    number = 0
    while time.perf_counter() - began < _SECONDS:
        keeper.send(f"q{number % 50:04}", "x")
        number += 1
        time.sleep(0.05)
    return (cpu_seconds(broker) - before) / (time.perf_counter() - began)


@contextmanager
def opened(url: str, count: int) -> Iterator[None]:
    """Hold open views, which read their events."""

    def read(answer: http.client.HTTPResponse) -> None:
        with suppress(OSError, AttributeError, ValueError):  # closed by the other thread
            while answer.read1(65_536):
                pass

    with ExitStack() as stack:
        for number in range(count):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            connection.request("GET", f"/?live=1&page={1 + number % 5}")
            stack.callback(connection.close)
            threading.Thread(target=read, args=(connection.getresponse(),), daemon=True).start()
        yield
