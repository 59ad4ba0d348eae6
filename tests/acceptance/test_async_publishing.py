"""Publishing and awaiting results from asyncio, with a broker, workers and outages of their own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from kombu import entity

import kombu_opendata
from kombu_opendata import AwaitableResult, QueueClient
from kombu_opendata.celery_integration.async_publisher import CANCEL_SECONDS
from kombu_opendata.errors import AccessRefused, ConnectionLost, MessageNotFound, QueueFull, RequestError

from ..support.broker import EmbeddedBroker
from ..support.ledger import Ledger
from ..support.orchard import Orchard, asking, orchard
from ..support.processes import Children, wait_until
from ..support.served import ServedBroker
from ..support.unread import unread_bytes
from ..support.users import user_table, write_users
from ..support.waiting import turns, until

SECONDS = 60
Queue: Any = entity.Queue  # untyped


@pytest.fixture
def grove(broker_url: str, tmp_path: Path) -> Iterator[Orchard]:
    with orchard(broker_url, tmp_path) as found:
        yield found


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    with asking(broker_url, broker_connection_timeout=2) as app:
        yield app


def stored_ids(url: str, queue: str = "celery") -> list[str]:
    with QueueClient(url) as client:
        return [message.headers["id"] for message in client.peek(queue, 1000)]


def test_results_are_awaited_with_two_threads(grove: Orchard) -> None:
    async def work() -> None:
        async with asyncio.timeout(SECONDS):
            results = await asyncio.gather(*(kombu_opendata.apply_async(grove.sig("add"), (n, n)) for n in range(200)))
            before = set(threading.enumerate())
            assert await asyncio.gather(*results) == [2 * n for n in range(200)]
            assert len(set(threading.enumerate()) - before) <= 2
            again = AwaitableResult(grove.app.AsyncResult(results[7].id))
            assert await again.get(SECONDS) == await results[7] == 14
            assert len(await kombu_opendata.apply_async_many(grove.sig("add", n, n) for n in range(3))) == 3

    asyncio.run(work())


def test_workflows_failures_and_timeouts(grove: Orchard, tmp_path: Path) -> None:
    add, fall = grove.sig("add", 1, 2), grove.sig("fall", "down")

    async def publish(signature: Any, **options: Any) -> AwaitableResult:
        return await kombu_opendata.apply_async(signature, **options)

    async def work() -> None:
        async with asyncio.timeout(SECONDS):
            assert await (await publish(chain(add, grove.sig("add", 3)))) == 6
            both = await publish(group(add, grove.sig("add", 3, 4)))
            assert await both == [3, 7]
            assert both.id == both.celery_result.id
            assert await (await publish(chord([add, add], grove.sig("total")))) == 6
            failed = await publish(fall)
            with pytest.raises(Exception, match="down"):
                await failed
            assert str(await failed.get(propagate=False)) == "down"
            with pytest.raises(Exception, match="down"):
                await (await publish(chain(fall, grove.sig("add", 3))))
            assert await (await publish(add, ignore_result=True)) is None
            later = await publish(add, countdown=3600, queue="later")
            with pytest.raises(TimeoutError):
                await later.get(0.2)
            waiting = asyncio.create_task(later.get())
            await turns()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not grove.app.backend.result_consumer.buckets

    asyncio.run(work())


def test_results_and_publishes_outlast_a_killed_broker(grove: Orchard, store_folder: Path, tmp_path: Path) -> None:
    gate, ledger = tmp_path / "gate", Ledger(tmp_path / "ran.txt")
    broker = EmbeddedBroker(store_folder)

    async def work() -> None:
        async with asyncio.timeout(SECONDS):
            held = await kombu_opendata.apply_async(grove.app.signature("farm.hold", (str(ledger), "x", str(gate))))
            waiting = asyncio.create_task(held.get())
            await asyncio.to_thread(ledger.wait_for, "x began")
            publishing = [asyncio.create_task(kombu_opendata.apply_async(grove.sig("add"), (n, n))) for n in range(100)]
            await publishing[0]
            await asyncio.to_thread(broker.kill)
            results = await asyncio.gather(*publishing)
            gate.touch()
            await waiting
            assert await asyncio.gather(*results) == [2 * n for n in range(100)]

    asyncio.run(work())


def frozen(broker: EmbeddedBroker) -> int:
    """The pid of the broker, which is stopped as by a debugger until it gets SIGCONT."""
    pid = broker.wait_up()
    os.kill(pid, signal.SIGSTOP)
    return pid


@pytest.mark.parametrize("ends", ["in time", "late"])
def test_a_cancelled_publish_is_stored_once_and_says_so(app: Celery, store_folder: Path, ends: str) -> None:
    signature = app.signature("add", (1, 2))

    async def work() -> str:
        await kombu_opendata.apply_async(signature)
        pid = frozen(EmbeddedBroker(store_folder))
        loop, task_id = asyncio.get_running_loop(), uuid.uuid4().hex
        try:
            if ends == "in time":
                loop.call_later(0.1 + CANCEL_SECONDS / 10, os.kill, pid, signal.SIGCONT)
            with pytest.raises(TimeoutError) as caught:
                async with asyncio.timeout(0.1):
                    await kombu_opendata.apply_async(signature, task_id=task_id)
        finally:
            os.kill(pid, signal.SIGCONT)
        cancelled: Any = caught.value.__cause__
        assert cancelled.stored is (True if ends == "in time" else None)
        late = "not confirmed yet: stored once or not at all, see QueueClient.task(id)"
        assert cancelled.__notes__ == [f"task {task_id}: {'stored' if ends == 'in time' else late}"]
        assert cancelled.task_ids == [task_id]
        await kombu_opendata.apply_async(signature)  # confirmed after the cancelled one
        return task_id

    task_id = asyncio.run(work())
    ids = stored_ids(app.conf.broker_url)
    assert len(ids) == 3
    assert ids.count(task_id) == 1
    with QueueClient(app.conf.broker_url) as client:
        assert client.task(task_id).state == "available"
        with pytest.raises(MessageNotFound):
            client.task("another")


def test_a_process_ends_although_the_broker_does_not_answer(app: Celery, store_folder: Path) -> None:
    program = """
import asyncio, os, signal, sys
from celery import Celery
import kombu_opendata

url, pid = sys.argv[1:]
app = Celery(broker=url)
app.conf.broker_transport_options = {"reconnect_timeout": 1}

async def work():
    await kombu_opendata.apply_async(app.signature("add"))
    os.kill(int(pid), signal.SIGSTOP)
    async with asyncio.timeout(0.1):
        await kombu_opendata.apply_async(app.signature("add"))

asyncio.run(work())
"""
    asyncio.run(kombu_opendata.apply_async(app.signature("add")))
    pid = EmbeddedBroker(store_folder).wait_up()
    try:
        words = (sys.executable, "-c", program, app.conf.broker_url, str(pid))
        ended = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "TimeoutError" in ended.stderr
    assert "1 publishes were not confirmed" in ended.stderr


def test_a_cancelled_publish_that_is_refused_says_so(app: Celery, store_folder: Path) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queue = Queue("full", queue_arguments=arguments)
    signature = app.signature("add", (1, 2)).set(queue=queue)

    async def work() -> None:
        await kombu_opendata.apply_async(signature)
        with pytest.raises(QueueFull):
            await kombu_opendata.apply_async(signature)
        pid = frozen(EmbeddedBroker(store_folder))
        try:
            before = unread_bytes()
            publishing = asyncio.create_task(kombu_opendata.apply_async(signature))
            await until(lambda: unread_bytes() > before)
            publishing.cancel()
            asyncio.get_running_loop().call_later(0.2, os.kill, pid, signal.SIGCONT)
            with pytest.raises(asyncio.CancelledError) as caught:
                await publishing
        finally:
            os.kill(pid, signal.SIGCONT)
        cancelled: Any = caught.value
        assert cancelled.stored is False

    asyncio.run(work())
    assert len(stored_ids(app.conf.broker_url, "full")) == 1


def test_a_publish_that_is_cancelled_in_the_queue_is_not_sent(app: Celery) -> None:
    signature = app.signature("add", (1, 2))
    entered, leave = threading.Event(), threading.Event()

    class Slow(str):
        def __reduce__(self) -> Any:
            entered.set()
            leave.wait(SECONDS)
            return str, (str(self),)

    async def work() -> None:
        app.conf.accept_content = ["json", "pickle"]
        first = asyncio.create_task(kombu_opendata.apply_async(signature, (Slow("a"),), serializer="pickle"))
        await asyncio.to_thread(entered.wait, SECONDS)
        second = asyncio.create_task(kombu_opendata.apply_async(signature))
        await turns()
        second.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await second
        leave.set()
        cancelled: Any = caught.value
        assert cancelled.stored is False
        await first

    asyncio.run(work())
    assert len(stored_ids(app.conf.broker_url)) == 1


def test_permissions_and_a_broker_that_went(tmp_path: Path, store_folder: Path, started: Children) -> None:
    rights = {"default": {"write": "mine|amq.results", "configure": "mine", "read": "mine"}}
    users = write_users(tmp_path / "users.toml", user_table("eye", "s3cr3t", rights))
    listen = ("--listen", "tcp:127.0.0.1:0", "--users", str(users))
    started.add(broker := ServedBroker(store_folder, "--store", f"file://{store_folder}/store", *listen))
    with asking(f"opendata://eye:s3cr3t@127.0.0.1:{broker.port}") as app:
        app.conf.broker_transport_options = {"reconnect_timeout": 0.5}
        app.conf.broker_connection_timeout = 0.5

        async def work() -> None:
            await kombu_opendata.apply_async(app.signature("add", (1, 2)), queue="mine")
            with pytest.raises(AccessRefused):
                await kombu_opendata.apply_async(app.signature("add", (1, 2)), queue="other")
            await asyncio.to_thread(broker.kill)
            with pytest.raises(ConnectionLost):
                await kombu_opendata.apply_async(app.signature("add", (1, 2)), queue="mine")

        asyncio.run(work())


def test_results_of_another_backend(app: Celery) -> None:
    app.conf.result_backend = "cache+memory://"
    with pytest.raises(RequestError, match="only results of an opendata:// backend can be awaited"):
        asyncio.run(AwaitableResult(app.AsyncResult("x")).get(1))


def test_a_forked_process_publishes_too(app: Celery, broker_url: str) -> None:
    signature = app.signature("add", (1, 2))
    asyncio.run(kombu_opendata.apply_async(signature))
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(asyncio.wait_for(kombu_opendata.apply_async(signature), SECONDS))
        except BaseException:
            os._exit(1)
        os._exit(0)
    codes: list[int] = []

    def ended() -> bool:
        done, status = os.waitpid(pid, os.WNOHANG)
        codes.extend([os.waitstatus_to_exitcode(status)] if done else [])
        return bool(done)

    wait_until(ended, SECONDS, "the end of the forked process")
    assert codes == [0]
    assert len(stored_ids(broker_url)) == 2
