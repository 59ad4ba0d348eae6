"""The task that is sent when all tasks of a job have ended."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from celery import Celery, chain

from kombu_opendata import find_job
from kombu_opendata.celery_integration.broker_access import BrokerAccess
from kombu_opendata.errors import InvalidMessage, RequestError
from kombu_opendata.spark import submit_tasks
from kombu_opendata.spark.encode.plan import ColumnNames, JobPlan
from kombu_opendata.spark.write.completion import completion_plan
from kombu_opendata.spark.write.task_writers import TaskWriter

from ...support.processes import wait_until
from ...support.spark import taken


def app() -> Celery:
    made = Celery("shop", broker="opendata+memory://none", set_as_current=False)

    @made.task(name="shop.report", shared=False)
    def report(day: str, *, job: Any) -> None: ...

    return made


def test_what_can_not_be_sent_on_completion() -> None:
    report = app().tasks["shop.report"]
    wrong: Any
    for wrong in (5, "", {"args": []}, chain(report.si("a"), report.si("b"))):
        with pytest.raises(
            RequestError, match=r"on_complete is .* must be a task's name, or the signature of one task"
        ):
            completion_plan(wrong, None, "")
    with pytest.raises(RequestError, match=r"task 'shop\.report' can't be called with these .*'day'"):
        completion_plan(report.s(), app(), "")
    with pytest.raises(RequestError, match="no option 'quue': do you mean 'queue'"):
        completion_plan(report.s("a").set(quue="x"), app(), "")
    with pytest.raises(InvalidMessage, match="use json or msgpack"):
        completion_plan(report.s("a").set(serializer="pickle"), app(), "")
    plan = completion_plan(report.s("a").set(queue="reports"), app(), "")
    assert plan is not None
    assert [entity.name for entity in plan.declared()] == ["reports"]


def test_the_times_of_the_task_count_from_the_commit(broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from the plan, which a stream makes once for all of its micro-batches."""
    now = dt.datetime.now(dt.UTC)
    with monkeypatch.context() as patch:
        patch.setattr(Celery, "now", lambda self: now - dt.timedelta(days=1))
        report = app().tasks["shop.report"].s("a").set(queue="reports", expires=7200)
        plan = JobPlan(ColumnNames(), "proj.add", on_complete=completion_plan(report, app(), ""))
    TaskWriter(plan, BrokerAccess(broker_url), "day", "").commit([])
    job = find_job("day", broker_url=broker_url)
    wait_until(lambda: job.status().completed_at_ms, 60, lambda: repr(job.status()))
    (message,) = taken(broker_url, "reports")
    expires = dt.datetime.fromisoformat(message.headers["expires"])
    assert abs(expires - now - dt.timedelta(hours=2)) < dt.timedelta(minutes=10)


def test_a_task_on_completion_and_a_rate_limit(spark: Any, broker_url: str) -> None:
    report = app().tasks["shop.report"].s("2026-11-21").set(queue="reports")
    arguments: dict[str, Any] = {"broker_url": broker_url, "job_id": "day", "rate_limit": 1000}
    job = submit_tasks(spark.range(3), "proj.add", on_complete=report, **arguments)
    assert job.status().rate_limit == 1000
    job.wait_routed(60)
    assert taken(broker_url, "reports") == []

    assert len(taken(broker_url)) == 3

    wait_until(lambda: job.status().completed_at_ms > 0, 60, lambda: repr(job.status()))
    (message,) = taken(broker_url, "reports")
    assert message.headers["task"] == "shop.report"
    args, kwargs = message.arguments
    assert args == ["2026-11-21"]
    assert (kwargs["job"]["job_id"], sum(kwargs["job"]["tasks"].values())) == ("day", 3)
