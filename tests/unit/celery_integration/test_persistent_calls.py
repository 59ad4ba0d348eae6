"""Calls of the result backend: which of them wait, and what becomes of those that can't wait any longer."""

from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest
from kombu.exceptions import OperationalError

from kombu_opendata.celery_integration.persistent_calls import PersistentCalls, ResultNotStored
from kombu_opendata.celery_integration.worker_shutdown import Stage, WorkerShutdown
from kombu_opendata.errors import AccessRefused, ConnectionLost, QueueFull, StoreFull

REQUEST = SimpleNamespace(id="task")


def calls_of(*, is_worker: bool = True) -> tuple[PersistentCalls, WorkerShutdown]:
    shutdown = WorkerShutdown()
    shutdown.is_worker = is_worker
    return PersistentCalls(shutdown, 10.0, has_alternatives=False), shutdown


class Refusing:
    """A call that raises these errors, one after the other, and then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.left = list(errors)

    def __call__(self, value: str) -> str:
        if self.left:
            raise self.left.pop(0)
        return value


@pytest.mark.parametrize("error", [ConnectionLost("gone"), StoreFull("full"), OperationalError("gone")])
def test_only_a_worker_waits(error: Exception) -> None:
    assert calls_of()[0].do_for(REQUEST, Refusing(error, error), "stored") == "stored"
    with pytest.raises(type(error)):
        calls_of(is_worker=False)[0].do_for(REQUEST, Refusing(error), "stored")
    with pytest.raises(type(error)):
        calls_of()[0].do_once(Refusing(error), "stored")


def test_what_can_not_be_stored_returns_to_the_queue() -> None:
    calls, shutdown = calls_of()
    shutdown.enter(Stage.COLD)
    with pytest.raises(ResultNotStored) as caught:
        calls.do_for(REQUEST, Refusing(ConnectionLost("gone")), "stored")
    assert caught.value.requeue
    assert pickle.loads(pickle.dumps(caught.value)).requeue, "it reaches the parent of a pool process"
    with pytest.raises(ConnectionLost):
        calls.do_for(None, Refusing(ConnectionLost("gone")), "stored")


@pytest.mark.parametrize("cause", [None, QueueFull("full")])
def test_a_refusal_for_good_and_a_full_queue_are_no_outage(cause: Exception | None) -> None:
    error: Exception = AccessRefused("no")
    if cause is not None:
        error = OperationalError("full")
        error.__cause__ = cause
    with pytest.raises(type(error)):
        calls_of()[0].do_for(REQUEST, Refusing(error), "stored")
