"""The snapshot gives way to others, bears what they do meanwhile, and a scrape has a deadline."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest

from kombu_opendata.broker.endpoints.http_server import HttpServer, ask
from kombu_opendata.broker.endpoints.instance_metrics import InstanceView
from kombu_opendata.broker.endpoints.scrape import MetricsEndpoint
from kombu_opendata.broker.metrics.metric_catalogue import MetricsSnapshot, cumulated
from kombu_opendata.broker.model.argument_checks import parse
from kombu_opendata.broker.model.queue import QueueProperties
from kombu_opendata.broker.process.server import Server
from kombu_opendata.broker.wire.broker_settings import BrokerSettings
from kombu_opendata.storage.clock import TimeSlice
from kombu_opendata.storage.state.store_state import QueueSettings
from tests.support.processes import wait_until
from tests.support.scrape import Scrape, fetch
from tests.support.waiting import turns
from tests.unit.broker.model.test_queue import World


def run(test: Callable[[World], Awaitable[None]], *, durable: bool = True) -> None:
    async def main() -> None:
        world = World(durable)
        await world.open()
        await test(world)
        world.instance.policies.stop()
        await world.engine.close()

    asyncio.run(main())


def figure(snapshot: MetricsSnapshot, name: str, queue: str) -> Any:
    return snapshot.samples[name].get(("default", queue))


def short_slice() -> TimeSlice:
    """A snapshot with it rests after each queue."""
    return TimeSlice(0.0, looks=1)


def test_others_have_their_turn_between_the_queues() -> None:

    async def steps(world: World) -> None:
        for number in range(50):
            world.declare(f"q{number}")
        count = 0
        done = False

        async def others() -> None:
            nonlocal count
            while not done:
                count += 1
                await turns()

        task = asyncio.create_task(others())
        await InstanceView(world.instance, 10).collect(MetricsSnapshot(), short_slice())
        done = True
        await task
        assert count >= 50

    run(steps)


def test_queues_that_come_and_go_meanwhile() -> None:

    async def steps(world: World) -> None:
        view = InstanceView(world.instance, 3)
        for number in range(20):
            world.declare(f"q{number}")
        world.publish()
        before = MetricsSnapshot()
        await view.collect(before, short_slice())

        async def others() -> None:
            for number in range(20):
                await world.instance.queues.delete(world.instance.queues[f"q{number}"])
                world.declare(f"new{number}")

        task = asyncio.create_task(others())
        for _ in range(5):
            snapshot = MetricsSnapshot()
            await view.collect(snapshot, short_slice())
            assert figure(snapshot, "messages_published_total", "q") == 1
            assert len(snapshot.samples["messages_ready"]) <= 5, "three queues and the two sums"
        await task
        last = MetricsSnapshot()
        await view.collect(last, short_slice())
        assert last.samples["queues"][("default", "stored")] == 22

    run(steps)


def test_a_sum_keeps_what_was_counted_in_queues_that_are_gone() -> None:
    async def steps(world: World) -> None:
        view = InstanceView(world.instance, 0)
        world.publish()
        for _ in range(2):
            snapshot = MetricsSnapshot()
            await view.collect(snapshot, TimeSlice())
            assert figure(snapshot, "messages_published_total", "(other)") == 1
            if "q" in world.instance.queues:
                await world.instance.queues.delete(world.instance.queues["q"])
        assert figure(snapshot, "messages_ready", "(other)") == 0

    run(steps)


def test_a_restart_sets_sums_back_to_0_and_nothing_else() -> None:
    """What was counted in queues that are gone is not stored, so a sum with it would go down, by less than all."""

    async def steps(world: World) -> None:
        world.publish()
        for queue in world.engine.state.queues.values():
            queue.counts.start(world.clock.now_ms())  # as if the store had it
        world.publish()
        for labelled, label, expected in ((0, "(other)", 1), (10, "q", 2)):
            snapshot = MetricsSnapshot()
            await InstanceView(world.instance, labelled).collect(snapshot, TimeSlice())
            assert figure(snapshot, "messages_published_total", label) == expected

    run(steps)


def test_a_queue_that_goes_meanwhile_is_counted_once() -> None:
    async def steps(world: World) -> None:
        view = InstanceView(world.instance, 1)
        for number in range(40):
            queue = world.declare(f"q{number}")
            queue.counts.published = 1
        transient = world.instance.maker.declare("t", QueueProperties(False, False, False, {}), parse("t", {}))
        transient.counts.published = 7
        world.instance.queues["t"] = transient

        async def others() -> None:
            await turns()
            transient.drop()
            for number in range(20, 40):
                await world.instance.queues.delete(world.instance.queues[f"q{number}"])

        task: asyncio.Task[None] | None = None
        for number in range(10):
            snapshot = MetricsSnapshot()
            await view.collect(snapshot, short_slice())
            published = snapshot.samples["messages_published_total"]
            assert sum(float(value) for value in published.values() if not isinstance(value, tuple)) == 47
            assert published[("default", "(transient)")] == 7
            if number == 1:
                task = asyncio.create_task(others())
        assert task is not None
        await task

    run(steps)


@pytest.mark.parametrize(("durable", "label"), [(True, "q"), (False, "(transient)")])
def test_ages_are_since_the_publish(durable: bool, label: str) -> None:
    async def steps(world: World) -> None:
        world.publish()
        world.clock.advance(5000)
        world.publish()
        world.clock.advance(1000)
        snapshot = MetricsSnapshot()
        await InstanceView(world.instance, 10).collect(snapshot, TimeSlice())
        assert figure(snapshot, "oldest_ready_message_age_seconds", label) == 6
        assert figure(snapshot, "newest_ready_message_age_seconds", label) == 1

    run(steps, durable=durable)


class Served(MetricsEndpoint):
    """Metrics at a port."""

    def __init__(self, server: Server, **seconds: float) -> None:
        super().__init__(server.instances.open, server.connections.measure, **seconds)  # type: ignore[arg-type]
        self.http = HttpServer("127.0.0.1", 0, {"/metrics": self.page})
        self.port = self.http.port
        self.loop = asyncio.get_running_loop()


def serving(
    test: Callable[[Server, Served], None], *, blocked: threading.Event | None = None, **seconds: float
) -> None:
    """Run a test, in a thread, beside a broker with metrics."""

    async def main() -> None:
        server = Server(BrokerSettings(store=f"memory://{uuid.uuid4().hex}"))
        await (await server.instances.get("default")).engine.commits.checkpoint()
        served = Served(server, **seconds)
        served.http.start()
        try:
            work = asyncio.get_running_loop().run_in_executor(None, test, server, served)
            if blocked is not None:
                blocked.wait(30)  # as a loop that does something else
            await work
        finally:
            await asyncio.to_thread(served.http.stop)
            await server.close()

    asyncio.run(main())


def test_without_a_journal_a_commit_is_a_checkpoint() -> None:
    def test(server: Server, served: Served) -> None:
        async def declare() -> None:
            engine = server.instances.open["default"].engine
            engine.definitions.declare_queue("q", QueueSettings())
            await engine.commits.commit()

        ask(served.loop, declare())
        with fetch(served.port) as answer:
            found = Scrape(answer.read().decode())
        assert found.value("opendata_queue_journal_limit_bytes") == 0
        commits = found.value("opendata_queue_commit_duration_seconds_count")
        assert commits == found.value("opendata_queue_checkpoint_duration_seconds_count") > 0
        assert not any(name.startswith("slatedb_") for name in found.families), "not asked for"

    serving(test)


def test_a_scrape_does_not_wait_for_a_loop_that_is_busy(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()

    def test(_server: Server, served: Served) -> None:
        try:
            page = served.page()
        finally:
            release.set()
        assert page.status is HTTPStatus.SERVICE_UNAVAILABLE
        assert page.body == b"the broker did not answer within 0.2 s\n"
        wait_until(lambda: served.page().status is HTTPStatus.OK, 30, "no scrape succeeded")

    serving(test, blocked=release, answer_seconds=0.2, fresh_seconds=0.0)
    assert "a scrape of the metrics failed: the broker did not answer" in caplog.text


def test_a_failure_in_the_snapshot_is_a_500_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def test(server: Server, served: Served) -> None:
        engine, server.instances.open["default"].engine = server.instances.open["default"].engine, None  # type: ignore[assignment]
        page = served.page()
        server.instances.open["default"].engine = engine
        assert page.status is HTTPStatus.INTERNAL_SERVER_ERROR
        assert b"see the broker's log" in page.body

    serving(test)
    assert "AttributeError" in caplog.text


def test_scrapes_within_a_second_get_the_same_answer() -> None:
    def test(_server: Server, served: Served) -> None:
        pages: list[Any] = []
        threads = [threading.Thread(target=lambda: pages.append(served.page())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(pages) == 8
        assert len({id(page) for page in pages}) < 8

    serving(test)


def test_after_the_end_there_is_no_answer() -> None:
    ended: list[MetricsEndpoint] = []
    serving(lambda _server, served: ended.append(served))
    assert ended[0].page().body == b"the broker has stopped\n"


def test_a_broker_that_ends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, pages = threading.Event(), []

    async def never(*_args: object) -> None:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    monkeypatch.setattr(InstanceView, "collect", never)
    threads = []

    def test(_server: Server, served: Served) -> None:
        threads.append(threading.Thread(target=lambda: pages.append(served.page())))
        threads[0].start()
        assert asked.wait(60)

    serving(test)
    threads[0].join(10)
    assert [page.body for page in pages] == [b"the broker stops\n"]


def test_cumulated() -> None:
    assert cumulated((0.1, 1), (3, 0, 2)) == [("0.1", 3), ("1.0", 3), ("+Inf", 5)]
