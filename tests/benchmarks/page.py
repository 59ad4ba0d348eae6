"""The page over a large store: how soon its views come, what they weigh, what open pages cost the broker.

The store has 1,000 queues, and messages of which nine tenths are settled and one in a hundred has failed. The share of
the broker's CPU is what 20 open pages cost it in a second, over what 10,000 messages cost it.
"""

from __future__ import annotations

import asyncio
import http.client
import re
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from kombu_opendata import QueueClient
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.clock import ManualClock

from . import clients
from .history import SESSION, SETTINGS, publish, settle
from .peers import Peer, broker_pid, embedded, stop
from .processes import BenchError, cpu_seconds, memory_mb, run_alone, server, wait_at_rest, wait_until
from .results import Results
from .targets import OURS, WITHOUT
from .workloads import PUBLISHERS, Sizes, publish_together

QUEUES = 1000
#: messages of a batch, which go to so many queues
_BATCH, _SPREAD = 2000, 4
OPEN_PAGES = 20
#: a broker that is busy
MESSAGES_PER_SECOND = 10_000
_REPEATS = 20
_SECONDS = 20.0
VIEWS = (
    "", "?sort=ready&page=3", "queue?name=q0001", "queue?name=q0001&tab=done", "queue?name=q0001&tab=failed",
    "message?id=7", "failed", "workers", "exchanges", "schedules", "replays", "store",
)  # fmt: skip


def measure(sizes: Sizes, results: Results, folder: Path, step: Callable[[str], None]) -> None:
    """Measures everything about the page."""
    home = folder / "page"
    store = home / "store"
    store.mkdir(parents=True, mode=0o700)
    asyncio.run(fill(store, sizes.page))
    step("a store for the page")
    peer = embedded(store)
    try:
        with QueueClient(peer.url, name="keeper") as keeper, _site(home, peer) as (pid, url):
            keeper.list_queues()
            broker = broker_pid(store)
            if broker is None:
                raise BenchError("the broker has ended")
            wait_at_rest(broker)
            _first_bytes(url, results, step)
            results.add("page.memory", OURS, memory_mb(pid))
            _weight(url, results)
            step("the page in a browser")
            _open_pages(peer, keeper, broker, pid, url, sizes, results, step)
    finally:
        stop(store)


async def fill(folder: Path, messages: int) -> None:
    """A store with so many messages."""
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


@contextmanager
def _site(folder: Path, peer: Peer) -> Iterator[tuple[int, str]]:
    """The page's process: its pid and its address."""
    log = folder / "page.log"
    program = [sys.executable, "-c", "from kombu_opendata.cli import main; main()", "web"]
    with server([*program, "--url", peer.url, "--listen", "127.0.0.1:0"], log=str(log)) as process:

        def address() -> re.Match[str] | None:
            return re.search(r"http://\S+:\d+/", log.read_text()) if log.exists() else None

        wait_until(lambda: address() or process.poll() is not None, "the page", seconds=60.0)
        found = address()
        if found is None:
            raise BenchError(f"the page has ended:\n{log.read_text()}")
        yield process.pid, found[0]


def _first_bytes(url: str, results: Results, step: Callable[[str], None]) -> None:
    """The median time to the first byte of each view; the slowest one's is the row."""
    medians = {}
    for view in VIEWS:
        times = [first_byte_ms(url + view) for _ in range(_REPEATS)]
        medians[view] = statistics.median(times)
        results.remarks.append(
            f"First byte of /{view}: median {medians[view]:.0f} ms, slowest {max(times):.0f} ms, the first one "
            f"{times[0]:.0f} ms."
        )
        step(f"first byte of /{view}")
    results.add("page.first", OURS, max(medians.values()))


def first_byte_ms(url: str) -> float:
    """The time until the answer's first byte."""
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
    """What a browser transfers for the first view, and when it paints."""
    path = shutil.which("chromium")
    if path is None:
        results.remarks.append("There is no chromium: the page was not weighed.")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        try:
            for _ in range(5):
                page = browser.new_context().new_page()
                page.goto(url)
                page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length > 0")
                sizes = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]"
                size = page.evaluate(f"{sizes}.filter(one => !one.name.includes('live=')).map(one => one.transferSize)")
                results.add("page.weight", OURS, sum(size) / 1000)
                paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
                results.add("page.paint", OURS, paint)
                page.context.close()
        finally:
            browser.close()


# ---------------------------------------------------------------------- open pages
def _open_pages(
    peer: Peer,
    keeper: QueueClient,
    broker: int,
    pid: int,
    url: str,
    sizes: Sizes,
    results: Results,
    step: Callable[[str], None],
) -> None:
    """What open pages cost, in turns with none, over what messages cost."""
    run_alone(clients.declare, peer, "bench-page")
    before = cpu_seconds(broker)
    publish_together(peer, "bench-page", sizes.consume // PUBLISHERS)
    run_alone(clients.consume, peer, "bench-page", sizes.consume)
    busy = MESSAGES_PER_SECOND * (cpu_seconds(broker) - before) / sizes.consume
    step("what messages cost")
    for _ in range(sizes.rounds):
        wait_at_rest(broker)
        alone = _cpu_per_second(keeper, broker)
        step("no page is open")
        with opened(url, OPEN_PAGES):
            watched = _cpu_per_second(keeper, broker)
            results.add("page.memory", OURS, memory_mb(pid))
        results.add("page.cpu", OURS, 100 * max(watched - alone, 0.0) / busy)
        results.add("page.busy", OURS, 100 * watched)
        results.add("page.busy", WITHOUT, 100 * alone)
        step(f"{OPEN_PAGES} pages are open")


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
    """So many open pages, which read their events."""
    with ExitStack() as stack:
        for number in range(count):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            connection.request("GET", f"/?live=1&page={1 + number % 5}")
            stack.callback(connection.close)
            answer = connection.getresponse()
            threading.Thread(target=_read, args=(answer,), daemon=True).start()
        yield


def _read(answer: http.client.HTTPResponse) -> None:
    try:
        while answer.read1(65_536):
            pass
    except (OSError, AttributeError, ValueError):
        return  # closed by the other thread
