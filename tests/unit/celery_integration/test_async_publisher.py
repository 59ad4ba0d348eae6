"""Publishing from asyncio, to a broker in this process: the messages are Celery's, the errors are the caller's."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.signals import after_task_publish, before_task_publish
from kombu.entity import Exchange, Queue
from kombu.exceptions import EncodeError

import kombu_opendata
from kombu_opendata import QueueClient
from kombu_opendata.broker import memory
from kombu_opendata.celery_integration.async_publisher import AsyncPublisher
from kombu_opendata.celery_integration.awaitable_result import ResultReader
from kombu_opendata.errors import AccessRefused, ConnectionLost, PublishFailed, QueueFull, RequestError, Unroutable

run = asyncio.run
ETA = datetime(2100, 1, 1)


@pytest.fixture
def app() -> Iterator[Celery]:
    name = f"async-{uuid.uuid4().hex}"
    app = Celery("test", broker=f"opendata+memory://{name}", set_as_current=False)
    app.conf.update(result_backend="opendata", broker_transport_options={"reconnect_timeout": 2})

    @app.task(name="add", shared=False)
    def add(x: int, y: int) -> int:
        return x + y

    @app.task(name="total", shared=False)
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    yield app
    app.close()
    memory.stop(name)


def take(app: Celery, queue: str = "celery") -> list[Any]:
    """Take all messages off a queue."""
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        received = []
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            received.append(message)
        return received


def look(app: Celery) -> list[Any]:
    """All messages of the default queue, delayed ones included."""
    with closing(QueueClient(app.conf.broker_url)) as client:
        return client.peek("celery", 10)


@contextmanager
def receiving(signal: Any, receiver: Any) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"expires": ETA},
        {"serializer": "yaml", "compression": "zlib"},
        {"headers": {"tenant": "acme"}, "priority": 7, "shadow": "sum"},
        {"link": "total", "link_error": "total"},
        {"time_limit": 30, "soft_time_limit": 20, "ignore_result": True, "retries": 2},
        {"queue": "other"},
    ],
)
def test_messages_are_those_of_celery(app: Celery, options: dict[str, Any]) -> None:
    add = app.tasks["add"]
    for name in ("link", "link_error"):
        if name in options:
            options = {**options, name: app.signature(options[name])}
    task_id = uuid.uuid4().hex
    result = run(kombu_opendata.apply_async(add, (1,), {"y": 2}, task_id=task_id, **options))
    assert result.id == task_id
    add.apply_async((1,), {"y": 2}, task_id=task_id, **options)
    ours, celerys = take(app, options.get("queue", "celery"))
    for message in (ours, celerys):
        message.properties.pop("reply_to")  # each thread of Celery has one
        for name in ("delivery_tag", "message_id", "timestamp", "expiration"):
            message.properties.pop(name, None)
        message.delivery_info.pop("message_id", None)
    assert ours.body == celerys.body
    assert ours.headers == celerys.headers
    assert ours.properties == celerys.properties


@pytest.mark.parametrize("delay", ["countdown", "eta"])
def test_delayed_tasks(app: Celery, delay: str) -> None:
    add = app.tasks["add"]
    options: dict[str, Any] = {"countdown": 1000} if delay == "countdown" else {"eta": ETA}
    run(kombu_opendata.apply_async(add, (1, 2), **options))
    add.apply_async((1, 2), **options)
    ours, celerys = (datetime.fromisoformat(message.headers["eta"]) for message in look(app))
    assert timedelta(0) <= celerys - ours < timedelta(seconds=900)
    assert not take(app)


def test_routes_and_signals_are_those_of_the_app(app: Celery) -> None:
    app.conf.task_routes = {"add": {"queue": "sums"}}
    request_id: ContextVar[str] = ContextVar("request_id")
    before, after = [], []

    def on_before(headers: dict[str, Any], **_kwargs: Any) -> None:
        headers["request_id"] = request_id.get()
        before.append(headers["id"])

    def on_after(headers: dict[str, Any], **_kwargs: Any) -> None:
        after.append(headers["id"])

    async def work() -> str:
        request_id.set("r1")
        return (await kombu_opendata.apply_async(app.tasks["add"], (1, 2))).id

    with receiving(before_task_publish, on_before), receiving(after_task_publish, on_after):
        task_id = run(work())
    assert before == after == [task_id]
    (message,) = take(app, "sums")
    assert message.headers["request_id"] == "r1"


def test_concurrent_callers_share_one_thread(app: Celery) -> None:
    async def work() -> set[str]:
        before = set(threading.enumerate())
        results = await asyncio.gather(*(kombu_opendata.apply_async(app.tasks["add"], (n, n)) for n in range(300)))
        started = {thread.name for thread in set(threading.enumerate()) - before}
        assert {name for name in started if name.startswith("opendata-publishes")} == {"opendata-publishes"}
        return {result.id for result in results}

    ids = run(work())
    assert {message.headers["id"] for message in take(app)} == ids
    assert len(ids) == 300


def test_workflows(app: Celery) -> None:
    add, total = app.tasks["add"], app.tasks["total"]

    async def work() -> list[str]:
        steps = await kombu_opendata.apply_async(chain(add.s(1, 2), add.s(3)))
        both = await kombu_opendata.apply_async(group(add.s(1, 2), add.s(3, 4)))
        summed = await kombu_opendata.apply_async(chord([add.s(1, 2), add.s(3, 4)], total.s()))
        many = await kombu_opendata.apply_async_many(add.s(n, n) for n in range(5))
        assert await kombu_opendata.apply_async_many([]) == []
        assert len(both.celery_result.results) == 2
        return [result.id for result in (steps, both, summed, *many)]

    assert len(set(run(work()))) == 8
    assert len(take(app)) == 1 + 2 + 2 + 5


def test_eager_tasks_run_here(app: Celery) -> None:
    app.conf.task_always_eager = True

    async def work() -> Any:
        one = await kombu_opendata.apply_async(app.tasks["add"], (1, 2))
        both = await kombu_opendata.apply_async(group(app.tasks["add"].s(1, 2), app.tasks["add"].s(3, 4)))
        return await one, await both

    assert run(work()) == (3, [3, 7])


def test_parents_of_tasks_that_publish(app: Celery) -> None:
    @app.task(name="parent", bind=True, shared=False)
    def parent(self: Any) -> Any:
        async def work() -> list[str]:
            add = app.tasks["add"]
            first = await kombu_opendata.apply_async(add, (1, 2))
            return [result.id for result in (first, *await kombu_opendata.apply_async_many([add.s(3, 4), add.s(5, 6)]))]

        child_ids = run(work())
        return self.request.id, [child.id for child in self.request.children], child_ids

    parent_id, children, child_ids = parent.apply().get()
    assert children == child_ids
    for message in take(app):
        assert message.headers["id"] in child_ids
        assert message.headers["parent_id"] == message.headers["root_id"] == parent_id


def test_the_parent_of_workflows_is_that_of_celery(app: Celery) -> None:
    add, total = app.tasks["add"], app.tasks["total"]
    workflows = [
        chain(add.s(1, 2), add.s(3)),
        chain(chain(add.s(1, 2), add.s(3)), add.s(4)),
        chain(group(add.s(1, 2), add.s(3, 4)), total.s()),
        group(chain(add.s(1, 2), add.s(3)), add.s(4, 5)),
        chord([chain(add.s(1, 2), add.s(3)), add.s(4, 5)], total.s()),
    ]

    @app.task(name="parent", bind=True, shared=False)
    def parent(self: Any) -> Any:
        for workflow in workflows:
            workflow.clone().apply_async()

        async def work() -> None:
            for workflow in workflows:
                await kombu_opendata.apply_async(workflow.clone())
            await kombu_opendata.apply_async_many(workflow.clone() for workflow in workflows)

        run(work())
        return self.request.id

    parent_id = parent.apply().get()
    sent = [(message.headers["parent_id"], message.headers["root_id"]) for message in take(app)]
    assert sent == [(parent_id, parent_id)] * len(sent)
    assert len(sent) == 3 * 8
    run(kombu_opendata.apply_async(workflows[0].clone()))
    assert [message.headers["parent_id"] for message in take(app)] == [None]


def test_a_signature_keeps_its_id(app: Celery) -> None:
    add = app.tasks["add"]
    frozen = add.s(1, 2)
    task_id = frozen.freeze().id
    workflow = group(add.s(1, 2), add.s(3, 4))
    group_id = workflow.freeze().id
    assert run(kombu_opendata.apply_async(frozen)).id == task_id
    assert run(kombu_opendata.apply_async(workflow)).id == group_id
    many = [add.s(1, 2).set(task_id="a"), add.s(1, 2)]
    results = run(kombu_opendata.apply_async_many(many))
    ids = [task_id, *(child.id for child in workflow.freeze().children), *(result.id for result in results)]
    assert [message.headers["id"] for message in take(app)] == ids
    assert results[0].id == "a"


def test_a_caller_that_gives_up_leaves_the_result_to_the_others(app: Celery) -> None:
    async def work() -> list[Any]:
        result = await kombu_opendata.apply_async(app.tasks["add"], (1, 2))
        others = [kombu_opendata.AwaitableResult(app.AsyncResult(result.id)) for _ in range(2)]
        first, *waiting = [asyncio.create_task(each.get(20)) for each in (result, result, *others)]
        with pytest.raises(TimeoutError):
            await result.get(0.1)
        first.cancel()
        await asyncio.wait([first])
        backend = app.backend
        await asyncio.to_thread(backend.mark_as_done, result.id, 3)
        return await asyncio.gather(*waiting)

    assert run(work()) == [3, 3, 3]


def test_a_cancelled_wait_requests_no_more_results() -> None:
    before = set(threading.enumerate())  # with those of other tests' results
    requested, cancelled = threading.Event(), threading.Event()
    watched = []

    class Result:
        id, on_ready = "a", SimpleNamespace(ready=False)

        def then(self, _callback: Any) -> None:
            watched.append(self)
            requested.set()
            assert cancelled.wait(20)

    def drain_events(timeout: float) -> None:
        raise TimeoutError

    backend: Any = SimpleNamespace(
        result_consumer=SimpleNamespace(drain_events=drain_events), remove_pending_result=lambda _result: None
    )

    async def work() -> None:
        results: list[Any] = [Result(), Result()]
        reader = ResultReader()
        waiting = asyncio.create_task(reader.wait(backend, results))
        await asyncio.to_thread(requested.wait, 20)
        waiting.cancel()
        await asyncio.wait([waiting])
        cancelled.set()
        del reader, waiting  # whose threads end
        for thread in set(threading.enumerate()) - before:
            if thread.name.startswith("opendata-results"):
                await asyncio.to_thread(thread.join, 20)

    run(work())
    assert len(watched) == 1


def test_refusals_are_raised_in_their_callers(app: Celery) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    bare = Exchange("bare", "topic")  # type: ignore[no-untyped-call]
    full = Queue("full", Exchange("full"), "full", queue_arguments=arguments)  # type: ignore[no-untyped-call]

    async def work() -> list[Any]:
        add = app.tasks["add"]
        await kombu_opendata.apply_async(add, (0, 0), queue=full)
        calls = [
            kombu_opendata.apply_async(add, (1, 1), queue=full),
            kombu_opendata.apply_async(add, (2, 2)),
            kombu_opendata.apply_async(add, (3, 3), exchange=bare, routing_key="none", declare=[bare], mandatory=True),
            kombu_opendata.apply_async(add, (object(), 3)),
            kombu_opendata.apply_async(add, (4,)),
            kombu_opendata.apply_async(group(add.s(5, 5).set(queue=full), add.s(6, 6))),
        ]
        return await asyncio.gather(*calls, return_exceptions=True)

    refused, stored, unroutable, not_encoded, too_few, partly = run(work())
    assert isinstance(refused, QueueFull)
    assert stored.id
    assert isinstance(unroutable, Unroutable)
    assert isinstance(not_encoded, EncodeError)
    assert isinstance(too_few, TypeError)
    assert isinstance(partly, PublishFailed)
    assert [type(failed.error).__mro__[1] for failed in partly.failed] == [QueueFull]
    assert len(take(app)) == 2  # the one of the group that failed in part, too
    assert len(take(app, "full")) == 1


@pytest.mark.parametrize(
    ("task", "options", "text"),
    [
        ("add", {}, r"takes a Celery task or signature, not str: give one"),
        (None, {"connection": object()}, r"remove the option 'connection'"),
    ],
)
def test_invalid_calls(app: Celery, task: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        run(kombu_opendata.apply_async(task or app.tasks["add"], (1, 2), **options))


def test_other_brokers_are_refused() -> None:
    app = Celery("other", broker="memory://", set_as_current=False)
    with pytest.raises(RequestError, match=r"needs an opendata:// broker, and this one is memory://"):
        run(kombu_opendata.apply_async(app.signature("add"), (1, 2)))


def test_all_queued_calls_fail_together_if_there_is_no_broker(tmp_path: Any) -> None:
    app = Celery("away", broker="opendata://127.0.0.1:1", set_as_current=False)
    app.conf.broker_connection_timeout = 0.2

    async def work() -> list[Any]:
        calls = [kombu_opendata.apply_async(app.signature("add"), (n, n)) for n in range(50)]
        return await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 20)

    assert all(isinstance(error, ConnectionLost) for error in run(work()))


def test_an_unexpected_error_fails_all_calls_and_the_thread_works_again(app: Celery) -> None:
    class Broken(AsyncPublisher):
        is_broken = True

        def _wait(self) -> None:
            if self.is_broken:
                raise ZeroDivisionError
            super()._wait()

    publisher = Broken(kombu_opendata.batch(app))

    def publish() -> Any:
        return app.tasks["add"].apply_async((1, 2))

    with pytest.raises(ZeroDivisionError):
        publisher.submit(app, publish).future.result(20)
    publisher.is_broken = False
    assert publisher.submit(app, publish).future.result(20).id


def test_the_package_is_imported_without_celery() -> None:
    program = "import sys, kombu_opendata; sys.exit('celery' in sys.modules or 'asyncio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_names() -> None:
    assert not hasattr(kombu_opendata, "apply")
    assert issubclass(AccessRefused, RequestError)
