from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from kombu_opendata.broker.access.rights import Rights
from kombu_opendata.broker.access.users_format import Patterns
from kombu_opendata.broker.instance.instance import Instance
from kombu_opendata.broker.model.sessions import Session
from kombu_opendata.protocol import messages as m
from kombu_opendata.protocol.envelope import encode_envelope, metadata_headers
from kombu_opendata.staging.batch_writer import BatchWriter
from kombu_opendata.staging.job import StagingTarget
from kombu_opendata.storage.effects.staged_jobs import FollowStagedEffect
from kombu_opendata.storage.engine import Engine
from kombu_opendata.storage.records.staged_jobs import DEAD_LETTERED
from tests.support.caller import Caller
from tests.support.clock import ManualClock

CONSUMER = Patterns("", "^q$", "^q$")
OWN = {"id": "task", "spark_job": "job"}


def envelope(headers: dict[str, Any]) -> bytes:
    return encode_envelope(b"body", None, None, headers, {}, "", "q")


def with_job(test: Callable[[Instance, Caller, int], None]) -> None:
    """Run a test with a job of one task in queue ``q``: its instance, a session, and the id of its message."""

    async def run() -> None:
        engine = await Engine.open(f"memory:///{uuid.uuid4()}", "default", ManualClock())
        instance = Instance("default", engine, grace_ms=2000, max_message_bytes=1 << 20)
        session = instance.sessions[b"s" * 16] = Session(b"s" * 16, "a worker")
        call = Caller(instance, session)
        try:
            call(m.DeclareQueue(1, "q", True, False, False, {}, False))
            writer = BatchWriter(StagingTarget("memory:", "default"), "job", 0, 0)
            writer.add(envelope(OWN), metadata_headers(OWN, "", "q", 0, None), routing_key="q")
            info = writer.close()
            call(m.CommitJob(2, "job", [(info.uri, info.rows, info.bytes, info.checksum, info.data)]))
            await call.done()
            test(instance, call, instance.engine.state.staged.jobs["job"].first_id)
        finally:
            await engine.close()

    asyncio.run(run())


def publish(instance: Instance, call: Caller, headers: dict[str, Any]) -> int:
    """Publish a message to the queue; return the number of the job's tasks."""
    call.session.newest_publish += 1
    call(m.Publish(3, call.session.newest_publish + 1, "", "q", envelope(headers), {}, 0, 1))
    return instance.engine.state.staged.jobs["job"].tasks


@pytest.mark.parametrize(
    "headers",
    [
        {"spark_message": "{id}/other"},
        {"spark_message": "{id}/task", "spark_job": "other"},
        {"spark_message": "{id}/task", "spark_job": None},
        {"spark_message": "{id}/task", "spark_job": "x" * 60_000},
        {"spark_message": "{id}/task", "spark_job": ["job"]},
        {"spark_message": "{id}/task", "spark_job": 7},
        {"spark_message": "{id}"},
        {"spark_message": "{id}/task", "id": None},
        {"spark_message": "-1/task"},
        {"spark_message": "99999999999999999999/task"},
        {"spark_message": "٣/task"},
        {"spark_message": "/task"},
        {"spark_message": "9999999/task"},
        {"spark_message": "x" * 60_000},
        {"spark_message": {"a": 1}},
        {"spark_message": 5},
        {},
    ],
    ids=lambda headers: str(headers)[:40],
)
def test_a_message_that_is_not_of_the_task_counts_for_no_job(headers: dict[str, Any]) -> None:
    def test(instance: Instance, call: Caller, id: int) -> None:
        given = {name: v.replace("{id}", str(id)) if isinstance(v, str) else v for name, v in headers.items()}
        assert publish(instance, call, {**OWN, **given}) == 1

    with_job(test)


@pytest.mark.parametrize(
    ("patterns", "roles", "tasks"),
    [
        (CONSUMER, (), 2),
        (Patterns("", "^(q|amq.staged)$", ""), (), 2),
        (Patterns("", "^q$", "^other$"), (), 1),
        (Patterns("", "^q$", ""), ("operator",), 1),
        (Patterns(), ("admin",), 2),
    ],
)
def test_only_users_who_may_settle_its_messages_change_a_jobs_counts(
    patterns: Patterns, roles: tuple[Any, ...], tasks: int
) -> None:
    def test(instance: Instance, call: Caller, id: int) -> None:
        call.session.rights = Rights("user", "default", patterns, roles)
        assert publish(instance, call, {**OWN, "spark_message": f"{id}/task"}) == tasks

    with_job(test)


def test_a_message_of_a_forgotten_job_counts_for_none() -> None:
    def test(instance: Instance, call: Caller, id: int) -> None:
        staged, engine = instance.engine.state.staged, instance.engine
        assert publish(instance, call, {**OWN, "spark_message": f"{id}/task"}) == 2
        (follower,) = staged.tasks.followers
        queue = engine.state.queues["q"]
        engine.operations.remove(queue, [queue.messages.available[id]])
        engine.operations.remove(queue, [queue.messages.available[follower]])
        job = staged.jobs["job"]
        assert job.settled_at_ms
        assert (job.tasks, sum(job.ended)) == (1, 1)
        staged.forget("job", job.settled_at_ms)
        assert (staged.tasks.followers, staged.find("job")) == ({}, None)
        call.session.newest_publish += 1
        headers = {**OWN, "spark_message": f"{follower}/task"}
        call(m.Publish(3, call.session.newest_publish + 1, "", "q", envelope(headers), {}, 0, 1))
        engine.commits.apply(FollowStagedEffect(follower + 1, follower, ["q"]))  # as in a journal
        assert staged.tasks.followers == {}

    with_job(test)


def test_a_retry_that_a_full_queue_takes_as_a_dead_letter_has_ended() -> None:
    def test(instance: Instance, call: Caller, id: int) -> None:
        arguments = {"x-max-length": 0, "x-overflow": "reject-publish-dlx", "x-dead-letter-exchange": ""}
        call(m.DeclareQueue(4, "full", True, False, False, arguments, False))
        call.session.newest_publish += 1
        retry = envelope({**OWN, "spark_message": f"{id}/task"})
        call(m.Publish(3, call.session.newest_publish + 1, "", "full", retry, {}, 0, 1))
        queue = instance.engine.state.queues["q"]
        instance.engine.operations.remove(queue, [queue.messages.available[id]])
        job = instance.engine.state.staged.jobs["job"]
        assert job.settled_at_ms
        assert (job.tasks, job.ended[DEAD_LETTERED]) == (1, 1)

    with_job(test)
