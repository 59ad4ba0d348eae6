"""Jobs by both clients and by their handles, which need no PySpark."""

from __future__ import annotations

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from kombu_opendata import AsyncQueueClient, QueueClient, find_job
from kombu_opendata.errors import NotFound, PreconditionFailed, RequestError
from kombu_opendata.protocol.messages import JobInfo

from ...support.batches import Sink, commit_job
from ...support.broker import EmbeddedBroker
from ...support.processes import run

TASKS = 4
#: also if the broker is killed and started again
PATIENT: dict[str, Any] = {"start_timeout": 60, "reconnect_timeout": 60}
WAITS = 100


@pytest.fixture
def job(url: str, sink: Sink) -> JobInfo:
    """A job whose tasks wait in the queue ``q``."""
    with QueueClient(url) as client:
        return commit_job(client, "job", TASKS)


def end(url: str, *, rejected: int = 0) -> None:
    with QueueClient(url, **PATIENT) as client:
        if rejected:
            client.reject_many("q", client.read("q", vt=60, qty=rejected))
        client.pop("q", TASKS - rejected)


def test_a_client_waits_for_a_job(url: str, job: JobInfo) -> None:
    states: list[JobInfo] = []
    with QueueClient(url) as client, ThreadPoolExecutor() as threads:
        assert client.get_job("job") == job
        assert [each.job_id for each in client.iter_jobs()] == [each.job_id for each in client.list_jobs().items]
        with pytest.warns(DeprecationWarning, match=r"list_jobs\(\)"):
            assert client.list_staged_jobs().items == [job]
        with pytest.raises(TimeoutError, match=f"job job is routed after 0 s: {TASKS} tasks have not ended"):
            client.wait_job("job", 0)
        wait = threads.submit(client.wait_job, "job", progress=states.append)
        end(url)
        assert wait.result(60).tasks.acknowledged == TASKS
        assert states[-1].has_ended
        for call in (client.get_job, client.wait_job):
            with pytest.raises(NotFound, match="knows no job 'other'"):
                call("other")
            with pytest.raises(RequestError, match="1 to 255 bytes"):
                call("")
            with pytest.raises(RequestError, match="Expected `str`, got `int`"):
                call(5)  # type: ignore[arg-type]


def test_waits_on_an_event_loop_occupy_no_threads(url: str, job: JobInfo) -> None:
    """So many tasks may wait, and be cancelled, while the client does other things."""

    async def work() -> None:
        async with AsyncQueueClient(url) as client:
            waits = [asyncio.create_task(client.wait_job("job")) for _ in range(WAITS)]
            cancelled = asyncio.create_task(client.wait_job("job"))
            with pytest.raises(TimeoutError):
                await client.wait_job("job", 0)
            assert [each.job_id async for each in client.iter_jobs()] == ["job"]
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
            assert len(await client.read("q", vt=60, qty=TASKS)) == TASKS
            assert not any(wait.done() for wait in waits)
            await client.cancel_job("job")
            for message in (await client.list_by_state("q", "in_flight")).messages:
                await client.archive("q", message.id)
            for ended in await asyncio.wait_for(asyncio.gather(*waits), 60):
                assert ended.tasks.acknowledged == TASKS
            await client.delete_job("job")
            with pytest.raises(NotFound):
                await client.wait_job("job")

    asyncio.run(work())


def test_a_handle_waits_and_steers_without_pyspark(url: str, job: JobInfo, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        find_job("other", broker_url=url)
    with pytest.raises(RequestError, match="either broker_url or app"):
        find_job("job")
    handle = find_job("job", app=Celery(broker=url, set_as_current=False))
    assert (handle.job_id, handle.rows, handle.first_message_id) == ("job", TASKS, job.first_id)
    assert repr(handle) == f"<JobHandle 'job': {TASKS} tasks, added before>"
    with pytest.raises(PreconditionFailed, match="have not ended"):
        handle.delete()
    end(url, rejected=1)
    program = (
        "import sys; sys.modules.update(pyspark=None, pyarrow=None); from kombu_opendata import find_job;"
        "print(find_job('job', broker_url=sys.argv[1]).wait(60).tasks.failed)"
    )
    assert run([sys.executable, "-c", program, url], tmp_path) == "1\n"
    assert handle.retry().redriven == 1
    assert handle.retry().handled == 0
    assert handle.cancel().dropped == 1
    assert (handle.cancel().dropped, handle.status().tasks.removed) == (0, 1)
    handle.delete()
    with pytest.raises(NotFound):
        handle.status()


def test_a_wait_outlasts_a_killed_broker(url: str, job: JobInfo, broker: EmbeddedBroker) -> None:
    with ThreadPoolExecutor() as threads:
        handle = find_job("job", broker_url=url, transport_options=PATIENT)
        wait = threads.submit(handle.wait, 120)
        broker.kill()
        end(url)
        assert wait.result(120).tasks.acknowledged == TASKS
