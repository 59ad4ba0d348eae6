"""The result backend's settings, and what it hands to Celery, on a broker in this process."""

from __future__ import annotations

import gc
import pickle
import threading
import uuid
import weakref
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, states
from celery.exceptions import ImproperlyConfigured

from kombu_opendata.broker import memory
from kombu_opendata.celery_integration.backend import OpenDataBackend, ResultTooLarge
from kombu_opendata.errors import ConnectionLost
from kombu_opendata.protocol.messages import StoreResult
from tests.support.celery_versions import from_celery_57


@pytest.fixture
def url() -> Iterator[str]:
    name = f"backend-{uuid.uuid4().hex}"
    yield f"opendata+memory://{name}"
    memory.stop(name)


def backend_of(url: str, **settings: Any) -> OpenDataBackend:
    app = Celery("test", broker=settings.pop("broker", url), backend=url, set_as_current=False)
    app.conf.update(settings)
    backend = app.backend
    assert isinstance(backend, OpenDataBackend)
    return backend


def request_of(task_id: str, redelivered: bool | None) -> Any:
    info = {} if redelivered is None else {"redelivered": redelivered}
    return SimpleNamespace(id=task_id, delivery_info=info, group=None, children=[])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("opendata:///var/lib/q", "opendata:///var/lib/q"),
        ("opendatas://me:secret@host/inst", "opendatas://me:**@host:5677/inst"),
        ("opendata+memory://name", "opendata+memory://name"),
        ("opendata://a;opendata://b", "opendata://a:5677/default;opendata://b:5677/default"),
    ],
)
def test_urls(url: str, shown: str) -> None:
    assert backend_of(url, broker="memory://").as_uri() == shown


@pytest.mark.parametrize(
    ("url", "settings", "text"),
    [
        ("opendata://~/q", {}, "the folder must be absolute"),
        ("opendata+s3://bucket/q", {}, "opendata-queue broker --store s3://bucket/q"),
        ("opendata", {"broker": "memory://"}, "write result_backend = 'opendata:///absolute/folder'"),
        ("opendata:///q", {"result_expires": -5}, "result_expires is -5 seconds"),
        ("opendata:///q", {"result_backend_transport_options": {"start_timeout": "soon"}}, "number of seconds"),
    ],
)
def test_what_can_not_be_used_is_said(url: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ImproperlyConfigured, match=text):
        backend_of(url, **settings)


def test_options_are_the_brokers_where_the_url_is() -> None:
    options = {"reconnect_timeout": 7, "resume_timeout": 90, "consumer_name": "mine", "other": 1}
    same = backend_of("opendata:///q", broker_transport_options=options, broker_use_ssl={"ca_certs": "x"})
    given = same.client._options
    assert (given.reconnect_timeout, given.resume_timeout, given.name) == (7.0, 90.0, "mine")
    assert same.client._options.tls == {"ca_certs": "x"}
    other = backend_of(
        "opendata:///q",
        broker="opendata:///other",
        broker_transport_options=options,
        result_backend_transport_options={"start_timeout": 3},
    )
    assert (other.client._options.reconnect_timeout, other.client._options.start_timeout) == (10.0, 3.0)


@pytest.mark.parametrize(
    ("expires", "ttl_ms"), [(None, 0), (0, 0), (1.5, 1500), (timedelta(hours=1), 3_600_000), (60, 60_000)]
)
def test_expiry(expires: Any, ttl_ms: int) -> None:
    assert backend_of("opendata:///q", result_expires=expires)._ttl_ms == ttl_ms


def test_success_is_kept_and_failure_is_not(url: str) -> None:
    backend = backend_of(url)
    for redelivered in (None, False, True):
        task_id = uuid.uuid4().hex
        request = request_of(task_id, redelivered)
        backend.store_result(task_id, ValueError("x"), states.FAILURE, request=request)
        assert backend.get_state(task_id) == states.FAILURE
        backend.store_result(task_id, 1, states.SUCCESS, request=request)
        backend.store_result(task_id, ValueError("late"), states.FAILURE, request=request)
        assert backend.get_task_meta(task_id, cache=False)["result"] == 1


def test_a_task_for_an_elected_worker(url: str) -> None:
    app = backend_of(url).app

    @app.task(name="elected")
    def task() -> None: ...

    assert app.AsyncResult(task.s().election().id).state == states.PENDING


def test_a_task_that_is_added_to_a_chord_by_two_requests_counts_once(url: str) -> None:
    backend = backend_of(url)
    backend.set_chord_size("group", 1)
    for _attempt in range(2):  # the second one after a lost connection
        backend.add_to_chord("group", backend.app.AsyncResult("added"))
    for index, (member, is_last) in enumerate([(b"header", False), (b"added", True)]):
        part = StoreResult(0, b"", 2, b"value", 0, chord=backend.get_key_for_group("group"), index=index, member=member)
        assert backend.client.store(part).complete == is_last


def test_a_failure_that_is_too_large_says_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = backend_of(url, result_extended=True)
    backend.client.get([b"x"])
    assert backend.client._connection.link.welcome is not None
    backend.client._connection.link.welcome.max_message_bytes = 20_000
    with pytest.raises(ResultTooLarge):
        backend.store_result("large", "x" * 20_000, states.SUCCESS)
    backend.store_result("failed", ValueError("x" * 20_000), states.FAILURE, traceback="y" * 50_000)
    meta = backend.get_task_meta("failed")
    assert isinstance(meta["result"], ResultTooLarge)
    assert meta["status"] == states.FAILURE


def test_what_is_safe_to_retry() -> None:
    backend = backend_of("opendata:///q")
    assert backend.exception_safe_to_retry(ConnectionLost("gone"))
    assert not backend.exception_safe_to_retry(ValueError())


def test_it_pickles() -> None:
    app = Celery("pickled", broker="opendata:///q", backend="opendata:///q", set_as_current=True)
    try:
        again = pickle.loads(pickle.dumps(app.backend))
        assert again.as_uri() == "opendata:///q"
    finally:
        app.close()


@pytest.mark.parametrize("serializer", ["json", "pickle", "msgspec"])
def test_serializers(url: str, serializer: str) -> None:
    backend = backend_of(url, result_serializer=serializer, result_accept_content=[serializer], accept_content=["json"])
    backend.store_result("task", {"a": [1, 2]}, states.SUCCESS)
    assert backend.get_result("task") == {"a": [1, 2]}


@from_celery_57
def test_compression(url: str) -> None:
    backend = backend_of(url, result_compression="gzip")
    backend.store_result("task", "x" * 10_000, states.SUCCESS)
    assert len(backend.get(backend.get_key_for_task("task")) or b"") < 1000
    assert backend.get_result("task") == "x" * 10_000


def test_who_waits_is_woken_at_once_by_the_one_who_reads(url: str) -> None:
    """Each of many threads on one backend gets its result long before a turn of Celery's loop is over."""
    backend = backend_of(url)
    app = backend.app
    waiting = [app.AsyncResult(f"task {number}", backend=backend) for number in range(8)]
    got: list[int] = []
    threads = [threading.Thread(target=lambda r=r: got.append(r.get(timeout=60))) for r in waiting]
    for thread in threads:
        thread.start()
    for number in range(8):
        backend.store_result(f"task {number}", number, states.SUCCESS)
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(8))


def test_a_backend_that_nobody_has_closes_its_socket(url: str) -> None:
    backend = backend_of(url)
    backend.get(b"x")
    connection = weakref.ref(backend.client._connection)
    del backend
    gc.collect()
    found = connection()
    assert found is None or found.closed
