"""Locks for celery-singleton; tests/downstream has them with the package itself."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from celery.exceptions import ImproperlyConfigured

from kombu_opendata.broker import memory
from kombu_opendata.celery_integration.singleton import SingletonBackend
from kombu_opendata.errors import RequestError


@pytest.fixture
def url() -> Iterator[str]:
    name = f"singleton-{uuid.uuid4().hex}"
    yield f"opendata+memory://{name}"
    memory.stop(name)


@pytest.fixture
def locks(url: str) -> SingletonBackend:
    return SingletonBackend(url, connect_timeout=5)


def test_a_lock_is_that_of_the_first_task_until_it_is_released(url: str, locks: SingletonBackend) -> None:
    assert locks.get("a") is None
    assert locks.lock("a", "first")
    assert not locks.lock("a", "second")
    assert not locks.lock("a", "first"), "it is sent twice, not retried"
    assert SingletonBackend(url).get("a") == "first"
    locks.unlock("a")
    assert locks.lock("a", "second")


def test_locks_are_not_listed(locks: SingletonBackend) -> None:
    with pytest.raises(NotImplementedError, match="Set singleton_lock_expiry"):
        locks.clear("SINGLETONLOCK_")


def test_the_url_is_the_apps(monkeypatch: pytest.MonkeyPatch, url: str, locks: SingletonBackend) -> None:
    locks.lock("a", "first")
    monkeypatch.setenv("CELERY_BROKER_URL", url)
    assert SingletonBackend(None).get("a") == "first"


def test_what_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(ImproperlyConfigured, match="singleton_backend_url"):
        SingletonBackend("redis://127.0.0.1")
    with pytest.raises(ImproperlyConfigured, match="singleton_lock_expiry"):
        SingletonBackend(url).lock("a", "first", expiry=-1)
    with pytest.raises(RequestError, match="singleton_backend_kwargs: the option 'db' is unknown"):
        SingletonBackend(url, db=1)
