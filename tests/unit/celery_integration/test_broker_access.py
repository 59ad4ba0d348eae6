"""The broker that a job's arguments name, and the checks of its queues and exchanges."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu import entity

from kombu_opendata import QueueClient
from kombu_opendata.broker import memory
from kombu_opendata.celery_integration.broker_access import access_of
from kombu_opendata.errors import InvalidURL, PreconditionFailed, RequestError

Exchange: Any = entity.Exchange  # untyped, as is the next one
Queue: Any = entity.Queue


@pytest.fixture
def url() -> Iterator[str]:
    name = f"access-{uuid.uuid4().hex}"
    yield f"opendata+memory://{name}"
    memory.stop(name)


def test_the_broker_of_an_app() -> None:
    app = Celery("a", broker="opendata://a:5677;opendata://b:5677/mail", set_as_current=False)
    app.conf.broker_transport_options = {"reconnect_timeout": 1}
    access = access_of(app=app)
    assert (access.url, access.transport_options) == (app.conf.broker_url, {"reconnect_timeout": 1})
    assert access.instance == "default", "that of the first URL"
    app.conf.broker_write_url = ["opendata://c:5677/mail", "opendata://d:5677/mail"]
    assert access_of(app=app).url == "opendata://c:5677/mail;opendata://d:5677/mail"
    assert access_of(app=app).instance == "mail"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "either broker_url or app"),
        ({"broker_url": "opendata:///q", "app": "tasks:app"}, "either broker_url or app"),
        ({"broker_url": "opendata:///q", "transport_options": [1]}, "must map names to values"),
        ({"app": "tasks:app", "transport_options": {"start_timeout": 1}}, "an app has its own"),
        ({"app": "no_such_module:app"}, "no Celery app at 'no_such_module:app'"),
        ({"app": "uuid:no_app"}, "no Celery app at 'uuid:no_app'"),
        ({"app": 7}, "app is 7 and must be a Celery app"),
        ({"broker_url": "redis://u:s3cr3t@h"}, "only be submitted to this package's brokers"),
    ],
)
def test_what_names_no_broker_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(RequestError, match=text) as refused:
        access_of(**arguments)
    assert "s3cr3t" not in str(refused.value)


def test_an_entity_with_other_arguments_is_refused_and_none_is_created(url: str) -> None:
    with QueueClient(url) as client, access_of(url).connect() as broker:
        client.create("q")
        broker.check([Queue("q"), Queue("missing"), Exchange("missing")])
        with pytest.raises(PreconditionFailed):
            broker.check([Queue("q", queue_arguments={"x-max-length": 1})])
        assert client.metrics_all().keys() == {"q"}


def test_queues_are_created_once(url: str) -> None:
    with QueueClient(url) as client, access_of(url).connect() as broker:
        broker.declare([Queue("short", queue_arguments={"x-max-length": 1})])
        broker.create_queues(["short", "new"])
        assert client.metrics_all().keys() == {"short", "new"}
        broker.check([Queue("short", queue_arguments={"x-max-length": 1})])


def test_a_job_that_was_not_committed(url: str) -> None:
    assert access_of(url).committed_job("unknown") is None


def test_a_broker_that_takes_no_jobs_is_refused_before_the_first_one(url: str) -> None:
    with pytest.raises(InvalidURL, match="can't hold staged batches"):
        access_of(url).committed_job(None)
