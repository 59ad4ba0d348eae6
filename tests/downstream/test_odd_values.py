"""Values of unexpected types in headers, properties and results, as other packages and foreign senders have them."""

from __future__ import annotations

import datetime as dt
import enum
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from celery import Celery

from kombu_opendata import QueueClient
from kombu_opendata.errors import InvalidMessage

from ..support.kombu_client import connected
from ..support.processes import tail, wait_until
from ..support.served import ServedBroker
from .conftest import StartWorker

PATIENCE_SECONDS = 60


class Color(enum.Enum):
    RED = "red"


@pytest.fixture
def app(broker: ServedBroker) -> Iterator[Celery]:
    with Celery("odd", broker=broker.url, backend=broker.url, set_as_current=False) as app:
        yield app


def test_headers_and_properties(app: Celery, start_worker: StartWorker, client: QueueClient) -> None:
    import numpy
    from django.utils.safestring import SafeString

    start_worker("odd")
    odd = {
        "x-array": (SafeString("a"), {"b": numpy.float64(0.5)}),
        "x-decimal": Decimal("1.50"),
        "x-enum": Color.RED,
        "x-float": numpy.float64(0.5),
        "x-moment": dt.datetime(2026, 1, 2, 3, 4, 5, 6),
        "x-none": None,
        "x-safe": SafeString("<b>"),
        "x-text": numpy.str_("text"),
        "x-uuid": uuid.UUID(int=5),
    }
    task_id = SafeString(uuid.uuid4())
    sent = app.send_task("odd.headers", task_id=task_id, queue=SafeString("celery"), headers=odd, priority=True)
    assert sent.get(timeout=PATIENCE_SECONDS) == [
        "x-array list ['a', {'b': 0.5}]",
        "x-decimal Decimal 1.50",
        "x-enum str red",
        "x-float float 0.5",
        "x-moment datetime 2026-01-02 03:04:05.000006",
        "x-none NoneType None",
        "x-safe str <b>",
        "x-text str text",
        "x-uuid UUID 00000000-0000-0000-0000-000000000005",
    ]
    wait_until(lambda: list(client.iter_attempts(headers={"x-safe": ["<b>"]})), PATIENCE_SECONDS, "filters find it")


def test_an_id_that_is_no_text(broker: ServedBroker, start_worker: StartWorker, client: QueueClient) -> None:
    worker = start_worker("odd")
    with Celery("sender", broker=broker.url, set_as_current=False) as sender:
        ids = [uuid.UUID(int=5), 7]
        for task_id in ids:
            sender.send_task("odd.result", ("large",), task_id=task_id)
    ended = [("succeeded", "odd.result")] * len(ids)

    def attempts() -> list[tuple[str, str]]:
        return [(each.state, each.event.headers["task"]) for each in client.iter_attempts() if each.event]

    wait_until(lambda: attempts() == ended, PATIENCE_SECONDS, lambda: f"{attempts()}\n{tail(worker.log)}")
    with Celery("reader", backend=broker.url, set_as_current=False) as reader:
        for task_id in ids:
            assert reader.AsyncResult(str(task_id)).get(timeout=PATIENCE_SECONDS) == 2**200
    assert worker.terminate() == 0, tail(worker.log)


@pytest.mark.parametrize("value", [object(), 2**70, "\ud800", {"inner": [len]}], ids=["object", "int", "text", "deep"])
def test_a_header_without_an_encoding_is_refused_in_the_sender(app: Celery, client: QueueClient, value: object) -> None:
    with pytest.raises(InvalidMessage, match=r"header 'x-odd' can't be encoded") as refused:
        app.send_task("odd.headers", headers={"x-odd": value})
    assert refused.value.values["name"] == "x-odd"
    assert client.metrics("celery").ready == 0
    app.send_task("odd.headers")
    assert client.metrics("celery").ready == 1, "the connection is usable"


#: what JSON, as Kombu extends it, encodes, although the function returned another type
ENCODED = {"decimal": "Decimal", "large": "int", "nan": "float", "numpy float": "float", "surrogate": "str"}
NOT_ENCODED = ("set", "numpy array", "object", "function", "generator", "exception")


def test_results(app: Celery, start_worker: StartWorker, client: QueueClient) -> None:
    worker = start_worker("odd")
    sent = {kind: app.send_task("odd.result", (kind,)) for kind in (*ENCODED, *NOT_ENCODED)}
    found = {kind: type(result.get(timeout=PATIENCE_SECONDS, propagate=False)) for kind, result in sent.items()}
    assert {kind: of.__name__ for kind, of in found.items()} == {**ENCODED, **dict.fromkeys(NOT_ENCODED, "EncodeError")}
    ids = {result.id: kind for kind, result in sent.items()}

    def states() -> dict[str, str]:
        return {ids[each.event.headers["id"]]: each.state for each in client.iter_attempts() if each.event}

    wanted = {**dict.fromkeys(ENCODED, "succeeded"), **dict.fromkeys(NOT_ENCODED, "raised")}
    wait_until(lambda: states() == wanted, PATIENCE_SECONDS, lambda: f"{states()}\n{tail(worker.log)}")
    assert worker.terminate() == 0, tail(worker.log)


def foreign_messages(task_id: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Body and headers as a sender of another language may write them; an unreadable ``eta`` is refused there."""
    good: Any = [[], {}, {}]
    whole = {"lang": "go", "task": "odd.headers", "id": task_id, "root_id": task_id}
    yield good, {**whole, "task": "odd.unknown"}
    yield good, {**whole, "task": 5}
    yield good, {**whole, "task": None}
    yield good, {**whole, "id": 7}
    yield good, {**whole, "id": None}
    yield good, {**whole, "retries": "three"}
    yield good, {**whole, "timelimit": "soon"}
    yield good, {**whole, "expires": {"in": 5}}
    yield good, {**whole, "argsrepr": 5, "kwargsrepr": [], "origin": 5}
    yield good, {**whole, "headers": "text"}
    yield good, {**whole, "stamps": 5, "stamped_headers": 7}
    yield {}, whole
    yield "text", whole
    yield [[], {}], whole
    yield [5, [], None], whole
    yield {"task": "odd.headers", "id": 5, "args": 5}, {}
    yield good, {}


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_messages_of_foreign_senders(pool: str, app: Celery, broker: ServedBroker, start_worker: StartWorker) -> None:
    worker = start_worker("odd", pool=pool)
    with connected(broker.url) as connection:
        producer = connection.Producer()
        for number, (body, headers) in enumerate(foreign_messages(str(uuid.uuid4()))):
            producer.publish(
                body, routing_key="celery", headers=headers, serializer="json", correlation_id=number, reply_to=7
            )
            result = app.send_task("odd.result", ("large",))
            wait_until(lambda: worker.ended or result.ready(), PATIENCE_SECONDS, f"a task after {body}, {headers}")  # noqa: B023
            worker.check()
    assert worker.terminate() == 0, tail(worker.log)
