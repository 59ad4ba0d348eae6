"""What a worker's processes know of its shutdown."""

from __future__ import annotations

import os
import pickle
from types import SimpleNamespace

import pytest
from kombu.exceptions import OperationalError

from kombu_opendata.celery_integration.worker_shutdown import PersistentCalls, ResultNotStored, Stage, WorkerShutdown
from kombu_opendata.errors import AccessRefused, ConnectionLost, QueueFull, StoreFull


def test_what_a_task_has_done_waits_until_the_worker_ends() -> None:
    now = 0.0
    shutdown = WorkerShutdown(lambda: now)
    now = 1e6
    assert shutdown.allows_waiting(10)
    shutdown.enter(Stage.WARM)
    assert shutdown.allows_waiting(10)
    now += 9
    assert shutdown.allows_waiting(10)
    now += 2
    assert not shutdown.allows_waiting(10)
    shutdown.enter(Stage.RUNS)
    assert shutdown.allows_waiting(10), "another worker of this process"
    shutdown.enter(Stage.COLD)
    assert not shutdown.allows_waiting(10)


@pytest.mark.parametrize("stage", Stage)
def test_a_pool_process_sees_the_workers_stage(stage: Stage) -> None:
    shutdown = WorkerShutdown(lambda: 0.0)
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write_fd)
        os.read(read_fd, 1)  # until the parent has entered the stage
        os._exit(shutdown.allows_waiting(10))
    os.close(read_fd)
    shutdown.enter(stage)
    os.close(write_fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (stage != Stage.COLD)


def test_a_pool_process_whose_worker_is_gone_does_not_wait() -> None:
    shutdown = WorkerShutdown(lambda: 0.0)
    read_fd, write_fd = os.pipe()
    worker = os.fork()
    if worker == 0:
        shutdown = WorkerShutdown(lambda: 0.0)
        own = os.getpid()
        if os.fork() == 0:
            while os.getppid() == own:
                os.sched_yield()
            os.write(write_fd, b"waits" if shutdown.allows_waiting(10) else b"ends")
        os._exit(0)
    os.close(write_fd)
    os.waitpid(worker, 0)
    assert os.read(read_fd, 10) == b"ends"
    os.close(read_fd)


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
